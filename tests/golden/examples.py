"""One full example of every message type. `python tests/golden/examples.py` writes the files that are missing.

A file that exists is never written again: it is what an older sender said, and must be understood for ever.
"""

from pathlib import Path

from pydantic import BaseModel

from schemas.agents import AgentRegistered, Hardware, Load, Stack
from schemas.codec import encode, registered, type_of
from schemas.dead import DeadLetter
from schemas.evaluation import ArtifactRef, CancellationRequested, Constraints, EvaluationRequested
from schemas.events import (
    EvaluationAccepted,
    EvaluationCompleted,
    EvaluationRejected,
    EvaluationState,
    ManifestRegistered,
    ManifestRemoved,
    MetricsRecorded,
    PlannedTask,
    PredictionsRecorded,
    QueriesRecorded,
    TaskCompleted,
    TaskFailed,
    TaskProgressed,
    TaskStarted,
)
from schemas.failure import Failure
from schemas.manifests import DatasetManifest, FrameworkManifest, ModelManifest
from schemas.result import (
    Accuracy,
    ColdStart,
    Estimate,
    Latency,
    NearMiss,
    PipelineRecord,
    TaskRecord,
    Throughput,
    Unsatisfied,
    Validity,
)
from schemas.scenario import Threads
from schemas.system import Cpu, Environment, Gpu, SystemDescribed, SystemDescription, SystemState
from schemas.tasks import TaskAssigned
from schemas.trace import Span, SpansRecorded, TraceLevel

HERE = Path(__file__).parent
TIME_NS = 1_790_000_000_000_000_000
DIGEST = "ab" * 32
EVALUATION = "01999999999970008000000000000001"
TASK = "01999999999970008000000000000001-a1b2c3d4"
STACK = Stack(architecture="amd64", device="cpu", framework="onnxruntime", version="1.31.1")

