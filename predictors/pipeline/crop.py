"""Cutting the middle out of an image.

By dimensions, the offset is `(size - crop) // 2`, as the MLPerf reference implementation has it. By fraction,
the offset is `int((size - size * fraction) / 2)` and what lies between equal offsets stays, as
`tf.image.central_crop` has it. An image that is smaller than the crop cannot be cropped: nothing is padded.
"""

from typing import Final

from PIL import Image

from predictors.contract import Array
from predictors.errors import ItemUnreadableError
from predictors.pipeline.form import Form, Shape, check_dimensions, height_width, refuse, resized
from schemas.steps import Crop


class CropOperation:
    """A crop step. Takes items of any element type with axes HW or HWC."""

    def __init__(self, step: Crop, max_pixels: int) -> None:
        """Raise PipelineError for dimensions that are not positive."""
        if step.dimensions is not None:
            check_dimensions(step.dimensions, max_pixels)
        self.step: Final = step

    def form(self, form: Form) -> Form:
        """As Operation."""
        height, width = height_width(form, "crop")
        if self.step.dimensions is not None:
            for have, want in zip((height, width), self.step.dimensions, strict=True):
                if have is not None and have < want:
                    raise refuse(f"an image of at least {_by(self.step.dimensions)}", form)
            return resized(form, *self.step.dimensions)
        assert self.step.fraction is not None  # the schema has one of the two
        return resized(form, _kept(height, self.step.fraction), _kept(width, self.step.fraction))

    def source_shape(self, shape: Shape) -> Shape | None:
        """As Operation."""
        return None

    def source_view(self, out: Array, form: Form) -> Array | None:
        """As Operation."""
        return None

    def apply(self, batch: Array, out: Array | None = None) -> Array:
        """As Operation; without `out` the result is a view of `batch`."""
        top, left, bottom, right = center_box(batch.shape[1], batch.shape[2], self.step)
        view = batch[:, top:bottom, left:right]
        if out is None:
            return view
        out[...] = view
        return out

    def image(self, image: Image.Image) -> Image.Image:
        """Execute on a Pillow image: what `apply` gives for its pixels. Raises ItemUnreadableError."""
        top, left, bottom, right = center_box(image.height, image.width, self.step)
        return image.crop((left, top, right, bottom))


def center_box(height: int, width: int, step: Crop) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of what stays. Raises ItemUnreadableError: the image is too small."""
    if step.dimensions is None:
        assert step.fraction is not None  # the schema has one of the two
        top, left = _offset(height, step.fraction), _offset(width, step.fraction)
        return top, left, height - top, width - left
    crop_height, crop_width = step.dimensions
    if height < crop_height or width < crop_width:
        raise ItemUnreadableError(f"crop: {_by(step.dimensions)} does not fit into an image of {height}x{width}")
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return top, left, top + crop_height, left + crop_width


def _offset(size: int, fraction: float) -> int:
    return int((size - size * fraction) / 2)


def _kept(size: int | None, fraction: float) -> int | None:
    return None if size is None else size - 2 * _offset(size, fraction)


def _by(dimensions: tuple[int, int]) -> str:
    return f"{dimensions[0]}x{dimensions[1]}"
