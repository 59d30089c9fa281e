"""The solver: which predictors a request gets, and what a rejection says."""

import itertools
from collections import Counter

import pytest

from schemas.agents import AgentRegistered, Hardware, Load, Stack
from schemas.evaluation import Constraints, Device, EvaluationRequested
from schemas.events import EvaluationAccepted, PlannedTask
from schemas.manifests import DatasetManifest, ModelManifest
from schemas.result import NearMiss
from services.scheduler.solver import Plan, Rejection, assignments, plan

SHA = "0" * 64
GIB = 2**30


def model(version: str = "1.1.0", name: str = "squeezenet", **frameworks: str) -> ModelManifest:
    """Return a model for the given frameworks and their version ranges (default: any ONNX Runtime, any PyTorch)."""
    formats = {"onnxruntime": "onnx", "pytorch": "torchscript", "mxnet": "onnx"}
    return ModelManifest.model_validate(
        {
            "name": name,
            "version": version,
            "license": "BSD",
            "modality": "image-classification",
            "frameworks": [
                {
                    "name": one,
                    "version": wanted,
                    "model": {"format": formats[one], "graph": {"url": "repo:x", "sha256": SHA}},
                }
                for one, wanted in (frameworks or {"onnxruntime": "*", "pytorch": "*"}).items()
            ],
            "inputs": [{"type": "image", "name": "data", "shape": [3, 227, 227]}],
            "outputs": [{"type": "classification", "name": "prob", "steps": ["argsort"]}],
        }
    )


def dataset(
    version: str = "1.0.0", name: str = "imagenet-sample", modality: str = "image-classification"
) -> DatasetManifest:
    return DatasetManifest.model_validate(
        {
            "name": name,
            "version": version,
            "license": "-",
            "modality": modality,
            "sources": [{"url": "repo:y", "sha256": SHA}],
            "format": {"type": "image_csv"},
            "size": 10,
        }
    )


def agent(
    agent_id: str,
    framework: str = "onnxruntime",
    version: str = "1.31.1",
    *,
    device: Device = "cpu",
    system: str = "s1",
    running: int = 0,
    formats: tuple[str, ...] | None = None,
    unavailable: str | None = None,
    **hardware: object,
) -> AgentRegistered:
    by_framework = {"onnxruntime": ("onnx",), "pytorch": ("torchscript", "torch_state_dict"), "mxnet": ("onnx",)}
    return AgentRegistered(
        agent_id=agent_id,
        hostname="h",
        pid=1,
        stack=Stack(architecture="amd64", device=device, framework=framework, version=version),
        formats=by_framework[framework] if formats is None else formats,
        hardware=Hardware.model_validate({"system_id": system, **hardware}),
        load=Load(running=running),
        available=unavailable is None,
        unavailable_reason=unavailable,
        started_ns=0,
        heartbeat_ns=0,
    )


def request(**changes: object) -> EvaluationRequested:
    return EvaluationRequested.model_validate(
        {"evaluation_id": "e1", "model": "squeezenet", "dataset": "imagenet-sample", **changes}
    )


def planned(
    wanted: EvaluationRequested,
    agents: list[AgentRegistered],
    models: list[ModelManifest] | None = None,
    outstanding: list[PlannedTask] | None = None,
) -> Plan:
    counted = Counter((task.stack, task.agent_id) for task in outstanding or [])
    found = plan(wanted, agents, models or [model()], [dataset()], counted)
    assert isinstance(found, Plan), found
    return found


def rejected(
    wanted: EvaluationRequested,
    agents: list[AgentRegistered],
    models: list[ModelManifest] | None = None,
    datasets: list[DatasetManifest] | None = None,
) -> Rejection:
    found = plan(wanted, agents, [model()] if models is None else models, [dataset()] if datasets is None else datasets)
    assert isinstance(found, Rejection), found
    return found


def failures(miss: NearMiss) -> dict[str, tuple[str, str]]:
    return {one.constraint: (one.wanted, one.offered) for one in miss.failed}


def test_the_newest_version_in_the_range_is_taken_and_no_other_model() -> None:
    """Newest by precedence, not by order or spelling; another model's versions do not count."""
    models = [model("1.10.0"), model("1.9.0"), model("2.0.0-rc.1"), model("9.0.0", name="other"), model("0.1.0")]
    for order in itertools.permutations(models):
        assert planned(request(), [agent("a")], list(order)).model.version == "1.10.0"
        assert planned(request(model="squeezenet latest"), [agent("a")], list(order)).model.version == "1.10.0"
    assert planned(request(model="squeezenet ~1.9"), [agent("a")], models).model.version == "1.9.0"
    found = plan(request(), [agent("a")], [model()], [dataset("1.0.0"), dataset("1.2.0"), dataset("1.1.0")])
    assert isinstance(found, Plan)
    assert found.dataset.version == "1.2.0"


