"""Sizes and offsets of resize and crop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import ItemUnreadableError
from predictors.pipeline.crop import CropOperation, center_box
from predictors.pipeline.resize import scaled_size
from schemas.steps import Crop, Resize

sides = st.integers(1, 5000)


@given(sides, sides, sides, sides)
def test_keeping_the_aspect_ratio_reaches_one_side_and_exceeds_the_other(h: int, w: int, th: int, tw: int) -> None:
    """One side is exact, the other at least what is declared and within a pixel of the same scale."""
    height, width = scaled_size(h, w, Resize(dimensions=(th, tw), keep_aspect_ratio=True))
    assert height >= th
    assert width >= tw
    assert height == th or width == tw
    scale = max(th / h, tw / w)
    assert abs(height - h * scale) < 1 + 1e-9
    assert abs(width - w * scale) < 1 + 1e-9


@given(sides, sides, sides)
def test_a_square_target_is_torchvisions_resize(h: int, w: int, side: int) -> None:
    """The shorter side becomes the target, the longer int(target * long / short)."""
    short, long = min(h, w), max(h, w)
    expected = (side, int(side * long / short))
    scaled = scaled_size(h, w, Resize(dimensions=(side, side), keep_aspect_ratio=True))
    assert scaled == (expected if h <= w else expected[::-1])


def test_without_keeping_the_aspect_ratio_the_size_is_what_is_declared() -> None:
    assert scaled_size(3, 7000, Resize(dimensions=(20, 10))) == (20, 10)


@given(sides, sides, sides, sides)
def test_a_crop_by_dimensions_is_of_that_size_and_central(h: int, w: int, ch: int, cw: int) -> None:
    """What is left on the two sides differs by at most one pixel; a crop that does not fit is told."""
    step = Crop(dimensions=(ch, cw))
    if h < ch or w < cw:
        with pytest.raises(ItemUnreadableError, match="does not fit"):
            center_box(h, w, step)
        return
    top, left, bottom, right = center_box(h, w, step)
    assert (bottom - top, right - left) == (ch, cw)
    assert (h - bottom) - top in (0, 1)
    assert (w - right) - left in (0, 1)


@given(sides, sides, st.floats(0.001, 1))
def test_a_crop_by_fraction_is_symmetric_and_never_empty(h: int, w: int, fraction: float) -> None:
    top, left, bottom, right = center_box(h, w, Crop(fraction=fraction))
    assert top == h - bottom
    assert left == w - right
    assert bottom > top
    assert right > left
    assert abs((bottom - top) - h * fraction) < 2 + 1e-9


def test_a_crop_takes_the_middle_pixels() -> None:
    batch = np.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3)
    cropped = CropOperation(Crop(dimensions=(3, 2)), 100).apply(batch)
    assert np.array_equal(cropped, batch[:, 1:4, 2:4])
