"""Bytes of an image file to pixels.

Both decoders give the picture as it is stored: EXIF orientation and ICC profile are not applied, an alpha
channel is dropped, of an animation the first frame is taken, of 16-bit samples the high byte. Files that are
cut short are unreadable, never half an image. What the bytes are is told by the bytes, not by a name.
"""

import functools
import io
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from predictors.contract import Array
from predictors.errors import ItemUnreadableError, PipelineError
from predictors.pipeline.form import Form, refuse
from schemas.steps import Decode

FORMATS: Final = tuple(
    plugin.format
    for plugin in (
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
        TiffImagePlugin.TiffImageFile,
        WebPImagePlugin.WebPImageFile,
        PpmImagePlugin.PpmImageFile,
        Jpeg2KImagePlugin.Jpeg2KImageFile,
        AvifImagePlugin.AvifImageFile,
    )
)
"""What is tried (MPO opens as JPEG). Pillow knows more, among them EPS, which it has another program execute."""

_MODES: Final = {"RGB": "RGB", "BGR": "RGB", "GRAY": "L"}


def decoded_form(step: Decode) -> Form:
    """Return what `step` makes of any image. Raises PipelineError for a parameter that has no effect here."""
    if step.dct_method != "default":
        raise refuse("dct_method: default, as neither decoder's Python interface can choose another", step.dct_method)
    channels = 1 if step.color_mode == "GRAY" else 3
    shape = (None, None, channels) if step.data_layout == "HWC" else (channels, None, None)
    return Form(step.data_layout, shape, "uint8")


def pillow_decoder(step: Decode, max_pixels: int) -> Callable[[bytes], Image.Image]:
    """Return a function from bytes to a loaded image of mode RGB or L; BGR is made by `pixels`.

    The function raises ItemUnreadableError with the reason. It blocks, mostly without the GIL.
    """
    _raise_pillows_bound(max_pixels)
    return functools.partial(_decode_pillow, mode=_MODES[step.color_mode], max_pixels=max_pixels)


def opencv_decoder(step: Decode, max_pixels: int) -> Callable[[bytes], Array]:
    """Return a function from bytes to pixels in the step's own layout, by OpenCV.

    GRAY is OpenCV's own: of a JPEG the luminance as stored, no conversion. Raises PipelineError where OpenCV
    is not installed; the function raises ItemUnreadableError.
    """
    _raise_pillows_bound(max_pixels)
    cv2 = load_opencv()
    flags = {"RGB": cv2.IMREAD_COLOR_RGB, "BGR": cv2.IMREAD_COLOR, "GRAY": cv2.IMREAD_GRAYSCALE}[step.color_mode]
    return functools.partial(
        _decode_opencv,
        cv2=cv2,
        flags=flags | cv2.IMREAD_IGNORE_ORIENTATION,
        channel_first=step.data_layout == "CHW",
        max_pixels=max_pixels,
    )


def pixels(image: Image.Image, step: Decode) -> Array:
    """Return the pixels of an image of mode RGB or L in the colour order and layout of `step`."""
    width, height = image.size
    if step.color_mode == "GRAY":
        array = np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, 1)
    else:
        array = np.frombuffer(image.tobytes("raw", step.color_mode), np.uint8).reshape(height, width, 3)
    return array.transpose(2, 0, 1) if step.data_layout == "CHW" else array


def load_opencv() -> Any:
    """Import OpenCV, which only manifests that declare it need. Raises PipelineError when it does not import."""
    try:
        import cv2
    except ImportError as error:
        raise PipelineError(
            f"the manifest declares OpenCV, which does not import here: {error}",
            hint="install opencv-python-headless in the agent's environment",
        ) from error
    return cv2


def _raise_pillows_bound(max_pixels: int) -> None:
    """Let Pillow, whose own bound is one number for the whole process, open what our bound allows."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """Read the header: the size is known, nothing is decoded."""
    if not data:
        raise ItemUnreadableError("the file is empty")
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size
    if width * height > max_pixels:
        raise ItemUnreadableError(f"{width}x{height} is more than the {max_pixels} pixels that are decoded")
    return image


def _decode_pillow(data: bytes, *, mode: str, max_pixels: int) -> Image.Image:
    try:
        image: Image.Image = _open(data, max_pixels)
        image.load()
        if image.mode.startswith("I;16"):
            # Pillow's own conversion clips at 255 and leaves a white image; OpenCV and libpng take the high byte.
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert(mode)
        if image.mode in ("I", "F"):
            raise ItemUnreadableError(f"32-bit samples (Pillow's mode {image.mode}) have no 8-bit meaning")
        return image if image.mode == mode else image.convert(mode)
    except (ItemUnreadableError, MemoryError):
        raise
    except Exception as error:  # hostile bytes make Pillow raise nearly any type; each is a fact about this item
        raise ItemUnreadableError(f"does not decode: {_reason(error)}") from error


def _decode_opencv(data: bytes, *, cv2: Any, flags: int, channel_first: bool, max_pixels: int) -> Array:
    try:
        _open(data, max_pixels)
        array: Array | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except (ItemUnreadableError, MemoryError):
        raise
    except Exception as error:  # as above
        raise ItemUnreadableError(f"does not decode: {_reason(error)}") from error
    if array is None:
        raise ItemUnreadableError("does not decode: OpenCV reads no image from it")
    array = array.reshape(*array.shape[:2], -1)
    return array.transpose(2, 0, 1) if channel_first else array


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    return f"{type(error).__name__}: {error}"
