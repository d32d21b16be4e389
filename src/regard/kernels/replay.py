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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.direct_launch import DirectLaunch, LaunchSequence, direct_launch
from regard.kernels.one_section import Allocation, Section, one_section
from regard.kernels.recording import Facts, Launch, Operation, Place, Recorder, recorder, recording

__all__ = ["Tape", "forget", "replayed", "tape_of"]

KEPT, KEPT_STEPS = 1024, 1 << 16
"""Maximum number of signatures that are kept, and of steps of all tapes. When one is reached, all tapes are
removed."""

ALIGNMENT = 512
"""Tensors begin at a multiple of this number of bytes, as in PyTorch's CUDA allocator."""

EMPTY = {"aten::empty.memory_format", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}
"""Operations that only allocate."""


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


class Direct(NamedTuple):
    """A launch by direct_launch.py. places: (slot, tensor, offset) of each tensor."""

    launch: DirectLaunch
    places: list[tuple[int, int, int]]


Step = Operation | FlatOperation | Allocation | Launch | Direct


class Tape:
    """The recorded steps of a function.

    results: number of each tensor that it returns.
    room: size in bytes of the tensor that contains all temporary tensors that only kernels use.
    by_address: whether launches get the addresses of tensors; False in Triton's interpreter.
    sections: the steps, with each Allocation and Direct as a part of a Section.
    one: runs the steps if they are one Section; otherwise None.
    unknown, unplaced: the initial tensors and addresses of all numbers after the inputs.
    valid: False after forget().
    """

    def __init__(self, recorder: Recorder, results: list[int]):
        self.results, self.device, self.valid = results, recorder.device, True
        self.count = len(recorder.facts)
        self.unknown: list[Any] = [None] * (self.count - recorder.inputs)
        self.unplaced = [0] * (self.count + 1 - recorder.inputs)
        self.constants = [(number, each, each.data_ptr()) for number, each in recorder.constants.items()]
        self.by_address = not interpreting()
        needed, views = self._needed(recorder)
        self.room, offsets = self._arranged(recorder, needed | set(views))
        self.lock = threading.Lock()
        self.steps: list[Step] = []
        for step in recorder.steps:
            if isinstance(step, Launch):
                self.steps.append(self._launch(step, recorder, offsets))
            elif step.function.name() in EMPTY:
                (number,) = step.results
                result = views.get(number, number)
                if (number in needed or number in views) and recorder.facts[result].sizes != (0,):
                    facts, like = recorder.facts[result][:3], recorder.input_like(result)
                    self.steps.append(Allocation(result, number, like, *facts))
                elif number in needed:  # an unused result
                    self.constants.append((number, _empty(recorder.facts[number], self.device), 0))
            elif not step.view or not (needed - set(views.values())).isdisjoint(step.results):
                self.steps.append(_flattened(step))
        self.sections = _sections(self.steps)
        room = (self.count, self.room)
        self.one = one_section(self.sections, recorder.inputs, room, self.constants, results, self.device)

    def _needed(self, recorder: Recorder) -> tuple[set[int], dict[int, int]]:
        """Return the numbers of all tensors that must exist as tensors: results, and inputs of operations.

        Also returns a dict {root: view}: the results that are a view of a whole tensor (root) and are
        allocated instead of it, see Allocation.
        """
        allocated = {
            step.results[0]
            for step in recorder.steps
            if isinstance(step, Operation) and step.function.name() in EMPTY
        }
        views = dict[int, int]()
        for number in self.results:
            root, offset = recorder.root(number)
            whole = recorder.facts[root].numel == recorder.facts[number].numel
            if self.by_address and root in allocated and number != root and whole and not offset:
                views[root] = number
        needed = self._inputs(recorder, set(self.results) - set(views.values()))
        for root in needed & set(views):  # an operation needs the tensor itself
            del views[root]
        if len({*self.results}) < len(self.results) or any(root in self.results for root in views):
            views = {}
        return self._inputs(recorder, set(self.results) - set(views.values())) | set(views.values()), views

    def _inputs(self, recorder: Recorder, needed: set[int]) -> set[int]:
        """Return `needed` and the inputs of all operations that compute these or change other tensors."""
        for step in reversed(recorder.steps):
            if isinstance(step, Launch):
                if not self.by_address:
                    needed.update(number for _, number, _ in step.places)
            elif step.function.name() in EMPTY:
                continue
            elif not step.view or not needed.isdisjoint(step.results):
                _collect((step.arguments, step.named), needed)
        return needed

    def _arranged(self, recorder: Recorder, needed: set[int]) -> tuple[int, dict[int, int]]:
        """Arrange the temporary tensors that only kernels use; return the room they need, and their offsets.

        After its last launch, the room of a tensor is used for others."""
        last: dict[int, int] = {}
        for i, step in enumerate(recorder.steps):
            if isinstance(step, Launch):
                last.update((recorder.root(number)[0], i) for _, number, _ in step.places)
        room, offsets = 0, dict[int, int]()
        used: list[tuple[int, int, int]] = []  # (begin, end, last launch) of each tensor in use
        for i, step in enumerate(recorder.steps):
            if isinstance(step, Launch) or step.function.name() not in EMPTY:
                continue
            (number,) = step.results
            if number in needed or number not in last:
                continue
            used = sorted(each for each in used if each[2] >= i)
            begin, size = 0, -(-recorder.facts[number].size // ALIGNMENT) * ALIGNMENT
            for low, high, _ in used:
                if begin + size <= low:
                    break
                begin = max(begin, high)
            offsets[number] = begin
            used.append((begin, begin + size, last[number]))
            room = max(room, begin + size)
        return room, offsets

    def _launch(self, step: Launch, recorder: Recorder, offsets: dict[int, int]) -> Launch | Direct:
        """Return the launch with each tensor as an offset from its root or from the tensor of temporaries."""
        if not self.by_address:
            return step
        places = []
        for position, number, _ in step.places:
            root, offset = recorder.root(number)
            if recorder.facts[number].empty:  # not read
                step.arguments[position] = 0
            elif root in offsets:
                places.append((position, self.count, offset + offsets[root]))
            else:
                places.append((position, root, offset))
        direct = direct_launch(step.run.compiled, step.run.grid, step.arguments)
        if direct is None:
            return Launch(step.run, step.arguments, places)
        launch, slots = direct
        used = [(slots[position], number, offset) for position, number, offset in places]
        return Direct(launch, [(slot, number, offset) for slot, number, offset in used if slot is not None])

    def run(self, inputs: list[Tensor], addresses: list[int]) -> list[Tensor]:
        """Run the steps with other inputs, whose addresses are given; return the results."""
        if self.one is not None:
            return self.one.run(inputs, addresses)
        tensors: list[Any] = inputs + self.unknown
        addresses = addresses + self.unplaced
        for number, constant, address in self.constants:
            tensors[number], addresses[number] = constant, address
        if self.room:
            temporary = torch.empty(self.room, dtype=torch.uint8, device=self.device)
            addresses[self.count] = temporary.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self.device.index) if self.device.type == "cuda" else 0
        for step in self.sections:
            if type(step) is Section:
                for number, root, like, sizes, strides, dtype in step.allocations:
                    if like >= 0:
                        result = torch.empty_like(tensors[like])
                    else:
                        result = torch.empty_strided(sizes, strides, dtype=dtype, device=self.device)
                    tensors[number], addresses[root] = result, result.data_ptr()
                if step.launches is not None:
                    with self.lock:  # another thread may run the same tape
                        step.launches.run(addresses, stream)
                continue
            if type(step) is Launch:
                run, numbers, places = step
                values = numbers.copy()
                if not self.by_address:
                    for position, number, _ in places:
                        values[position] = tensors[number]
                    run.launch(*values, stream=stream)
                    continue
                with self.lock:  # another thread may write to the same tensor descriptor
                    for position, number, offset in places:
                        if values[position] is None:
                            values[position] = addresses[number] + offset
                        else:
                            values[position].base.address = addresses[number] + offset
                    run.launch(*values, stream=stream)
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


