"""Images: read files with Pillow as uint8 RGB tensors, keep all images of a corpus, and crop and flip them.

Damaged and malicious files raise DataError."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from regard.data.line_io import advancing
from regard.errors import ArgumentError, DataError, Setting, message, positive, printable, shown
from regard.files.requirements import install_command
from regard.files.untrusted import LIMITS, read_limited

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

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


@dataclass(frozen=True)
class Augmentation:
    """Random crops and horizontal flips of images, different in each epoch.

    size: width and height of the crops in pixels; None: images are not cropped.
    flip: whether to mirror images horizontally, each with probability 0.5. Set it to False if captions
        contain "left" or "right".
    seed: random seed.

    The crop and the flip of an image depend only on seed, epoch and index of the image, not on its batch. So
    a resumed training run has the same images as an uninterrupted run. For validation, use centre_crop().

    >>> images = torch.arange(16).view(1, 1, 4, 4).expand(2, 3, 4, 4)
    >>> crops = Augmentation(size=2, seed=1)(images, indices=[7, 8], epoch=0)
    >>> crops.shape, crops[0, 0].tolist(), crops[1, 0].tolist()
    (torch.Size([2, 3, 2, 2]), [[5, 4], [9, 8]], [[7, 6], [11, 10]])
    """

    size: int | None = None
    flip: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            positive("Augmentation()", size=self.size)
        _check_not_negative("Augmentation()", seed=self.seed)

    def __call__(self, images: Tensor, indices: Sequence[int] | Tensor, epoch: int) -> Tensor:
        """Return cropped and flipped images, (B, 3, size, size), or (B, 3, H, W) if `size` is None.

        images: (B, 3, H, W), any dtype. The result has the same dtype.
        indices: (B,), the index of each image in the training data. The random crop and flip depend on this
            index.
        epoch: index of the epoch, from 0.
        """
        height, width = images.shape[-2:]
        if len(indices) != len(images):
            problem = f"there are {len(images)} images and {len(indices)} indices"
            raise ArgumentError(message("Augmentation()", problem, expected="one index for each image"))
        return self.apply(images, self.draw(indices, epoch, height, width))

    def draw(self, indices: Sequence[int] | Tensor, epoch: int, height: int, width: int) -> Tensor:
        """Return the random crop and flip of each image, int64, (B, 3): first row, first column, flip.

        The column "flip" is 1 for images to mirror, otherwise 0. apply() uses the result.

        indices: (B,), for each image, its index in the training data.
        epoch: index of the epoch, from 0.
        height: height of the images in pixels.
        width: width of the images in pixels.

        >>> Augmentation(size=2, seed=1).draw([7, 8], 0, height=4, width=4).tolist()
        [[1, 0, 1], [1, 2, 1]]
        """
        call = "Augmentation()"
        rows, columns = _crop_size(call, height, width, self.size)
        numbers = indices.tolist() if isinstance(indices, Tensor) else [int(index) for index in indices]
        _check_not_negative(call, epoch=epoch, index=min(numbers, default=0))
        # Use raw random bits: they are the same in every version of numpy, unlike integers() and similar
        # methods.
        drawn = [
            numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch, number))).random_raw(3)
            for number in numbers
        ]
        words = numpy.stack(drawn) if drawn else numpy.zeros((0, 3), numpy.uint64)
        ranges = numpy.array([height - rows + 1, width - columns + 1, 2], numpy.uint64)
        choices = (words % ranges).astype(numpy.int64)
        choices[:, 2] *= self.flip
        return torch.from_numpy(choices)

    def apply(self, images: Tensor, choices: Tensor) -> Tensor:
        """Crop and flip images according to `choices`, on the device of the images.

        images: (B, 3, H, W), any dtype.
        choices: (B, 3), the result of draw().
        """
        height, width = images.shape[-2:]
        height, width = _crop_size("Augmentation()", height, width, self.size)
        device = images.device
        top_B1, left_B1, flip_B1 = choices.to(device).unsqueeze(-1).unbind(1)
        rows_BH = top_B1 + torch.arange(height, device=device)
        columns_W = torch.arange(width, device=device)
        columns_BW = left_B1 + torch.where(flip_B1 == 1, width - 1 - columns_W, columns_W)
        batch = torch.arange(len(images), device=device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=device)[None, :, None, None]
        # One indexing operation crops and flips the whole batch.
        return images[batch, channel, rows_BH[:, None, :, None], columns_BW[:, None, None, :]]


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the centre of images, size x size pixels: (..., H, W) becomes (..., size, size).

    >>> centre_crop(torch.arange(25).view(5, 5), 3).tolist()
    [[6, 7, 8], [11, 12, 13], [16, 17, 18]]
    """
    positive("centre_crop()", size=size)
    height, width = images.shape[-2:]
    _crop_size("centre_crop()", height, width, size)
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def _crop_size(call: str, height: int, width: int, size: int | None) -> tuple[int, int]:
    """Return the height and width of the crops. If `size` is None, the images are not cropped."""
    if size is None:
        return height, width
    if size > min(height, width):
        problem = f"size is {size}, but the images have {height} x {width} pixels"
        raise ArgumentError(message(call, problem, expected="size <= height and width"))
    return size, size


def _check_not_negative(call: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | numpy.integer) or number < 0:
            raise ArgumentError(message(call, f"{name} is {number!r}", expected="an integer, 0 or more"))


