"""Measuring through the real load generator."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from predictors.errors import CancelledError
from predictors.scenarios import Measured, PredictorThread, run_scenario
from schemas.scenario import Scenario, Seeds

MS = 1_000_000


def busy(nanoseconds: int) -> Callable[[int], None]:
    """A predictor that computes for a known time."""

    def predict(_batch: int) -> None:
        end = time.perf_counter_ns() + nanoseconds
        while time.perf_counter_ns() < end:
            pass

    return predict


def measure(
    scenario: Scenario,
    predict: Callable[[int], None],
    log_dir: Path,
    batch_items: tuple[int, ...] = (1,) * 10,
    seeds: Seeds = Seeds(),
    cancelled: Callable[[], bool] = lambda: False,
    thread: PredictorThread | None = None,
) -> Measured:
    return run_scenario(scenario, predict, batch_items, seeds, log_dir=log_dir, cancelled=cancelled, thread=thread)


@pytest.fixture(params=["caller's thread", "predictor's thread"])
def thread(request: pytest.FixtureRequest) -> Iterator[PredictorThread | None]:
    """Both places where a predictor may live."""
    if request.param == "caller's thread":
        yield None
        return
    own = PredictorThread()
    yield own
    own.close()
    own.close()


def counted(count: int, *, warmup: int = 0, name: str = "single_stream") -> Scenario:
    return Scenario.model_validate(
        {"name": name, "min_duration_s": 0, "min_query_count": count, "warmup_query_count": warmup}
    )


def test_latency_is_that_of_the_predictor(tmp_path: Path, thread: PredictorThread | None) -> None:
    """A predictor of 3 ms has a median of 3 ms, and the columns say when each query ran, one after another."""
    measured = measure(counted(70, warmup=5), busy(3 * MS), tmp_path, thread=thread)
    latency = measured.latency(seed=1)
    assert latency.query_count == 70
    assert latency.median.value is not None
    assert 3.0 <= latency.median.value < 4.5
    assert latency.p90 is not None
    assert latency.p95 is None
    assert measured.query_index.tolist() == list(range(75))
    assert measured.issued_ns[0] == 0
    assert (measured.scheduled_ns == measured.issued_ns).all()
    assert (measured.completed_ns - measured.issued_ns >= 3 * MS).all()
    assert (measured.issued_ns[1:] >= measured.completed_ns[:-1]).all()
    throughput = measured.throughput()
    assert throughput is not None
    assert throughput.items == 70
    assert throughput.value == pytest.approx(70 / measured.window_s)


def test_the_load_generator_says_the_same(tmp_path: Path) -> None:
    """Its early-stopping estimate, of the same queries by its own clock, is ours plus its way to the predictor."""
    measured = measure(counted(300), busy(1 * MS), tmp_path)
    verdict = measured.finish(30)
    ours = measured.latency(seed=1).p90
    assert ours is not None
    assert verdict.early_stopping_ns is not None
    # Its clock runs around ours, so no figure of its can be lower; how much higher depends on who else runs.
    assert ours * 1e6 <= verdict.early_stopping_ns < ours * 1e6 * 1.5
    assert verdict.comparable
    assert verdict.valid
    assert measured.load_generator.startswith("mlcommons-loadgen ")


def test_warm_up_is_flagged_and_left_out(tmp_path: Path) -> None:
    """The first queries are slow: they are in the columns, marked, and in no figure."""
    calls = 0

    def predict(batch: int) -> None:
        nonlocal calls
        calls += 1
        busy(5 * MS if calls <= first + 4 else 100_000)(batch)

    first = 4  # 20 ms are the budget of the estimate that comes before the load
    measured = measure(counted(30, warmup=4), predict, tmp_path)
    assert measured.warmup.tolist() == [True] * 4 + [False] * 30
    assert measured.durations_ns.tolist() == (measured.completed_ns - measured.issued_ns)[4:].tolist()
    assert (measured.completed_ns - measured.issued_ns)[:4].min() >= 5 * MS
    assert np.median(measured.durations_ns) < 5 * MS
    assert (measured.settings["warmup_done"], measured.settings["measured_query_count"]) == (4, 30)


@pytest.mark.parametrize("name", ["single_stream", "offline"])
def test_order_is_that_of_the_seed(name: str, tmp_path: Path) -> None:
    """The same seed draws the same batches in the same order, another seed others; every batch is drawn."""
    scenario = counted(200, name=name)

    def order(seeds: Seeds) -> list[int]:
        return [int(batch) for batch in measure(scenario, lambda _: None, tmp_path, (1,) * 16, seeds).batch_index]

    assert order(Seeds(order=5)) == order(Seeds(order=5, schedule=9))
    assert order(Seeds(order=5)) != order(Seeds(order=6))
    assert set(order(Seeds(order=-1))) == set(range(16))


def test_offline_counts_items_in_full_batches(tmp_path: Path) -> None:
    """100 samples at batch 8 are 13 full batches; the short last batch of the data set is not measured."""
    measured = measure(counted(100, warmup=2, name="offline"), busy(100_000), tmp_path, (8, 8, 8, 5))
    assert measured.items.tolist() == [8] * 15
    assert set(measured.batch_index.tolist()) <= {0, 1, 2}
    throughput = measured.throughput()
    assert throughput is not None
    assert throughput.items == 104
    assert throughput.value == pytest.approx(104 / measured.window_s)
    assert (measured.settings["short_batches_left_out"], measured.settings["batch_size"]) == (1, 8)
    assert (measured.validity.valid, measured.validity.reasons) == (True, ())


@pytest.mark.parametrize("name", ["single_stream", "offline"])
def test_longest_duration_ends_the_measurement(name: str, tmp_path: Path) -> None:
    """With fewer queries than asked for it is still valid, and says so."""
    calls = 0

    def predict(batch: int) -> None:
        nonlocal calls
        calls += 1
        busy(2 * MS)(batch)

    scenario = counted(5000, warmup=3, name=name).model_copy(update={"max_duration_s": 0.1})
    measured = measure(scenario, predict, tmp_path)
    assert 0.1 <= measured.window_s < 1.0
    assert len(measured.durations_ns) <= 51
    assert measured.settings["ended"] == "max_duration"
    assert measured.validity.valid
    assert "max_duration_s was reached" in measured.validity.reasons[0]
    measured.finish(30)
    assert calls <= len(measured.items) + 5  # those of the estimate; none after the end


@pytest.mark.parametrize("name", ["single_stream", "offline"])
def test_least_duration_holds_the_measurement(name: str, tmp_path: Path) -> None:
    """It goes on after the queries asked for, until the measured window is long enough."""
    scenario = counted(5, warmup=3, name=name).model_copy(update={"min_duration_s": 0.15})
    measured = measure(scenario, busy(MS), tmp_path)
    assert measured.window_s >= 0.15
    assert len(measured.durations_ns) > 5
    assert measured.settings["ended"] == "completed"


@pytest.mark.parametrize("name", ["single_stream", "offline"])
@pytest.mark.parametrize("failing", [1, 2, 40])
def test_a_failing_prediction_is_raised(
    name: str, failing: int, tmp_path: Path, thread: PredictorThread | None
) -> None:
    """The predictor's own exception comes out, no further prediction is made, and the next run is as ever."""
    calls = 0
    problem = RuntimeError("the framework has failed")

    def predict(_batch: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise problem

    with pytest.raises(RuntimeError) as caught:
        measure(counted(1000, name=name), predict, tmp_path, thread=thread)
    assert caught.value is problem
    again = measure(counted(10, name=name), lambda _: None, tmp_path, thread=thread)
    assert calls == failing
    assert len(again.items) == 10
    assert gc.isenabled()


def test_cancellation_ends_within_one_query(tmp_path: Path, thread: PredictorThread | None) -> None:
    """Nothing is predicted after the query in which it came."""
    calls = 0

    def predict(_batch: int) -> None:
        nonlocal calls
        calls += 1

    with pytest.raises(CancelledError):
        measure(counted(100_000), predict, tmp_path, cancelled=lambda: calls >= 50, thread=thread)
    measure(counted(1), lambda _: None, tmp_path, thread=thread)
    assert calls == 50


def test_what_cancelled_raises_is_raised(tmp_path: Path) -> None:
    """A lost connection to the agent, say, ends the measurement too."""
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        if asked > 20:
            raise ConnectionError("the agent is gone")
        return False

    with pytest.raises(ConnectionError, match="the agent is gone"):
        measure(counted(1000), lambda _: None, tmp_path, cancelled=cancelled)


def test_collection_is_off_while_measured_and_on_afterwards(tmp_path: Path) -> None:
    """No pause of the collector is in a latency, and the settings say so."""
    seen = []
    measured = measure(counted(5), lambda _: seen.append(gc.isenabled()), tmp_path)
    assert not any(seen)
    assert gc.isenabled()
    assert measured.settings["garbage_collection"] == "off while measured"


def test_settings_are_the_whole_of_it(tmp_path: Path) -> None:
    """What was asked, what came of it, and by what: enough to do it again."""
    scenario = counted(20, warmup=2)
    settings = measure(scenario, lambda _: None, tmp_path, seeds=Seeds(order=7, schedule=8)).settings
    assert scenario.model_dump().items() <= settings.items()
    assert (settings["seed_order"], settings["seed_schedule"]) == (7, 8)
    assert (settings["ended"], settings["planned_query_count"]) == ("completed", 22)
    assert settings["clock"] == "perf_counter_ns"


def test_logs_are_gone_when_it_has_finished(tmp_path: Path) -> None:
    """The load generator's files are read and removed."""
    measured = measure(counted(10), lambda _: None, tmp_path)
    assert "Early Stopping Result" in measured.finish(30).text
    assert list(tmp_path.iterdir()) == []


def test_a_predictor_is_measured_on_its_own_thread(tmp_path: Path, thread: PredictorThread | None) -> None:
    """Every call comes on one thread: the caller's or the one given, because frameworks keep settings by thread."""
    opened_on = threading.get_ident() if thread is None else thread.call(threading.get_ident)
    seen = set()
    measure(counted(20, warmup=2), lambda _: seen.add(threading.get_ident()), tmp_path, thread=thread)
    assert seen == {opened_on}


def test_results_are_there_before_the_logs_are_closed(tmp_path: Path) -> None:
    """With a predictor's thread the caller has its figures while the load generator is still at work."""
    thread = PredictorThread()
    measured = measure(counted(5), lambda _: None, tmp_path, thread=thread)
    assert len(measured.durations_ns) == 5
    assert not measured.verdict.done()
    assert measured.finish(30).comparable
    thread.close()


def test_what_cannot_be_measured_is_refused(tmp_path: Path, thread: PredictorThread | None) -> None:
    """Accuracy has no load, nothing has no latency, and logs need a directory."""
    with pytest.raises(ValueError, match="no load"):
        measure(Scenario(name="accuracy"), lambda _: None, tmp_path)
    with pytest.raises(ValueError, match="nothing to measure"):
        measure(counted(1), lambda _: None, tmp_path, batch_items=())
    with pytest.raises(FileNotFoundError):
        measure(counted(1), lambda _: None, tmp_path / "missing", thread=thread)


def test_a_process_may_end_right_after_a_measurement(tmp_path: Path) -> None:
    """Without waiting for the load generator's logs; it ends in order, not by an abort."""
    script = """
import sys
from pathlib import Path
from predictors.scenarios import PredictorThread, run_scenario
from schemas.scenario import Scenario, Seeds
run_scenario(
    Scenario(min_duration_s=0, min_query_count=5), lambda i: None, [1], Seeds(),
    log_dir=Path(sys.argv[1]), cancelled=lambda: False, thread=PredictorThread(),
)
print("measured")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "measured\n", "")
