"""Record the PyTorch operations and kernel launches of a function, for replay.py."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from regard.kernels import interpreting

__all__ = [
    "Address",
    "Launch",
    "Operation",
    "Place",
    "Recorder",
    "recorder",
    "recording",
    "without_recording",
]

READS_VALUES = {"aten::_local_scalar_dense", "aten::equal"}
"""Operations whose result on the host can change what a function does."""

_recorders: dict[int, Recorder] = {}
"""The recorders by thread id. To test for an empty dict takes less time than to read a threading.local()."""


def recorder() -> Recorder | None:
    """Return the recorder of this thread; None if nothing is recorded."""
    return _recorders.get(threading.get_ident()) if _recorders else None


class Place(NamedTuple):
    """A tensor argument of a recorded operation: the number of the tensor."""

    tensor: int


class Operation(NamedTuple):
    """A PyTorch operation.

    arguments, named: its arguments, with a Place instead of each tensor.
    results: the numbers of the tensors that it returns.
    view: whether it only creates views, or tensors without elements.
    """

    function: Any
    arguments: Any
    named: Any
    results: list[int]
    view: bool


class Address:
    """Stands for the tensor of a tensor descriptor in a recorded launch. Triton reads only its address."""

    address = 0

    def data_ptr(self) -> int:
        """Return the address of the tensor that the launch reads next."""
        return self.address


class Launch(NamedTuple):
    """A kernel launch. arguments: its numbers, with None for tensors. places: (position, tensor, offset).

    If an argument is a tensor descriptor, an Address replaces its tensor, and `places` contains this tensor
    with the position of the descriptor.

    run: a quick_launch.Run.
    """

    run: Any
    arguments: list[Any]
    places: list[tuple[int, int, int]]


class Facts(NamedTuple):
    """What a tape must know about a recorded tensor. size: that of its storage in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    size: int
    numel: int

    @property
    def empty(self) -> bool:
        """Whether the tensor has no elements."""
        return not self.numel


class Recorder(TorchDispatchMode):
    """Records the operations and launches of a function. Temporary tensors are not kept.

    facts: by number of a tensor; the inputs are the first ones.
    origin: for a view, the number of the tensor that it is a view of, and its offset there in bytes.
    constants: tensors that are neither inputs nor results, by number.
    valid: False if the function cannot be replayed.
    """

    def __init__(self, inputs: list[Tensor]):
        super().__init__()
        self.facts: list[Facts] = []
        self.numbers: dict[int, tuple[int, weakref.ref[Tensor]]] = {}
        self.origin: dict[int, tuple[int, int]] = {}
        self.constants: dict[int, Tensor] = {}
        self.steps: list[Operation | Launch] = []
        self.valid, self.inputs, self.device = True, len(inputs), inputs[0].device
        for each in inputs:
            self._new(each)

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor. An unknown tensor is a constant."""
        number = self._known(tensor)
        if number is None:
            number = self._new(tensor)
            self.constants[number] = tensor
        return number

    def _known(self, tensor: Tensor) -> int | None:
        number, reference = self.numbers.get(id(tensor), (None, None))
        return number if reference is not None and reference() is tensor else None

    def _new(self, tensor: Tensor) -> int:
        self.numbers[id(tensor)] = number, _ = len(self.facts), weakref.ref(tensor)
        size = tensor.untyped_storage().nbytes()
        self.facts.append(Facts(tuple(tensor.shape), tensor.stride(), tensor.dtype, size, tensor.numel()))
        return number

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments, named = self._numbered(args), self._numbered(kwargs or {})
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, (list, tuple)) else [result]
        if function.name() in READS_VALUES or not all(isinstance(each, Tensor) for each in results):
            self.valid = False
            return result
        known = [self._known(each) for each in results]
        numbers = [
            self._new(each) if number is None else number for each, number in zip(results, known, strict=True)
        ]
        view = all(each is None for each in known)  # and not an operation that writes into a known tensor
        if view:
            views = [self._is_view(each, number, args) for each, number in zip(results, numbers, strict=True)]
            view = all(views)
        self.steps.append(Operation(function, arguments, named, numbers, view))
        return result

    def _is_view(self, result: Tensor, number: int, arguments: Any) -> bool:
        """Whether a result is a view of an argument, whose number is then kept, or has no elements."""
        address = result.untyped_storage().data_ptr()
        for each in arguments:
            if isinstance(each, Tensor) and address and each.untyped_storage().data_ptr() == address:
                self.origin[number] = self.number(each), result.data_ptr() - each.data_ptr()
                return True
        return self.facts[number].empty

    def _numbered(self, value: Any) -> Any:
        """Return arguments with a Place instead of each tensor."""
        if isinstance(value, Tensor):
            return Place(self.number(value))
        if isinstance(value, dict):
            return {name: self._numbered(each) for name, each in value.items()}
        return type(value)(map(self._numbered, value)) if type(value) in (list, tuple) else value

    def launched(self, run: Any, values: list[Any]) -> None:
        """Record a launch. run: a quick_launch.Run; None if the kernel cannot be launched again."""
        descriptors = [i for i, each in enumerate(values) if isinstance(getattr(each, "base", None), Tensor)]
        if run is None or (descriptors and interpreting()):  # the interpreter reads descriptors as tensors
            self.valid = False
            return
        places = [(i, self.number(each), 0) for i, each in enumerate(values) if isinstance(each, Tensor)]
        numbers = [None if isinstance(each, Tensor) else each for each in values]
        for i in descriptors:
            places.append((i, self.number(values[i].base), 0))
            described = numbers[i] = copy.copy(values[i])
            described.base = Address()
        self.steps.append(Launch(run, numbers, places))

    def input_like(self, number: int) -> int:
        """Return the number of a contiguous input with the same sizes, strides and dtype; -1 without one."""
        wanted = self.facts[number]
        row, contiguous = 1, []
        for size in reversed(wanted.sizes):
            contiguous.append(row)
            row *= size
        if wanted.strides != tuple(reversed(contiguous)):
            return -1
        same = (i for i, each in enumerate(self.facts[: self.inputs]) if each[:3] == wanted[:3])
        return next(same, -1)

    def root(self, number: int) -> tuple[int, int]:
        """Return the number of the tensor of which this tensor is a view, or its own, and the offset."""
        offset = 0
        while number in self.origin:
            number, more = self.origin[number]
            offset += more
        return number, offset


def recording(recorder: Recorder | None) -> None:
    """Set the recorder of this thread."""
    if recorder is None:
        _recorders.pop(threading.get_ident(), None)
    else:
        _recorders[threading.get_ident()] = recorder


def without_recording() -> Any:
    """Return a context manager in which operations are not recorded, for a kernel launch."""
    return _disable_current_modes()
