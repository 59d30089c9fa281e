"""Real networks with published weights, opened as the shipped manifests say: both frameworks give the same."""

import csv
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from predictors.contract import OpenModel, TensorSpec
from predictors.frameworks.registry import load_framework
from schemas.manifest_yaml import parse_manifest
from schemas.manifests import ModelManifest
from schemas.steps import AssetRef

MODELS = Path(__file__).resolve().parents[2] / "manifests" / "models"
ITEMS, BATCH = 100, 10
Floats = npt.NDArray[np.float32]


def for_squeezenet(image: Image.Image) -> Floats:
    """227x227 BGR minus Caffe's means."""
    return np.asarray(np.asarray(image)[:, :, ::-1] - np.array([104, 117, 123]), np.float32).transpose(2, 0, 1)


def for_mobilenet(image: Image.Image) -> Floats:
    """The central 87.5 % as TF-slim cuts it (14 pixels off each side of 227), scaled to 224x224, -1 to 1."""
    cut = image.crop((14, 14, 213, 213)).resize((224, 224), Image.Resampling.BILINEAR)
    return np.asarray(np.asarray(cut) / 127.5 - 1, np.float32).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def photographs(asset_mirror: Path) -> tuple[list[Image.Image], npt.NDArray[np.int64]]:
    """The first of the ImageNet validation sample, 227x227, and their classes."""
    with tarfile.open(asset_mirror / "datasets" / "imagenet_val_sample_500.tar") as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        rows = list(csv.DictReader(io.StringIO(read("labels.csv").decode())))[:ITEMS]
        images = [Image.open(io.BytesIO(read(row["file"]))).convert("RGB") for row in rows]
    return images, np.array([int(row["label"]) for row in rows])


def opened(manifest: ModelManifest, framework: str, mirror: Path) -> OpenModel:
    """What an agent would hand to the predictor; assets are where the mirror has them."""
    entry = next(each for each in manifest.frameworks if each.name == framework)

    def path(asset: AssetRef | None) -> Path | None:
        return None if asset is None else mirror / asset.url.removeprefix("mirror:")

    return OpenModel(
        name=manifest.name,
        version=manifest.version,
        format=entry.model.format,
        graph=path(entry.model.graph),
        weights=path(entry.model.weights),
        constructor=entry.model.constructor,
        arguments=entry.model.arguments,
        inputs=tuple(TensorSpec(each.name, each.element_type, each.shape) for each in manifest.inputs),
        outputs=tuple(TensorSpec(each.name, each.element_type) for each in manifest.outputs),
        batch_size=BATCH,
    )


@pytest.mark.parametrize(
    ("name", "prepare", "first_label", "expected_top1"),
    [("squeezenet", for_squeezenet, 0, 0.748), ("mobilenet-v1-0.25", for_mobilenet, 1, 0.662)],
)
def test_both_frameworks_give_the_same_probabilities(
    asset_mirror: Path,
    photographs: tuple[list[Image.Image], npt.NDArray[np.int64]],
    name: str,
    prepare: Callable[[Image.Image], Floats],
    first_label: int,
    expected_top1: float,
) -> None:
    """One set of weights is one network: probabilities within 1e-4, the same five classes in the same order.

    The top-1 accuracy is one that the accuracy on all 500 images of the sample, `expected_top1`, makes likely.
    """
    manifest = parse_manifest((MODELS / f"{name}.yml").read_text(), "model", name)
    assert isinstance(manifest, ModelManifest)
    images, labels = photographs
    inputs = np.stack([prepare(image) for image in images])
    found: dict[str, Floats] = {}
    for framework in ("onnxruntime", "pytorch"):
        predictor = load_framework(framework).create()
        predictor.open(opened(manifest, framework, asset_mirror))
        batches = [predictor.predict([inputs[start : start + BATCH]])[0] for start in range(0, ITEMS, BATCH)]
        found[framework] = np.array(np.concatenate(batches), np.float32)
        predictor.close()
    one, other = found["onnxruntime"], found["pytorch"]
    assert float(np.abs(one.sum(1) - 1).max()) < 1e-4
    assert float(np.abs(one - other).max()) < 1e-4
    np.testing.assert_array_equal(np.argsort(-one, 1)[:, :5], np.argsort(-other, 1)[:, :5])
    assert abs(float((one.argmax(1) - first_label == labels).mean()) - expected_top1) < 0.12
