"""Steps that do not fit are refused when the pipeline is made, with the step, what it expects and what it finds."""

from typing import Any

import pytest

from predictors.errors import PipelineError
from predictors.pipeline import InputPipeline
from schemas.manifests import ModelInput


def image_input(steps: list[Any], shape: tuple[int, ...] = (224, 224, 3), **more: Any) -> ModelInput:
    return ModelInput.model_validate({"type": "image", "name": "data", "shape": shape, "steps": steps, **more})


RESIZE = {"resize": {"dimensions": [224, 224]}}
CHW = {"transpose": {"layout": "CHW"}}
FLOAT = {"cast": {"element_type": "float32"}}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "type image and has no step 'decode'"),
        ([RESIZE], r"step 1 \(resize\): expected decode as the first step"),
        (["decode", "decode"], r"step 2 \(decode\): expected decode as the first step"),
        (["decode", CHW, RESIZE], r"step 3 \(resize\): expected resize before the axes become CHW"),
        ([{"decode": {"data_layout": "CHW"}}, RESIZE], r"step 2 \(resize\): expected resize before"),
        (["decode", RESIZE, CHW, {"crop": {"fraction": 0.5}}], r"step 4 \(crop\): expected crop before"),
        (["decode", RESIZE, CHW, CHW], r"step 4 \(transpose\): expected an item of layout HWC"),
        (["decode", RESIZE], r"after the last step \(resize\): expected float32 \(224, 224, 3\) as declared"),
        (["decode", RESIZE, FLOAT, CHW], r"found float32 \(3, 224, 224\) CHW"),
        ([{"decode": {"color_mode": "GRAY"}}, RESIZE, FLOAT], r"found float32 \(224, 224, 1\)"),
        (["decode", RESIZE, {"crop": {"dimensions": [225, 9]}}], r"\(crop\): expected an image of at least 225x9"),
        (["decode", RESIZE, {"normalize": {"mean": [1, 2], "scale": 1}}], r"\(normalize\): expected 2 channels"),
        (["decode", RESIZE, {"normalize": {"mean": [1, 2, 3], "channel_axis": 5}}], "expected an axis 5"),
        (["decode", RESIZE, {"reshape": {"shape": [7]}}], r"\(reshape\): expected 7 elements"),
        (["decode", RESIZE, {"reshape": {"shape": [-1]}}], r"\(reshape\): expected lengths of at least 1"),
        (["decode", {"cast": {"element_type": "int64"}}, RESIZE], r"\(resize\): expected resize of uint8 or float32"),
        (["decode", {"resize": {"dimensions": [0, 3]}}], r"\(resize\): expected dimensions of at least 1"),
        (["decode", {"resize": {"dimensions": [9000, 9000]}}], r"\(resize\): expected at most 1000000 pixels"),
        ([{"decode": {"dct_method": "accurate"}}], r"\(decode\): expected dct_method: default"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: list[Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        InputPipeline([image_input(steps)], max_pixels=1_000_000)
    assert "input 'data'" in caught.value.message
    assert caught.value.code == "pipeline_failed"


@pytest.mark.parametrize("resizer", ["pillow", "opencv"])
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos", "area"])
def test_antialias_is_what_the_library_does_or_refused(resizer: str, method: str) -> None:
    """Pillow low-passes with all but nearest, OpenCV with area alone; the other declaration says what to write."""
    does = method != "nearest" if resizer == "pillow" else method == "area"
    for antialias in (True, False):
        resize = {"dimensions": [224, 224], "method": method, "resizer": resizer, "antialias": antialias}
        steps = ["decode", {"resize": resize}, FLOAT]
        if antialias == does:
            InputPipeline([image_input(steps)], max_pixels=1_000_000)
            continue
        with pytest.raises(PipelineError, match=rf"expected antialias: {str(does).lower()} with {method}"):
            InputPipeline([image_input(steps)], max_pixels=1_000_000)


def test_a_layout_that_does_not_fit_the_shape_is_refused() -> None:
    with pytest.raises(PipelineError, match="layout NCHW has 4 axes"):
        InputPipeline([image_input(["decode"], (3, 4), layout="NCHW")], max_pixels=100)


def test_a_tensor_input_has_no_decode() -> None:
    declared = ModelInput.model_validate({"type": "tensor", "name": "x", "shape": [3], "steps": ["decode"]})
    with pytest.raises(PipelineError, match="expected decode as the first step of an input of type image"):
        InputPipeline([declared], max_pixels=100)


def test_a_pipeline_without_inputs_is_refused() -> None:
    with pytest.raises(PipelineError, match="no input"):
        InputPipeline([], max_pixels=100)
