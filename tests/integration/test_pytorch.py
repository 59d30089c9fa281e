"""PyTorch: what it opens, what it refuses to execute, its options and threads."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from predictors.contract import OpenModel, TensorSpec
from predictors.errors import (
    DeviceUnavailableError,
    ModelRefusedError,
    PredictError,
    UnknownOptionError,
    UntrustedModelError,
)
from predictors.frameworks.pytorch import PyTorch, PyTorchPredictor
from schemas.scenario import Threads

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
BASE = OpenModel(
    name="network",
    version="1.0.0",
    format="torchscript",
    inputs=(TensorSpec("x", "float32", (4,)),),
    outputs=(TensorSpec("y", "float32"),),
)
ITEMS = np.arange(8, dtype=np.float32).reshape(2, 4)
DIGITS = replace(
    BASE,
    graph=ROOT / "manifests" / "assets" / "digits-cnn.torchscript.pt",
    inputs=(TensorSpec("image", "float32", (1, 8, 8)),),
)


class Named(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"first": x + 1, "second": x * 2}


class Several(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x - y, (x + y).transpose(0, 1).contiguous().transpose(0, 1)


@pytest.fixture
def predictor() -> Iterator[PyTorchPredictor]:
    made = PyTorch().create()
    yield made
    made.close()


def scripted(network: nn.Module, path: Path) -> Path:
    torch.jit.script(network.eval()).save(str(path))  # type: ignore[no-untyped-call]
    return path


def squeezenet(path: Path, **changes: object) -> OpenModel:
    base = OpenModel(
        name="squeezenet",
        version="1.1.0",
        format="torch_state_dict",
        weights=path,
        constructor="torchvision.models.squeezenet1_1",
        inputs=(TensorSpec("data", "float32", (3, 227, 227)),),
        outputs=(TensorSpec("prob", "float32"),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def weights(asset_mirror: Path) -> Path:
    return asset_mirror / "models" / "squeezenet_v1.1" / "squeezenet_v1.1.torchvision_state_dict.pth"


def test_a_state_dict_fills_the_constructor_it_belongs_to(predictor: PyTorchPredictor, weights: Path) -> None:
    """Same numbers as torchvision's network with the same weights; `softmax` adds nothing but a softmax."""
    from predictors.frameworks.torchvision_models import build_network

    predictor.open(squeezenet(weights, arguments={"softmax": True}))
    image = np.random.default_rng(0).uniform(-100, 100, (2, 3, 227, 227)).astype(np.float32)
    network = build_network("torchvision.models.squeezenet1_1", {})
    network.load_state_dict(torch.load(weights, weights_only=True))
    with torch.inference_mode():
        wanted = torch.softmax(network.eval()(torch.from_numpy(image)), 1).numpy()
    np.testing.assert_array_equal(predictor.predict([image])[0], wanted)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"constructor": "torchvision.models.squeezenet1_0"}, "size mismatch"),
        ({"constructor": "torchvision.models.resnet18"}, "Missing key"),
        ({"constructor": "torchvision.models.no_such_network"}, "has no network"),
        ({"constructor": "torchvision.models.os.system"}, "has no network"),
        ({"constructor": "os.system"}, "outside torchvision.models"),
        ({"constructor": None}, "names no constructor"),
        ({"arguments": {"colour": "red"}}, "does not take"),
        ({"arguments": {"weights": "DEFAULT"}}, "'weights' .* not allowed"),
        ({"options": {"freeze": True}}, "freeze"),
    ],
)
def test_a_state_dict_with_the_wrong_constructor_is_refused(
    predictor: PyTorchPredictor, weights: Path, changes: dict[str, object], problem: str
) -> None:
    """Only networks that torchvision registers are built, with arguments they take, and the keys must fit."""
    with pytest.raises(ModelRefusedError, match=problem):
        predictor.open(squeezenet(weights, **changes))


def test_a_file_that_is_no_state_dict_is_refused(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """Something else than names to tensors, and bytes that are nothing at all."""
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelRefusedError, match="holds a list"):
        predictor.open(squeezenet(tmp_path / "list.pth"))
    (tmp_path / "junk.pth").write_bytes(b"garbage that is no pickle")
    with pytest.raises(ModelRefusedError) as caught:
        PyTorch().create().open(squeezenet(tmp_path / "junk.pth"))
    assert not isinstance(caught.value, UntrustedModelError)


