"""Real models on real photographs: the platform's accuracy is the one a plain script finds."""

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlmodelscope import Client
from tests.acceptance.test_main_job import command
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BATCH = 8


def photographs(mirror: Path) -> tuple[list[Image.Image], list[int]]:
    """The data set as a script would read it: from the archive, in the order of its list."""
    with tarfile.open(mirror / "datasets/imagenet_val_sample_500.tar") as archive:
        listing = archive.extractfile("labels.csv")
        assert listing is not None
        rows = list(csv.DictReader(io.TextIOWrapper(listing)))
        images = []
        for row in rows:
            member = archive.extractfile(row["file"])
            assert member is not None
            images.append(Image.open(io.BytesIO(member.read())).convert("RGB"))
    return images, [int(row["label"]) for row in rows]


def accuracies(
    inputs: np.ndarray, labels: list[int], predict: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """Top-1 and top-5 of a plain loop."""
    top1 = top5 = 0
    for start in range(0, len(inputs), BATCH):
        scores = predict(inputs[start : start + BATCH])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        for row, label in zip(best, labels[start : start + BATCH], strict=True):
            top1 += int(row[0] == label)
            top5 += int(label in row)
    return top1 / len(labels), top5 / len(labels)


@pytest.fixture(scope="module")
def plain(asset_mirror: Path) -> dict[str, tuple[float, float]]:
    """SqueezeNet by each framework directly, with pre-processing written here and nothing of the platform."""
    import onnxruntime
    import torch

    from predictors.frameworks.torchvision_models import import_torchvision  # declares the operators it lacks here

    images, labels = photographs(asset_mirror)
    pixels = np.stack([np.asarray(image, dtype=np.float32) for image in images])
    inputs = np.ascontiguousarray((pixels[..., ::-1] - np.array([104, 117, 123], np.float32)).transpose(0, 3, 1, 2))
    folder = asset_mirror / "models/squeezenet_v1.1"
    session = onnxruntime.InferenceSession(folder / "squeezenet_v1.1.onnx", providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    network = import_torchvision().models.squeezenet1_1()
    network.load_state_dict(torch.load(folder / "squeezenet_v1.1.torchvision_state_dict.pth", weights_only=True))
    network.eval()

    def by_torch(batch: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(network(torch.from_numpy(batch)).numpy())

    return {
        "onnxruntime": accuracies(
            inputs, labels, lambda batch: np.asarray(session.run(None, {name: batch})[0]).reshape(len(batch), -1)
        ),
        "pytorch": accuracies(inputs, labels, by_torch),
    }


def test_squeezenet_is_as_accurate_as_a_plain_script_says(scope: Client, plain: dict[str, tuple[float, float]]) -> None:
    """The same top-1 and top-5 on both frameworks, and the same as without the platform."""
    done = command(
        "evaluate", "--model", "squeezenet", "--dataset", "imagenet-val-sample", "--targets", "all",
        "--batch-size", "8", "--json", "--max-duration", "3", url=scope.url, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout)["tasks"]
    found = {t["framework"]: (t["accuracy"]["top1"]["value"], t["accuracy"]["top5"]["value"]) for t in tasks}
    assert found == plain
    assert found["onnxruntime"] == found["pytorch"]
    assert 0.7 < found["pytorch"][0] < 0.8 < found["pytorch"][1] < 0.95
    assert all(task["accuracy"]["asked"] == 500 and task["accuracy"]["unreadable"] == 0 for task in tasks)


def test_swapped_colours_cost_accuracy(scope: Client, plain: dict[str, tuple[float, float]], tmp_path: Path) -> None:
    """The declared colour order is the one that is executed."""
    text = (REPOSITORY / "manifests/models/squeezenet.yml").read_text()
    assert "BGR" in text
    swapped = text.replace("BGR", "RGB").replace("name: squeezenet", "name: squeezenet-swapped", 1)
    file = tmp_path / "swapped.yml"
    file.write_text(swapped)
    scope.add_manifest("model", swapped, str(file))
    found = scope.evaluate(
        model="squeezenet-swapped",
        dataset="imagenet-val-sample",
        framework="onnxruntime",
        scenario="accuracy",
        batch_size=8,
    )
    assert found.status == "completed", found
    accuracy = found.tasks[0].accuracy
    assert accuracy is not None and accuracy.top1.value is not None
    assert accuracy.top1.value < plain["onnxruntime"][0] - 0.02


def test_mobilenet_agrees_on_both_frameworks(scope: Client) -> None:
    """1001 classes with a background class: the shift of the labels is declared and done."""
    found = scope.evaluate(
        model="mobilenet-v1-0.25", dataset="imagenet-val-sample", targets="all", scenario="accuracy", batch_size=8
    )
    assert found.status == "completed", found
    first, second = (task.accuracy for task in found.tasks)
    assert first is not None and second is not None
    assert first.top1.value == second.top1.value
    assert first.top5.value == second.top5.value
    assert first.top1.value is not None and 0.6 < first.top1.value < 0.75
