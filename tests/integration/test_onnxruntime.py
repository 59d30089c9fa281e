"""ONNX Runtime: its options, its threads, and the graphs it or the predictor must refuse."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from predictors.contract import OpenModel, TensorSpec
from predictors.errors import DeviceUnavailableError, ModelRefusedError, PredictError, UnknownOptionError
from predictors.frameworks.onnxruntime import PROBE, OnnxRuntime, OnnxRuntimePredictor
from schemas.scenario import Threads

DIGITS = OpenModel(
    name="digits-cnn",
    version="1.0.0",
    format="onnx",
    graph=Path(__file__).resolve().parents[2] / "manifests" / "assets" / "digits-cnn.onnx",
    inputs=(TensorSpec("image", "float32", (1, 8, 8)),),
    outputs=(TensorSpec("logits", "float32"),),
    batch_size=4,
)
IMAGES = np.ones((4, 1, 8, 8), np.float32)
Graph = Callable[..., Path]


@pytest.fixture
def predictor() -> Iterator[OnnxRuntimePredictor]:
    made = OnnxRuntime().create()
    yield made
    made.close()


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Write y = a + b (float32) and z = a - b as a model; axes and opset to taste."""

    def write(axes: list[str | int], opset: int = 13) -> Path:
        tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name in "abyz"]
        nodes = [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("Sub", ["a", "b"], ["z"])]
        made = helper.make_graph(nodes, "sums", tensors[:2], tensors[2:])
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        path = tmp_path / "sums.onnx"
        onnx.save(model, path)
        return path

    return write


def sums(path: Path, **changes: object) -> OpenModel:
    specs = {name: TensorSpec(name, "float32", (2,)) for name in "abyz"}
    base = OpenModel(
        name="sums",
        version="1.0.0",
        format="onnx",
        graph=path,
        inputs=(specs["a"], specs["b"]),
        outputs=(specs["y"], specs["z"]),
        batch_size=4,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_inputs_and_outputs_go_by_the_manifests_names_in_its_order(
    predictor: OnnxRuntimePredictor, graph: Graph
) -> None:
    """The order of a manifest decides which array is which, not the order of the graph."""
    path = graph(["N", 2])
    turned = sums(path)
    predictor.open(replace(turned, inputs=turned.inputs[::-1], outputs=turned.outputs[::-1]))
    one, two = np.full((4, 2), 1, np.float32), np.full((4, 2), 2, np.float32)
    difference, total = predictor.predict([one, two])
    assert (difference == 1).all()  # a - b, and a is the second array
    assert (total == 3).all()


def test_one_of_several_outputs_can_be_asked_for(predictor: OnnxRuntimePredictor, graph: Graph) -> None:
    """A manifest may leave outputs of the graph out."""
    path = graph(["N", 2])
    predictor.open(replace(sums(path), outputs=sums(path).outputs[1:]))
    assert len(predictor.predict([np.ones((4, 2), np.float32)] * 2)) == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"inputs": (TensorSpec("a", "float32", (2,)), TensorSpec("c", "float32", (2,)))}, "declares the inputs a, c"),
        ({"inputs": (TensorSpec("a", "float32", (2,)),)}, "the graph has a, b"),
        ({"outputs": (TensorSpec("q", "float32"),)}, "declares the outputs q"),
        ({"inputs": (TensorSpec("a", "float32", (3,)), TensorSpec("b", "float32", (2,)))}, "input 'a'"),
        ({"inputs": (TensorSpec("a", "float64", (2,)), TensorSpec("b", "float32", (2,)))}, "input 'a'"),
        ({"outputs": (TensorSpec("y", "int64"),)}, "output 'y'"),
        ({"weights": Path("w")}, "one file"),
    ],
)
def test_a_graph_that_is_not_as_declared_is_refused(
    predictor: OnnxRuntimePredictor, graph: Graph, changes: dict[str, object], problem: str
) -> None:
    """Names, shapes and types are compared when the model is opened, and the error shows both sides."""
    with pytest.raises(ModelRefusedError, match=problem):
        predictor.open(sums(graph(["N", 2]), **changes))


def test_an_opset_of_the_future_is_refused_in_onnx_runtimes_words(
    predictor: OnnxRuntimePredictor, graph: Graph
) -> None:
    """The user reads which opset the file has."""
    with pytest.raises(ModelRefusedError, match="Opset 999"):
        predictor.open(sums(graph(["N", 2], opset=999)))


def test_a_fixed_batch_axis_opens_for_that_size_and_pads_the_last_batch(
    predictor: OnnxRuntimePredictor, graph: Graph
) -> None:
    """A graph exported for 4 runs 4 and 3, and is refused for 8 with the size it has."""
    path = graph([4, 2])
    with pytest.raises(ModelRefusedError, match="fixed at 4"):
        OnnxRuntime().create().open(sums(path, batch_size=8))
    predictor.open(sums(path))
    three = np.full((3, 2), 5, np.float32)
    total, difference = predictor.predict([three, three])
    assert total.shape == difference.shape == (3, 2)
    assert (total == 10).all()
    with pytest.raises(PredictError, match="takes 4"):
        predictor.predict([np.ones((5, 2), np.float32)] * 2)


