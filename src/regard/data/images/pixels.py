"""Pixels: the images of a corpus, held in memory, or decoded each time they are needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from regard.data.images.image_file import read_image
from regard.data.progress_bar import advancing
from regard.errors import DataError, Setting, message

__all__ = ["MEMORY", "Pixels", "decode_files"]

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
        index = torch.as_tensor(rows, dtype=torch.long)
        if self._array is not None:
            return self._array[index]
        assert self._read is not None
        images = [self._read(row) for row in index.tolist()]
        return torch.stack(images) if images else torch.zeros(0, 3, self.size, self.size, dtype=torch.uint8)

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
        with _naming_line(places[row] if places else ""):
            return read_image(paths[row], size)

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

    kept, errors = list[int](), list[DataError]()
    threads = max(min(THREADS, os.cpu_count() or 1), 1)
    with advancing("decoding images", len(paths)) as report, ThreadPoolExecutor(threads) as pool:
        for row, error in enumerate(pool.map(decode, range(len(paths)))):
            if error is None:
                kept.append(row)
            else:
                errors.append(error)
            report(row + 1)
    if in_memory:
        whole = Pixels(size, array)
        return whole.select(kept) if errors else whole, kept, errors
    return Pixels(size, read=lambda row: read(kept[row]), count=len(kept)), kept, errors


@contextmanager
def _naming_line(place: str) -> Iterator[None]:
    """Context manager: add the line of the caption file to the error of an image that cannot be decoded.

    place: the caption file and the line that names the image. "": the error stays as it is.
    """
    try:
        yield
    except DataError as error:
        if not place:
            raise
        text = error.message
        hint = ("replace the image, or skip such images with ", DAMAGED)
        problem = f"{text.call}: {text.problem}"
        raise DataError(message(place, problem, expected=text.expected, hint=hint)) from error
