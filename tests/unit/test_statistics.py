"""Statistics: no number that its samples do not support, and every interval what it says it is."""

import math
import statistics as reference

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.statistics import (
    bootstrap_median,
    early_stopping_percentile,
    latency_summary,
    over_latency_allowed,
    sample_floor,
    throughput,
    trimmed_mean,
    wilson,
)

FLOORS = {0.5: 11, 0.9: 64, 0.95: 130, 0.97: 219, 0.99: 662, 0.999: 6636}
finite = st.floats(-1e9, 1e9)


def at_most(t: int, n: int, p: float) -> float:
    return sum(math.comb(n, k) * (1 - p) ** k * p ** (n - k) for k in range(t + 1))


@pytest.mark.parametrize(("p", "floor"), FLOORS.items())
def test_floor_follows_from_the_formula(p: float, floor: int) -> None:
    """The fewest samples of each percentile are MLPerf's: below there is no estimate, from there on there is one."""
    assert sample_floor(p) == floor
    assert early_stopping_percentile(range(floor - 1), p) is None
    assert early_stopping_percentile(range(floor), p) == floor - 1


def test_no_samples_have_no_percentile() -> None:
    """An empty run gives nothing, not an error and not a zero."""
    assert early_stopping_percentile([], 0.5) is None


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [2, 12, 64, 100, 311])
def test_allowed_over_latency_is_the_definition(n: int, p: float) -> None:
    """t is the largest i for which n >= h(i) + i, with h searched for by its definition."""
    expected, h = 0, 1
    while True:
        while at_most(expected + 1, h + expected + 1, p) >= 1 - 0.99:
            h += 1  # h(t) never falls, so the search goes on from the last
        if n < h + expected + 1:
            break
        expected += 1
    assert over_latency_allowed(n, p) == expected


def test_percentile_is_the_nth_from_the_top() -> None:
    """LoadGen's own figure: of 100 queries two would be discarded at the 90th percentile."""
    values = list(range(100))
    assert over_latency_allowed(100, 0.9) == 3
    assert early_stopping_percentile(values[::-1], 0.9) == 97


def test_a_million_samples_are_summed_exactly() -> None:
    """At a million samples t is where the binomial crosses 1 %: 2.3264 standard deviations below the mean."""
    for p in FLOORS:
        t = over_latency_allowed(1_000_000, p)
        normal = 1e6 * (1 - p) - 2.3264 * math.sqrt(1e6 * p * (1 - p))
        assert abs(t - normal) < 3


def test_estimate_is_above_the_true_percentile_as_often_as_promised() -> None:
    """In 99 of 100 runs the estimate is not below the true percentile (here within sampling error of 400 runs)."""
    generator = np.random.default_rng(7)
    runs = generator.random((400, 300))
    below = sum(value is not None and value < 0.9 for value in (early_stopping_percentile(run, 0.9) for run in runs))
    assert below <= 12


@pytest.mark.parametrize("p", [0.0, 1.0, -1.0, 99.0])
def test_quantile_outside_the_unit_interval_is_refused(p: float) -> None:
    """A percentile written as 99 instead of 0.99 is an error."""
    with pytest.raises(ValueError, match="not a quantile"):
        early_stopping_percentile([1.0] * 100, p)


def test_trimmed_mean_drops_the_same_at_both_ends_for_small_n() -> None:
    """Dropping only the maximum, as the original did, would give 2.5 for the first."""
    assert trimmed_mean([1, 2, 3, 4, 100]) == pytest.approx(3.0)
    assert trimmed_mean([-100, 2, 3, 4, 5]) == pytest.approx(3.0)
    assert trimmed_mean([1, 2, 3]) == pytest.approx(2.0)
    assert trimmed_mean([7]) == 7
    assert trimmed_mean([]) is None
    # Of three, 0.6 of each outer value is cut: (0.4 * 1 + 2 + 0.4 * 100) / 1.8.
    assert trimmed_mean([1, 2, 100]) == pytest.approx(42.4 / 1.8)


def test_trimmed_mean_of_whole_fifths_is_the_mean_of_the_middle() -> None:
    """Where n is a multiple of five it is the plain mean of the middle three fifths."""
    values = np.random.default_rng(1).exponential(size=100)
    assert trimmed_mean(values) == pytest.approx(float(np.sort(values)[20:80].mean()))


@given(st.lists(finite, min_size=1, max_size=60))
def test_trimmed_mean_is_symmetric(values: list[float]) -> None:
    """Mirrored values have the mirrored trimmed mean, and it lies within the values."""
    mean = trimmed_mean(values)
    mirrored = trimmed_mean([-value for value in values])
    assert mean is not None
    assert mirrored is not None
    assert mean == pytest.approx(-mirrored, abs=1e-5)
    assert min(values) - 1e-5 <= mean <= max(values) + 1e-5


def test_half_cannot_be_trimmed_at_both_ends() -> None:
    """Nothing would be left."""
    with pytest.raises(ValueError, match="cannot be trimmed"):
        trimmed_mean([1, 2], 0.5)


