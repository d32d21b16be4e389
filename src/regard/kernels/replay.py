"""Replay the launches of a function: less time on the host for calls of the same shapes.

A pass of additive attention launches up to ten kernels with up to 60 arguments each, and allocates about ten
tensors. What it launches and allocates depends only on the shapes, strides and dtypes of its tensors, and on
numbers. replayed() therefore records the second call of each combination of them (signature): its kernel
launches, from quick_launch, and its PyTorch operations, from a TorchDispatchMode. Later calls run this list
(Tape), with the addresses of the new tensors. Temporary tensors that only kernels use become one tensor.

The function must not read values of tensors on the host, and every tensor that changes between calls must be
one of its inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from regard.kernels import interpreting

__all__ = ["Recorder", "Tape", "forget", "recorder", "replayed", "without_recording"]

KEPT, KEPT_STEPS = 1024, 1 << 16
"""Maximum number of signatures that are kept, and of steps of all tapes. When one is reached, all tapes are
removed."""

ALIGNMENT = 512
"""Tensors begin at a multiple of this number of bytes, as in PyTorch's CUDA allocator."""

EMPTY = {"aten::empty.memory_format", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}
"""Operations that only allocate."""

READS_VALUES = {"aten::_local_scalar_dense", "aten::equal"}
"""Operations whose result on the host can change what a function does."""

_active = threading.local()


def recorder() -> Recorder | None:
    """Return the recorder of this thread; None if nothing is recorded."""
    return getattr(_active, "recorder", None)


class Place(NamedTuple):
    """A tensor argument of a recorded step: the number of a tensor, and an offset in bytes."""

    tensor: int
    offset: int = 0


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


class FlatOperation(NamedTuple):
    """An operation without tensors in lists, in a form that takes less time to run.

    arguments, named: its arguments, with None instead of each tensor.
    places, named_places: (position or name, number) of each tensor.
    """

    function: Any
    arguments: list[Any]
    places: list[tuple[int, int]]
    named: dict[str, Any]
    named_places: list[tuple[str, int]]
    results: list[int]


class Allocation(NamedTuple):
    """An allocation of the tensor with the number `number`."""

    number: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Launch(NamedTuple):
    """A kernel launch. arguments: its numbers, with None for tensors. places: (position, tensor, offset)."""

    run: Callable[..., None]
    arguments: list[Any]
    places: list[tuple[int, int, int]]


