"""Read image files with Pillow, as uint8 RGB tensors. Damaged and malicious files raise DataError."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, message, positive, printable, shown
from regard.files.requirements import install_command
from regard.files.untrusted import LIMITS, read_limited

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

__all__ = ["FORMATS", "MAX_PIXELS", "MAX_SIZE", "decode_image", "read_image"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The image formats that read_image() accepts, by their names in Pillow.

Other formats are rejected, because it may be unsafe to decode them: for EPS, Pillow starts another
program."""

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image file, 67 million.

The size in the header of the file is checked before decoding, because a file of a few kilobytes can
decompress to gigabytes (a decompression bomb).
"""

MAX_SIZE = 4096
"""Maximum value of the argument `size` of read_image(): the width and height of the resized image."""

ORIENTATION = 0x0112
"""Number of the EXIF tag with the orientation of the camera, by which the image must be rotated."""

SIXTEEN_BITS = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
"""The modes of Pillow for greyscale images with 16 bits per pixel."""


def read_image(path: str | os.PathLike[str], size: int | None = None) -> Tensor:
    """Read an image file as an RGB tensor of shape (3, H, W), dtype uint8.

    path: a BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP file of at most 64 MiB and 67 million pixels.
    size: if given, the largest square at the centre of the image is resized to size x size pixels. By
        default, the image keeps its size.

    The image is rotated and flipped according to its EXIF orientation. Transparent parts become white. If the
    image is animated, only the first frame is read. Greyscale, palette and CMYK images become RGB; 16 bits
    per channel become 8.

    Raises DataError, with the name of the file, if it does not exist or is not a regular file, or if it is
    not an image, too large, damaged or truncated. Requires the package Pillow.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "red.ppm")
    ...     _ = path.write_bytes(b"P6 2 1 255\\n" + bytes([255, 0, 0]) * 2)
    ...     read_image(path).tolist(), read_image(path, size=8).shape
    ([[[255, 255]], [[0, 0]], [[0, 0]]], torch.Size([3, 8, 8]))
    """
    _check_size("read_image()", size)
    try:
        content = read_limited(path, "image", named=True)
    except FileNotFoundError:
        raise DataError(message(shown(path), "there is no such file", expected="an image file")) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"the file cannot be read ({reason})"
        raise DataError(message(shown(path), problem, expected="an image file")) from None
    return decode_image(content, shown(path), size)


def decode_image(content: bytes, name: str = "image", size: int | None = None) -> Tensor:
    """Decode the bytes of an image file to an RGB tensor of shape (3, H, W), dtype uint8.

    content: the bytes of the file.
    name: the name of the image, for error messages.
    size: if given, the largest square at the centre of the image is resized to size x size pixels. By
        default, the image keeps its size.

    File formats, limits and conversion to RGB are the same as for read_image(). Raises DataError if the bytes
    are not an image, or if they are damaged.

    >>> decode_image(b"P5 1 1 255\\n\\x80", size=2).tolist()
    [[[128, 128], [128, 128]], [[128, 128], [128, 128]], [[128, 128], [128, 128]]]
    """
    _check_size("decode_image()", size)
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        problem, hint = "reading images needs Pillow, which is not installed", install_command("view")
        raise ArgumentError(message("read_image()", problem, hint=hint)) from None
    if not content:
        raise DataError(message(name, "the file is empty", expected="an image file"))
    if len(content) > LIMITS["image"]:
        raise DataError(message(name, f"the file is larger than the limit of {LIMITS['image']:,} bytes"))
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise _too_many_pixels(name, f"the image has {image.width:,} x {image.height:,} pixels")
        decoded = _decoded(image, name, size)
    except DataError:
        raise
    except UnidentifiedImageError:
        hint = f"convert the file to a supported format: {', '.join(FORMATS)}"
        problem = "the file is not an image, or not in a supported format"
        raise DataError(message(name, problem, expected="an image file", hint=hint)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(name, "the image has too many pixels") from None
    except Exception as error:  # Pillow's decoders raise many types of errors for damaged files
        problem = f"the image is damaged or truncated ({printable(str(error))[:200] or type(error).__name__})"
        raise DataError(
            message(name, problem, hint="replace the file, or remove it from the data")
        ) from error
    return torch.from_numpy(numpy.array(decoded).transpose(2, 0, 1).copy())


def _decoded(image: PillowImage, name: str, size: int | None) -> PillowImage:
    """Decode an opened image, convert it to RGB, crop and resize it, and apply its EXIF orientation.

    name: the name of the image, for error messages.
    size: width and height of the result in pixels; None keeps the size.
    """
    from PIL import Image

    if size is not None:
        # A JPEG decoder can decode at a lower resolution, which is faster. Here it is at least twice the
        # final size.
        image.draft(None, (2 * size, 2 * size))
    image.load()
    orientation = _orientation(image)
    image = _rgb(image, name)
    if size is not None:
        # Crop and resize in one call: resizing a very long, narrow image first could need much memory.
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    transpositions: dict[object, Image.Transpose] = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    return image.transpose(transpositions[orientation]) if orientation in transpositions else image


def _orientation(image: PillowImage) -> object:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if it is missing or cannot be read."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # only the EXIF data is damaged; the pixels are already decoded
        return 1


def _rgb(image: PillowImage, name: str) -> PillowImage:
    """Convert an image of any Pillow mode to RGB with 8 bits per channel; transparent parts become white.

    name: the name of the image, for error messages.
    """
    from PIL import Image

    if image.mode in SIXTEEN_BITS:
        # Pillow's own conversion would clip values above 255 instead of scaling them.
        grey: Any = numpy.asarray(image).astype(numpy.int64).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(numpy.uint8)).convert("RGB")
    if image.mode == "F":
        problem = "the pixels are floating-point numbers, whose range is not known"
        hint = "convert the image to 8 bits per channel"
        raise DataError(message(name, problem, expected="8 or 16 bits per channel", hint=hint))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _too_many_pixels(name: str, problem: str) -> DataError:
    expected = f"at most {MAX_PIXELS:,} pixels"
    return DataError(message(name, problem, expected=expected, hint="make the image smaller"))


def _check_size(call: str, size: int | None) -> None:
    if size is not None:
        positive(call, size=size)
        if size > MAX_SIZE:
            raise ArgumentError(message(call, f"size is {size}", expected=f"a size of at most {MAX_SIZE}"))
