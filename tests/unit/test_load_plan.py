"""How many queries the load generator is asked for."""

import pytest

from predictors.scenarios.loadgen import read_verdict
from predictors.scenarios.plan import QUERY_SET_MAX, plan_load
from schemas.scenario import Scenario

MS = 1_000_000


def test_minimum_count_is_of_measured_queries() -> None:
    """Warm-up comes on top of the queries asked for, and of the durations, also when it is slower than foreseen."""
    scenario = Scenario(min_query_count=100, warmup_query_count=10, min_duration_s=1, max_duration_s=5)
    plan = plan_load(scenario, [4, 4, 4], [20 * MS, 10 * MS])
    assert (plan.count, plan.asked, plan.warmup) == (110, 100, 10)
    foreseen_ms = 10 * 20
    assert plan.min_duration_ms > 1000 + 2 * foreseen_ms
    assert plan.max_duration_ms > 5000 + 2 * foreseen_ms


def test_a_short_batch_is_left_out() -> None:
    """Its latency would be that of another batch size."""
    plan = plan_load(Scenario(), [8, 8, 3], [MS])
    assert (plan.drawn, plan.left_out, plan.batch_size) == ((0, 1), 1, 8)
    assert plan_load(Scenario(), [3], [MS]).drawn == (0,)


@pytest.mark.parametrize("predicted_ns", [1, 1_000, MS, 100 * MS])
def test_query_set_outlasts_the_least_duration(predicted_ns: int) -> None:
    """The load generator draws for twice the least duration: four times faster than expected, it still has queries."""
    plan = plan_load(Scenario(min_duration_s=2, min_query_count=1), [1], [predicted_ns])
    generated = 2 * plan.min_duration_ms * MS / plan.expected_ns
    assert generated <= QUERY_SET_MAX
    assert generated >= min(4 * 2e9 / (predicted_ns + 2_000), QUERY_SET_MAX * 0.8)


def test_query_set_is_bounded_whatever_is_asked() -> None:
    """A hundred million queries are not drawn beforehand, in either scenario."""
    for name in ("single_stream", "offline"):
        scenario = Scenario(name=name, min_query_count=100_000_000, max_duration_s=80_000)
        assert plan_load(scenario, [1], [1]).count == QUERY_SET_MAX


def test_offline_asks_for_samples_in_batches() -> None:
    """A thousand samples are 125 batches of 8; a least duration asks for a tenth more than fill it."""
    scenario = Scenario(name="offline", min_query_count=1000, warmup_query_count=0, min_duration_s=0)
    assert plan_load(scenario, [8] * 3, [MS]).count == 125
    filling = scenario.model_copy(update={"min_duration_s": 1.0})
    assert plan_load(filling, [8] * 3, [MS]).count == 1100
    endless = scenario.model_copy(update={"max_duration_s": 0.01})
    assert plan_load(endless, [8] * 3, [MS]).count == 40


def test_verdict_is_read_from_the_summary() -> None:
    """The text that LoadGen 6 writes."""
    text = """Scenario : SingleStream
Result is : INVALID
  Min duration satisfied : NO
 * Early stopping 90.0th percentile estimate: 1656
90.00 percentile latency (ns)   : 1289
"""
    verdict = read_verdict(text)
    assert (verdict.valid, verdict.early_stopping_ns, verdict.comparable) == (False, 1656, True)
    assert verdict.values["90.00 percentile latency (ns)"] == "1289"
    assert not read_verdict(text, drained=3).comparable