def test_an_older_version_that_runs_is_preferred_to_a_newer_one_that_does_not() -> None:
    """The newest model version for which a predictor satisfies everything."""
    models = [model("2.0.0", pytorch="*"), model("1.0.0", onnxruntime="*")]
    assert planned(request(), [agent("a")], models).model.version == "1.0.0"


def test_the_manifests_own_framework_range_holds_beside_the_requests() -> None:
    """An agent must satisfy the range in the manifest and the range in the constraints."""
    models = [model(onnxruntime=">=1.20 <1.30")]
    agents = [agent("old", version="1.19.0"), agent("mid", version="1.25.0"), agent("new", version="1.31.1")]
    found = planned(request(targets="all"), agents, models)
    assert [task.stack.version for task in found.tasks] == ["1.25.0"]
    wanted = request(targets="all", constraints={"frameworks": ["onnxruntime ^1.26", "pytorch"]})
    miss = {one.agent_id: failures(one) for one in rejected(wanted, agents, models).near_misses}
    assert set(miss) == {"old", "mid", "new"}
    assert miss["mid"] == {"framework version": ("onnxruntime ^1.26", "onnxruntime 1.25.0")}
    assert miss["new"] == {
        "framework version": ("onnxruntime >=1.20 <1.30 (manifest of squeezenet 1.1.0)", "1.31.1"),
    }


def test_a_local_build_and_a_prerelease_of_a_framework() -> None:
    """2.13.0+cpu is 2.13.0; a release candidate is used only where a range names one."""
    pytorch = agent("p", "pytorch", "2.13.0+cpu")
    assert planned(request(constraints={"frameworks": ["pytorch ^2.13"]}), [pytorch]).tasks[0].stack == pytorch.stack
    candidate = agent("p", "pytorch", "2.14.0rc1")
    assert rejected(request(), [candidate]).failure.code == "no_predictor"
    models = [model(pytorch=">=2.14.0-rc.1")]
    assert planned(request(), [candidate], models).tasks[0].stack.version == "2.14.0rc1"


def test_a_framework_version_that_is_none_is_a_near_miss_and_no_crash() -> None:
    """What an agent reports is data of a stranger."""
    miss = rejected(request(), [agent("a", version="unknown")]).near_misses[0]
    assert failures(miss)["framework version"][1] == "unknown"


@pytest.mark.parametrize(
    ("constraints", "name"),
    [
        ({"device": "gpu"}, "device"),
        ({"architecture": "arm64"}, "architecture"),
        ({"gpu": "h100"}, "gpu"),
        ({"interconnect": "nvlink"}, "interconnect"),
        ({"min_memory_bytes": 64 * GIB}, "min_memory_bytes"),
        ({"min_gpu_memory_bytes": 24 * GIB}, "min_gpu_memory_bytes"),
        ({"agent": "big"}, "agent"),
    ],
)
def test_every_constraint_is_solved_and_named(constraints: dict[str, object], name: str) -> None:
    """Each constraint alone lets the agent through that satisfies it, and names what the other offers."""
    small = agent("small", memory_bytes=8 * GIB, gpus=("NVIDIA T4",), gpu_memory_bytes=16 * GIB)
    big = agent("big", device="gpu", memory_bytes=64 * GIB, gpu_memory_bytes=80 * GIB)
    hardware = big.hardware.model_copy(update={"gpus": ("NVIDIA H100 SXM",), "interconnects": ("NVLink", "PCIe")})
    stack = big.stack.model_copy(update={"architecture": "arm64"})
    big = big.model_copy(update={"hardware": hardware, "stack": stack})
    wanted = request(targets="all", constraints=constraints)
    found = planned(wanted, [small, big])
    assert [task.stack for task in found.tasks] == [big.stack]
    miss = rejected(wanted, [small]).near_misses[-1]
    assert miss.agent_id == "small"
    assert list(failures(miss)) == [name]
    assert all(failures(miss)[name])


def test_hardware_that_was_not_read_satisfies_nothing() -> None:
    """An agent that could not read its memory is not assumed to have enough."""
    miss = rejected(request(constraints={"min_memory_bytes": 1}), [agent("a")]).near_misses[0]
    assert failures(miss) == {"min_memory_bytes": ("at least 1", "not read")}


