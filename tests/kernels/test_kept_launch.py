"""kept_launch(): later calls write the addresses of other tensors, and nothing else."""

from __future__ import annotations

import array
from typing import Any

import pytest
import torch

from regard.kernels import kept_launch as module
from regard.kernels.kept_launch import kept_launch


class Kernel:
    """Stands for a Triton kernel; counts the launches by Triton."""

    __name__ = "kernel"

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **named: self.launches.append((grid, arguments, named)) or "compiled"


class Direct:
    """Stands for a DirectLaunch; keeps the addresses of each launch."""

    def __init__(self, values: list[Any]):
        self.values, self.slots = values, array.array("Q", [7] * len(values))
        self.launched: list[tuple[int, list[int]]] = []

    def run(self, stream: int) -> None:
        self.launched.append((stream, list(self.slots[:2])))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Direct]:
    made: list[Direct] = []

    def direct(compiled: object, grid: tuple[int, ...], values: list[Any]) -> Any:
        assert compiled == "compiled"
        made.append(Direct(values))
        return made[-1], list(range(len(values)))

    monkeypatch.setattr(module, "direct_launch", direct)
    monkeypatch.setattr(module, "_kept", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5, raising=False)
    return made


def test_a_call_with_other_tensors_writes_their_addresses(made: list[Direct]):
    kernel, tensors = Kernel(), [torch.zeros(16) for _ in range(4)]
    named = {"ROWS": 16, "num_warps": 4}
    kept_launch(kernel, 3, (tensors[0], tensors[1]), (8, 0.5), named)
    kept_launch(kernel, 3, (tensors[2], tensors[3]), (8, 0.5), named)
    assert kernel.launches == [((3,), (tensors[0], tensors[1], 8, 0.5), named)]
    assert made[0].values == [None, None, 8, 0.5, 16]
    assert made[0].launched == [(5, [tensors[2].data_ptr(), tensors[3].data_ptr()])]


@pytest.mark.parametrize("change", ["programs", "number", "constant", "dtype", "alignment"])
def test_other_arguments_are_another_launch(made: list[Direct], change: str):
    kernel, whole = Kernel(), torch.zeros(17)
    for changed in (False, True):
        tensor = whole[1:] if changed and change == "alignment" else whole[:16]
        tensor = tensor.double() if changed and change == "dtype" else tensor
        programs, number = 3 + (changed and change == "programs"), 8 + (changed and change == "number")
        rows = 32 if changed and change == "constant" else 16
        kept_launch(kernel, programs, (tensor,), (number,), {"ROWS": rows, "num_warps": 4})
    assert len(kernel.launches) == len(made) == 2 and not made[0].launched