def test_what_the_framework_raises_while_predicting_is_a_predict_error(
    predictor: OnnxRuntimePredictor, tmp_path: Path
) -> None:
    """ONNX Runtime's own words reach the user when a node fails on the data."""
    wanted = helper.make_tensor("shape", TensorProto.INT64, [2], [7, -1])
    made = helper.make_graph(
        [helper.make_node("Reshape", ["a", "shape"], ["y"])],
        "reshape",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [wanted],
    )
    path = tmp_path / "reshape.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    spec = TensorSpec("a", "float32", (2,)), TensorSpec("y", "float32")
    predictor.open(OpenModel(name="r", version="1.0.0", format="onnx", graph=path, inputs=spec[:1], outputs=spec[1:]))
    with pytest.raises(PredictError, match="Reshape"):
        predictor.predict([np.ones((2, 2), np.float32)])
    assert predictor.predict([np.ones((7, 2), np.float32)])[0].shape == (7, 2)


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_every_level_of_graph_optimisation_gives_the_same_classes(predictor: OnnxRuntimePredictor, level: str) -> None:
    """Each documented level opens, is recorded, and predicts alike."""
    opened = predictor.open(replace(DIGITS, options={"graph_optimization": level}))
    assert opened.options["graph_optimization"] == level
    plain = onnxruntime.InferenceSession(str(DIGITS.graph)).run(None, {"image": IMAGES})[0]
    assert float(np.abs(predictor.predict([IMAGES])[0] - plain).max()) < 1e-5


def test_every_option_in_force_is_recorded(predictor: OnnxRuntimePredictor) -> None:
    """Also those nobody set; providers as the session has them, not as asked for."""
    assert predictor.open(DIGITS).options == {
        "graph_optimization": "all",
        "execution_mode": "sequential",
        "providers": "CPUExecutionProvider",
    }


@pytest.mark.parametrize(("name", "value"), [("graph_optimization", "most"), ("providers", "NoSuchProvider")])
def test_a_value_that_an_option_does_not_take_is_refused(
    predictor: OnnxRuntimePredictor, name: str, value: str
) -> None:
    """The error names the values that would do."""
    with pytest.raises(UnknownOptionError, match=value) as caught:
        predictor.open(replace(DIGITS, options={name: value}))
    assert "CPUExecutionProvider" in caught.value.hint or "extended" in caught.value.hint


@pytest.mark.parametrize(
    ("mode", "asked", "found"),
    [
        ("sequential", Threads(intra_op=3), Threads(intra_op=3, inter_op=1)),
        ("sequential", Threads(intra_op=1, inter_op=4), Threads(intra_op=1, inter_op=1)),
        ("parallel", Threads(intra_op=3, inter_op=2), Threads(intra_op=3, inter_op=2)),
    ],
)
def test_threads_are_as_asked_for(predictor: OnnxRuntimePredictor, mode: str, asked: Threads, found: Threads) -> None:
    """A pool between operators exists in parallel mode only: in the other, one is what is recorded."""
    opened = predictor.open(replace(DIGITS, threads=asked, options={"execution_mode": mode}))
    assert opened.threads == found


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_default_number_of_threads_is_recorded_as_what_it_came_to(predictor: OnnxRuntimePredictor, mode: str) -> None:
    """ONNX Runtime reads back 0 for its default; recorded is the size of the pools that it made."""
    opened = predictor.open(replace(DIGITS, options={"execution_mode": mode}))
    assert (opened.threads.intra_op or 0) >= 1
    assert (opened.threads.inter_op or 0) >= 1


def test_a_cpu_never_passes_for_a_gpu(predictor: OnnxRuntimePredictor) -> None:
    """Where ONNX Runtime would warn and go on without CUDA, the predictor refuses and says what is missing."""
    reason = OnnxRuntime().unavailable("gpu")
    if reason is None:
        assert predictor.open(replace(DIGITS, device="gpu")).options["providers"].startswith("CUDA")  # type: ignore[union-attr]
        return
    assert "CUDA" in reason or "NVIDIA" in reason
    with pytest.raises(DeviceUnavailableError, match=r"CUDA|NVIDIA"):
        predictor.open(replace(DIGITS, device="gpu"))


def test_providers_of_another_device_are_refused(predictor: OnnxRuntimePredictor) -> None:
    """An option cannot make a CPU's figures those of a GPU."""
    with pytest.raises(UnknownOptionError, match="on a gpu"):
        predictor.open(replace(DIGITS, device="gpu", options={"providers": "CPUExecutionProvider"}))


def test_the_probe_is_a_model() -> None:
    """The bytes used to try an execution provider out are a model that runs."""
    session = onnxruntime.InferenceSession(PROBE, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([3], np.float32)})[0] == [3]
