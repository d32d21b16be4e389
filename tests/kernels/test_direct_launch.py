"""direct_launch(): the arguments that cuLaunchKernel gets, and when Triton's launcher is used instead."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from regard.kernels import direct_launch as module
from regard.kernels.direct_launch import LaunchSequence, direct_launch

KINDS = {"source": "*bf16", "count": "i32", "ONE": "constexpr", "scale": "fp32", "far": "i64"}
VALUES = (None, -3, 1, 0.5, 1 << 40)


class Driver:
    """Stands for the CUDA driver: reports sizes of arguments, and reads them in a launch."""

    def __init__(self, sizes: list[int], errors: list[int]):
        self.sizes, self.errors, self.launches = sizes, errors, list[tuple[Any, ...]]()

    def cuFuncGetParamInfo(self, function: int, index: int, offset: Any, size: Any) -> int:
        if index >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[index]
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        *fixed, stream, pointers, _ = arguments
        values = [
            int.from_bytes(ctypes.string_at(pointers[i], size), "little") for i, size in enumerate(self.sizes)
        ]
        self.launches.append((*(each.value for each in (*fixed, stream)), values))
        return self.errors.pop() if self.errors else 0

    def cuLaunchKernelEx(self, configuration: Any, function: Any, pointers: Any, extra: None) -> int:
        """Read the structures as the driver does, by the offsets in its header."""
        whole = ctypes.string_at(configuration, 56)
        numbers = struct.unpack("<7I4xQQI4x", whole)
        identifier, value = struct.unpack("<I4xI", ctypes.string_at(numbers[8], 12))
        assert (numbers[9], identifier, value) == (1, 6, 1)
        sizes = map(ctypes.c_uint, numbers[:7])
        return self.cuLaunchKernel(function, *sizes, ctypes.c_void_p(numbers[7]), pointers, extra)


def compiled(**changes: Any) -> Any:
    """Return what direct_launch() reads of a compiled kernel."""
    metadata = {"num_ctas": 1, "target": SimpleNamespace(backend="cuda"), "num_warps": 4, "shared": 99}
    metadata |= {"global_scratch_size": 0, "profile_scratch_size": 0, **changes}
    source = SimpleNamespace(signature=KINDS)
    return SimpleNamespace(metadata=SimpleNamespace(**metadata), src=source, function=77)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver([8, 4, 4, 8, 8, 8], [])
    monkeypatch.setattr(module, "ENABLED", True)
    monkeypatch.setattr(module, "_driver", lambda: driver)
    return driver


@pytest.mark.parametrize("early", [False, True])
def test_the_driver_gets_all_arguments_but_compile_time_arguments(driver: Driver, early: bool):
    kernel = compiled(launch_pdl=early)
    launch, slots = direct_launch(kernel, (5, 6, 1), VALUES) or pytest.fail("not launched directly")
    assert slots == [0, 1, None, 2, 3]
    launch.slots[0] = 1 << 50
    launch.run(12)
    half = int.from_bytes(bytes(ctypes.c_float(0.5)), "little")
    assert driver.launches == [
        (77, 5, 6, 1, 128, 1, 1, 99, 12, [1 << 50, (1 << 32) - 3, half, 1 << 40, 0, 0])
    ]


@pytest.mark.parametrize(
    "changes", [{"num_ctas": 2}, {"global_scratch_size": 8}, {"launch_cooperative_grid": True}]
)
def test_other_kernels_are_launched_by_triton(driver: Driver, changes: dict[str, Any]):
    assert direct_launch(compiled(**changes), (1, 1, 1), VALUES) is None


def test_other_sizes_of_arguments_are_launched_by_triton(driver: Driver):
    driver.sizes = [8, 4, 4, 4, 8, 8]
    assert direct_launch(compiled(), (1, 1, 1), VALUES) is None


def test_an_error_of_the_driver_is_raised(driver: Driver):
    launch, _ = direct_launch(compiled(), (1, 1, 1), VALUES) or pytest.fail("not launched directly")
    driver.errors = [700]
    with pytest.raises(RuntimeError, match="700"):
        launch.run(0)


def test_launches_of_a_sequence_read_each_address_from_one_place(driver: Driver):
    driver.sizes = [8, 4, 4, 8, 8, 8]
    kernels = [compiled(launch_pdl=early) for early in (False, True, False)]
    launches = [direct_launch(each, (1, 1, 1), VALUES) or pytest.fail("not launched") for each in kernels]
    places = [[(0, 5, 0)], [(0, 2, 64)], [(0, 5, 0)]]
    sequence = LaunchSequence([(launch, each) for (launch, _), each in zip(launches, places, strict=True)])
    assert sequence.places == [(5, 0), (2, 64)]
    for base in (1 << 40, 1 << 50):
        sequence.run([0, 0, base, 0, 0, base + 4096], 12)
    addresses = [values[0] for *_, values in driver.launches]
    assert addresses == [base + more for base in (1 << 40, 1 << 50) for more in (4096, 64, 4096)]
    assert all(stream == 12 for *_, stream, _ in driver.launches)


def test_a_renumbered_sequence_finds_graphs_by_the_addresses_of_tensors(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    launches = [direct_launch(compiled(), (1, 1, 1), VALUES) or pytest.fail("not launched") for _ in range(2)]
    places = [[(0, 5, 0)], [(0, 2, 64)]]
    sequence = LaunchSequence([(launch, each) for (launch, _), each in zip(launches, places, strict=True)])
    sequence.renumber({5: 0, 2: 1})
    assert sequence.graphs is not None
    searched: list[tuple[int, ...]] = []
    monkeypatch.setattr(sequence.graphs, "run", lambda addresses, stream: searched.append(addresses))
    sequence.run_all((4096, 1 << 40), 12)
    sequence.graphs.launch((8192, 1 << 41), 7)  # as in a capture
    assert searched == [(4096, 1 << 40)]
    launched = [(stream, values[0]) for *_, stream, values in driver.launches]
    assert launched == [(12, 4096), (12, (1 << 40) + 64), (7, 8192), (7, (1 << 41) + 64)]


def test_an_error_in_a_sequence_is_raised(driver: Driver):
    launch, _ = direct_launch(compiled(), (1, 1, 1), VALUES) or pytest.fail("not launched directly")
    driver.errors = [700]
    with pytest.raises(RuntimeError, match="700"):
        LaunchSequence([(launch, [(0, 0, 0)])]).run([0], 0)
