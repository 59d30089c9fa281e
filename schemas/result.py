"""What an evaluation came to. One model, the same from the bus, HTTP, the command line and Python."""

from datetime import datetime
from typing import Literal

from schemas.agents import Stack
from schemas.base import Event, Identifier
from schemas.evaluation import EvaluationRequested
from schemas.failure import Failure
from schemas.scenario import Threads
from schemas.system import Environment, SystemState

TaskStatus = Literal["assigned", "running", "completed", "failed", "cancelled"]
EvaluationStatus = Literal["pending", "running", "completed", "partial", "failed", "cancelled", "rejected"]
"""`partial`: some tasks completed and some did not."""

FINAL: frozenset[str] = frozenset({"completed", "partial", "failed", "cancelled", "rejected"})


class Estimate(Event):
    """A figure with its interval."""

    value: float | None
    """None: too few samples for this figure."""
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    method: str = ""
    """How the interval was made: `wilson`, `bootstrap`."""


class Accuracy(Event):
    """Fractions of the items asked for; an item that could not be read counts as wrong and is counted apart."""

    top1: Estimate
    top5: Estimate
    asked: int
    unreadable: int = 0


class Latency(Event):
    """Per query, in milliseconds, warm-up left out. A percentile below its sample floor is None."""

    unit: Literal["ms"] = "ms"
    clock: str = "perf_counter_ns"
    query_count: int
    mean: float | None = None
    trimmed_mean: float | None = None
    """The highest and the lowest fifth dropped."""
    min: float | None = None
    max: float | None = None
    median: Estimate
    """The sample median, with a bootstrap interval."""
    p50: float | None = None
    """This and the following: MLPerf's early-stopping estimates at confidence 0.99."""
    p90: float | None = None
    p95: float | None = None
    p97: float | None = None
    p99: float | None = None
    p99_9: float | None = None


class Throughput(Event):
    """Items a second over the measured window."""

    unit: Literal["items/s"] = "items/s"
    value: float
    low: float | None = None
    high: float | None = None
    items: int
    window_s: float


class ColdStart(Event):
    """Opening the model and the first prediction, in a fresh process."""

    process_start_ms: float
    """Worker process asked for until it is ready, the framework imported."""
    open_ms: float
    first_predict_ms: float
    of_this_task: bool
    """False: the worker was warm, and this was measured when it opened the model."""


class PipelineRecord(Event):
    """The pre- and post-processing that ran, in full: part of the result."""

    input_steps: tuple[tuple[dict[str, object], ...], ...]
    """For each input, each step with every parameter."""
    output_steps: tuple[tuple[dict[str, object], ...], ...]
    libraries: dict[str, str]
    """Versions of what executed them, and of the JPEG library inside."""
    digest: str
    """sha256 of all of the above: evaluations with different digests did not measure the same pipeline."""
    items_per_s: float | None = None
    """Throughput of input preparation, which happened before the measurement."""


class Validity(Event):
    """Whether the figures may be quoted."""

    valid: bool
    reasons: tuple[str, ...] = ()
    """Why not; or, when valid, what a reader should know."""


class TaskRecord(Event):
    """All that one predictor found out."""

    accuracy: Accuracy | None = None
    latency: Latency | None = None
    throughput: Throughput | None = None
    cold_start: ColdStart | None = None
    pipeline: PipelineRecord
    environment: Environment
    threads: Threads
    """As in force during the measurement, not as asked for."""
    batch_size: int
    scenario: dict[str, object]
    """The scenario's settings and what came of them."""
    load_generator: str = ""
    validity: Validity
    state_before: SystemState
    state_after: SystemState
    phases_ms: dict[str, float] = {}
    """How long fetching, waiting for the machine, preparing, opening, predicting, measuring took."""
    options: dict[str, bool | int | float | str] = {}
    evaluation_key: str = ""
    """sha256 over everything that makes a figure comparable: manifests, pipeline, scenario, batch, threads,
    options, environment and system."""


class TaskResult(Event):
    """One task of an evaluation, as a reader sees it: its final attempt."""

    task_id: Identifier
    status: TaskStatus
    attempt: int = 0
    framework: str
    framework_version: str
    device: str
    architecture: str
    agent_id: str = ""
    system_id: str = ""
    batch_size: int
    accuracy: Accuracy | None = None
    latency: Latency | None = None
    throughput: Throughput | None = None
    cold_start: ColdStart | None = None
    validity: Validity | None = None
    record: TaskRecord | None = None
    failure: Failure | None = None
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


class Evaluation(Event):
    """One evaluation. Accuracies are fractions at `tasks[].accuracy.top1.value`."""

    evaluation_id: Identifier
    status: EvaluationStatus
    model: str
    model_version: str
    dataset: str
    dataset_version: str
    request: EvaluationRequested
    tasks: tuple[TaskResult, ...] = ()
    failure: Failure | None = None
    """Why it was rejected."""
    near_misses: tuple["NearMiss", ...] = ()
    user: str = ""
    created: datetime | None = None
    ended: datetime | None = None


class NearMiss(Event):
    """A predictor that was not chosen, and every constraint it failed."""

    agent_id: str = ""
    """Empty where the miss is a manifest's rather than an agent's."""
    stack: Stack | None = None
    failed: tuple["Unsatisfied", ...]


class Unsatisfied(Event):
    """One constraint that did not hold."""

    constraint: str
    wanted: str
    offered: str