def test_outputs_of_a_dictionary_go_by_the_manifests_names(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """The manifest's order, and a clear error for a name that the network does not give."""
    graph = scripted(Named(), tmp_path / "named.pt")
    predictor.open(
        replace(BASE, graph=graph, outputs=(TensorSpec("second", "float32"), TensorSpec("first", "float32")))
    )
    second, first = predictor.predict([ITEMS])
    np.testing.assert_array_equal(second, ITEMS * 2)
    np.testing.assert_array_equal(first, ITEMS + 1)
    other = PyTorch().create()
    other.open(replace(BASE, graph=graph, outputs=(TensorSpec("third", "float32"),)))
    with pytest.raises(PredictError, match=r"no output 'third', it has: first, second"):
        other.predict([ITEMS])


def test_several_inputs_and_outputs_keep_their_order(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """Positions are the manifest's, and an output that lies otherwise in memory comes out contiguous."""
    graph = scripted(Several(), tmp_path / "several.pt")
    both = (TensorSpec("x", "float32", (4,)), TensorSpec("y", "float32", (4,)))
    predictor.open(replace(BASE, graph=graph, inputs=both, outputs=both))
    difference, total = predictor.predict([ITEMS, np.ones_like(ITEMS)])
    np.testing.assert_array_equal(difference, ITEMS - 1)
    np.testing.assert_array_equal(total, ITEMS + 1)
    assert total.flags.c_contiguous


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ((TensorSpec("y", "float64"),), "output 'y' is float32"),
        ((TensorSpec("y", "float32"), TensorSpec("z", "float32")), "1 outputs where the model has 2"),
    ],
)
def test_outputs_that_are_not_as_declared_are_an_error(
    predictor: PyTorchPredictor, tmp_path: Path, outputs: tuple[TensorSpec, ...], problem: str
) -> None:
    """TorchScript tells its outputs only by running, so the first prediction does."""
    predictor.open(replace(BASE, graph=scripted(nn.Linear(4, 3), tmp_path / "l.pt"), outputs=outputs))
    with pytest.raises(PredictError, match=problem):
        predictor.predict([ITEMS])


def test_what_pytorch_raises_while_predicting_is_a_predict_error(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """PyTorch's own words reach the user."""
    predictor.open(replace(BASE, graph=scripted(nn.Linear(5, 3), tmp_path / "l.pt")))
    with pytest.raises(PredictError, match="shapes cannot be multiplied"):
        predictor.predict([ITEMS])


def test_an_archive_in_training_mode_is_evaluated(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """Dropout does nothing, whatever mode the archive was saved in."""
    torch.jit.script(nn.Dropout(0.9).train()).save(str(tmp_path / "dropout.pt"))  # type: ignore[no-untyped-call]
    predictor.open(replace(BASE, graph=tmp_path / "dropout.pt"))
    np.testing.assert_array_equal(predictor.predict([ITEMS])[0], ITEMS)


def test_options_are_put_in_force_and_recorded(predictor: PyTorchPredictor) -> None:
    """Freezing changes no class; the precision is the process's own."""
    opened = predictor.open(replace(DIGITS, options={"freeze": True, "float32_matmul_precision": "high"}))
    try:
        assert opened.options == {"freeze": True, "float32_matmul_precision": "high", "device": "cpu"}
        assert torch.get_float32_matmul_precision() == "high"
        image = np.ones((1, 1, 8, 8), np.float32)
        plain = PyTorch().create()
        plain.open(DIGITS)
        frozen, usual = (np.array(each.predict([image])[0], np.float32) for each in (predictor, plain))
        assert float(np.abs(frozen - usual).max()) < 1e-5
    finally:
        torch.set_float32_matmul_precision("highest")
    with pytest.raises(UnknownOptionError, match="double") as caught:
        PyTorch().create().open(replace(DIGITS, options={"float32_matmul_precision": "double"}))
    assert "medium" in caught.value.hint


def test_threads_are_as_asked_for_in_a_fresh_process() -> None:
    """Both counts are set and read back; a second, other number between operators comes too late and says so."""
    script = """
from dataclasses import replace
from tests.integration.test_pytorch import DIGITS, PyTorch
from predictors.errors import PredictorError
from schemas.scenario import Threads
import numpy as np
made = PyTorch().create()
print(made.open(replace(DIGITS, threads=Threads(intra_op=1, inter_op=3))).threads)
try:
    PyTorch().create().open(replace(DIGITS, threads=Threads(inter_op=2)))
except PredictorError as error:
    print(error.message, error.hint)
"""
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert out.stdout.splitlines()[0] == str(Threads(intra_op=1, inter_op=3)), out.stderr
    assert "cannot change to 2" in out.stdout
    assert "cold" in out.stdout


def test_a_cpu_never_passes_for_a_gpu(predictor: PyTorchPredictor) -> None:
    """Without CUDA the reason names what is missing."""
    reason = PyTorch().unavailable("gpu")
    if reason is None:
        assert str(predictor.open(replace(DIGITS, device="gpu")).options["device"]).startswith("cuda")
        return
    assert "CUDA" in reason
    with pytest.raises(DeviceUnavailableError, match="CUDA"):
        predictor.open(replace(DIGITS, device="gpu"))
