"""The statistics of measurement: percentiles with a floor, intervals, trimmed means. Pure functions on numpy.

Nothing here returns a number that its samples do not support: too few of them give None.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.result import Estimate, Latency, Throughput

Values = Sequence[float] | Sequence[int] | npt.NDArray[Any]

RESAMPLES = 4000
"""Bootstrap resamples: the error they add to a 95 % bound is far below the width of its interval."""
MIN_BOOTSTRAP = 6
"""No two order statistics of fewer than six values enclose the median with a chance of 95 %: 1 - 2/2^n."""
BATCH_MEANS = 20
MIN_BATCH_QUERIES = 5
STUDENT_19 = 2.0930240544
"""97.5 % quantile of Student's t with BATCH_MEANS - 1 degrees of freedom."""
NS_PER_MS = 1e6


def wilson(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """Return the fraction `successes / n` with its Wilson score interval (Wilson 1927).

    `n` 0 gives a value of None. Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Estimate(value=None, confidence=confidence, method="wilson")
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    fraction = successes / n
    centre = (fraction + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (fraction * (1 - fraction) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # At 0 and n the bound is exactly 0 or 1; rounding would put it a hair beyond.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Estimate(value=fraction, low=low, high=high, confidence=confidence, method="wilson")


def bootstrap_median(values: Values, *, seed: int, confidence: float = 0.95) -> Estimate:
    """Return the sample median with its percentile-bootstrap interval (Efron 1979).

    The median of a resample of n values is an order statistic of n uniform ranks, and those are Beta
    distributed; so the middle ranks are drawn instead of n values. That is the bootstrap's own
    distribution, not an approximation, at a cost that does not grow with n. The same seed gives the same
    interval. No values give a value of None, fewer than MIN_BOOTSTRAP no interval.
    """
    return _bootstrap_median(_sorted(values), seed, confidence)


def trimmed_mean(values: Values, fraction: float = 0.2) -> float | None:
    """Return the mean without the lowest and the highest `fraction` of the values.

    Exactly that share goes at both ends for any n: where `fraction * n` is not whole, the value at the edge
    counts by the part of it that is left, as in the mean of the quantile function between `fraction` and
    1 - `fraction`. One value is its own trimmed mean; no value gives None. Raises ValueError for a fraction
    outside [0, 0.5).
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"a fraction of {fraction} cannot be trimmed at both ends")
    ordered = _sorted(values)
    return _trimmed_mean(ordered, fraction) if len(ordered) else None


def early_stopping_percentile(values: Values, p: float, confidence: float = 0.99) -> float | None:
    """Return MLPerf's early-stopping estimate of the `p` quantile (0 < p < 1), None below its sample floor.

    With h(t) the smallest h for which P(at most t over-latency among h + t, each with chance 1 - p) is under
    1 - confidence, it is `sorted(values)[n - t]` for t = max{i >= 1: n >= h(i) + i} (MLPerf Inference Rules,
    appendix "Early stopping criterion"; `loadgen/early_stopping.cc`).
    """
    return _early_stopping(_sorted(values), p, confidence)


@lru_cache(maxsize=256)
def sample_floor(p: float, confidence: float = 0.99) -> int:
    """Return the fewest samples that give an early-stopping estimate of the `p` quantile: h(1) + 1."""
    _check_quantile(p)
    low, high = 1, 2
    while _at_most(1, high, p) >= 1 - confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _at_most(1, middle, p) < 1 - confidence else (middle, high)
    return high


@lru_cache(maxsize=1024)
def over_latency_allowed(n: int, p: float, confidence: float = 0.99) -> int:
    """Return t = max{i >= 1: n >= h(i) + i}, or 0 when there is none.

    As the chance of at most i over-latency falls with every further sample, n >= h(i) + i is the same as
    P(at most i among n) < 1 - confidence: one cumulative sum of a binomial gives t.
    """
    _check_quantile(p)
    if n < 2:
        return 0
    mean, deviation = n * (1 - p), math.sqrt(n * p * (1 - p))
    first = max(0, math.floor(mean - 40 * deviation))  # what lies below weighs less than 1e-300
    last = min(n, math.ceil(mean + 40 * deviation))
    k = np.arange(first, last + 1, dtype=np.float64)
    start = _log_binomial(first, n, p)
    steps = np.log((n - k[:-1]) / (k[:-1] + 1)) + (math.log1p(-p) - math.log(p))
    chances = np.cumsum(np.exp(start + np.concatenate(([0.0], np.cumsum(steps)))))
    allowed = int(np.searchsorted(chances, 1 - confidence, side="left"))
    return max(0, first + allowed - 1)


