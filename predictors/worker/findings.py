"""All that a worker found out about one task, and the message that tells it."""

from dataclasses import dataclass
from functools import lru_cache

from predictors.pipeline.record import pipeline_record
from predictors.scenarios.measured import Measured
from predictors.worker.messages import Finished
from predictors.worker.opened_model import OpenedModel
from predictors.worker.prepared_inputs import PreparedInputs
from predictors.worker.validity import judge
from schemas.manifests import ModelInput, ModelOutput
from schemas.result import Accuracy, ColdStart, PipelineRecord
from schemas.system import SystemState
from schemas.tasks import TaskAssigned

BOOTSTRAP_SEED = 0
"""Fixed: the same latencies always come with the same interval."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What came of a task, before it is summarised."""

    task: TaskAssigned
    inputs: PreparedInputs
    model: OpenedModel
    cold_start: ColdStart
    accuracy: Accuracy | None
    not_finite: int
    """Items with a NaN or an infinity in their outputs."""
    measured: Measured | None
    """None: the scenario measures nothing."""
    state_before: SystemState
    state_after: SystemState
    phases_ms: dict[str, float]


def finished(found: Findings) -> Finished:
    """Return the figures of `found`."""
    task, measured, opened = found.task, found.measured, found.model.opened
    # Offline sends everything at once: how long one batch took of it is nobody's latency.
    timed = measured if task.request.scenario.name != "offline" else None
    latency = timed.latency(seed=BOOTSTRAP_SEED) if timed is not None else None
    record = _pipeline_record(task.model.inputs, task.model.outputs)
    return Finished(
        accuracy=found.accuracy,
        latency=latency,
        throughput=measured.throughput() if measured is not None else None,
        cold_start=found.cold_start,
        pipeline=record.model_copy(update={"items_per_s": found.inputs.items_per_s}),
        threads=opened.threads,
        options=opened.options,
        scenario=measured.settings if measured is not None else task.request.scenario.model_dump(),
        load_generator=measured.load_generator if measured is not None else "",
        validity=judge(task.request, found.inputs, measured, latency, found.state_before, not_finite=found.not_finite),
        state_before=found.state_before,
        state_after=found.state_after,
        phases_ms=found.phases_ms,
    )


@lru_cache(maxsize=8)
def _pipeline_record(inputs: tuple[ModelInput, ...], outputs: tuple[ModelOutput, ...]) -> PipelineRecord:
    """Return the record without its throughput; asking libraries for their versions takes a while."""
    return pipeline_record(inputs, outputs, None)