MEMORY = 4 << 30
"""Maximum number of bytes of decoded images in memory (4 GiB). On a machine with less than 16 GiB of memory,
memory_limit() returns a lower limit."""

DAMAGED = Setting("decode_files", "damaged", "skip")

THREADS = 8
"""Maximum number of threads that decode image files."""


class Pixels:
    """N square images of the same size, in memory or decoded each time they are needed.

    For B indices `rows`, pixels[rows] is a uint8 tensor (B, 3, size, size) with these images.

    size: width and height of an image in pixels.
    array: all images, uint8, (N, 3, size, size), or None if they are not in memory.
    read: a function that takes the index of an image and returns the decoded image; required if `array` is
        None.
    count: the number of images N; required if `array` is None.

    >>> pixels = Pixels(4, torch.zeros(9, 3, 4, 4, dtype=torch.uint8))
    >>> len(pixels), pixels[[3, 3]].shape, pixels.in_memory
    (9, torch.Size([2, 3, 4, 4]), True)
    """

    def __init__(
        self,
        size: int,
        array: Tensor | None = None,
        *,
        read: Callable[[int], Tensor] | None = None,
        count: int = 0,
    ):
        assert array is not None or read is not None
        self.size, self._array, self._read = size, array, read
        self._count = count if array is None else len(array)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: Sequence[int] | Tensor) -> Tensor:
        return self.load(rows)

    def load(self, rows: Sequence[int] | Tensor, workers: int = 0) -> Tensor:
        """Return some images, uint8, (B, 3, size, size). `workers`: number of threads that decode them."""
        index = torch.as_tensor(rows, dtype=torch.long)
        if self._array is not None:
            return self._array[index]
        assert self._read is not None
        if not len(index):
            return torch.zeros(0, 3, self.size, self.size, dtype=torch.uint8)
        with ThreadPoolExecutor(max(workers, 1)) as pool:
            return torch.stack(list(pool.map(self._read, index.tolist())))

    @property
    def in_memory(self) -> bool:
        """Whether all images are in memory. Otherwise, an image is decoded each time it is needed."""
        return self._array is not None

    def on_device(self, device: torch.device | str) -> Tensor:
        """Return all images as a tensor (N, 3, size, size) on a device. They must be in memory."""
        assert self._array is not None
        return self._array.to(device)

    def select(self, rows: Sequence[int]) -> Pixels:
        """Return a Pixels with only some of the images.

        rows: the indices of these images, from 0.
        """
        if self._array is not None:
            return Pixels(self.size, self._array[torch.as_tensor(rows, dtype=torch.long)])
        read, chosen = self._read, list(rows)
        assert read is not None
        return Pixels(self.size, read=lambda row: read(chosen[row]), count=len(chosen))

    @property
    def fingerprint(self) -> str:
        """A hash of all pixels as hexadecimal text; "" if the images are not in memory."""
        if self._array is None:
            return ""
        return hashlib.blake2b(self._array.numpy().tobytes(), digest_size=16).hexdigest()


def memory_limit() -> int:
    """Return how many bytes of decoded images may be kept in memory.

    This is MEMORY, or a quarter of the memory of this machine if that is less.
    """
    try:
        return min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return MEMORY


def decode_files(
    paths: Sequence[Path],
    size: int,
    *,
    damaged: str = "error",
    limit: int | None = None,
    places: Sequence[str] = (),
) -> tuple[Pixels, list[int], list[DataError]]:
    """Decode image files to size x size pixels, in several threads.

    paths: the image files.
    size: width and height of the decoded images in pixels.
    damaged: "error" raises DataError, with the name of the file, for an image that cannot be read; "skip"
        drops this image.
    limit: maximum number of bytes of the decoded images. Default: memory_limit(). If the images need more,
        they are not stored, and an image is decoded each time it is needed. In this case, damaged="error"
        raises the error of a damaged image only when the image is decoded.
    places: for each image, the caption file and the line that names it, for error messages.

    Return the images, the index in `paths` of each image, and the errors of the images that were dropped.
    """
    needed = 3 * size * size * len(paths)
    in_memory = needed <= (memory_limit() if limit is None else limit)
    array = torch.zeros(len(paths) if in_memory else 0, 3, size, size, dtype=torch.uint8)

    def read(row: int) -> Tensor:
        try:
            return read_image(paths[row], size)
        except DataError as error:
            if not places:
                raise
            text, hint = error.message, ("replace the image, or skip such images with ", DAMAGED)
            problem = f"{text.call}: {text.problem}"
            raise DataError(message(places[row], problem, expected=text.expected, hint=hint)) from error

    def decode(row: int) -> DataError | None:
        try:
            if in_memory:
                array[row] = read(row)
            elif damaged == "skip":
                read(row)
        except DataError as error:
            if damaged == "error":
                raise
            return error
        return None

    found: list[DataError | None] = []
    threads = min(THREADS, os.cpu_count() or 1)
    with advancing("decoding images", len(paths)) as report, ThreadPoolExecutor(threads) as pool:
        for error in pool.map(decode, range(len(paths))):
            found.append(error)
            report(len(found))
    kept = [row for row, error in enumerate(found) if error is None]
    errors = [error for error in found if error is not None]
    if in_memory:
        whole = Pixels(size, array)
        return whole.select(kept) if errors else whole, kept, errors
    return Pixels(size, read=lambda row: read(kept[row]), count=len(kept)), kept, errors
