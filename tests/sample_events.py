"""Events of an evaluation, as a scheduler and its agents would tell them."""

from pydantic import BaseModel

from schemas.agents import Stack
from schemas.evaluation import ArtifactRef, EvaluationRequested
from schemas.events import (
    EvaluationAccepted,
    EvaluationCompleted,
    MetricsRecorded,
    PlannedTask,
    PredictionsRecorded,
    QueriesRecorded,
    TaskCompleted,
    TaskFailed,
    TaskStarted,
)
from schemas.failure import Failure, FailureCode
from schemas.manifests import DatasetManifest, FrameworkModel, ModelFiles, ModelInput, ModelManifest, ModelOutput
from schemas.result import (
    Accuracy,
    ColdStart,
    Estimate,
    Latency,
    PipelineRecord,
    TaskRecord,
    Throughput,
    Validity,
)
from schemas.scenario import Threads
from schemas.steps import AssetRef, Raw
from schemas.system import Environment, SystemState
from schemas.trace import Span, SpansRecorded, TraceLevel

START_NS = 1_780_000_000_000_000_000
STACKS = {
    "onnxruntime": Stack(architecture="amd64", device="cpu", framework="onnxruntime", version="1.31.1"),
    "pytorch": Stack(architecture="amd64", device="cpu", framework="pytorch", version="2.13.0+cpu"),
}
MODEL = ModelManifest(
    name="digits-cnn",
    version="1.0.0",
    license="Apache-2.0",
    modality="image-classification",
    frameworks=(FrameworkModel(name="onnxruntime", model=ModelFiles(format="null")),),
    inputs=(ModelInput(type="tensor", name="input", shape=(1, 8, 8)),),
    outputs=(ModelOutput(type="raw", name="output", steps=(Raw(),)),),
)
DATASET = DatasetManifest(
    name="digits",
    version="1.0.0",
    license="CC-BY-4.0",
    modality="image-classification",
    sources=(AssetRef(url="repo:digits.npz", sha256="0" * 64),),
    format={"type": "npz"},
    size=360,
)


def task_id(evaluation_id: str, framework: str = "onnxruntime") -> str:
    """Return the id of the task of `evaluation_id` on a framework's stack."""
    return f"{evaluation_id[:40]}-{framework}"


def accepted(evaluation_id: str, *, model: str = "digits-cnn", user: str = "ada") -> EvaluationAccepted:
    """Return an evaluation of two tasks."""
    request = EvaluationRequested(
        evaluation_id=evaluation_id,
        model=ArtifactRef(name=model, version="^1"),
        dataset=ArtifactRef(name="digits"),
        targets="all",
        batch_size=8,
        user=user,
    )
    return EvaluationAccepted(
        evaluation_id=evaluation_id,
        request=request,
        model=MODEL.model_copy(update={"name": model}),
        dataset=DATASET,
        tasks=tuple(PlannedTask(task_id=task_id(evaluation_id, name), stack=stack) for name, stack in STACKS.items()),
        time_ns=START_NS,
    )


def started(evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1) -> TaskStarted:
    """Return the beginning of an attempt."""
    return TaskStarted(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        agent_id=f"{framework}-{attempt}",
        stack=STACKS[framework],
        system_id="machine-1",
        batch_size=8,
        time_ns=START_NS + attempt * 1_000_000_000,
    )


def predicted(
    evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, first: int = 0, count: int = 20
) -> PredictionsRecorded:
    """Return predictions: every fifth is wrong, the one at 7 unreadable."""
    indices = range(first, first + count)
    return PredictionsRecorded(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        input_index=tuple(indices),
        input_id=tuple(f"bild-{k}-é" for k in indices),
        label=tuple(str(k % 10) for k in indices),
        classes=tuple(() if k == 7 else (k % 10, (k + 1) % 10) for k in indices),
        scores=tuple(() if k == 7 else (0.75, 0.25) for k in indices),
        names=tuple(() if k == 7 else (f"class {k % 10}", "other") for k in indices),
        correct_top1=tuple(k % 5 != 0 and k != 7 for k in indices),
        correct_top5=tuple(k != 7 for k in indices),
        error=tuple("cannot be decoded" if k == 7 else "" for k in indices),
        output_digest=tuple(f"{attempt:064x}" for k in indices),
    )


def queried(
    evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, first: int = 0, count: int = 30
) -> QueriesRecorded:
    """Return queries: one a millisecond, the first five of all are warm-up."""
    indices = range(first, first + count)
    return QueriesRecorded(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        query_index=tuple(indices),
        warmup=tuple(k < 5 for k in indices),
        scheduled_ns=tuple(k * 1_000_000 for k in indices),
        issued_ns=tuple(k * 1_000_000 + 1_000 for k in indices),
        completed_ns=tuple(k * 1_000_000 + 500_000 for k in indices),
        items=(8,) * count,
    )


