"""PyTorch files that would execute their author's code: refused, and nothing executed, unless he is trusted."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from predictors.contract import OpenModel, TensorSpec
from predictors.errors import ModelRefusedError, UntrustedModelError
from predictors.frameworks.pytorch import PyTorch, PyTorchPredictor

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
BASE = OpenModel(
    name="network",
    version="1.0.0",
    format="torchscript",
    inputs=(TensorSpec("x", "float32", (4,)),),
    outputs=(TensorSpec("y", "float32"),),
)
ITEMS = np.arange(8, dtype=np.float32).reshape(2, 4)


class TouchesFile:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


class Saves(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x


class MapsFile(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_file(self.path, True, 4)


@pytest.fixture
def predictor() -> Iterator[PyTorchPredictor]:
    made = PyTorch().create()
    yield made
    made.close()


def scripted(network: nn.Module, path: Path) -> Path:
    torch.jit.script(network.eval()).save(str(path))  # type: ignore[no-untyped-call]
    return path


def state_dict(path: Path, **changes: object) -> OpenModel:
    constructor = "torchvision.models.squeezenet1_1"
    return replace(BASE, format="torch_state_dict", weights=path, constructor=constructor, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("written_by", ["pickle", "torch.save"])
def test_a_pickle_that_executes_code_is_refused_and_does_not_execute(
    predictor: PyTorchPredictor, tmp_path: Path, written_by: str
) -> None:
    """The file that the pickle would create is not there, for neither way of writing one."""
    evil, created = tmp_path / "evil.pth", tmp_path / "created"
    content = {"weight": TouchesFile(created)}
    if written_by == "torch.save":
        torch.save(content, evil)
    else:
        evil.write_bytes(pickle.dumps(content))
    with pytest.raises(UntrustedModelError, match="execute its author's code") as caught:
        predictor.open(state_dict(evil))
    assert "trusted_authors" in caught.value.hint
    for format_ in ("torchscript", "torch_export"):
        with pytest.raises(ModelRefusedError):
            PyTorch().create().open(replace(BASE, format=format_, graph=evil))
    assert not created.exists()


def test_the_same_pickle_is_loaded_for_a_trusted_author(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """Trust is what makes the difference: with it the code runs, and the state dict is judged after."""
    evil, created = tmp_path / "evil.pth", tmp_path / "created"
    torch.save({"weight": TouchesFile(created)}, evil)
    with pytest.raises(ModelRefusedError, match="Missing key"):
        predictor.open(state_dict(evil, trusted=True))
    assert created.exists()


@pytest.mark.parametrize("network", [Saves, MapsFile])
def test_torchscript_that_writes_files_is_refused_and_writes_none(
    predictor: PyTorchPredictor, tmp_path: Path, network: type[nn.Module]
) -> None:
    """TorchScript runs no Python, but it can write files: not for an author who is not trusted."""
    written = tmp_path / "written"
    model = replace(BASE, graph=scripted(network(str(written)), tmp_path / "m.pt"))
    with pytest.raises(UntrustedModelError, match="touch files"):
        predictor.open(model)
    assert not written.exists()
    trusted = PyTorch().create()
    trusted.open(replace(model, trusted=True))
    trusted.predict([ITEMS])
    assert written.exists()


def test_code_under_a_name_in_capitals_is_found_too(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """PyTorch reads `CODE/` where it looks for `code/`: hiding there does not help."""
    written = tmp_path / "written"
    reader = torch._C.PyTorchFileReader(str(scripted(Saves(str(written)), tmp_path / "m.pt")))
    writer = torch._C.PyTorchFileWriter(str(tmp_path / "hidden.pt"))
    for record in reader.get_all_records():
        if record not in ("version", ".data/serialization_id") and not record.endswith(".debug_pkl"):
            content = reader.get_record(record)
            writer.write_record(record.replace("code/", "CODE/"), content, len(content))
    writer.write_end_of_file()
    hidden = replace(BASE, graph=tmp_path / "hidden.pt")
    with pytest.raises(UntrustedModelError, match="touch files"):
        predictor.open(hidden)
    trusted = PyTorch().create()
    trusted.open(replace(hidden, trusted=True))
    trusted.predict([ITEMS])
    assert written.exists()  # so the archive does load, and would have


def test_an_object_of_a_native_class_is_refused(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """TorchScript can create objects of classes written in C++; only packed weights are let in."""
    archive = scripted(nn.Linear(4, 3), tmp_path / "m.pt")
    reader, target = torch._C.PyTorchFileReader(str(archive)), tmp_path / "native.pt"
    writer = torch._C.PyTorchFileWriter(str(target))
    for record in reader.get_all_records():
        if record not in ("version", ".data/serialization_id"):
            content = reader.get_record(record)
            if record == "constants.pkl":
                content = b"\x80\x02c__torch__.torch\nclasses.aoti.Runner\n)\x81."
            writer.write_record(record, content, len(content))
    writer.write_end_of_file()
    with pytest.raises(UntrustedModelError, match=r"torch\.classes\.aoti"):
        predictor.open(replace(BASE, graph=target))


def test_an_export_archive_opens_for_a_trusted_author_only(predictor: PyTorchPredictor, tmp_path: Path) -> None:
    """`torch.export` archives run Python text of their author's when loaded."""
    network = nn.Linear(4, 3).eval()
    archive = tmp_path / "exported.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.export.save(torch.export.export(network, (torch.ones(2, 4),), dynamic_shapes=({0: batch},)), archive)
    model = replace(BASE, format="torch_export", graph=archive)
    with pytest.raises(UntrustedModelError, match=r"torch\.export archive"):
        PyTorch().create().open(model)
    predictor.open(replace(model, trusted=True))
    for rows in (2, 1):
        with torch.inference_mode():
            wanted = network(torch.from_numpy(ITEMS[:rows])).numpy()
        np.testing.assert_array_equal(predictor.predict([ITEMS[:rows]])[0], wanted)
