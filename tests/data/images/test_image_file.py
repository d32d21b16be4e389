"""Image files: every mode and orientation becomes RGB; bad files are DataErrors that name the file."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageOps

from regard.data.images.image_file import MAX_PIXELS, decode_image, read_image
from regard.errors import ArgumentError, DataError
from regard.files.untrusted import LIMITS
from tests.facts import facts, mentions

RED, BLUE = (255, 0, 0), (0, 0, 255)


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, (height, width, channels), numpy.uint8)


def saved(image: Image.Image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def flat(mode: str, colour, format: str, **options) -> list[int]:
    """The RGB values that a file of one colour in this mode is read as."""
    content = saved(Image.new(mode, (3, 2), colour), format, **options)
    tensor = decode_image(content)
    assert tensor.shape == (3, 2, 3) and tensor.dtype == torch.uint8 and tensor.is_contiguous()
    assert (tensor == tensor[:, :1, :1]).all()
    return tensor[:, 0, 0].tolist()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file whose header promises this many pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", ["BMP", "PNG", "PPM", "TIFF"])
def test_rgb_files_keep_their_pixels(format: str, tmp_path: Path):
    pixels = picture(5, 7)
    path = tmp_path / "image"
    path.write_bytes(saved(Image.fromarray(pixels), format))
    assert read_image(path).equal(torch.from_numpy(pixels).permute(2, 0, 1))


def test_other_modes_become_rgb():
    assert flat("L", 100, "PNG") == flat("L", 100, "BMP") == [100] * 3
    assert flat("1", 1, "PNG") == [255] * 3
    assert flat("CMYK", (0, 255, 255, 0), "TIFF") == [255, 0, 0]
    assert flat("CMYK", (255, 255, 0, 0), "JPEG")[2] > 240
    assert flat("RGBA", (*RED, 255), "PNG") == list(RED)


def test_transparent_parts_become_white():
    assert flat("RGBA", (*BLUE, 0), "PNG") == flat("LA", (0, 0), "PNG") == [255] * 3
    assert flat("RGBA", (0, 0, 0, 51), "PNG") == [204] * 3
    assert flat("RGB", RED, "PNG", transparency=RED) == [255] * 3
    assert flat("L", 7, "PNG", transparency=7) == [255] * 3
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([*BLUE, *RED])
    assert decode_image(saved(palette))[:, 0, 0].tolist() == list(RED)
    for transparency in (1, b"\xff\x00"):
        assert decode_image(saved(palette, transparency=transparency))[:, 0, 0].tolist() == [255] * 3


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bits_are_scaled_to_8(format: str):
    values = numpy.array([[0, 255, 256, 32768, 65535]], numpy.uint16)
    tensor = decode_image(saved(Image.fromarray(values), format))
    assert tensor[0].tolist() == tensor[1].tolist() == [[0, 0, 1, 128, 255]]


def test_big_endian_16_bits_and_32_bit_integers():
    big = b"P5 2 1 65535\n\x80\x00\xff\xff"
    assert decode_image(big)[0].tolist() == [[128, 255]]
    wide = Image.fromarray(numpy.array([[-5, 1 << 15, 1 << 30]], numpy.int32))
    assert decode_image(saved(wide, "TIFF"))[0].tolist() == [[0, 128, 255]]


def test_floating_point_pixels_are_refused():
    content = saved(Image.fromarray(numpy.ones((2, 2), numpy.float32)), "TIFF")
    with pytest.raises(DataError, match=facts("x.tif", "floating")):
        decode_image(content, "x.tif")


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_animated_files(format: str):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    options = {"lossless": True} if format == "WEBP" else {}
    content = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert getattr(Image.open(io.BytesIO(content)), "n_frames", 1) == 2
    assert decode_image(content)[:, 0, 0].tolist() == list(RED)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_the_exif_orientation_is_applied(orientation: int, format: str):
    source = Image.fromarray(picture(3, 5))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(source, format, exif=exif)
    expected = numpy.array(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    tensor = decode_image(content)
    assert tensor.shape == ((3, 3, 5) if orientation < 5 else (3, 5, 3))
    assert (tensor.permute(1, 2, 0).numpy() == expected).all()
    # Cropped: the same square, rotated.
    upright = decode_image(saved(Image.fromarray(expected)), size=4)
    assert (decode_image(content, size=4).int() - upright.int()).abs().max() <= 2


@pytest.mark.parametrize("exif", [b"Exif\x00\x00garbage", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"\x00"])
@pytest.mark.filterwarnings("ignore")
def test_damaged_exif_data_are_ignored(exif: bytes):
    assert decode_image(saved(Image.new("RGB", (4, 3), RED), "JPEG", exif=exif)).shape == (3, 3, 4)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3), (40, 64), (63, 17), (300, 200)])
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_any_shape_is_cropped_to_a_square(shape: tuple[int, int], format: str):
    content = saved(Image.fromarray(picture(*shape)), format)
    assert decode_image(content).shape == (3, *shape)
    assert decode_image(content, size=16).shape == (3, 16, 16)


def test_the_square_is_at_the_centre():
    pixels = numpy.zeros((8, 24, 3), numpy.uint8)
    pixels[:, 8:16] = RED
    tensor = decode_image(saved(Image.fromarray(pixels)), size=8)
    assert (tensor.permute(1, 2, 0) == torch.tensor(RED)).all()
    assert decode_image(saved(Image.fromarray(pixels.transpose(1, 0, 2))), size=8).equal(tensor)


def test_a_very_long_image_is_cropped_before_it_is_resized():
    content = saved(Image.new("L", (200_000, 1), 9))
    assert decode_image(content, size=64).unique().tolist() == [9]


def test_a_large_jpeg_is_close_to_the_fully_decoded_one():
    smooth = numpy.linspace(0, 255, 512).astype(numpy.uint8)
    pixels = numpy.stack([numpy.tile(smooth, (512, 1))] * 3, -1)
    content = saved(Image.fromarray(pixels), "JPEG", quality=95)
    full = decode_image(saved(Image.open(io.BytesIO(content)).convert("RGB")), size=32)
    assert (decode_image(content, size=32).int() - full.int()).abs().max() <= 4


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
@pytest.mark.filterwarnings("ignore")  # Pillow may warn first; the result must be the same error
def test_truncated_files(format: str, share: float, tmp_path: Path):
    content = saved(Image.fromarray(picture(40, 40)), format)
    path = tmp_path / "cut.img"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match=facts(path)):
        read_image(path, size=8)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_read_or_named(seed: int):
    rng = numpy.random.default_rng(seed)
    format = ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP")[seed % 6]
    content = bytearray(saved(Image.fromarray(picture(20, 20)), format))
    for place in rng.integers(0, min(len(content), 200), 8):
        content[place] = rng.integers(0, 256)
    try:
        assert decode_image(bytes(content), "bad.img", size=8).shape == (3, 8, 8)
    except DataError as error:
        assert "bad.img" in str(error)


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", bytes(1000)]
)
def test_files_that_are_not_images(content: bytes, tmp_path: Path):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg"):
        read_image(path)


@pytest.mark.parametrize("side", [9_000, 10_000, 100_000, 2**31 - 1])
@pytest.mark.filterwarnings("ignore")
def test_decompression_bombs_are_refused_before_decoding(side: int):
    assert side * side > MAX_PIXELS
    with pytest.raises(DataError, match=facts("bomb", "pixels")) as caught:
        decode_image(png(side, side), "bomb.png")
    assert f"{MAX_PIXELS:,}" in str(caught.value)


def test_pillows_own_warning_about_bombs_becomes_the_same_error():
    with pytest.raises(DataError, match=facts("bomb", "pixels")):  # warnings are errors in this test
        decode_image(png(10_000, 10_000), "bomb.png")


def test_a_file_above_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LIMITS, "image", 100)
    path = tmp_path / "large.png"
    path.write_bytes(saved(Image.fromarray(picture(20, 20))))
    with pytest.raises(DataError, match=facts(path)):
        read_image(path)
    with pytest.raises(DataError, match="100"):
        decode_image(path.read_bytes(), "memory")


def test_missing_files_folders_and_fifos(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("fifo.png", "folder.png", "missing.png", "missing/a.png"):
        with pytest.raises(DataError, match=Path(name).name):
            read_image(tmp_path / name)
    with pytest.raises(DataError):
        read_image("a\x00.png")
    with pytest.raises(DataError) as caught:
        read_image(tmp_path / "\x1b[31m.png")
    assert "\x1b" not in str(caught.value)


def test_a_link_to_an_image_is_followed(tmp_path: Path):
    (tmp_path / "real.png").write_bytes(saved(Image.new("RGB", (1, 1), RED)))
    (tmp_path / "link.png").symlink_to(tmp_path / "real.png")
    assert read_image(tmp_path / "link.png").flatten().tolist() == list(RED)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, 4097])
def test_a_bad_size(size):
    with pytest.raises(ArgumentError, match="size"):
        decode_image(b"x", size=size)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ArgumentError, match=r"Pillow") as caught:
        decode_image(b"x")
    assert mentions(caught.value.args[0].hint, "pip", "pillow>=")
