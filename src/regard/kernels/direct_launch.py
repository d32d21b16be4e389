"""Launch compiled Triton kernels with cuLaunchKernel of the CUDA driver, in less time than Triton's launcher.

Triton's launcher passes all arguments of a kernel, up to 70, through several Python functions in each launch.
A DirectLaunch keeps them in memory. Before a launch, only the addresses of tensors are written there.

direct_launch() compares the sizes of the arguments with those that the driver reports for the kernel. If they
differ, or if the kernel needs anything else, Triton's launcher is used.

Tested: two kernels on an NVIDIA H200 (triton 3.6), with the same results as by Triton's launcher.
"""

from __future__ import annotations

import array
import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any

import torch

from regard.kernels.graph_launch import Graphs

__all__ = ["DirectLaunch", "LaunchSequence", "Place", "direct_launch"]

Place = tuple[int, int, int]
"""(slot, tensor, offset): a slot of a launch that gets the address of a tensor, given by its number, plus an
offset in bytes."""

SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u1": 1, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
"""Size in bytes of each integer type of Triton."""

FLOATS = {"fp32": ("<f", 4), "fp64": ("<d", 8)}
"""Format for struct.pack() and size in bytes of each floating-point type of Triton."""

SCRATCH = 2
"""Triton adds this many pointers to the arguments of a kernel: global and profiling scratch memory."""

ENABLED = True
"""Whether kernels are launched in this way. If False, direct_launch() always returns None."""

INVALID_CONTEXT = 201
"""Error code of the driver: this thread has no CUDA context yet."""

EARLY = 6
"""Identifier of the launch attribute for programmatic dependent launch, see early_launch.py."""


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of the driver. Its value is a union of 64 bytes, of which 4 are used here."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class Configuration(ctypes.Structure):
    """CUlaunchConfig of the driver. sizes: grid, threads and bytes of shared memory. value: the stream."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("value", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def _driver() -> Any:
    """Return the CUDA driver library; None if it is missing or too old."""
    try:
        library = ctypes.PyDLL("libcuda.so.1")
        _, _, info = library.cuLaunchKernel, library.cuLaunchKernelEx, library.cuFuncGetParamInfo
    except (OSError, AttributeError):
        return None
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    info.argtypes = [pointer, size, ctypes.POINTER(size), ctypes.POINTER(size)]
    return library


class DirectLaunch:
    """A launch of one compiled kernel with one grid.

    slots: the arguments of the kernel as bits, 8 bytes for each. Compile-time arguments have no slot.
    """

    def __init__(self, compiled: Any, grid: tuple[int, ...], slots: list[int]):
        self.compiled = compiled  # so that its code stays on the device
        self.slots = array.array("Q", slots)
        address, _ = self.slots.buffer_info()
        self.pointers = (ctypes.c_void_p * len(slots))(*(address + 8 * i for i in range(len(slots))))
        threads, shared = 32 * compiled.metadata.num_warps, compiled.metadata.shared
        sizes, function = (*grid, threads, 1, 1, shared), ctypes.c_void_p(compiled.function)
        self.stream: Any
        self.arguments: tuple[Any, ...]  # ctypes objects, so that the function needs no argtypes
        if getattr(compiled.metadata, "launch_pdl", False):
            attributes = ctypes.pointer(Attribute(EARLY, 1))
            self.stream = Configuration((ctypes.c_uint * 7)(*sizes), None, attributes, 1)
            self.arguments = (ctypes.byref(self.stream), function, self.pointers, None)
            self.launch = _driver().cuLaunchKernelEx
        else:
            self.stream = ctypes.c_void_p(0)
            self.arguments = (function, *map(ctypes.c_uint, sizes), self.stream, self.pointers, None)
            self.launch = _driver().cuLaunchKernel

    def run(self, stream: int) -> None:
        """Launch the kernel with the arguments in self.slots. They are copied before this returns."""
        self.stream.value = stream
        error = self.launch(*self.arguments)
        if error:
            self.launch_again(error)

    def launch_again(self, error: int) -> None:
        """Launch again if the error means that the thread has no CUDA context; otherwise raise it."""
        if error == INVALID_CONTEXT:
            torch.cuda.set_device(torch.cuda.current_device())
            error = self.launch(*self.arguments)
        if error:
            raise RuntimeError(f"the launch of a kernel failed with CUDA error {error}")

    def share(self, stream: ctypes.c_void_p, slots: dict[int, int]) -> None:
        """Read the stream, and some slots, from memory that other launches read too.

        The stream of an early launch stays in its Configuration.

        slots: the address of the memory by slot.
        """
        if not isinstance(self.stream, Configuration):
            self.stream = stream
            self.arguments = (*self.arguments[:8], stream, self.pointers, None)
        for slot, address in slots.items():
            self.pointers[slot] = address


class LaunchSequence:
    """One or more launches, in order; as one CUDA graph if the same addresses are passed repeatedly.

    Kernels of one function often read the same tensors. So each address is written only once, to memory that
    all launches read. graph_launch.py explains the graphs.

    launches: each launch with the places of its tensors.
    """

    def __init__(self, launches: Sequence[tuple[DirectLaunch, Sequence[Place]]]):
        places = dict.fromkeys(place[1:] for _, each in launches for place in each)
        self.places, self.stream = list(places), ctypes.c_void_p(0)
        self.slots = array.array("Q", [0] * len(places))
        self.write = struct.Struct(f"{len(places)}Q").pack_into
        first, _ = self.slots.buffer_info()
        address = {place: first + 8 * i for i, place in enumerate(self.places)}
        for launch, each in launches:
            launch.share(self.stream, {slot: address[number, offset] for slot, number, offset in each})
        self.launches = [(launch.launch, launch.arguments, launch) for launch, _ in launches]
        early = (launch.stream for launch, _ in launches if isinstance(launch.stream, Configuration))
        self.streams: tuple[Any, ...] = (self.stream, *early)
        self.graphs = Graphs(self._launch, len(launches))

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Launch all kernels. addresses: those of the tensors, by number."""
        values = (*[addresses[number] + offset for number, offset in self.places],)
        if not self.graphs.run(values, stream):
            self._launch(values, stream)

    def renumber(self, places: dict[int, int]) -> None:
        """Replace the numbers of tensors, for run_all(). places: old number -> new number."""
        self.places = [(places[number], offset) for number, offset in self.places]
        self.graphs.launch = self._launch_at

    def run_all(self, addresses: tuple[int, ...], stream: int) -> None:
        """Launch all kernels, after renumber(). Graphs are found by the addresses, all of which are used."""
        if not self.graphs.run(addresses, stream):
            self._launch_at(addresses, stream)

    def _launch_at(self, addresses: tuple[int, ...], stream: int) -> None:
        """Launch all kernels one by one. addresses: those of the tensors, by number."""
        self._launch((*[addresses[number] + offset for number, offset in self.places],), stream)

    def _launch(self, values: tuple[int, ...], stream: int) -> None:
        """Launch all kernels one by one. values: the addresses to write to self.slots."""
        self.write(self.slots, 0, *values)
        for each in self.streams:
            each.value = stream
        for launch, arguments, direct in self.launches:
            error = launch(*arguments)
            if error:
                direct.launch_again(error)