def _sections(steps: Sequence[Step]) -> list[Section | Launch | Operation | FlatOperation]:
    """Return the steps, with each Allocation and Direct as a part of a Section."""
    sections: list[Section | Launch | Operation | FlatOperation] = []
    inside: list[Step] = []
    for step in [*steps, None]:
        if isinstance(step, (Allocation, Direct)):
            inside.append(step)
            continue
        direct = [each for each in inside if isinstance(each, Direct)]
        if inside:
            allocations = [each for each in inside if isinstance(each, Allocation)]
            sections.append(Section(allocations, LaunchSequence(direct) if direct else None))
            inside = []
        if step is not None:
            sections.append(step)
    return sections


def _empty(facts: Facts, device: torch.device) -> Tensor:
    """Return a tensor without elements, which all calls share."""
    with torch.inference_mode(False):
        return torch.empty_strided(facts.sizes, facts.strides, dtype=facts.dtype, device=device)


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
    key, inputs, addresses = _signature(function, tensors, numbers)
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
    recorded = Recorder([tensor for tensor in tensors if tensor is not None])
    recording(recorded)
    try:
        with recorded:
            results = function(*tensors, *numbers)
    finally:
        recording(None)
    if recorded.valid:
        _tapes[key] = tape = Tape(recorded, [recorded.number(each) for each in results])
        _count[0] += len(tape.steps)
    return results


def _signature(
    function: Any, tensors: tuple[Tensor | None, ...], numbers: tuple[Any, ...]
) -> tuple[tuple[Any, ...], list[Tensor], list[int]]:
    """Return the signature of a call, the tensors that are not None, and their addresses."""
    inputs: list[Tensor] = []
    addresses: list[int] = []
    facts: list[Any] = []
    for each in tensors:
        if each is None:
            facts.append(None)
            continue
        address = each.data_ptr()
        inputs.append(each)
        addresses.append(address)
        facts.append((each.shape, each.stride(), each.dtype, address % 16))
    return (function, numbers, inputs[0].device, *facts), inputs, addresses


def tape_of(function: Any, tensors: tuple[Tensor | None, ...], numbers: tuple[Any, ...]) -> Tape | None:
    """Return the tape of a call, for callers that keep it; None if there is none yet.

    A kept tape may be run only for tensors of the same shapes, strides, dtypes and alignment, on the current
    device, while it is valid and nothing is recorded.
    """
    tape = _tapes.get(_signature(function, tensors, numbers)[0])
    return tape if isinstance(tape, Tape) else None


def forget() -> None:
    """Remove all tapes, for example after a change of what functions launch."""
    for tape in _tapes.values():
        if isinstance(tape, Tape):
            tape.valid = False
    _tapes.clear()
    _count[0] = 0