def test_near_misses_name_every_failed_constraint_the_nearest_agent_first() -> None:
    """All that failed is told at once, for every agent."""
    wanted = request(constraints={"device": "gpu", "gpu": "h100", "frameworks": ["pytorch ^3"]})
    found = rejected(wanted, [agent("far"), agent("near", "pytorch", "3.1.0", device="gpu", gpus=("A100",))])
    assert [miss.agent_id for miss in found.near_misses] == ["near", "far"]
    assert failures(found.near_misses[0]) == {"gpu": ("h100", "A100")}
    assert list(failures(found.near_misses[1])) == ["device", "framework", "gpu"]


def test_an_agent_that_is_not_able_is_never_chosen_and_says_why() -> None:
    """It is a near miss with its own reason; a stack's able agents are not held back by it."""
    broken = agent("broken", unavailable="libnvinfer.so.10 is missing")
    miss = rejected(request(), [broken]).near_misses[0]
    assert failures(miss)["available"] == ("able to run", "libnvinfer.so.10 is missing")
    assert planned(request(), [broken, agent("ok")]).tasks[0].agent_id is None


def test_an_agent_asked_for_that_is_not_there_is_said_so() -> None:
    """The name asked for comes back, with who is there."""
    found = rejected(request(constraints={"agent": "gone"}), [agent("a"), agent("b")])
    assert found.near_misses[0].agent_id == "gone"
    assert failures(found.near_misses[0])["agent"] == ("gone", "a, b")


def test_no_agents_at_all_says_how_to_start_one() -> None:
    """The hint is a command."""
    found = rejected(request(), [])
    assert found.failure.code == "no_predictor"
    assert "mlmodelscope agent onnxruntime" in found.failure.hint


def test_an_unknown_model_or_data_set_comes_back_with_names_like_it() -> None:
    """A typing error is answered with what was meant; a range nothing satisfies with what there is."""
    found = rejected(request(model="squeeznet"), [agent("a")])
    assert found.failure.code == "unknown_model"
    assert "squeezenet" in found.failure.hint
    found = rejected(request(model="squeezenet ^7"), [agent("a")])
    assert found.failure.code == "unknown_model"
    assert "^7" in found.failure.message
    assert "1.1.0" in found.failure.message
    found = rejected(request(dataset="imagenet"), [agent("a")])
    assert found.failure.code == "unknown_dataset"
    assert "imagenet-sample" in found.failure.hint
    assert rejected(request(), [agent("a")], models=[]).failure.code == "unknown_model"
    assert rejected(request(), [agent("a")], datasets=[]).failure.code == "unknown_dataset"


def test_a_data_set_for_another_task_is_refused() -> None:
    """Model and data set must be of one modality; both are named."""
    found = rejected(request(), [agent("a")], datasets=[dataset(modality="object-detection")])
    assert found.failure.code == "invalid_request"
    assert "image-classification" in found.failure.message
    assert "object-detection" in found.failure.message


def test_a_format_that_the_agent_does_not_open_is_a_near_miss() -> None:
    """The manifest's files and what the predictor opens must meet."""
    miss = rejected(request(), [agent("p", "pytorch", "2.13.0", formats=("torch_export",))]).near_misses[0]
    assert failures(miss) == {"format": ("torchscript (files of squeezenet 1.1.0)", "torch_export")}


def test_targets_one_takes_the_newest_version_of_a_framework() -> None:
    """Even when an older one is idle."""
    agents = [agent("old", version="1.30.0"), agent("new", version="1.31.1", running=3)]
    assert planned(request(), agents).tasks[0].stack.version == "1.31.1"


def test_targets_one_spreads_over_frameworks_by_outstanding_work() -> None:
    """Least outstanding work for each agent wins; ties go to the manifest's order."""
    onnx, torch = agent("o"), agent("p", "pytorch", "2.13.0")
    assert planned(request(), [torch, onnx]).tasks[0].stack == onnx.stack
    busy = agent("o", running=2)
    assert planned(request(), [busy, torch]).tasks[0].stack == torch.stack
    queue = [PlannedTask(task_id=f"t{i}", stack=torch.stack) for i in range(3)]
    assert planned(request(), [busy, torch], outstanding=queue).tasks[0].stack == onnx.stack
    two = [agent("o1", running=1), agent("o2", running=1), agent("p", "pytorch", "2.13.0", running=1)]
    assert planned(request(), [*two, agent("p2", "pytorch", "2.13.0")]).tasks[0].stack == torch.stack


def test_repeated_requests_come_out_even() -> None:
    """A hundred requests over two equal stacks: fifty each."""
    agents = [agent("o"), agent("p", "pytorch", "2.13.0")]
    outstanding: list[PlannedTask] = []
    for number in range(100):
        outstanding += planned(request(evaluation_id=f"e{number}"), agents, outstanding=outstanding).tasks
    assert [sum(task.stack == one.stack for task in outstanding) for one in agents] == [50, 50]


