"""How many queries a scenario asks the load generator for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.scenario import Scenario

QUERY_SET_MAX = 500_000
"""Most queries of one run. The load generator draws them all beforehand, at 300 bytes each."""
GENERATOR_GRACE_S = 1.0
"""How much later than the recorder the load generator would end a run by its own clock."""
LOADGEN_NS = 2_000
"""Least time of the load generator and the recording around a query."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What the load generator is told. Its samples are the batches in `drawn`, by position."""

    drawn: tuple[int, ...]
    """The prepared batches that are measured: the full ones, or all when none is larger than another."""
    left_out: int
    """Batches that are not measured, because they are shorter than the others."""
    batch_size: int
    warmup: int
    count: int
    """Queries (`offline`: samples of its query) that must be issued, warm-up included."""
    asked: int
    """Queries that are to be measured, by the scenario's minimum count alone."""
    expected_ns: int
    """The load generator draws queries for twice `min_duration_ms` at this latency."""
    min_duration_ms: int
    max_duration_ms: int


def plan_load(scenario: Scenario, batch_items: Sequence[int], predicted_ns: Sequence[int]) -> LoadPlan:
    """Return the plan of a `single_stream` or `offline` scenario over batches of `batch_items` items.

    A latency of a short batch is not a latency of the batch size, so a last batch that is shorter is left
    out. One sample of the load generator is one prepared batch in both scenarios: so every batch is full,
    and items are counted by what the batches hold. `predicted_ns` are a few timed predictions.
    """
    size = max(batch_items)
    drawn = tuple(index for index, items in enumerate(batch_items) if items == size)
    make = _single_stream if scenario.name == "single_stream" else _offline
    asked, count, expected_ns = make(scenario, size, min(predicted_ns))
    warmup_s = scenario.warmup_query_count * max(predicted_ns) / 1e9
    # The generator's clock starts before the warm-up, which may take longer than a few predictions made it seem: it
    # is told to hold on for twice as long as foreseen, and not to end before the recorder does, whose clock is exact.
    held_s = 1.05 * scenario.min_duration_s + 2 * warmup_s if scenario.min_duration_s else 0.0
    ended_s = scenario.max_duration_s + 4 * warmup_s + GENERATOR_GRACE_S
    return LoadPlan(
        drawn=drawn,
        left_out=len(batch_items) - len(drawn),
        batch_size=size,
        warmup=scenario.warmup_query_count,
        count=min(scenario.warmup_query_count + count, QUERY_SET_MAX),
        asked=asked,
        expected_ns=expected_ns,
        # A millisecond more: the load generator's clock starts before the first query is issued.
        min_duration_ms=math.ceil(held_s * 1000) + 1 if held_s else 0,
        max_duration_ms=math.ceil(ended_s * 1000),
    )


def _single_stream(scenario: Scenario, size: int, fastest_ns: int) -> tuple[int, int, int]:
    """Draw for a latency four times shorter than seen, on top of the load generator's own factor of two."""
    least_ns = math.ceil(2 * scenario.min_duration_s * 1e9 / (QUERY_SET_MAX * 0.9))
    return scenario.min_query_count, scenario.min_query_count, max(fastest_ns // 4 + LOADGEN_NS, least_ns)


def _offline(scenario: Scenario, size: int, fastest_ns: int) -> tuple[int, int, int]:
    """Ask for the items wanted, or a tenth more than fill the least duration (as MLPerf does), whichever is more.

    Never more than could be done in twice the longest duration, at which the run is ended in any case.
    """
    asked = math.ceil(scenario.min_query_count / size)
    each_ns = max(fastest_ns, 1)
    filling = math.ceil(1.1 * scenario.min_duration_s * 1e9 / each_ns)
    bound = math.ceil(2 * scenario.max_duration_s * 1e9 / (each_ns // 2 + 1_000))
    return asked, max(1, min(max(asked, filling), bound)), each_ns
