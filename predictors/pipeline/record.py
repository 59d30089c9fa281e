"""The pre- and post-processing that ran, in full, as part of the result."""

import hashlib
import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import PIL
from PIL import features

from predictors.pipeline.decode import load_opencv
from predictors.pipeline.resize import OPENCV_METHODS, PILLOW_METHODS
from schemas.manifests import ModelInput, ModelOutput
from schemas.result import PipelineRecord
from schemas.steps import Decode, InputStep, OutputStep, Resize

_CODECS: Final = {
    "libjpeg_turbo": "libjpeg-turbo",
    "zlib_ng": "zlib-ng",
    "libtiff": "libtiff",
    "webp": "libwebp",
    "jpg_2000": "openjpeg",
    "avif": "libavif",
}
"""Pillow's name of what it decodes with, to the library's own."""

_DECODE_CONVENTIONS: Final = {
    "exif_orientation": "not applied",
    "icc_profile": "not applied",
    "alpha": "dropped",
    "animation": "first frame",
    "samples_of_16_bits": "high byte",
}
_CROP_CONVENTIONS: Final = {"offset": "(size - crop) // 2, or int((size - size * fraction) / 2)"}
_ASPECT: Final = "the longer side is target * long // short"


def pipeline_record(
    inputs: Sequence[ModelInput], outputs: Sequence[ModelOutput], items_per_s: float | None
) -> PipelineRecord:
    """Return every step with every parameter, defaults and fixed conventions included, and what executed them.

    Two pipelines have one digest exactly when steps and library versions are the same; `items_per_s` is not
    part of it. Raises PipelineError when a step declares OpenCV and it does not import.
    """
    input_steps = tuple(tuple(_input_step(step) for step in declared.steps) for declared in inputs)
    output_steps = tuple(tuple(_output_step(step) for step in declared.steps) for declared in outputs)
    libraries = _libraries([step for declared in inputs for step in declared.steps])
    body = json.dumps(
        {"input_steps": input_steps, "output_steps": output_steps, "libraries": libraries},
        sort_keys=True,
        separators=(",", ":"),
    )
    return PipelineRecord(
        input_steps=input_steps,
        output_steps=output_steps,
        libraries=libraries,
        digest=hashlib.sha256(body.encode()).hexdigest(),
        items_per_s=items_per_s,
    )


def _input_step(step: InputStep) -> dict[str, object]:
    parameters: dict[str, object] = step.model_dump(mode="json")
    if isinstance(step, Decode):
        return {**parameters, "conventions": _DECODE_CONVENTIONS}
    if isinstance(step, Resize):
        call = (
            f"PIL.Image.resize {PILLOW_METHODS[step.method].name}"
            if step.resizer == "pillow"
            else f"cv2.resize {OPENCV_METHODS[step.method]}"
        )
        return {**parameters, "conventions": {"call": call, "keep_aspect_ratio": _ASPECT}}
    if step.step == "crop":
        return {**parameters, "conventions": _CROP_CONVENTIONS}
    if step.step == "normalize":
        return {**parameters, "conventions": {"arithmetic": "subtract, then divide, each in float32"}}
    return parameters


def _output_step(step: OutputStep) -> dict[str, object]:
    parameters: dict[str, object] = step.model_dump(mode="json")
    if step.step == "softmax":
        return {**parameters, "conventions": {"arithmetic": "float64, the maximum subtracted first"}}
    if step.step == "argsort":
        return {**parameters, "conventions": {"ties": "rising class index", "nan": "last, and not predicted"}}
    return parameters


def _libraries(steps: Sequence[InputStep]) -> dict[str, str]:
    """Return the versions of what these steps are executed by, and of nothing else."""
    found = {"numpy": np.__version__}
    decoders = {step.decoder for step in steps if isinstance(step, Decode)}
    resizers = {step.resizer for step in steps if isinstance(step, Resize)}
    if "pillow" in decoders | resizers:
        found["pillow"] = PIL.__version__
    if "pillow" in decoders:
        found.update(_pillow_codecs())
    if "opencv" in decoders | resizers:
        cv2 = load_opencv()
        found["opencv"] = cv2.__version__
        if "opencv" in decoders:
            found.update(_opencv_codecs(cv2.getBuildInformation()))
    return found


def _pillow_codecs() -> dict[str, str]:
    """Return the version of each library that Pillow decodes with."""
    found = {}
    for feature, library in _CODECS.items():
        version = features.version(feature)
        if version is not None:
            found[f"pillow.{library}"] = version
    for codec, library in (("jpg", "libjpeg"), ("zlib", "zlib")):
        version = features.version(codec)
        if version is not None:
            found[f"pillow.{library}"] = version
    return found


def _opencv_codecs(build: str) -> dict[str, str]:
    """Return the image libraries named in the section `Media I/O` of OpenCV's build information."""
    found = {}
    inside = False
    for line in build.splitlines():
        if line.strip().startswith("Media I/O"):
            inside = True
        elif inside and not line.strip():
            break
        elif inside:
            name, _, value = (part.strip() for part in line.partition(":"))
            if name in ("JPEG", "PNG", "ZLib", "TIFF", "WEBP", "JPEG 2000", "AVIF"):
                found[f"opencv.{name}"] = value.split("/")[-1]
    return found