class Recorder(TorchDispatchMode):
    """Records the operations and launches of a function.

    tensors: all tensors by number. They are kept, so that no two have the same address; the inputs are the
        first ones.
    origin: for a view, the number of the tensor that it is a view of.
    constants: numbers of tensors that are neither inputs nor results.
    valid: False if the function cannot be replayed.
    """

    def __init__(self, inputs: list[Tensor]):
        super().__init__()
        self.tensors: list[Tensor] = []
        self.numbers: dict[int, int] = {}
        self.origin: dict[int, int] = {}
        self.constants: list[int] = []
        self.steps: list[Operation | Launch] = []
        self.valid = True
        for each in inputs:
            self.numbers[id(each)] = len(self.tensors)
            self.tensors.append(each)
        self.inputs = len(inputs)

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor. An unknown tensor is a constant."""
        number = self.numbers.get(id(tensor))
        if number is None:
            number = self._new(tensor)
            self.constants.append(number)
        return number

    def _new(self, tensor: Tensor) -> int:
        self.numbers[id(tensor)] = number = len(self.tensors)
        self.tensors.append(tensor)
        return number

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments, named = self._numbered(args), self._numbered(kwargs or {})
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, (list, tuple)) else [result]
        if function.name() in READS_VALUES or not all(isinstance(each, Tensor) for each in results):
            self.valid = False
            return result
        known = [id(each) in self.numbers for each in results]
        numbers = [
            self.numbers[id(each)] if old else self._new(each)
            for each, old in zip(results, known, strict=True)
        ]
        views = [self._is_view(each, args) for each, old in zip(results, known, strict=True) if not old]
        view = bool(views) and all(views) and not any(known)
        self.steps.append(Operation(function, arguments, named, numbers, view))
        return result

    def _is_view(self, result: Tensor, arguments: Any) -> bool:
        """Whether a new tensor is a view of an argument, whose number is then kept, or has no elements."""
        address = result.untyped_storage().data_ptr()
        for each in arguments:
            if isinstance(each, Tensor) and address and each.untyped_storage().data_ptr() == address:
                self.origin[self.numbers[id(result)]] = self.number(each)
                return True
        return result.numel() == 0

    def _numbered(self, value: Any) -> Any:
        """Return arguments with a Place instead of each tensor."""
        if isinstance(value, Tensor):
            return Place(self.number(value))
        if isinstance(value, dict):
            return {name: self._numbered(each) for name, each in value.items()}
        return type(value)(map(self._numbered, value)) if type(value) in (list, tuple) else value

    def launched(self, run: Callable[..., None] | None, values: list[Any]) -> None:
        """Record a launch. run: launches the kernel with other values; None if this is not possible."""
        if run is None:
            self.valid = False
            return
        places = [(i, self.number(each), 0) for i, each in enumerate(values) if isinstance(each, Tensor)]
        numbers = [None if isinstance(each, Tensor) else each for each in values]
        self.steps.append(Launch(run, numbers, places))

    def root(self, number: int) -> int:
        """Return the number of the tensor of which this tensor is a view, or the number itself."""
        while number in self.origin:
            number = self.origin[number]
        return number


class Tape:
    """The recorded steps of a function.

    results: number of each tensor that it returns.
    room: size in bytes of the tensor that contains all temporary tensors that only kernels use.
    """

    def __init__(self, recorder: Recorder, results: list[int]):
        self.results, self.inputs = results, recorder.inputs
        self.count = len(recorder.tensors)
        constants = ((number, recorder.tensors[number]) for number in recorder.constants)
        self.constants = [(number, tensor, tensor.data_ptr()) for number, tensor in constants]
        self.by_address = not interpreting()
        self.device = recorder.tensors[0].device
        needed = self._needed(recorder)
        self.room, offsets = 0, dict[int, int]()
        self.steps: list[Operation | FlatOperation | Allocation | Launch] = []
        for step in recorder.steps:
            if isinstance(step, Launch):
                self.steps.append(self._launch(step, recorder, offsets))
            elif step.function.name() in EMPTY:
                (number,) = step.results
                tensor = recorder.tensors[number]
                if number in needed:
                    self.steps.append(Allocation(number, tuple(tensor.shape), tensor.stride(), tensor.dtype))
                else:
                    offsets[number] = self.room
                    size = tensor.untyped_storage().nbytes()
                    self.room += -(-size // ALIGNMENT) * ALIGNMENT
            elif not step.view or not needed.isdisjoint(step.results):
                self.steps.append(_flattened(step))

    def _needed(self, recorder: Recorder) -> set[int]:
        """Return the numbers of all tensors that must exist as tensors: results, and inputs of operations."""
        needed = set(self.results)
        for step in reversed(recorder.steps):
            if isinstance(step, Launch):
                if not self.by_address:
                    needed.update(number for _, number, _ in step.places)
            elif step.function.name() in EMPTY:
                continue
            elif not step.view or not needed.isdisjoint(step.results):
                _collect((step.arguments, step.named), needed)
        return needed

    def _launch(self, step: Launch, recorder: Recorder, offsets: dict[int, int]) -> Launch:
        """Return the launch with the address of each tensor: relative to its root, or to the one tensor."""
        if not self.by_address:
            return step
        places = []
        for position, number, _ in step.places:
            root = recorder.root(number)
            offset = recorder.tensors[number].data_ptr() - recorder.tensors[root].data_ptr()
            if not recorder.tensors[number].numel():  # not read
                step.arguments[position] = 0
            elif root in offsets:
                places.append((position, self.count, offset + offsets[root]))
            else:
                places.append((position, root, offset))
        return Launch(step.run, step.arguments, places)

    def run(self, inputs: list[Tensor], addresses: list[int]) -> list[Tensor]:
        """Run the steps with other inputs, whose addresses are given; return the results."""
        tensors: list[Any] = [*inputs, *[None] * (self.count - len(inputs))]
        addresses = addresses + [0] * (self.count + 1 - len(addresses))
        for number, constant, address in self.constants:
            tensors[number], addresses[number] = constant, address
        if self.room:
            temporary = torch.empty(self.room, dtype=torch.uint8, device=self.device)
            addresses[self.count] = temporary.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self.device.index) if self.device.type == "cuda" else 0
        for step in self.steps:
            if type(step) is Launch:
                launch, numbers, places = step
                values = numbers.copy()
                if self.by_address:
                    for position, number, offset in places:
                        values[position] = addresses[number] + offset
                else:
                    for position, number, _ in places:
                        values[position] = tensors[number]
                launch(*values, stream=stream)
                continue
            if type(step) is Allocation:
                number, sizes, strides, dtype = step
                result = torch.empty_strided(sizes, strides, dtype=dtype, device=self.device)
                tensors[number], addresses[number] = result, result.data_ptr()
                continue
            if type(step) is FlatOperation:
                function, numbers, flat, others, flat_named, _ = step
                values = numbers.copy()
                for position, number in flat:
                    values[position] = tensors[number]
                named = others.copy()
                for name, number in flat_named:
                    named[name] = tensors[number]
                result = function(*values, **named)
            else:
                assert type(step) is Operation
                result = step.function(*_filled(step.arguments, tensors), **_filled(step.named, tensors))
            for number, each in zip(
                step.results, (result,) if type(result) is Tensor else result, strict=True
            ):
                tensors[number], addresses[number] = each, each.data_ptr()
        return [tensors[number] for number in self.results]


def _flattened(step: Operation) -> Operation | FlatOperation:
    """Return the operation as a FlatOperation, if it has no tensors in lists."""
    inside: set[int] = set()
    for each in (*step.arguments, *step.named.values()):
        if type(each) is not Place:
            _collect(each, inside)
    if inside:
        return step
    arguments = [None if type(each) is Place else each for each in step.arguments]
    named = {name: None if type(each) is Place else each for name, each in step.named.items()}
    places = [(i, each.tensor) for i, each in enumerate(step.arguments) if type(each) is Place]
    named_places = [(name, each.tensor) for name, each in step.named.items() if type(each) is Place]
    return FlatOperation(step.function, arguments, places, named, named_places, step.results)


def _collect(value: Any, numbers: set[int]) -> None:
    """Add the numbers of all tensors in these arguments."""
    if type(value) is Place:
        numbers.add(value.tensor)
    elif isinstance(value, dict):
        _collect(list(value.values()), numbers)
    elif type(value) in (list, tuple):
        for each in value:
            _collect(each, numbers)


def _filled(value: Any, tensors: list[Any]) -> Any:
    """Return arguments with the tensor instead of each Place."""
    if type(value) is Place:
        return tensors[value.tensor]
    if type(value) is dict:
        return {name: _filled(each, tensors) for name, each in value.items()}
    return type(value)(_filled(each, tensors) for each in value) if type(value) in (list, tuple) else value


_tapes: dict[tuple[Any, ...], Tape | str] = {}
"""By signature: the tape, or `seen` after the first call, or `never` if the function cannot be replayed."""

_count = [0]
"""Number of steps of all tapes."""


def replayed(
    function: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor | None, ...], numbers: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """Return function(*tensors, *numbers), replayed if such a call was recorded before.

    tensors: all on one device. numbers: hashable values.
    """
    if recorder() is not None:  # this call is a part of a function that is being recorded
        return function(*tensors, *numbers)
    inputs, addresses, signature = [], [], [function, numbers]
    for tensor in tensors:
        if tensor is None:
            signature.append(None)
        else:
            address = tensor.data_ptr()
            inputs.append(tensor)
            addresses.append(address)
            signature += (tensor.shape, tensor.stride(), tensor.dtype, address % 16)
    key = (*signature, inputs[0].device)
    tape = _tapes.get(key)
    if type(tape) is Tape:
        return tuple(tape.run(inputs, addresses))
    if tape != "seen":
        if tape is None:
            if len(_tapes) >= KEPT or _count[0] >= KEPT_STEPS:
                forget()
            _tapes[key] = "seen"
        return function(*tensors, *numbers)
    _tapes[key] = "never"
    # Each input is another object, because in later calls each can be another tensor.
    tensors = tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors)
    _active.recorder = recording = Recorder([tensor for tensor in tensors if tensor is not None])
    try:
        with recording:
            results = function(*tensors, *numbers)
    finally:
        _active.recorder = None
    if recording.valid:
        _tapes[key] = tape = Tape(recording, [recording.number(each) for each in results])
        _count[0] += len(tape.steps)
    return results


def forget() -> None:
    """Remove all tapes, for example after a change of what functions launch."""
    _tapes.clear()
    _count[0] = 0


def without_recording() -> Any:
    """Return a context manager in which operations are not recorded, for a kernel launch."""
    return _disable_current_modes()
