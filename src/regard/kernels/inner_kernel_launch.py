"""Launch: one kernel of inner-product attention, with all arguments that calls of one layout share."""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.kernels.direct_launch import DirectLaunch, direct_launch
from regard.kernels.inner_documents import DocumentRanges
from regard.kernels.inner_table import Listing

__all__ = ["Launch", "Lists", "Place"]

Lists = Listing | DocumentRanges
"""A launch that finds the visible tiles of a mask, before an attention kernel."""

Place = tuple[int, int | None, int | None]
"""Position of the first query, and the left and right limit of the window."""


class Launch:
    """One kernel with its grid and all arguments that do not change between calls of the same shapes.

    programs: number of programs of the grid.
    numbers: sizes and strides, in the order of the kernel's arguments after start, left and right, without
        the scale.
    constants: compile-time arguments in their order, and launch options.
    listing: finds the visible tiles; None if the kernel reads neither lists nor ranges.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[int, ...],
        constants: dict[str, Any],
        listing: Lists | None,
    ):
        self.listing = listing
        self.kernel, self.programs, self.numbers, self.constants = kernel, programs, numbers, constants
        names = [name for name in constants if name not in ("num_warps", "num_stages")]
        self.values = tuple(constants[name] for name in names)
        self.compiled: Callable[..., None] | None = None
        self.direct: DirectLaunch | None = None
        self.last: tuple[Place, float] | None = None
        self.lock = threading.Lock()

    def masks(self, hidden: tuple[Any, ...], words: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """Return the five tensors of the mask that the kernel reads; None for those that it does not read.

        hidden: the fields of inner_launch.Hidden.
        words: the bool tensor, already packed to words by the Listing of another Launch; None if the Listing
            of this Launch packs it.
        """
        lengths, table, of_query, of_key, start, *_ = hidden
        lists = None
        if isinstance(self.listing, DocumentRanges):
            lists = self.listing.run(of_query, of_key, start)
        elif table is not None:
            if self.listing is not None:
                lists = self.listing.run(table if words is None else words)
                table = lists if words is None else words
            elif self.direct is None:
                table = table.view(torch.uint8)
        return lengths, table, of_query, of_key, lists

    def run(
        self,
        tensors: tuple[Tensor | None, ...],
        unused: Tensor,
        place: Place,
        scale: float,
        device: int | None,
    ) -> None:
        """Launch the kernel.

        tensors: all its tensors; `unused` stands for those that are None, and is not read.
        device: the index of the CUDA device, or None.
        """
        if self.direct is not None and device is not None:
            self._run_directly(self.direct, tensors, place, scale, device)
            return
        tensors = tuple(unused if each is None else each for each in tensors)
        start, left, right = place
        before, after = (start, left or 0, right or 0, *self.numbers[:5]), self.numbers[5:]
        if self.compiled is not None:
            self.compiled(*tensors, *before, scale, *after, *self.values)
            return
        launched = self.kernel[(self.programs,)](*tensors, *before, scale, *after, **self.constants)
        if launched is None:  # interpreted, or only compiled (compile_ahead.py)
            return
        grid = (self.programs, 1, 1)
        values = [*[None] * len(tensors), *before, scale, *after, *self.values]
        self.compiled, direct = launched[grid], direct_launch(launched, grid, values)
        leading = len(tensors) + len(before) + 1
        if direct is not None and direct[1][:leading] == list(range(leading)):
            self.last, self.direct = (place, scale), direct[0]

    def _run_directly(
        self,
        direct: DirectLaunch,
        tensors: tuple[Tensor | None, ...],
        place: Place,
        scale: float,
        device: int,
    ) -> None:
        """run() by cuLaunchKernel. The first slots are the tensors, `place`, five numbers and `scale`."""
        slots, i = direct.slots, 0
        with self.lock:
            for tensor in tensors:
                if tensor is not None:
                    slots[i] = tensor.data_ptr()
                i += 1
            if self.last != (place, scale):
                for number in place:
                    slots[i] = (number or 0) & 0xFFFFFFFF
                    i += 1
                slots[i + 5] = _bits_of(scale)
                self.last = place, scale
            direct.run(torch._C._cuda_getCurrentRawStream(device))


@functools.lru_cache(maxsize=256)
def _bits_of(number: float) -> int:
    """Return the bits of a float32 number as an integer."""
    return int.from_bytes(struct.pack("<f", number), "little")
