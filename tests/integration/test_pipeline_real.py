"""The pipelines on real photographs and a real network, against the libraries used directly."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from predictors.contract import Array
from predictors.data.datasets import Dataset, open_dataset
from predictors.data.manager import DataManager
from predictors.pipeline import InputPipeline, OutputPipeline, Prediction
from predictors.worker.scoring import score
from schemas.manifest_yaml import parse_manifest
from schemas.manifests import DatasetManifest, ModelInput, ModelManifest

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
FEW = 12
ITEMS = 200
"""Of a data set on which a network is run."""


@pytest.fixture(scope="module")
def manager(asset_mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> DataManager:
    return DataManager(tmp_path_factory.mktemp("cache"), mirror=str(asset_mirror))


@pytest.fixture(scope="module")
def photographs(manager: DataManager) -> Dataset:
    """Full-size photographs, each of its own size."""
    return open_dataset(_dataset("imagenet-photos"), manager.fetch)


def _dataset(name: str) -> DatasetManifest:
    manifest = parse_manifest((MANIFESTS / "datasets" / f"{name}.yml").read_text(), "dataset", name)
    assert isinstance(manifest, DatasetManifest)
    return manifest


def _model(name: str) -> ModelManifest:
    manifest = parse_manifest((MANIFESTS / "models" / f"{name}.yml").read_text(), "model", name)
    assert isinstance(manifest, ModelManifest)
    return manifest


def _prepare(
    dataset: Dataset, steps: list[Any], shape: Sequence[int], directory: Path, element_type: str = "uint8"
) -> Array:
    declared = {"type": "image", "name": "x", "shape": shape, "element_type": element_type, "steps": steps}
    pipeline = InputPipeline([ModelInput.model_validate(declared)], max_pixels=10**8)
    prepared = pipeline.prepare(dataset, range(FEW), workers=2, spill_dir=directory)
    assert prepared.unreadable == {}
    return prepared.arrays[0]


def _file(dataset: Dataset, index: int) -> bytes:
    data = dataset.read(index)
    assert isinstance(data, bytes)
    return data


def _image(dataset: Dataset, index: int) -> Image.Image:
    return Image.open(io.BytesIO(_file(dataset, index))).convert("RGB")


PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "area": Image.Resampling.BOX}
PILLOW |= {"lanczos": Image.Resampling.LANCZOS, "nearest": Image.Resampling.NEAREST}


@pytest.mark.parametrize("method", list(PILLOW))
def test_resizing_is_pillows_byte_for_byte(photographs: Dataset, tmp_path: Path, method: str) -> None:
    """Rows are Image.open(...).convert('RGB').resize(...), whatever the photograph's size."""
    resize = {"dimensions": [90, 120], "method": method, "antialias": method != "nearest"}
    found = _prepare(photographs, ["decode", {"resize": resize}], (90, 120, 3), tmp_path)
    for k in range(FEW):
        expected = np.asarray(_image(photographs, k).resize((120, 90), PILLOW[method]))
        assert found[k].tobytes() == expected.tobytes()


def test_the_usual_pipeline_is_the_usual_loop_byte_for_byte(photographs: Dataset, tmp_path: Path) -> None:
    """Shorter side to 256, central 224, BGR, normalised, CHW."""
    mean, scale = np.array([104, 117, 123], np.float32), np.array([57.375, 57.12, 58.395], np.float32)
    steps: list[Any] = [
        {"decode": {"color_mode": "BGR"}},
        {"resize": {"dimensions": [256, 256], "keep_aspect_ratio": True}},
        {"crop": {"dimensions": [224, 224]}},
        {"normalize": {"mean": mean.tolist(), "scale": scale.tolist()}},
        {"transpose": {"layout": "CHW"}},
    ]
    found = _prepare(photographs, steps, (3, 224, 224), tmp_path, "float32")
    for k in range(FEW):
        image = _image(photographs, k)
        short = min(image.size)
        size = (int(256 * image.width / short), int(256 * image.height / short))
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        rgb = np.asarray(image.crop((left, top, left + 224, top + 224)))
        expected = ((rgb[..., ::-1].astype(np.float32) - mean) / scale).transpose(2, 0, 1)
        assert found[k].tobytes() == np.ascontiguousarray(expected).tobytes()


def test_steps_on_arrays_give_what_steps_on_images_give(photographs: Dataset, tmp_path: Path) -> None:
    """Crop and resize after a cast run on arrays, one photograph at a time; uint8 stays what Pillow makes of it."""
    crop, resize = {"crop": {"fraction": 0.5}}, {"resize": {"dimensions": [64, 64]}}
    images = _prepare(photographs, ["decode", crop, resize], (64, 64, 3), tmp_path)
    as_arrays = _prepare(
        photographs, ["decode", {"cast": {"element_type": "uint8"}}, crop, resize], (64, 64, 3), tmp_path
    )
    assert np.array_equal(images, as_arrays)
    floats = _prepare(
        photographs, ["decode", {"cast": {"element_type": "float32"}}, crop, resize], (64, 64, 3), tmp_path, "float32"
    )
    for k in range(FEW):
        assert np.abs(np.asarray(floats[k], np.float64) - np.asarray(images[k], np.float64)).max() <= 1.01