def traced(evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, count: int = 10) -> SpansRecorded:
    """Return one trace: a root and its children."""
    spans = [
        Span(
            trace_id=f"{attempt:032x}",
            span_id=f"{k:016x}",
            parent_id=None if k == 0 else f"{0:016x}",
            evaluation_id=evaluation_id,
            task_id=task_id(evaluation_id, framework),
            level=TraceLevel.MODEL,
            name=f"layer {k}",
            start_ns=START_NS + k,
            duration_ns=1,
            agent=f"{framework}-{attempt}",
            process=42,
            attributes={"op": "conv", "größe": "3'"} if k % 2 else {},
        )
        for k in range(count)
    ]
    return SpansRecorded.of(spans, attempt=attempt)


def sampled(evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, count: int = 4) -> MetricsRecorded:
    """Return samples of the machine."""
    return MetricsRecorded(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        name=("cpu",) * count,
        time_ns=tuple(range(count)),
        value=(0.5,) * count,
        unit=("1",) * count,
    )


def record(top1: float = 0.9) -> TaskRecord:
    """Return the figures of a task: enough queries for a p90, too few for a p99."""
    state = SystemState(load_average_1m=0.1, not_read={"temperature_c": "no sensor"})
    return TaskRecord(
        accuracy=Accuracy(
            top1=Estimate(value=top1, low=top1 - 0.05, high=top1 + 0.05, method="wilson"),
            top5=Estimate(value=0.99, low=0.95, high=1.0, method="wilson"),
            asked=360,
            unreadable=1,
        ),
        latency=Latency(query_count=100, mean=1.5, median=Estimate(value=1.4, low=1.3, high=1.5), p50=1.4, p90=2.0),
        throughput=Throughput(value=5000.0, low=4900.0, high=5100.0, items=800, window_s=0.16),
        cold_start=ColdStart(process_start_ms=300.0, open_ms=20.0, first_predict_ms=4.0, of_this_task=True),
        pipeline=PipelineRecord(
            input_steps=(({"step": "cast", "element_type": "float32"},),),
            output_steps=(({"step": "raw"},),),
            libraries={"numpy": "2.0"},
            digest="p" * 64,
            items_per_s=1e5,
        ),
        environment=Environment(
            python="3.11.2",
            framework="onnxruntime",
            framework_version="1.31.1",
            libraries={f"library-{k}": "1.0" for k in range(100)},
            digest="e" * 64,
        ),
        threads=Threads(intra_op=1),
        batch_size=8,
        scenario={"name": "single_stream", "min_query_count": 100},
        load_generator="loadgen 6.0.17",
        validity=Validity(valid=True, reasons=("short",)),
        state_before=state,
        state_after=state,
        phases_ms={"open": 24.0},
        evaluation_key="k" * 64,
    )


def completed(evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, top1: float = 0.9) -> TaskCompleted:
    """Return the good end of an attempt."""
    return TaskCompleted(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        agent_id=f"{framework}-{attempt}",
        system_id="machine-1",
        record=record(top1),
        time_ns=START_NS + attempt * 2_000_000_000,
    )


def failed(
    evaluation_id: str, framework: str = "onnxruntime", attempt: int = 1, code: FailureCode = "worker_crashed"
) -> TaskFailed:
    """Return the bad end of an attempt."""
    return TaskFailed(
        evaluation_id=evaluation_id,
        task_id=task_id(evaluation_id, framework),
        attempt=attempt,
        agent_id=f"{framework}-{attempt}",
        failure=Failure(code=code, message=f"attempt {attempt} ended", hint="look at the log"),
        time_ns=START_NS + attempt * 2_000_000_000,
    )


def whole_evaluation(evaluation_id: str) -> list[BaseModel]:
    """Return everything told about an evaluation of two tasks, in order."""
    told: list[BaseModel] = [accepted(evaluation_id)]
    for framework in STACKS:
        told += [
            started(evaluation_id, framework),
            predicted(evaluation_id, framework),
            queried(evaluation_id, framework),
            traced(evaluation_id, framework),
            sampled(evaluation_id, framework),
            completed(evaluation_id, framework),
        ]
    return [
        *told,
        EvaluationCompleted(
            evaluation_id=evaluation_id, status="completed", completed=2, failed=0, time_ns=START_NS + 10**10
        ),
    ]
