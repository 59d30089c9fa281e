"""What measuring costs: queries a second with nothing to measure, and what it adds to a prediction of 3 ms.

The bare loop and the platform take turns in one process. Limit: a median latency of 1.01 times the bare loop's.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import print_rows
from predictors.scenarios import Measured, PredictorThread, run_scenario
from schemas.scenario import Scenario, Seeds

QUERIES = 200
ROUNDS = 7


def busy(nanoseconds: int) -> Callable[[int], None]:
    clock = time.perf_counter_ns

    def predict(_batch: int) -> None:
        end = clock() + nanoseconds
        while clock() < end:
            pass

    return predict


def nothing(_batch: int) -> None:
    """Predict nothing."""


def platform(
    predict: Callable[[int], None], queries: int, log_dir: Path, thread: PredictorThread | None = None
) -> Measured:
    scenario = Scenario(min_duration_s=0, min_query_count=queries, warmup_query_count=2)
    return run_scenario(scenario, predict, [1] * 16, Seeds(), log_dir=log_dir, cancelled=lambda: False, thread=thread)


def bare(predict: Callable[[int], None], queries: int) -> tuple[list[int], float]:
    """Return durations and seconds of the loop that anybody would write."""
    durations = []
    start = time.perf_counter_ns()
    for query in range(queries):
        before = time.perf_counter_ns()
        predict(query % 16)
        durations.append(time.perf_counter_ns() - before)
    return durations, (time.perf_counter_ns() - start) / 1e9


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        log_dir = Path(directory)
        print_rows(null_rates(log_dir))
        print_rows(overhead(log_dir))
        print_rows(smallest_run(log_dir))


def null_rates(log_dir: Path) -> list[dict[str, object]]:
    """Count the queries a second with a system under test that does nothing."""
    measured = platform(nothing, 100_000, log_dir)
    _, seconds = bare(nothing, 100_000)
    return [
        {"null predictor": "single stream", "queries/s": f"{len(measured.durations_ns) / measured.window_s:,.0f}"},
        {"null predictor": "bare loop", "queries/s": f"{100_000 / seconds:,.0f}"},
    ]


def overhead(log_dir: Path) -> list[dict[str, object]]:
    """Compare a prediction of 3 ms inside the platform: ratios to the bare loop, the median of all rounds."""
    latencies, intervals = [], []
    predict = busy(3_000_000)
    for _ in range(ROUNDS):
        durations, seconds = bare(predict, QUERIES)
        measured = platform(predict, QUERIES, log_dir)
        latencies.append(statistics.median(measured.durations_ns.tolist()) / statistics.median(durations))
        intervals.append(measured.window_s / seconds)
    return [
        {"3 ms predictor, over a bare loop": "median latency", "ratio": f"{statistics.median(latencies):.5f}"},
        {"3 ms predictor, over a bare loop": "time per query", "ratio": f"{statistics.median(intervals):.5f}"},
    ]


def smallest_run(log_dir: Path) -> list[dict[str, object]]:
    """Time the shortest measurement, from call to result."""
    taken = []
    thread = PredictorThread()
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        measured = platform(nothing, 8, log_dir, thread)
        taken.append((time.perf_counter_ns() - start) / 1e6)
        measured.finish()
    return [{"ten null queries": "call to result", "p50 ms": f"{statistics.median(taken):.2f}"}]


if __name__ == "__main__":
    main()
