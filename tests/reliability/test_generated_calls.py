"""Generated attention calls: random shapes, masks, biases, scores and scales agree with float64."""

from __future__ import annotations

import contextlib

import pytest
import torch

from regard.backends import BACKENDS
from tests.agreement.cases import DTYPES, checked
from tests.agreement.exact import assert_near, without_normaliser
from tests.agreement.test_backends import ON_CPU, ON_GPU, WRONG, assert_agrees
from tests.conftest import seed
from tests.reliability.generated_calls import FAMILIES, Calls

COUNT, PARTS = 500, 10
"""Calls in a part, and parts per backend, in `make test-all`; calls that a backend refuses do not count."""
FLEX_COUNT = 60
"""Calls in a part of the backend `flex`, which PyTorch compiles for most calls: about 4 s per call."""
SAMPLE = 20
"""Calls per backend in `make test`."""


def assert_calls_agree(backend: str, count: int, device: str, part: int = 0) -> None:
    """Generate calls until the backend has run `count` of them, and compare each with float64."""
    calls, ran = Calls(backend, device, seed(), part), 0
    while ran < count:
        inputs = calls.next()
        try:
            ran += assert_agrees(inputs, backend, saturated=True)
        except Exception as error:
            error.add_note(f"call {ran} of {backend}, part {part}: {inputs.case}, seed {seed()}")
            raise


@pytest.mark.parametrize("backend", ON_CPU)
def test_sample_of_generated_calls_agrees(backend: str):
    assert_calls_agree(backend, SAMPLE, "cpu")


@pytest.mark.parametrize("backend", [*ON_CPU, *ON_GPU, "flex"])
def test_most_generated_calls_are_supported(backend: str):
    """Otherwise thousands of calls would be generated for each call that is compared."""
    supported, calls = 0, Calls(backend, "cpu", seed(), 0)
    for _ in range(40):
        inputs = calls.next()
        reasons = BACKENDS[backend].reasons(checked(inputs.call(DTYPES[inputs.case.dtype])[0]))
        supported += all(" on cpu" in reason for reason in reasons)
    assert supported == 40 if backend in FAMILIES else supported >= 16


def test_generated_calls_notice_a_gradient_wrong_by_2_percent():
    """Output and value gradient: always. Others: unless they nearly vanish, so that 2 % is below rounding."""
    noticed: dict[bool, list[bool]] = {True: [], False: []}
    calls = Calls("blocked", "cpu", seed(), 0)
    while len(noticed[False]) < 100:
        inputs = calls.next()
        dtype = DTYPES[inputs.case.dtype]
        if dtype not in (torch.bfloat16, torch.float16) or max(inputs.case.size) > 60:
            continue
        assert assert_agrees(inputs, "blocked", saturated=True)
        sizes = without_normaliser(checked(inputs.call(dtype)[0]), inputs.doutput)
        for name, (ours, exact) in inputs.results["blocked"].items():
            size = sizes[name].norm().item()
            with contextlib.suppress(AssertionError):
                assert_near(name, WRONG * ours, exact, dtype, size)
                noticed[name in ("output", "value")].append(False)
                continue
            noticed[name in ("output", "value")].append(True)
    assert all(noticed[True])
    assert sum(noticed[False]) >= 60, f"{sum(noticed[False])} of {len(noticed[False])}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", ON_CPU)
def test_generated_calls_agree(backend: str, part: int):
    assert_calls_agree(backend, COUNT, "cpu", part)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch 2.11, inside
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", [*ON_GPU, "flex"])
def test_generated_calls_agree_on_gpu(backend: str, part: int):
    assert_calls_agree(backend, FLEX_COUNT if backend == "flex" else COUNT, "cuda", part)
