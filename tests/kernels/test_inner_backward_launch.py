"""BackwardLaunches: from the second call on, both kernels get all addresses in one sequence of launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.kernels import direct_launch
from regard.kernels.graph_launch import Graphs
from regard.kernels.inner_backward_launch import BackwardLaunches
from regard.kernels.inner_kernel_launch import Launch
from tests.kernels.test_direct_launch import Driver

KINDS = ["*bf16"] * 13 + ["i32"] * 8 + ["fp32"] + ["constexpr"]
SIZES = [8] * 13 + [4] * 9 + [8, 8]


class Compiled:
    """Stands for a compiled kernel; Triton's launcher appends its name to `launched`."""

    def __init__(self, function: int, launched: list[int]):
        self.function, self.launched = function, launched
        target = SimpleNamespace(backend="cuda")
        self.metadata = SimpleNamespace(num_ctas=1, target=target, num_warps=4, shared=0)
        self.src = SimpleNamespace(signature=dict(enumerate(KINDS)))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **constants: Any) -> Compiled:
            self.launched.append(self.function)
            return self

        return run


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(SIZES, [])
    monkeypatch.setattr(direct_launch, "ENABLED", True)
    monkeypatch.setattr(direct_launch, "_driver", lambda: driver)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 9, raising=False)
    monkeypatch.setattr(Graphs, "run", lambda self, addresses, stream: False)
    return driver


@pytest.mark.parametrize("masked", [(0, 1), (1,), ()])
def test_both_kernels_get_the_addresses_of_each_call(driver: Driver, masked: tuple[int, ...]):
    by_triton: list[int] = []
    launches = BackwardLaunches(
        *(Launch(Compiled(each, by_triton), 6, (11, 12, 13, 14, 15), {"ROWS": 8}, None) for each in (1, 2))
    )

    def run(place: tuple[Any, ...], scale: float) -> tuple[list[int], list[int]]:
        """Return the tensors of each kernel that it must get; 0 for those that it does not read."""
        tensors = tuple(torch.zeros(3) for _ in range(10))
        masks = [torch.zeros(2, dtype=torch.bool) if i in masked else None for i in range(4)]
        launches.run(tensors, (*masks, *place), scale, 0)
        at = [each.data_ptr() for each in tensors]
        of_mask = [0 if each is None else each.data_ptr() for each in (*masks, None)]
        return [*at[:5], *of_mask, *at[5:8]], [*at[:3], at[4], *of_mask, at[5], *at[7:]]

    run((0, None, 0), 0.5)
    assert by_triton == [1, 2] and launches.joint is not None
    for place, scale in (((0, None, 0), 0.5), ((0, None, 0), 0.5), ((7, None, 0), 0.5), ((0, None, 0), 0.25)):
        driver.launches.clear()
        expected = run(place, scale)
        assert [each[0] for each in driver.launches] == [1, 2] and by_triton == [1, 2]
        for launch, tensors in zip(driver.launches, expected, strict=True):
            *_, stream, values = launch
            assert stream == 9 and values[:13] == tensors
            assert values[13:21] == [place[0], 0, 0, 11, 12, 13, 14, 15]
            assert values[21] == {0.5: 0x3F000000, 0.25: 0x3E800000}[scale]


def test_launches_after_a_listing_are_not_joined(driver: Driver):
    by_triton: list[int] = []
    listing: Any = SimpleNamespace(run=lambda table: table)
    launches = BackwardLaunches(
        *(Launch(Compiled(each, by_triton), 6, (1, 2, 3, 4, 5), {"ROWS": 8}, listing) for each in (1, 2))
    )
    tensors, table = tuple(torch.zeros(3) for _ in range(10)), torch.zeros(2, dtype=torch.bool)
    for _ in range(2):
        launches.run(tensors, (None, table, None, None, 0, None, None), 1.0, 0)
    assert launches.joint is None