def latency_summary(values_ns: Values, *, seed: int) -> Latency:
    """Return what a list of durations in nanoseconds comes to, in milliseconds.

    Each percentile is an early-stopping estimate, None below its floor. `seed` is the bootstrap's.
    """
    ordered = _sorted(values_ns) / NS_PER_MS
    n = len(ordered)
    percentiles = {
        name: _early_stopping(ordered, p, 0.99)
        for name, p in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p97", 0.97), ("p99", 0.99), ("p99_9", 0.999))
    }
    return Latency(
        query_count=n,
        mean=float(ordered.mean()) if n else None,
        trimmed_mean=_trimmed_mean(ordered, 0.2) if n else None,
        min=float(ordered[0]) if n else None,
        max=float(ordered[-1]) if n else None,
        median=_bootstrap_median(ordered, seed, 0.95),
        **percentiles,
    )


def throughput(items: int, window_s: float, *, query_items: Values = (), ends_s: Values = ()) -> Throughput:
    """Return `items / window_s` with a 95 % interval by batch means, where there are queries enough for one.

    `query_items` are the items of each query in order of completion, `ends_s` when it completed, in seconds
    since the window began. Neighbouring queries resemble each other, so they are taken together in
    BATCH_MEANS runs of equal length (between 10 and 30 is right: Schmeiser 1982), whose ratio estimator
    (items over time) has Student's interval. Fewer than BATCH_MEANS * MIN_BATCH_QUERIES queries give none.
    Raises ValueError for a window that is not positive.
    """
    if not window_s > 0:
        raise ValueError(f"a window of {window_s} s has no throughput")
    rate = items / window_s
    counts, ends = np.asarray(query_items, dtype=np.float64), np.asarray(ends_s, dtype=np.float64)
    if len(counts) != len(ends):
        raise ValueError(f"{len(counts)} queries and {len(ends)} ends")
    if len(counts) < BATCH_MEANS * MIN_BATCH_QUERIES:
        return Throughput(value=rate, items=items, window_s=window_s)
    # Equal runs: the remainder at the front is left out of the interval, never of the value.
    length = len(counts) // BATCH_MEANS
    skipped = len(counts) - length * BATCH_MEANS
    done = counts[skipped:].reshape(BATCH_MEANS, length).sum(axis=1)
    began = ends[skipped - 1] if skipped else 0.0
    edges = np.concatenate(([began], ends[skipped + length - 1 :: length]))
    spans = np.diff(edges)
    residuals = done - rate * spans
    error = math.sqrt(float(np.square(residuals).sum()) / (BATCH_MEANS - 1) / BATCH_MEANS) / float(spans.mean())
    return Throughput(
        value=rate,
        low=max(0.0, rate - STUDENT_19 * error),
        high=rate + STUDENT_19 * error,
        items=items,
        window_s=window_s,
    )


def _sorted(values: Values) -> npt.NDArray[np.float64]:
    return np.sort(np.asarray(values, dtype=np.float64))


def _check_quantile(p: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"{p} is not a quantile between 0 and 1")


def _early_stopping(ordered: npt.NDArray[np.float64], p: float, confidence: float) -> float | None:
    allowed = over_latency_allowed(len(ordered), p, confidence)
    return float(ordered[len(ordered) - allowed]) if allowed else None


def _trimmed_mean(ordered: npt.NDArray[np.float64], fraction: float) -> float:
    n = len(ordered)
    # Value i stands for the interval [i, i + 1]; its weight is what of it lies between the two cuts.
    position = np.arange(n)
    kept = np.minimum(position + 1, n * (1 - fraction)) - np.maximum(position, n * fraction)
    least = ordered[0]  # averaging what is above it keeps equal values exactly what they are
    return float(least + np.average(ordered - least, weights=np.clip(kept, 0.0, 1.0)))


def _bootstrap_median(ordered: npt.NDArray[np.float64], seed: int, confidence: float) -> Estimate:
    n = len(ordered)
    if n == 0:
        return Estimate(value=None, confidence=confidence, method="bootstrap")
    value = float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)
    if n < MIN_BOOTSTRAP:
        return Estimate(value=value, confidence=confidence, method="bootstrap")
    generator = np.random.default_rng(seed)
    lower = (n + 1) // 2  # rank, from 1, of the (lower) middle value
    ranks = generator.beta(lower, n - lower + 1, RESAMPLES)
    medians = ordered[_position(ranks, n)]
    if n % 2 == 0:
        # The next order statistic, given this one, is the least of the n - lower that lie above it.
        above = 1 - (1 - ranks) * generator.random(RESAMPLES) ** (1 / (n - lower))
        medians = (medians + ordered[_position(above, n)]) / 2
    low, high = np.quantile(medians, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Estimate(value=value, low=float(low), high=float(high), confidence=confidence, method="bootstrap")


def _position(ranks: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.intp]:
    return np.minimum((ranks * n).astype(np.intp), n - 1)


def _log_binomial(k: int, n: int, p: float) -> float:
    """Return the logarithm of the chance of exactly `k` over-latency among `n`."""
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + k * math.log1p(-p) + (n - k) * math.log(p)


def _at_most(t: int, n: int, p: float) -> float:
    """Return the chance of at most `t` over-latency among `n`, for a small `t`."""
    return math.fsum(math.exp(_log_binomial(k, n, p)) for k in range(min(t, n) + 1))