MODEL = ModelManifest.model_validate(
    {
        "name": "squeezenet",
        "version": "1.1.0",
        "license": "BSD-2-Clause",
        "modality": "image-classification",
        "authors": ["Forrest Iandola"],
        "references": ["https://arxiv.org/abs/1602.07360"],
        "frameworks": [
            {
                "name": "onnxruntime",
                "version": ">=1.16",
                "model": {"format": "onnx", "graph": {"url": "https://example.org/model.onnx", "sha256": DIGEST}},
            }
        ],
        "container": {"amd64": {"cpu": "example/onnxruntime:1.31.1"}},
        "inputs": [
            {
                "type": "image",
                "name": "data",
                "layout": "NCHW",
                "shape": [3, 227, 227],
                "steps": [
                    {"decode": {"color_mode": "BGR"}},
                    {"resize": {"dimensions": [227, 227]}},
                    {"crop": {"fraction": 0.875}},
                    {"normalize": {"mean": [104, 117, 123], "scale": 1}},
                    {"cast": {"element_type": "float32"}},
                    {"transpose": {"layout": "CHW"}},
                ],
            }
        ],
        "outputs": [
            {"type": "classification", "name": "prob", "steps": ["softmax", {"argsort": {"labels": ["a", "b"]}}]}
        ],
    }
)
FRAMEWORK = FrameworkManifest.model_validate(
    {"name": "onnxruntime", "version": "1.31.1", "python": {"requirements": ["onnxruntime==1.31.1"]}}
)
DATASET = DatasetManifest.model_validate(
    {
        "name": "imagenet-val-sample",
        "version": "1.0.0",
        "license": "research only",
        "modality": "image-classification",
        "sources": [{"url": "mirror:datasets/sample.tar", "sha256": DIGEST, "unpack": True}],
        "format": {"type": "image_csv"},
        "size": 500,
    }
)
REQUEST = EvaluationRequested(
    evaluation_id=EVALUATION,
    model=ArtifactRef(name="squeezenet", version="^1.1"),
    dataset=ArtifactRef(name="imagenet-val-sample"),
    constraints=Constraints(
        frameworks=(ArtifactRef(name="onnxruntime", version=">=1.20 <2"),), device="cpu", min_memory_bytes=2**30
    ),
    targets="all",
    batch_size=8,
    sample_limit=100,
    trace_level=TraceLevel.NONE,
    options={"graph_optimization": "all"},
    user="ada",
)
FAILURE = Failure(code="asset_digest_mismatch", message="model.onnx: expected ab, found cd", hint="fix the manifest")
PLANNED = PlannedTask(task_id=TASK, stack=STACK)
ACCEPTED = EvaluationAccepted(
    evaluation_id=EVALUATION, request=REQUEST, model=MODEL, dataset=DATASET, tasks=(PLANNED,), time_ns=TIME_NS
)
SYSTEM = SystemDescription(
    system_id=DIGEST,
    hostname="node1",
    architecture="amd64",
    operating_system="Debian GNU/Linux 12",
    kernel="6.1.0",
    cpu=Cpu(model="Example 9000", physical_cores=2, logical_cores=4, cache_bytes={"L2": 1048576}),
    memory_bytes=2**34,
    gpus=(Gpu(index=0, name="Example H100", memory_bytes=2**36),),
    not_read={"cpu.governor": "no cpufreq in sysfs"},
)
RECORD = TaskRecord(
    accuracy=Accuracy(
        top1=Estimate(value=0.57, low=0.47, high=0.66, method="wilson"),
        top5=Estimate(value=0.8, low=0.71, high=0.87, method="wilson"),
        asked=100,
        unreadable=1,
    ),
    latency=Latency(
        query_count=700, mean=3.1, median=Estimate(value=3.0, low=2.9, high=3.1), p50=3.0, p90=3.4, p99=5.2
    ),
    throughput=Throughput(value=322.0, items=5600, window_s=17.4),
    cold_start=ColdStart(process_start_ms=900.0, open_ms=40.0, first_predict_ms=6.0, of_this_task=True),
    pipeline=PipelineRecord(
        input_steps=(({"step": "decode", "color_mode": "BGR"},),),
        output_steps=(({"step": "softmax"},),),
        libraries={"pillow": "13.0.0"},
        digest=DIGEST,
        items_per_s=410.0,
    ),
    environment=Environment(
        python="3.11.7",
        framework="onnxruntime",
        framework_version="1.31.1",
        libraries={"numpy": "2.4.6"},
        digest=DIGEST,
    ),
    threads=Threads(intra_op=2, inter_op=1),
    batch_size=8,
    scenario={"name": "single_stream", "min_query_count": 662},
    load_generator="mlcommons-loadgen 6.0.17",
    validity=Validity(valid=True, reasons=("p99.9 needs 6636 queries, this run has 700",)),
    state_before=SystemState(load_average_1m=0.1, available_memory_bytes=2**33),
    state_after=SystemState(load_average_1m=1.1, not_read={"temperature_c": "no sensor"}),
    phases_ms={"prepare": 1200.0},
    evaluation_key=DIGEST,
)
NEAR_MISS = NearMiss(
    agent_id="pytorch-1",
    stack=STACK,
    failed=(Unsatisfied(constraint="device", wanted="gpu", offered="cpu"),),
)

