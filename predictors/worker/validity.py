"""Whether the figures of a task may be quoted, and what a reader should know about them."""

import os
from collections.abc import Iterator

from predictors.scenarios.measured import Measured
from predictors.worker.prepared_inputs import PreparedInputs
from schemas.evaluation import EvaluationRequested
from schemas.result import Latency, Validity
from schemas.system import SystemState
from schemas.trace import TraceLevel

_PERCENTILES = ("p50", "p90", "p95", "p97", "p99", "p99_9")


def judge(
    request: EvaluationRequested,
    inputs: PreparedInputs,
    measured: Measured | None,
    latency: Latency | None,
    before: SystemState,
    *,
    not_finite: int,
) -> Validity:
    """Return the measurement's own verdict, with what else a reader should know."""
    reasons = list(measured.validity.reasons) if measured else []
    notes = _notes(request, inputs, measured, latency, before, not_finite)
    reasons += (note for note in notes if note not in reasons)
    return Validity(valid=measured.validity.valid if measured else True, reasons=tuple(reasons))


def _notes(
    request: EvaluationRequested,
    inputs: PreparedInputs,
    measured: Measured | None,
    latency: Latency | None,
    before: SystemState,
    not_finite: int,
) -> Iterator[str]:
    if inputs.unreadable:
        yield f"{len(inputs.unreadable)} of the {len(inputs.asked)} items asked for could not be read"
    if not_finite:
        yield f"the outputs of {not_finite} items are not finite numbers"
    if request.trace_level > TraceLevel.NONE:
        level = request.trace_level.name.lower()
        yield f"trace level {level} was asked for, and nothing was traced: the figures are those of level none"
    if measured is None:
        return
    if inputs.spilled:
        yield "the prepared inputs lie in a file: reading it from disk may be part of a latency"
    if inputs.count < request.batch_size:
        yield f"{inputs.count} items were repeated to fill a measured batch of {request.batch_size}"
    cores = os.cpu_count() or 1
    if before.load_average_1m is not None and before.load_average_1m > cores:
        yield f"the machine was busy before: load average {before.load_average_1m:.1f} on {cores} cores"
    missing = [name.replace("_", ".") for name in _PERCENTILES if latency and getattr(latency, name) is None]
    if latency and missing:
        yield f"{latency.query_count} queries are too few for {', '.join(missing)}"