def test_agents_of_one_stack_share_its_task() -> None:
    """One task for any of them, so that another takes over when one dies; also across machines with targets one."""
    same = [agent("a"), agent("b")]
    for targets in ("one", "all"):
        found = planned(request(targets=targets), same)
        assert [task.agent_id for task in found.tasks] == [None]
    assert planned(request(), [agent("a"), agent("b", system="s2")]).tasks[0].agent_id is None


def test_only_some_agents_of_a_stack_satisfy() -> None:
    """The task names the least loaded of those that do."""
    agents = [
        agent("small", memory_bytes=1),
        agent("busy", memory_bytes=GIB, running=1),
        agent("free", memory_bytes=GIB),
    ]
    for targets in ("one", "all"):
        wanted = request(targets=targets, constraints={"min_memory_bytes": GIB})
        assert [task.agent_id for task in planned(wanted, agents).tasks] == ["free"]
    queue = [PlannedTask(task_id=f"t{i}", stack=agents[2].stack, agent_id="free") for i in range(2)]
    wanted = request(constraints={"min_memory_bytes": GIB})
    assert planned(wanted, agents, outstanding=queue).tasks[0].agent_id == "busy"


def test_an_agent_asked_for_by_name_gets_the_task_itself() -> None:
    """Also when it is the only one of its stack: one that joins later must not take it."""
    assert planned(request(constraints={"agent": "a"}), [agent("a")]).tasks[0].agent_id == "a"


def test_targets_all_is_one_task_a_stack_and_system() -> None:
    """Distinct stacks and distinct hardware; two agents on one machine are one target."""
    agents = [
        agent("o1", system="s1"),
        agent("o2", system="s1", running=1),
        agent("o3", system="s2"),
        agent("old", version="1.30.0"),
        agent("p", "pytorch", "2.13.0"),
        agent("g", "pytorch", "2.13.0", device="gpu"),
        agent("m", "mxnet", "1.9.1"),
    ]
    found = planned(request(targets="all"), agents)
    assert [(task.stack.framework, task.stack.version, task.stack.device, task.agent_id) for task in found.tasks] == [
        ("onnxruntime", "1.30.0", "cpu", None),
        ("onnxruntime", "1.31.1", "cpu", "o1"),
        ("onnxruntime", "1.31.1", "cpu", "o3"),
        ("pytorch", "2.13.0", "cpu", None),
        ("pytorch", "2.13.0", "gpu", None),
    ]


def test_planning_is_deterministic_whatever_the_order_of_what_is_registered() -> None:
    """Same plan, same task ids; and ids of different evaluations, stacks and targets differ."""
    agents = [agent("o1"), agent("o3", system="s2"), agent("p", "pytorch", "2.13.0"), agent("x", "mxnet", "1.9.1")]
    plans = {planned(request(targets="all"), list(order)).tasks for order in itertools.permutations(agents)}
    assert len(plans) == 1
    other = planned(request(targets="all", evaluation_id="e2"), agents).tasks
    ids = [task.task_id for task in (*plans.pop(), *other)]
    assert len(set(ids)) == len(ids) == 6


def test_a_task_carries_the_entry_that_its_stack_opens() -> None:
    """Of two entries for one framework, the first whose format the stack's agents open; the same when asked again."""
    one = model()
    state_dict = {
        "name": "pytorch",
        "model": {"format": "torch_state_dict", "weights": {"url": "repo:w", "sha256": SHA}, "constructor": "x.y"},
    }
    two = ModelManifest.model_validate(
        {**one.model_dump(), "frameworks": [state_dict, *one.model_dump()["frameworks"]]}
    )
    agents = [agent("p", "pytorch", "2.13.0", formats=("torchscript",))]
    found = planned(request(), agents, [two])
    accepted = EvaluationAccepted(
        evaluation_id="e1", request=request(), model=two, dataset=found.dataset, tasks=found.tasks, time_ns=0
    )
    (task,) = assignments(accepted, agents)
    assert task.framework_model.model.format == "torchscript"
    assert task.task_id == found.tasks[0].task_id
    assert assignments(accepted, agents) == [task]
    assert assignments(accepted, [])[0].task_id == task.task_id


def test_constraints_default_to_none() -> None:
    """A request without constraints is satisfied by any able agent."""
    assert Constraints() == request().constraints
    assert planned(request(), [agent("a")]).tasks


def test_a_trace_that_nobody_can_record_is_refused_and_not_left_out() -> None:
    """A wish without effect would be a lie about what was measured."""
    found = rejected(request(trace_level=3), [agent("a")])
    assert found.failure.code == "invalid_request"
    assert "framework" in found.failure.message
