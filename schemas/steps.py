"""The steps of input and output pipelines, as manifests declare them.

A list of steps is executed exactly as written, in that order. A step that is not listed does not
happen. Every parameter has its default here, so that what ran can be recorded in full.
In YAML a step is `- decode: {color_mode: BGR}`, or `- softmax` when it takes no parameters.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from schemas.base import Request, Sha256

ElementType = Literal["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


class AssetRef(Request):
    """A file by address and digest. The digest is the identity; the address says where to look."""

    url: str
    """`https:`, `file:`, `repo:` (shipped with the platform), or any scheme that fsspec knows."""
    sha256: Sha256
    unpack: bool = False
    """The asset is an archive (tar, tar.gz, zip): use the directory it unpacks to."""


class Decode(Request):
    """Bytes of an image file to an array of uint8."""

    step: Literal["decode"] = "decode"
    decoder: Literal["pillow", "opencv"] = "pillow"
    color_mode: Literal["RGB", "BGR", "GRAY"] = "RGB"
    data_layout: Literal["HWC", "CHW"] = "HWC"
    dct_method: Literal["default", "accurate", "fast"] = "default"
    """JPEG inverse DCT. Neither decoder's Python interface can choose it, so only `default` runs; another
    value is refused by the predictor rather than ignored."""


class Resize(Request):
    """Scale an image. Works on HWC; the library is `resizer`, whatever decoded."""

    step: Literal["resize"] = "resize"
    dimensions: tuple[int, int]
    """Height, width in pixels."""
    method: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"
    keep_aspect_ratio: bool = False
    """Scale so that the shorter side reaches its dimension and the other exceeds it or matches."""
    antialias: bool = True
    """Low-pass before shrinking. Pillow always does, except for `nearest`; OpenCV only with `area`."""
    resizer: Literal["pillow", "opencv"] = "pillow"


class Crop(Request):
    """Cut an image out of an image: by size in pixels or by fraction of each side."""

    step: Literal["crop"] = "crop"
    method: Literal["center"] = "center"
    dimensions: tuple[int, int] | None = None
    """Height, width in pixels."""
    fraction: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="after")
    def _one_of(self) -> "Crop":
        if (self.dimensions is None) == (self.fraction is None):
            raise ValueError("crop takes either dimensions or fraction")
        return self


class Normalize(Request):
    """`(x - mean) / scale` in float32. One number, or one for each channel in the array's own order."""

    step: Literal["normalize"] = "normalize"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    channel_axis: int = -1
    """The axis the numbers run along, counted within one item."""

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {k: [v] if k in ("mean", "scale") and isinstance(v, (int, float)) else v for k, v in data.items()}
        return data

    @model_validator(mode="after")
    def _no_zero(self) -> "Normalize":
        if 0 in self.scale:
            raise ValueError("scale is a divisor and cannot be 0")
        return self


class Cast(Request):
    """Change the element type. To an integer type it truncates and saturates nothing: as NumPy's astype."""

    step: Literal["cast"] = "cast"
    element_type: ElementType


class Transpose(Request):
    """Reorder the axes of an image: `CHW` from HWC or `HWC` from CHW."""

    step: Literal["transpose"] = "transpose"
    layout: Literal["CHW", "HWC"]


class Reshape(Request):
    """Give one item another shape of as many elements (the batch axis is not counted)."""

    step: Literal["reshape"] = "reshape"
    shape: tuple[int, ...]


class Softmax(Request):
    """Logits to probabilities along the last axis, in float64, with the maximum subtracted first."""

    step: Literal["softmax"] = "softmax"


class Argsort(Request):
    """Classes by falling score; equal scores by rising class index."""

    step: Literal["argsort"] = "argsort"
    labels: AssetRef | tuple[str, ...] | None = None
    """A text file of one label a line, or the labels themselves."""
    first_label_index: int = 0
    """Subtracted from the class index before it is compared with the data set's label: 1 for networks with
    a background class at 0."""


class Raw(Request):
    """The numbers as they are."""

    step: Literal["raw"] = "raw"


def _named(value: Any) -> Any:
    """Accept `softmax`, `{softmax: null}` and `{decode: {...}}` beside `{step: decode, ...}`."""
    if isinstance(value, str):
        return {"step": value}
    if isinstance(value, dict) and "step" not in value and len(value) == 1:
        ((name, parameters),) = value.items()
        if parameters is None or isinstance(parameters, dict):
            return {"step": name, **(parameters or {})}
    return value


InputStep = Annotated[
    Annotated[Decode | Resize | Crop | Normalize | Cast | Transpose | Reshape, Field(discriminator="step")],
    BeforeValidator(_named),
]
OutputStep = Annotated[Annotated[Softmax | Argsort | Raw, Field(discriminator="step")], BeforeValidator(_named)]