def test_wilson_is_the_published_interval() -> None:
    """Newcombe (1998), table I: 81 of 263 and 15 of 148; and it stays within 0 and 1 at the ends."""
    first, second = wilson(81, 263), wilson(15, 148)
    assert (first.low, first.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert (second.low, second.high) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    none, every = wilson(0, 20), wilson(20, 20)
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert (none.high, every.low) == pytest.approx((0.1611, 0.8389), abs=5e-5)
    assert first.method == "wilson"


def test_wilson_of_nothing_is_null() -> None:
    """No item asked for: no accuracy. More right than asked for: an error."""
    assert wilson(0, 0).value is None
    with pytest.raises(ValueError, match="successes"):
        wilson(3, 2)


@pytest.mark.parametrize("n", [25, 60])
def test_bootstrap_is_that_of_resampling(n: int) -> None:
    """Drawing the middle ranks gives the interval that resampling n values 20,000 times gives."""
    generator = np.random.default_rng(3)
    values = generator.normal(100, 10, n)
    resampled = np.median(generator.choice(values, (20_000, n)), axis=1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    found = bootstrap_median(values, seed=5)
    assert found.value == pytest.approx(reference.median(values.tolist()))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.7)


def test_bootstrap_covers_the_median() -> None:
    """Of 300 samples of a skewed distribution, about 95 % have its median in their interval."""
    generator = np.random.default_rng(11)
    covered = 0
    for seed in range(300):
        found = bootstrap_median(generator.exponential(size=101), seed=seed)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= math.log(2) <= found.high
    assert 0.91 <= covered / 300 <= 0.99


def test_bootstrap_is_seeded() -> None:
    """The same seed gives the same interval, another seed another."""
    values = np.random.default_rng(2).exponential(size=500)
    assert bootstrap_median(values, seed=1) == bootstrap_median(values, seed=1)
    assert bootstrap_median(values, seed=1) != bootstrap_median(values, seed=2)


def test_too_few_values_have_no_interval() -> None:
    """Five values cannot enclose a median at 95 %; none have no median."""
    few = bootstrap_median([1, 2, 3, 4, 50], seed=1)
    assert (few.value, few.low, few.high) == (3.0, None, None)
    assert bootstrap_median([], seed=1).value is None


def test_latency_is_in_milliseconds_with_nulls_below_the_floors() -> None:
    """A hundred queries have a p90 and no p95, whatever else."""
    summary = latency_summary([k * 1_000_000 for k in range(1, 101)], seed=1)
    assert (summary.query_count, summary.min, summary.max) == (100, 1.0, 100.0)
    assert summary.mean == pytest.approx(50.5)
    assert summary.trimmed_mean == pytest.approx(50.5)
    assert summary.median.value == pytest.approx(50.5)
    assert summary.p90 == 98.0
    assert (summary.p95, summary.p97, summary.p99, summary.p99_9) == (None, None, None, None)
    assert summary.unit == "ms"


def test_latency_of_nothing_is_null() -> None:
    """A run without a measured query has no figures."""
    summary = latency_summary([], seed=1)
    assert (summary.query_count, summary.mean, summary.min, summary.median.value) == (0, None, None, None)


def test_percentiles_rise() -> None:
    """Each higher percentile is at least the lower one."""
    summary = latency_summary(np.random.default_rng(4).exponential(3e6, 20_000), seed=1)
    found = [summary.p50, summary.p90, summary.p95, summary.p97, summary.p99, summary.p99_9]
    values = [value for value in found if value is not None]
    assert len(values) == 6
    assert values == sorted(values)


def test_throughput_interval_counts_runs_of_neighbours() -> None:
    """Slow drift makes neighbours alike: the interval must be wider than if queries were independent."""
    generator = np.random.default_rng(6)
    drift = np.repeat(generator.uniform(0.5, 1.5, 20), 50)
    steady, drifting = generator.permutation(drift), drift
    widths = []
    for seconds in (steady, drifting):
        ends = np.cumsum(seconds)
        found = throughput(8 * 1000, float(ends[-1]), query_items=[8] * 1000, ends_s=ends)
        assert found.value == pytest.approx(8000 / ends[-1])
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    assert widths[1] > 3 * widths[0]


def test_throughput_of_few_queries_has_no_interval() -> None:
    """Twenty runs of five are the least; a window must have a length."""
    few = throughput(99, 10.0, query_items=[1] * 99, ends_s=np.linspace(0.1, 10, 99))
    assert (few.value, few.low, few.high, few.items, few.window_s) == (9.9, None, None, 99, 10.0)
    with pytest.raises(ValueError, match="window"):
        throughput(1, 0.0)


def test_even_pace_has_a_narrow_interval_around_the_value() -> None:
    """With every query alike the interval is the value, also where runs do not divide the queries evenly."""
    found = throughput(111, 11.1, query_items=[1] * 111, ends_s=np.arange(1, 112) / 10)
    assert found.value == pytest.approx(10.0)
    assert (found.low, found.high) == pytest.approx((10.0, 10.0))
