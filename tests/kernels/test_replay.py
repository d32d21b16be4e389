"""replayed(): recorded launches and operations run again, with the addresses of other tensors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.kernels import replay
from regard.kernels.quick_launch import quick_launch


def floats(pointer: Tensor | int, count: int) -> Any:
    """Return the floats at a tensor or an address, as a compiled kernel reads them."""
    address = pointer if isinstance(pointer, int) else pointer.data_ptr()
    return (ctypes.c_float * count).from_address(address)


class AddKernel:
    """Stands for a compiled kernel: adds a number to `count` floats, and reads tensors by their address."""

    __name__ = "add_kernel"
    arg_names = ("source", "result", "count", "number")
    params = (SimpleNamespace(is_constexpr=False),) * 4
    by_address = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(source: Any, result: Any, count: int, number: float, stream: int | None = None) -> Any:
            AddKernel.by_address += isinstance(source, int)
            values = [each + number for each in floats(source, count)]
            for i, value in enumerate(values):
                floats(result, count)[i] = value
            return self

        return run


add_kernel = quick_launch(AddKernel())
CONSTANT = torch.tensor([10.0, 20.0, 30.0, 40.0])


def computed(source: Tensor, other: Tensor | None, number: float) -> tuple[Tensor, ...]:
    """Launches, views, operations on views, and a constant; the second result is a view."""
    temporary = source.new_empty(3, 4)
    for row in range(3):
        add_kernel[(1,)](source[row % 2], result=temporary[row], count=4, number=number)
    copied = torch.empty_like(temporary)
    add_kernel[(1,)](temporary, copied, count=12, number=1.0)
    copied[1:2] += CONSTANT
    copied[2].copy_(copied.sum(0))
    if other is not None:
        add_kernel[(1,)](other, copied[0], 4, number=0.0)
    rows, unused = copied.split_with_sizes([2, 1]), temporary.unbind(0)
    rows[0].mul_(2.0)
    add_kernel[(1,)](unused[2], rows[1], 4, number=3.0)
    last = torch.empty(4)
    add_kernel[(1,)](CONSTANT, last, count=4, number=number)
    return copied, torch.cat([copied, last[None]]), last[1:]


@pytest.mark.parametrize("other", [False, True])
def test_replayed_results_are_those_of_the_function(other: bool):
    replay.forget()
    AddKernel.by_address = 0
    for _ in range(4):
        source = torch.randn(3, 4)[1:]
        more = torch.randn(4) if other else None
        results = replay.replayed(computed, (source, more), (0.5,))
        for result, expected in zip(results, computed(source, more, 0.5), strict=True):
            assert torch.equal(result, expected)
    assert AddKernel.by_address == 2 * (7 if other else 6)  # only the third and fourth call are replayed


def test_other_shapes_strides_and_numbers_are_other_signatures():
    replay.forget()
    for _ in range(3):
        for source in (torch.randn(2, 4), torch.randn(4, 4)[::2], torch.randn(3, 4)):
            for number in (0.5, 2.0):
                result = replay.replayed(computed, (source, None), (number,))[0]
                assert torch.equal(result, computed(source, None, number)[0])


def test_a_tensor_that_is_passed_twice_can_be_two_tensors_later():
    replay.forget()
    same = torch.randn(2, 4)
    for pair in [(same, same)] * 3 + [(same, torch.randn(2, 4))] * 2:
        results = replay.replayed(computed, pair, (0.5,))
        for result, expected in zip(results, computed(*pair, 0.5), strict=True):
            assert torch.equal(result, expected)


def test_a_function_that_calls_another_replayed_function():
    def outer(source: Tensor) -> tuple[Tensor, ...]:
        return (replay.replayed(computed, (source, None), (0.5,))[1] * 2,)

    replay.forget()
    for _ in range(5):
        source = torch.randn(2, 4)
        replay.replayed(computed, (source, None), (0.5,))
        result = replay.replayed(outer, (source,), ())[0]
        assert torch.equal(result, 2 * computed(source, None, 0.5)[1])


@dataclass
class Descriptor:
    """Stands for Triton's TensorDescriptor."""

    base: Any
    shape: list[int]


class DescribedKernel(AddKernel):
    """Reads its source by a descriptor, as Triton's launcher does."""

    arg_names = ("result", "source", "count", "number")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(result: Any, source: Any, count: int, number: float, stream: int | None = None) -> Any:
            assert source.shape == [count]
            super(DescribedKernel, self).__getitem__(grid)(source.base.data_ptr(), result, count, number)
            return self

        return run