@pytest.mark.parametrize("color_mode", ["RGB", "BGR"])
@pytest.mark.parametrize(("method", "constant"), [("bilinear", "INTER_LINEAR"), ("area", "INTER_AREA")])
def test_opencv_is_opencv_byte_for_byte(
    photographs: Dataset, tmp_path: Path, color_mode: str, method: str, constant: str
) -> None:
    import cv2

    resize = {"dimensions": [90, 120], "method": method, "antialias": method == "area", "resizer": "opencv"}
    steps = [{"decode": {"decoder": "opencv", "color_mode": color_mode}}, {"resize": resize}]
    found = _prepare(photographs, steps, (90, 120, 3), tmp_path)
    for k in range(FEW):
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        bgr = cv2.imdecode(np.frombuffer(_file(photographs, k), np.uint8), flags)
        assert bgr is not None
        expected = cv2.resize(bgr, (120, 90), interpolation=getattr(cv2, constant))
        if color_mode == "RGB":
            expected = cv2.cvtColor(expected, cv2.COLOR_BGR2RGB)
        assert found[k].tobytes() == expected.tobytes()


def test_decoders_and_resizers_are_not_interchangeable(photographs: Dataset, tmp_path: Path) -> None:
    """What is declared is what runs: the two libraries give different pixels, which is why it is recorded."""
    steps = ["decode", {"resize": {"dimensions": [90, 120]}}]
    other = ["decode", {"resize": {"dimensions": [90, 120], "resizer": "opencv", "antialias": False}}]
    assert not np.array_equal(
        _prepare(photographs, steps, (90, 120, 3), tmp_path), _prepare(photographs, other, (90, 120, 3), tmp_path)
    )


def test_one_worker_and_many_give_the_same(photographs: Dataset, tmp_path: Path) -> None:
    pipeline = InputPipeline(_model("mobilenet-v1-0.25").inputs, max_pixels=10**8)
    one = pipeline.prepare(photographs, range(FEW), workers=1, spill_dir=tmp_path)
    many = pipeline.prepare(photographs, range(FEW), workers=4, spill_dir=tmp_path)
    assert one.arrays[0].tobytes() == many.arrays[0].tobytes()


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet-v1-0.25", "digits-cnn", "null"])
def test_every_manifest_that_ships_can_be_executed(manager: DataManager, name: str) -> None:
    model = _model(name)
    InputPipeline(model.inputs, max_pixels=10**8)
    assert OutputPipeline(model.outputs, manager.fetch, ()).classifies


def _evaluate(model: ModelManifest, dataset: Dataset, manager: DataManager, directory: Path) -> list[Prediction]:
    graph = model.frameworks[0].model.graph
    assert graph is not None
    session = onnxruntime.InferenceSession(str(manager.fetch(graph)))
    prepared = InputPipeline(model.inputs, max_pixels=10**8).prepare(
        dataset, range(ITEMS), workers=2, spill_dir=directory
    )
    outputs = OutputPipeline(model.outputs, manager.fetch, dataset.class_names)
    found: list[Prediction] = []
    for begin in range(0, len(prepared.positions), 50):
        batch = prepared.arrays[0][begin : begin + 50]
        items = [dataset.items[index] for index in prepared.positions[begin : begin + 50]]
        found += outputs.apply(session.run(None, {model.inputs[0].name: batch}), items)
    return found


@pytest.mark.slow
def test_squeezenet_on_imagenet_is_what_a_plain_script_finds(manager: DataManager, tmp_path: Path) -> None:
    """Same classes for each image as the framework used by hand; with the colours swapped it is worse."""
    model = _model("squeezenet")
    dataset = open_dataset(_dataset("imagenet-val-sample"), manager.fetch)
    found = _evaluate(model, dataset, manager, tmp_path)
    graph = model.frameworks[0].model.graph
    assert graph is not None
    session = onnxruntime.InferenceSession(str(manager.fetch(graph)))
    right = 0
    for k in range(0, ITEMS, 5):
        bgr = np.asarray(_image(dataset, k), np.float32)[..., ::-1] - np.array([104, 117, 123], np.float32)
        (scores,) = session.run(None, {"data": np.ascontiguousarray(bgr.transpose(2, 0, 1))[None]})
        assert found[k].classes == tuple(np.argsort(-scores[0], kind="stable")[:5])
        assert found[k].correct_top1 == (int(scores[0].argmax()) == int(dataset.items[k].label))
        right += found[k].correct_top1
    assert right > 10
    accuracy = score(found, asked=ITEMS, unreadable=0)
    steps = [
        {**step.model_dump(), **({"color_mode": "RGB"} if step.step == "decode" else {})}
        for step in model.inputs[0].steps
    ]
    swapped = model.model_copy(
        update={"inputs": (ModelInput.model_validate({**model.inputs[0].model_dump(), "steps": steps}),)}
    )
    worse = score(_evaluate(swapped, dataset, manager, tmp_path), asked=ITEMS, unreadable=0)
    assert accuracy.top1.value is not None
    assert worse.top1.value is not None
    assert worse.top1.value < accuracy.top1.value
    print(f"top-1 {accuracy.top1.value:.3f}, top-5 {accuracy.top5.value:.3f}; swapped top-1 {worse.top1.value:.3f}")


@pytest.mark.slow
def test_mobilenet_with_its_background_class_is_right_about_real_images(manager: DataManager, tmp_path: Path) -> None:
    """Off by one in the numbering would leave next to nothing right."""
    dataset = open_dataset(_dataset("imagenet-val-sample"), manager.fetch)
    found = _evaluate(_model("mobilenet-v1-0.25"), dataset, manager, tmp_path)
    accuracy = score(found, asked=ITEMS, unreadable=0)
    assert accuracy.top1.value is not None
    assert accuracy.top1.value > 0.35
