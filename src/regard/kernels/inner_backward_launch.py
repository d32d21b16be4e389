"""BackwardLaunches: the two kernels of the backward pass of inner-product attention, launched together."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from regard.kernels.direct_launch import DirectLaunch, LaunchSequence
from regard.kernels.inner_kernel_launch import Launch, Place

__all__ = ["BackwardLaunches"]

QUERY, KEY, VALUE, OUTPUT, LSE, DOUTPUT, DQUERY, DELTA, DKEY, DVALUE = range(10)
"""The places of the tensors in the argument `tensors` of run()."""

MASKS = 5
"""Number of tensors of the mask that a kernel has as arguments, see Launch.masks()."""


class BackwardLaunches:
    """Runs the kernel for the gradient of the query, and then that for the gradients of key and value.

    From the second call on, both are one LaunchSequence, which takes less time on the host, unless a Listing
    runs before a kernel.

    joint: this sequence, for the place of the queries and the scale in `last`; None before it is created.
    """

    def __init__(self, of_query: Launch, of_key: Launch):
        self.of_query, self.of_key = of_query, of_key
        self.joint: LaunchSequence | None = None
        self.last: tuple[Place, float] | None = None
        self.lock = threading.Lock()

    def run(
        self, tensors: tuple[Tensor, ...], hidden: tuple[Any, ...], scale: float, device: int | None
    ) -> None:
        """Launch both kernels.

        tensors: query, key, value, output, lse, doutput, dquery, delta, dkey and dvalue.
        hidden: the fields of inner_launch.Hidden. device: the index of the CUDA device, or None.
        """
        place: Place = hidden[4:]
        if self.joint is not None and device is not None and self.last == (place, scale):
            masks = [each.data_ptr() for each in hidden[:4] if each is not None]
            addresses = (*[each.data_ptr() for each in tensors], *masks)
            with self.lock:  # another thread may run the same launches
                self.joint.run_all(addresses, torch._C._cuda_getCurrentRawStream(device))
            return
        query, key, value, output, lse, doutput, dquery, delta, dkey, dvalue = tensors
        of_mask = self.of_query.masks(hidden)
        used = (query, key, value, output, lse, *of_mask, doutput, dquery, delta)
        self.of_query.run(used, lse, place, scale, device)
        of_mask = self.of_key.masks(hidden, of_mask[1])
        used = (query, key, value, lse, *of_mask, doutput, delta, dkey, dvalue)
        self.of_key.run(used, lse, place, scale, device)
        if self.joint is None and device is not None:
            self.last, self.joint = (place, scale), self._joined(hidden, (place, scale))

    def _joined(self, hidden: tuple[Any, ...], last: tuple[Place, float]) -> LaunchSequence | None:
        """Return both launches as a sequence; None if this is not possible."""
        launches = (self.of_query, self.of_key)
        if any(each.listing is not None or each.direct is None or each.last != last for each in launches):
            return None
        numbers = iter(range(DVALUE + 1, DVALUE + 1 + MASKS))
        masks = [None if each is None else next(numbers) for each in hidden[:4]] + [None]
        used = (
            (QUERY, KEY, VALUE, OUTPUT, LSE, *masks, DOUTPUT, DQUERY, DELTA),
            (QUERY, KEY, VALUE, LSE, *masks, DOUTPUT, DELTA, DKEY, DVALUE),
        )
        sequence = []
        for launch, tensors in zip(launches, used, strict=True):
            assert launch.direct is not None
            own = DirectLaunch(launch.direct.compiled, (launch.programs, 1, 1), list(launch.direct.slots))
            places = [(slot, number, 0) for slot, number in enumerate(tensors) if number is not None]
            sequence.append((own, places))
        joint = LaunchSequence(sequence)
        joint.renumber({number: number for number in range(DVALUE + 1 + MASKS)})
        return joint