EXAMPLES: tuple[BaseModel, ...] = (
    MODEL,
    FRAMEWORK,
    DATASET,
    REQUEST,
    CancellationRequested(evaluation_id=EVALUATION, reason="wrong model", user="ada"),
    AgentRegistered(
        agent_id="onnxruntime-node1",
        hostname="node1",
        pid=4711,
        stack=STACK,
        formats=("onnx",),
        hardware=Hardware(system_id=DIGEST, cpu="Example 9000", logical_cores=4, memory_bytes=2**34),
        load=Load(running=1, completed=5),
        started_ns=TIME_NS,
        heartbeat_ns=TIME_NS + 1,
    ),
    SystemDescribed(agent_id="onnxruntime-node1", system=SYSTEM),
    TaskAssigned(
        task_id=TASK,
        evaluation_id=EVALUATION,
        stack=STACK,
        request=REQUEST,
        model=MODEL,
        framework_model=MODEL.frameworks[0],
        dataset=DATASET,
    ),
    ACCEPTED,
    EvaluationRejected(
        evaluation_id=EVALUATION,
        request=REQUEST,
        failure=Failure(code="no_predictor", message="no predictor satisfies device gpu"),
        near_misses=(NEAR_MISS,),
        time_ns=TIME_NS,
    ),
    EvaluationCompleted(evaluation_id=EVALUATION, status="completed", completed=1, failed=0, time_ns=TIME_NS),
    TaskStarted(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=1,
        agent_id="onnxruntime-node1",
        stack=STACK,
        system_id=DIGEST,
        batch_size=8,
        time_ns=TIME_NS,
    ),
    TaskProgressed(
        evaluation_id=EVALUATION, task_id=TASK, attempt=1, phase="fetch", done=10, total=100, time_ns=TIME_NS
    ),
    PredictionsRecorded(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=1,
        input_index=(0, 1),
        input_id=("a.jpeg", "b.jpeg"),
        label=("388", "27"),
        classes=((388, 1, 2, 3, 4), ()),
        scores=((0.9, 0.05, 0.02, 0.01, 0.01), ()),
        names=(("giant panda", "b", "c", "d", "e"), ()),
        correct_top1=(True, False),
        correct_top5=(True, False),
        error=("", "b.jpeg does not decode"),
        output_digest=(DIGEST, ""),
    ),
    QueriesRecorded(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=1,
        query_index=(0, 1),
        warmup=(True, False),
        scheduled_ns=(0, 3_000_000),
        issued_ns=(0, 3_000_000),
        completed_ns=(2_900_000, 6_100_000),
        items=(8, 8),
    ),
    MetricsRecorded(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=1,
        name=("cpu_frequency",),
        time_ns=(TIME_NS,),
        value=(2400.0,),
        unit=("MHz",),
    ),
    SpansRecorded.of(
        [
            Span(
                trace_id="1" * 32,
                span_id="2" * 16,
                evaluation_id=EVALUATION,
                task_id=TASK,
                level=TraceLevel.MODEL,
                name="predict",
                start_ns=TIME_NS,
                duration_ns=3_000_000,
                agent="onnxruntime-node1",
                process=4711,
                attributes={"batch": "8"},
            )
        ]
    ),
    TaskCompleted(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=1,
        agent_id="onnxruntime-node1",
        system_id=DIGEST,
        record=RECORD,
        time_ns=TIME_NS,
    ),
    TaskFailed(
        evaluation_id=EVALUATION,
        task_id=TASK,
        attempt=2,
        agent_id="onnxruntime-node1",
        failure=FAILURE,
        time_ns=TIME_NS,
    ),
    ManifestRegistered(
        kind="model",
        name="squeezenet",
        version="1.1.0",
        digest=DIGEST,
        body=MODEL.model_dump_json(),
        time_ns=TIME_NS,
    ),
    ManifestRemoved(kind="model", name="squeezenet", version="1.1.0", time_ns=TIME_NS),
    EvaluationState(
        evaluation_id=EVALUATION,
        status="running",
        published=True,
        plan=ACCEPTED,
        ended={TASK: "completed"},
        updated_ns=TIME_NS,
    ),
    DeadLetter(
        stream="TASKS",
        subject="mlms.v1.task.amd64.cpu.onnxruntime.1-31-1.any",
        consumer="stack",
        sequence=7,
        deliveries=1,
        reason="not msgpack",
        payload=b"\xc1",
        time_ns=TIME_NS,
    ),
)


def path(type_: str, version: int) -> Path:
    """Return where the golden message of a type and version lies."""
    return HERE / f"{type_}.v{version}.msgpack"


def write_missing() -> list[Path]:
    """Write the golden message of every type and version that has none, and return what was written."""
    written = []
    versions = dict(registered().keys())
    for example in EXAMPLES:
        target = path(type_of(example), versions[type_of(example)])
        if not target.exists():
            target.write_bytes(encode(example, id="golden", trace=None, time_ns=TIME_NS))
            written.append(target)
    return written


if __name__ == "__main__":
    for found in write_missing():
        print(f"wrote {found.name}")
