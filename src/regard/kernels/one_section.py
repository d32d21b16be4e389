"""OneSection: run a recorded function whose kernels are all launched together, in less time on the host.

This is the frequent case of a Tape in replay.py: the function allocates tensors and launches kernels, and
calls no other operation of PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.direct_launch import LaunchSequence

__all__ = ["Allocation", "OneSection", "Section", "one_section"]


# These are global names, because to look up attributes of torch in each call takes time.
_empty_like, _empty_strided = torch.empty_like, torch.empty_strided
_stream_of: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # None without CUDA
_allocate: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
_free: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)


class Allocation(NamedTuple):
    """The allocation of a tensor.

    Usually, number and root are the same. But if a result of the function is a view of all elements of a
    tensor, the view is allocated directly, with its own sizes and strides.

    number: the number of the allocated tensor.
    root: the number of the tensor whose address this allocation determines for kernels.
    like: the number of an input with the same sizes, strides and dtype, or -1. empty_like() takes less time.
    """

    number: int
    root: int
    like: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Section(NamedTuple):
    """Launches without PyTorch operations between them. All their tensors are allocated first."""

    allocations: list[Allocation]
    launches: LaunchSequence | None


class OneSection:
    """The allocations and launches of a Tape with one Section.

    The launches get the addresses of the inputs that they use, of the allocated tensors, of the tensor of
    temporaries, and of the constants, in this order.

    used: the numbers of these inputs; None if they are all inputs.
    room: size in bytes of the tensor of temporaries; 0 for none.
    constants: tensors that all calls share, and their addresses.
    order: for each result of the function, its place among the allocated tensors and the constants.
    """

    def __init__(
        self, allocations: Sequence[Allocation], launches: LaunchSequence, used: list[int] | None, room: int,
        constants: Sequence[tuple[Tensor, int]], order: list[int], device: torch.device,
    ):  # fmt: skip
        self.launches, self.used, self.room, self.order, self.device = launches, used, room, order, device
        self.allocations = [each[2:] for each in allocations]
        self.constants = [tensor for tensor, _ in constants]
        self.constant_addresses = [address for _, address in constants]
        self.index = device.index if device.type == "cuda" else None
        self.in_order = order == list(range(len(allocations) + len(constants)))
        self.lock = threading.Lock()

    def run(self, inputs: Sequence[Tensor], addresses: list[int]) -> list[Tensor]:
        """Allocate and launch; return the results. addresses: those of the inputs."""
        device = self.device
        tensors = [
            _empty_like(inputs[like])
            if like >= 0
            else _empty_strided(sizes, strides, dtype=dtype, device=device)
            for like, sizes, strides, dtype in self.allocations
        ]
        used = self.used
        at = addresses if used is None else [addresses[number] for number in used]
        places = [tensor.data_ptr() for tensor in tensors]
        stream = 0 if self.index is None else _stream_of(self.index)
        if not self.room:
            self._launch((*at, *places, *self.constant_addresses), stream)
        elif self.index is None:
            temporary = torch.empty(self.room, dtype=torch.uint8)
            self._launch((*at, *places, temporary.data_ptr(), *self.constant_addresses), stream)
        else:
            # Not a tensor, which takes more time on the host to create. After the launch, the memory can be
            # freed: only later kernels of the same stream reuse it.
            temporary_at = _allocate(self.room, stream)
            try:
                self._launch((*at, *places, temporary_at, *self.constant_addresses), stream)
            finally:
                _free(temporary_at)
        tensors += self.constants
        return tensors if self.in_order else [tensors[place] for place in self.order]

    def _launch(self, addresses: tuple[int, ...], stream: int) -> None:
        """Launch all kernels. addresses: in the order that the docstring of the class describes."""
        graphs = self.launches.graphs
        graph = graphs.graphs.get(addresses)
        if graph is None or not graphs.launch_again(graph, stream):
            with self.lock:  # another thread may run the same tape
                self.launches.run_all(addresses, stream)


def one_section(
    sections: Sequence[Any], inputs: int, room: tuple[int, int], constants: Sequence[tuple[int, Tensor, int]],
    results: Sequence[int], device: torch.device,
) -> OneSection | None:  # fmt: skip
    """Return the OneSection of a Tape; None if it has other steps.

    inputs: the number of inputs, whose numbers are the first ones.
    room: the number of the tensor of temporaries, and its size in bytes.
    constants: number, tensor and address of each constant. results: the numbers of the results.
    """
    if len(sections) != 1 or not isinstance(sections[0], Section):
        return None
    section: Section = sections[0]
    launches = section.launches
    if launches is None:
        return None
    allocated = [each.number for each in section.allocations] + [number for number, _, _ in constants]
    used = {number for number, _ in launches.places}
    used_inputs = sorted(used.intersection(range(inputs)))
    roots = [*used_inputs, *(each.root for each in section.allocations)]
    roots += [room[0]] * bool(room[1]) + [number for number, _, _ in constants]
    places = {number: place for place, number in enumerate(roots)}
    if len(places) < len(roots) or not used <= places.keys() or not set(results) <= set(allocated):
        return None
    launches.renumber(places)
    order = [allocated.index(number) for number in results]
    some = None if len(used_inputs) == inputs else used_inputs
    shared = [each[1:] for each in constants]
    return OneSection(section.allocations, launches, some, room[1], shared, order, device)
