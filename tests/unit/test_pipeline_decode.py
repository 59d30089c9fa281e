"""Image files of every kind that people have, and those that are none."""

import contextlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from predictors.contract import Array
from predictors.errors import ItemUnreadableError, PipelineError
from predictors.pipeline.decode import decoded_form, opencv_decoder, pillow_decoder, pixels
from schemas.steps import Decode

RNG = np.random.default_rng(7)
RGB = RNG.integers(0, 256, (9, 13, 3), dtype=np.uint8)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def decode(data: bytes, max_pixels: int = 10_000, **parameters: Any) -> Array:
    step = Decode(**parameters)
    if step.decoder == "opencv":
        return opencv_decoder(step, max_pixels)(data)
    return pixels(pillow_decoder(step, max_pixels)(data), step)


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_colour_order_and_layout_are_as_declared(decoder: str) -> None:
    """BGR is RGB with the channels swapped, CHW is HWC with the axes moved, GRAY has one channel."""
    data = encoded(Image.fromarray(RGB), "PNG")
    assert np.array_equal(decode(data, decoder=decoder), RGB)
    assert np.array_equal(decode(data, decoder=decoder, color_mode="BGR"), RGB[..., ::-1])
    chw = decode(data, decoder=decoder, color_mode="BGR", data_layout="CHW")
    assert np.array_equal(chw, RGB[..., ::-1].transpose(2, 0, 1))
    assert decode(data, decoder=decoder, color_mode="GRAY").shape == (9, 13, 1)
    assert decode(data, decoder=decoder, color_mode="GRAY", data_layout="CHW").shape == (1, 9, 13)


def test_gray_is_pillows_conversion() -> None:
    data = encoded(Image.fromarray(RGB), "PNG")
    assert np.array_equal(decode(data, color_mode="GRAY")[..., 0], np.asarray(Image.fromarray(RGB).convert("L")))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("color_mode", ["RGB", "GRAY"])
def test_every_colour_model_is_converted_as_pillow_does(mode: str, color_mode: str) -> None:
    """What comes out is Image.open(...).convert(...), palettes and CMYK included."""
    file_format = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
    data = encoded(Image.fromarray(RGB).convert(mode), file_format)
    expected = Image.open(io.BytesIO(data)).convert("RGB" if color_mode == "RGB" else "L")
    assert np.array_equal(decode(data, color_mode=color_mode).squeeze(), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_alpha_of_a_palette_is_dropped(format: str) -> None:
    palette = Image.fromarray(RGB).convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    data = encoded(palette, format, transparency=0)
    assert np.array_equal(decode(data), np.asarray(palette.convert("RGB")))


def test_a_cameras_multi_picture_file_is_read_as_its_first_picture() -> None:
    frames = [Image.fromarray(RGB), Image.fromarray(RGB[::-1])]
    data = encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_of_16_bits_the_high_byte_is_taken(decoder: str) -> None:
    """Not clipped to white, as Pillow's conversion would."""
    deep = RNG.integers(0, 65_536, (6, 5), dtype=np.uint16)
    data = encoded(Image.fromarray(deep), "PNG")
    assert np.array_equal(decode(data, decoder=decoder, color_mode="GRAY")[..., 0], deep >> 8)
    assert np.array_equal(decode(data, decoder=decoder)[..., 2], deep >> 8)


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_exif_orientation_is_not_applied(decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(RGB), "JPEG", exif=exif)
    assert decode(data, decoder=decoder).shape == (9, 13, 3)


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_one_pixel_is_an_image(decoder: str) -> None:
    assert decode(encoded(Image.new("RGB", (1, 1), "lime"), "PNG"), decoder=decoder).tolist() == [[[0, 255, 0]]]


def _cut(format: str) -> bytes:
    noise = Image.fromarray(RNG.integers(0, 256, (90, 90, 3), dtype=np.uint8))
    data = encoded(noise, format)
    return data[: len(data) // 2]


def _huge_png() -> bytes:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"not an image at all", "does not decode: it is none of JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none of"),
        (_cut("JPEG"), "does not decode"),
        (_cut("PNG"), "does not decode"),
        (_cut("BMP"), "does not decode"),
        (_cut("TIFF"), "does not decode"),
        (_cut("WEBP"), "does not decode"),
        (_cut("GIF"), "does not decode"),
        (encoded(Image.fromarray(RGB), "PNG")[:20], "does not decode"),
        (encoded(Image.new("L", (101, 100)), "PNG"), "101x100 is more than the 10000 pixels"),
        (_huge_png(), "pixels"),
    ],
    ids=["empty", "text", "eps", "jpeg", "png", "bmp", "tiff", "webp", "gif", "header", "pixels", "bomb"],
)
def test_what_does_not_decode_is_unreadable_with_the_reason(decoder: str, data: bytes, reason: str) -> None:
    with pytest.raises(ItemUnreadableError, match=reason):
        decode(data, decoder=decoder)


def test_32_bit_samples_are_unreadable() -> None:
    with pytest.raises(ItemUnreadableError, match="32-bit"):
        decode(encoded(Image.new("F", (3, 3), 0.5), "TIFF"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_bytes_are_unreadable_and_nothing_worse() -> None:
    """Whatever byte of a file is damaged, the decoder gives pixels or says that it cannot."""
    files = [encoded(Image.fromarray(RGB), name) for name in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM", "WEBP")]
    for data in files:
        for _ in range(150):
            damaged = bytearray(data)
            for at in RNG.integers(0, len(data), 3):
                damaged[at] = RNG.integers(0, 256)
            with contextlib.suppress(ItemUnreadableError):
                assert decode(bytes(damaged)).ndim == 3


def test_a_dct_method_that_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"expected dct_method: default.*found fast"):
        decoded_form(Decode(dct_method="fast"))
