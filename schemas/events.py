"""Everything that is told about an evaluation, in the order it happens. Subject: `mlms.v1.event.<type>.<id>`."""

from typing import Literal

from pydantic import model_validator

from schemas.agents import Stack
from schemas.base import Event, Identifier, check_same_length
from schemas.codec import register
from schemas.evaluation import EvaluationRequested
from schemas.failure import Failure
from schemas.manifests import DatasetManifest, Kind, ModelManifest
from schemas.result import EvaluationStatus, NearMiss, TaskRecord

Phase = Literal["fetch", "wait", "open", "prepare", "predict", "measure", "publish"]


class PlannedTask(Event):
    """A task as the scheduler planned it."""

    task_id: Identifier
    stack: Stack
    agent_id: Identifier | None = None


@register("evaluation_accepted")
class EvaluationAccepted(Event):
    """The scheduler found predictors; the manifests are those that will run."""

    evaluation_id: Identifier
    request: EvaluationRequested
    model: ModelManifest
    dataset: DatasetManifest
    tasks: tuple[PlannedTask, ...]
    time_ns: int


@register("evaluation_rejected")
class EvaluationRejected(Event):
    """Nothing satisfies the request. Final."""

    evaluation_id: Identifier
    request: EvaluationRequested
    failure: Failure
    near_misses: tuple[NearMiss, ...] = ()
    time_ns: int


@register("evaluation_completed")
class EvaluationCompleted(Event):
    """Every task has ended, one way or another. Final."""

    evaluation_id: Identifier
    status: EvaluationStatus
    completed: int
    failed: int
    cancelled: int = 0
    time_ns: int


@register("task_started")
class TaskStarted(Event):
    """An agent has taken the task."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    agent_id: Identifier
    stack: Stack
    system_id: str
    batch_size: int
    time_ns: int


@register("task_progressed")
class TaskProgressed(Event):
    """Live progress. Never sent while a measurement runs."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    phase: Phase
    done: int = 0
    total: int = 0
    """0: not known."""
    message: str = ""
    time_ns: int


@register("predictions_recorded")
class PredictionsRecorded(Event):
    """A batch of per-input predictions, by column."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    input_index: tuple[int, ...]
    """Position in the data set."""
    input_id: tuple[str, ...]
    """What the data set calls the item: a file name, an index."""
    label: tuple[str, ...]
    """Truth, as the data set states it."""
    classes: tuple[tuple[int, ...], ...]
    """Best first, at most five, on the data set's numbering. Empty for an unreadable item and for raw outputs."""
    scores: tuple[tuple[float, ...], ...]
    names: tuple[tuple[str, ...], ...]
    correct_top1: tuple[bool, ...]
    correct_top5: tuple[bool, ...]
    error: tuple[str, ...]
    """Why an item could not be read; empty otherwise."""
    output_digest: tuple[str, ...]
    """sha256 of the raw output of the item, to tell identical from similar."""

    @model_validator(mode="after")
    def _same_length(self) -> "PredictionsRecorded":
        check_same_length(self, PREDICTION_COLUMNS)
        return self


PREDICTION_COLUMNS = (
    "input_index",
    "input_id",
    "label",
    "classes",
    "scores",
    "names",
    "correct_top1",
    "correct_top5",
    "error",
    "output_digest",
)


@register("queries_recorded")
class QueriesRecorded(Event):
    """A batch of measured queries, by column."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    query_index: tuple[int, ...]
    warmup: tuple[bool, ...]
    scheduled_ns: tuple[int, ...]
    """When it was due; all times are nanoseconds since the measurement's first query was issued."""
    issued_ns: tuple[int, ...]
    completed_ns: tuple[int, ...]
    items: tuple[int, ...]

    @model_validator(mode="after")
    def _same_length(self) -> "QueriesRecorded":
        check_same_length(self, QUERY_COLUMNS)
        return self


QUERY_COLUMNS = ("query_index", "warmup", "scheduled_ns", "issued_ns", "completed_ns", "items")


@register("metrics_recorded")
class MetricsRecorded(Event):
    """A batch of samples of the machine, by column."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    name: tuple[str, ...]
    time_ns: tuple[int, ...]
    value: tuple[float, ...]
    unit: tuple[str, ...]

    @model_validator(mode="after")
    def _same_length(self) -> "MetricsRecorded":
        check_same_length(self, METRIC_COLUMNS)
        return self


METRIC_COLUMNS = ("name", "time_ns", "value", "unit")


@register("task_completed")
class TaskCompleted(Event):
    """The task's figures; its predictions and queries were told before. Final for this task."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    agent_id: Identifier
    system_id: str
    record: TaskRecord
    time_ns: int


@register("task_failed")
class TaskFailed(Event):
    """The task could not be done (or was cancelled). Final for this task."""

    evaluation_id: Identifier
    task_id: Identifier
    attempt: int
    agent_id: str = ""
    failure: Failure
    time_ns: int


@register("manifest_registered")
class ManifestRegistered(Event):
    """A manifest was added or changed."""

    kind: Kind
    name: str
    version: str
    digest: str
    body: str
    """The manifest as JSON."""
    user: str = ""
    time_ns: int


@register("manifest_removed")
class ManifestRemoved(Event):
    """A manifest was taken out of the registry; what it evaluated stays."""

    kind: Kind
    name: str
    version: str
    user: str = ""
    time_ns: int


@register("evaluation_state")
class EvaluationState(Event):
    """An evaluation's entry in the registry: the scheduler's memory, and live status for everybody else."""

    evaluation_id: Identifier
    status: EvaluationStatus
    published: bool = False
    """All its tasks are on the bus: asking again changes nothing."""
    plan: EvaluationAccepted | None = None
    ended: dict[str, Literal["completed", "failed", "cancelled"]] = {}
    """How each ended task ended, by task id."""
    cancel_requested: bool = False
    updated_ns: int