def direct_launch(
    compiled: Any, grid: tuple[int, ...], values: Sequence[Any]
) -> tuple[DirectLaunch, list[int | None]] | None:
    """Return the launch of a compiled kernel, and the slot of each argument.

    Returns None if only Triton's launcher can launch the kernel.

    values: all arguments of the kernel, with None instead of each tensor. The slot of an argument is None if
        it is a compile-time argument, or if Triton has made it one, such as an integer that is 1.
    """
    if not ENABLED or _driver() is None:
        return None
    metadata, kinds = compiled.metadata, list(compiled.src.signature.values())
    plain = metadata.num_ctas == 1 and metadata.target.backend == "cuda" and len(kinds) == len(values)
    for name in ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid"):
        plain = plain and not getattr(metadata, name, 0)
    if not plain:
        return None
    slots, sizes, places = list[int](), list[int](), list[int | None]()
    for kind, value in zip(kinds, values, strict=True):
        places.append(None if kind == "constexpr" else len(slots))
        if kind == "constexpr":
            continue
        packed = _packed(kind, value)
        if packed is None:
            return None
        slots.append(packed[0])
        sizes.append(packed[1])
    if _sizes_of_arguments(compiled.function) != [*sizes, *[8] * SCRATCH]:
        return None
    return DirectLaunch(compiled, grid, [*slots, *[0] * SCRATCH]), places


def _packed(kind: str, value: Any) -> tuple[int, int] | None:
    """Return the bits of an argument as an integer, and its size in bytes; None for unknown kinds.

    >>> _packed("*bf16", None), _packed("i32", -1), _packed("fp32", 1.0), _packed("tensordesc", None)
    ((0, 8), (4294967295, 4), (1065353216, 4), None)
    """
    if kind.startswith("*"):
        return 0 if value is None else int(value), 8
    if kind in SIZES and isinstance(value, int):
        return int(value) & ((1 << 8 * SIZES[kind]) - 1), SIZES[kind]
    if kind in FLOATS and isinstance(value, (int, float)):
        code, size = FLOATS[kind]
        return int.from_bytes(struct.pack(code, value), "little"), size
    return None


def _sizes_of_arguments(function: int) -> list[int]:
    """Return the sizes in bytes of the arguments of a kernel, from the driver."""
    sizes, offset, size = list[int](), ctypes.c_size_t(), ctypes.c_size_t()
    while not _driver().cuFuncGetParamInfo(function, len(sizes), ctypes.byref(offset), ctypes.byref(size)):
        sizes.append(size.value)
    return sizes