def test_a_tensor_descriptor_gets_the_address_of_the_new_tensor():
    kernel = quick_launch(DescribedKernel())

    def described(source: Tensor, begin: int) -> tuple[Tensor, ...]:
        result = source.new_empty(4)
        part = source[begin:]
        kernel[(1,)](result, Descriptor(part, [4]), 4, number=1.0)
        return (result,)

    replay.forget()
    for begin in (0, 2):
        for _ in range(4):
            source = torch.randn(4 + begin)
            assert torch.equal(replay.replayed(described, (source,), (begin,))[0], source[begin:] + 1)
    assert sum(isinstance(tape, replay.Tape) for tape in replay._tapes.values()) == 2


def test_temporary_tensors_share_memory_after_their_last_launch():
    def chained(source: Tensor) -> tuple[Tensor, ...]:
        total = torch.zeros(8)
        for _ in range(20):
            first, second = source.new_empty(200), source.new_empty(200)
            add_kernel[(1,)](source, first, 8, 1.0)
            add_kernel[(1,)](first, second[100:], 8, 1.0)
            third = source.new_empty(8)
            add_kernel[(1,)](second[100:], third, 8, 1.0)
            add_kernel[(1,)](third, total, 8, 1.0)
            source = source + total
        return total, source

    replay.forget()
    for _ in range(4):
        source = torch.randn(8)
        results = replay.replayed(chained, (source,), ())
        assert all(map(torch.equal, results, chained(source)))
    (tape,) = (each for each in replay._tapes.values() if isinstance(each, replay.Tape))
    assert tape.room == 2 * 1024  # not 20 times as much


def test_functions_that_read_values_are_not_replayed():
    def chosen(source: Tensor) -> tuple[Tensor, ...]:
        return (source + 1,) if source[0].item() > 0 else (source - 1,)

    replay.forget()
    for value in (1.0, 1.0, -1.0, 1.0):
        assert replay.replayed(chosen, (torch.tensor([value]),), ())[0].item() == (2.0 if value > 0 else -2.0)


def test_launches_without_operations_are_replayed_with_the_addresses_of_other_tensors(
    monkeypatch: pytest.MonkeyPatch,
):
    class Direct:
        """Stands for a DirectLaunch of AddKernel."""

        arguments = ()

        def __init__(self, values: list[Any]):
            self.values, self.streams = values, list[int | None]()

        def share(self, stream: ctypes.c_void_p, slots: dict[int, int]) -> None:
            self.stream, self.shared = stream, slots

        def launch(self) -> int:
            self.streams.append(self.stream.value)
            addresses = (ctypes.c_uint64.from_address(self.shared[slot]).value for slot in (0, 1))
            AddKernel()[(1,)](*addresses, *self.values[2:])
            return 0

    def added(unused: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        first, result, temporary = source.new_empty(4), source.new_empty(2, 4), source.new_empty(4)
        add_kernel[(1,)](source, temporary, 4, 1.0)
        add_kernel[(1,)](temporary, result[1], 4, 2.0)
        add_kernel[(1,)](source[1:], first, 4, 5.0)
        add_kernel[(1,)](first, result, 4, 0.0)
        constant = source.new_empty(2, 2)
        add_kernel[(1,)](CONSTANT, constant, 4, 1.0)
        return result, first, source.new_empty(0), constant.view(4)

    monkeypatch.setattr(replay, "direct_launch", lambda _, grid, values: (Direct(values), list(range(4))))
    replay.forget()
    for _ in range(4):
        source = torch.randn(5)
        result, first, empty, constant = replay.replayed(added, (torch.zeros(3), source), ())
        assert not empty.numel() and torch.equal(constant, CONSTANT + 1)
        assert torch.equal(result, torch.stack([source[1:] + 5, source[:4] + 3]))
        assert torch.equal(first, source[1:] + 5)
    (tape,) = (each for each in replay._tapes.values() if isinstance(each, replay.Tape))
    assert tape.one is not None and len(tape.one.constants) == 2 and tape.one.used == [1]
    assert [type(each) for each in tape.sections] == [replay.Section] and all(
        each.launch.streams == [None, None] for each in tape.steps if type(each) is replay.Direct
    )
