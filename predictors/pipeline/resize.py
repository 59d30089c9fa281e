"""Scaling of images, by Pillow or by OpenCV, as declared.

What each library can do is fixed, and a declaration that it cannot honour is refused:

- Pillow low-passes before it shrinks, always, except with `nearest`. So `antialias: true` is refused with
  `nearest`, and `antialias: false` with every other method. (Pillow's one unfiltered interpolation,
  `Image.transform`, truncates instead of rounding and has another bicubic kernel; it is not used.)
- OpenCV low-passes with `area` only. So `antialias: true` is refused with every other method and
  `antialias: false` with `area`. When it enlarges with `area`, OpenCV interpolates bilinearly.

`keep_aspect_ratio` scales by the larger of the two ratios; the side that exceeds is rounded down, as
torchvision's Resize does: `target * long // short`.
"""

import functools
from collections.abc import Callable
from typing import Final, cast

import numpy as np
from PIL import Image

from predictors.contract import Array
from predictors.errors import ItemUnreadableError
from predictors.pipeline.decode import load_opencv
from predictors.pipeline.form import Form, Shape, check_dimensions, height_width, refuse, resized
from schemas.steps import Resize

PILLOW_METHODS: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}
OPENCV_METHODS: Final = {
    "nearest": "INTER_NEAREST",
    "bilinear": "INTER_LINEAR",
    "bicubic": "INTER_CUBIC",
    "lanczos": "INTER_LANCZOS4",
    "area": "INTER_AREA",
}


class ResizeOperation:
    """A resize step. Takes items of uint8 or float32 with axes HW or HWC."""

    def __init__(self, step: Resize, max_pixels: int) -> None:
        """Raise PipelineError for a declaration that the library cannot honour, or when it does not import."""
        _check_antialias(step)
        check_dimensions(step.dimensions, max_pixels)
        self.step: Final = step
        self._max_pixels = max_pixels
        self._method = PILLOW_METHODS[step.method]
        self._plane: Callable[[Array, tuple[int, int]], Array] = self._pillow
        if step.resizer == "opencv":
            cv2 = load_opencv()
            interpolation = getattr(cv2, OPENCV_METHODS[step.method])
            self._plane = functools.partial(_opencv, resize=cv2.resize, interpolation=interpolation)

    def form(self, form: Form) -> Form:
        """As Operation."""
        height, width = height_width(form, "resize")
        if form.element_type not in ("uint8", "float32", None):
            raise refuse("resize of uint8 or float32", form)
        if not self.step.keep_aspect_ratio:
            return resized(form, *self.step.dimensions)
        if height is None or width is None:
            return resized(form, None, None)
        return resized(form, *scaled_size(height, width, self.step))

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return None

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        return None

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation. Item by item: neither library scales several images at once."""
        height, width = self._size(batch.shape[1], batch.shape[2])
        if out is None:
            out = np.empty((len(batch), height, width, *batch.shape[3:]), batch.dtype)
        for source, target in zip(batch, out, strict=True):
            target[...] = self._plane(source, (height, width)).reshape(target.shape)
        return out

    def image(self, image: Image.Image) -> Image.Image:
        """Execute on a Pillow image: what `apply` gives for its pixels. Raises ItemUnreadableError."""
        height, width = self._size(image.height, image.width)
        return image.resize((width, height), self._method)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        target = scaled_size(height, width, self.step)
        if target[0] * target[1] > self._max_pixels:
            raise ItemUnreadableError(
                f"resize: {height}x{width} would become {target[0]}x{target[1]}, more than {self._max_pixels} pixels"
            )
        return target

    def _pillow(self, source: Array, size: tuple[int, int]) -> Array:
        def scaled(plane: Array) -> Array:
            return np.asarray(Image.fromarray(np.ascontiguousarray(plane)).resize(size[::-1], self._method))

        if source.ndim == 2:
            return scaled(source)
        if source.shape[2] == 3 and source.dtype == np.uint8:
            return scaled(source)
        return np.stack([scaled(source[..., c]) for c in range(source.shape[2])], axis=-1)


def scaled_size(height: int, width: int, step: Resize) -> tuple[int, int]:
    """Return height and width of the scaled image, both at least what is declared."""
    target_height, target_width = step.dimensions
    if not step.keep_aspect_ratio:
        return target_height, target_width
    if target_height * width >= target_width * height:
        return target_height, width * target_height // height
    return height * target_width // width, target_width


def _opencv(source: Array, size: tuple[int, int], *, resize: Callable[..., object], interpolation: int) -> Array:
    return cast(Array, resize(np.ascontiguousarray(source), size[::-1], interpolation=interpolation))


def _check_antialias(step: Resize) -> None:
    if step.resizer == "pillow":
        can = step.method != "nearest"
        why = "Pillow low-passes with every method but nearest"
    else:
        can = step.method == "area"
        why = "OpenCV low-passes with area only"
    if step.antialias != can:
        raise refuse(f"antialias: {str(can).lower()} with {step.method} ({why})", f"antialias: {str(not can).lower()}")
