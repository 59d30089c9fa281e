"""The record of a pipeline: everything that ran, and a digest that tells pipelines apart."""

from typing import Any

import numpy as np
import PIL
import pytest

from predictors.pipeline import pipeline_record
from schemas.manifests import ModelInput, ModelOutput
from schemas.result import PipelineRecord

IMAGE: dict[str, Any] = {
    "type": "image",
    "name": "data",
    "shape": (3, 224, 224),
    "steps": [
        "decode",
        {"resize": {"dimensions": (224, 224)}},
        {"normalize": {"mean": [1, 2, 3], "scale": [4, 5, 6]}},
        {"transpose": {"layout": "CHW"}},
    ],
}
OUTPUT: dict[str, Any] = {"type": "classification", "name": "prob", "steps": ["softmax", "argsort"]}


def record(image: dict[str, Any] = IMAGE, output: dict[str, Any] = OUTPUT, speed: float | None = 5.0) -> PipelineRecord:
    return pipeline_record([ModelInput.model_validate(image)], [ModelOutput.model_validate(output)], speed)


def test_every_parameter_is_recorded_defaults_included() -> None:
    found = record()
    ((decoded, resized, normalized, _),) = found.input_steps
    assert (
        decoded.items() >= {"step": "decode", "decoder": "pillow", "color_mode": "RGB", "dct_method": "default"}.items()
    )
    assert resized.items() >= {"method": "bilinear", "antialias": True, "keep_aspect_ratio": False}.items()
    assert normalized["channel_axis"] == -1
    assert decoded["conventions"].items() >= {"exif_orientation": "not applied"}.items()  # type: ignore[attr-defined]
    ((softmax, argsort),) = found.output_steps
    assert (softmax["step"], argsort["first_label_index"]) == ("softmax", 0)
    assert found.libraries["numpy"] == np.__version__
    assert found.libraries["pillow"] == PIL.__version__
    assert found.libraries["pillow.libjpeg-turbo"]
    assert found.items_per_s == 5.0


def test_the_same_pipeline_has_the_same_digest_however_fast_it_was() -> None:
    assert record(speed=5.0).digest == record(speed=None).digest
    assert len(record().digest) == 64


@pytest.mark.parametrize(
    ("step", "parameter"),
    [
        (0, {"decode": {"color_mode": "BGR"}}),
        (0, {"decode": {"decoder": "opencv"}}),
        (1, {"resize": {"dimensions": (224, 224), "method": "bicubic"}}),
        (1, {"resize": {"dimensions": (224, 224), "keep_aspect_ratio": True}}),
        (2, {"normalize": {"mean": [1, 2, 3.5], "scale": [4, 5, 6]}}),
    ],
)
def test_another_parameter_is_another_digest(step: int, parameter: dict[str, Any]) -> None:
    steps = list(IMAGE["steps"])
    steps[step] = parameter
    assert record({**IMAGE, "steps": steps}).digest != record().digest


def test_another_order_is_another_digest() -> None:
    steps = [IMAGE["steps"][k] for k in (0, 1, 3, 2)]
    assert record({**IMAGE, "steps": steps}).digest != record().digest
    assert record(output={**OUTPUT, "steps": ["argsort"]}).digest != record().digest


def test_only_libraries_that_execute_a_step_are_named() -> None:
    """Another Pillow does not make another pipeline of a model that decodes nothing."""
    assert set(record({"type": "tensor", "name": "x", "shape": (4,)}).libraries) == {"numpy"}
    opencv = record({**IMAGE, "steps": [{"decode": {"decoder": "opencv"}}]}).libraries
    assert set(opencv) >= {"numpy", "opencv", "opencv.JPEG"}
    assert "pillow" not in opencv
    assert "pillow.libjpeg-turbo" not in opencv
    mixed = record({**IMAGE, "steps": ["decode", {"resize": {"dimensions": (2, 2), "resizer": "opencv"}}]}).libraries
    assert set(mixed) >= {"pillow", "pillow.libjpeg-turbo", "opencv"}
    assert "opencv.JPEG" not in mixed


def test_a_record_travels() -> None:
    found = record()
    assert PipelineRecord.model_validate_json(found.model_dump_json()) == found
