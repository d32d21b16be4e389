"""Every backend against the reference in float64: output, lse and all gradients, elementwise and by norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard
from regard.backends import BACKENDS, reference
from regard.call import Call
from tests.agreement.cases import CASES, DTYPES, FACTORS, Case, Inputs, checked
from tests.agreement.exact import assert_near, exact_gradients, frobenius, without_normaliser

WRONG = 1.02
ON_CPU = ["sdpa-cpu", "blocked", "reference"]
ON_GPU = ["short", "masked", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "fused", "blocked"]


def run(inputs: Inputs, dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
    """Return output, lse and gradients in float64; backend "plain" is the definition in the given dtype."""
    arguments, tensors = inputs.call(dtype)
    if backend == "plain":
        attended = reference.define(checked(arguments))
    else:
        attended = regard.attention(**arguments, backend=backend)
    found = [attended.output, attended.lse]
    if inputs.gradients:
        doutput = inputs.doutput.to(attended.output)
        found += torch.autograd.grad(attended.output, tensors, doutput, allow_unused=True)
    return [torch.zeros(()) if t is None else t.detach().double() for t in found]


def assert_as_good(
    ours: torch.Tensor,
    plain: list[torch.Tensor],
    oracle: torch.Tensor,
    dtype: torch.dtype,
    size: float,
    loudest: float,
) -> None:
    """Assert that our error is at most twice that of plain PyTorch in the same dtype, plus one rounding step.

    The rounding step is that of the result itself plus, because a weight is exp(score - lse), that of the
    scores in float32, plus WEIGHT_STEPS.

    plain: results whose errors are allowed: of plain PyTorch, and of another backend.
    """
    finite = oracle.isfinite()
    assert torch.equal(ours[~finite], oracle[~finite])
    if not finite.any():
        return
    error, *plain_errors = ((each - oracle)[finite].abs().max().item() for each in (ours, *plain))
    plain_error = max(plain_errors)
    step = (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * (loudest + WEIGHT_STEPS)) * size
    if dtype == torch.float64:  # same dtype as the reference: only the order of sums differs
        plain_error, step = 0.0, 1e-12 * max(size, 1.0)
    assert error <= 2 * plain_error + step


def largest(tensors: list[torch.Tensor]) -> float:
    """Return the largest absolute value among finite elements."""
    return max((t[t.isfinite()].abs().max().item() for t in tensors if t.isfinite().any()), default=0.0)


def cancelled(inputs: Inputs, call: Call) -> torch.Tensor:
    """Return the gradient of the weights, dO . v, which sets the size of rounding errors."""
    value = call.spread(call.value).detach().double()
    return torch.where(call.mask.tile(call.whole), inputs.doutput.to(value) @ value.transpose(-2, -1), 0.0)


WEIGHT_STEPS = 2.0
"""Rounding steps in float32 allowed for a weight: one for its exponential, one for the division by the sum.
With a single key, plain PyTorch has no error, because both are exactly 1."""

WIDTH_SUM = 4.0
"""Rounding steps allowed for the difference of two sums over the width that a kernel computes in different
ways. If a weight rounds to 1, plain PyTorch subtracts two equal numbers and has no error."""

LONG_SUM = 16.0
"""Rounding steps allowed for the gradient of a parameter: a sum over all rows, whose rounding error varies in
plain PyTorch too."""


def size_of_gradients(
    inputs: Inputs, call: Call, oracle: list[torch.Tensor], sizes: dict[str, torch.Tensor]
) -> float:
    """Return the number that the rounding errors of gradients are relative to.

    With a single key, the exact gradients of query and key are 0, the difference of two equal sums over the
    width. The rounding error of each sum is relative to the sum of absolute values, sum |dO_e v_e|, because
    the sum itself can be small by chance. In a simulation of 3,000 calls in float32, with two orders of
    summation, the largest difference was 2.8 rounding steps of this size.

    sizes: the gradients without the normaliser if weights may be saturated; else empty.
    """
    if inputs.gradients and inputs.case.size[1] == 1:
        terms = without_normaliser(call, inputs.doutput, absolute=True)
        return WIDTH_SUM * largest([*oracle[2:], *terms.values()])
    terms = once(inputs, "cancelled", lambda: cancelled(inputs, call))
    return (WIDTH_SUM if sizes else 1.0) * largest([terms, *oracle[2:], *sizes.values()])


def once(inputs: Inputs, name: str, compute: Callable[[], Any]) -> Any:
    """Return what does not depend on the backend; it is computed once for these inputs."""
    if name not in inputs.results:
        inputs.results[name] = compute()
    return inputs.results[name]


def assert_case_agrees(case: Case, backend: str, device: str, gradients: bool = True) -> None:
    assert_agrees(Inputs(case, device, gradients), backend)


def assert_agrees(inputs: Inputs, backend: str, saturated: bool = False) -> bool:
    """Assert that the backend agrees with the reference, or gives its reason; return whether it ran.

    saturated: whether weights may be so close to 0 and 1 that gradients nearly vanish; their error is
    then measured relative to the terms that are subtracted.
    """
    case, gradients = inputs.case, inputs.gradients
    dtype = DTYPES[case.dtype]
    call = checked(inputs.call(dtype)[0])
    refused = BACKENDS[backend].reasons(call)
    if refused:
        with pytest.raises(regard.BackendError) as error:
            regard.attention(**inputs.call(dtype)[0], backend=backend)
        assert refused[0] in str(error.value)
        return False
    ours = run(inputs, dtype, backend)
    plain = once(inputs, "plain", lambda: run(inputs, dtype, "plain"))
    # In half precision, projections of query and key are rounded. Plain PyTorch rounds the scores too, and
    # the two errors can cancel by chance; another backend has the first one only.
    other = "blocked" if backend == "reference" else "reference"
    rounded = once(inputs, f"by {other}", lambda: run(inputs, dtype, other))
    oracle = once(inputs, "oracle", lambda: run(inputs, torch.float64, "reference"))
    sizes = without_normaliser(call, inputs.doutput) if saturated and gradients else {}
    of_gradients, loudest = size_of_gradients(inputs, call, oracle, sizes), largest([oracle[1]])
    for place, (mine, *allowed, exact) in enumerate(zip(ours, plain, rounded, oracle, strict=True)):
        size = largest([exact]) if place < 2 else of_gradients
        if saturated and place == 1:  # the lse of one small score: the terms of its sum over the width cancel
            size *= WIDTH_SUM
        assert_as_good(mine, allowed, exact, dtype, size * (LONG_SUM if place >= 5 else 1.0), loudest)
    if gradients and dtype in (torch.bfloat16, torch.float16):  # else the elementwise check suffices
        exact = once(inputs, "exact", lambda: exact_gradients(call, inputs.doutput))
        pairs = frobenius(call, backend, inputs.doutput, exact)
        for name, (found, right) in pairs.items():
            assert_near(name, found, right, dtype, sizes[name].norm().item() if saturated else 0.0)
        inputs.results[backend] = pairs
    return True


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_on_cpu(case: Case):
    """All backends in one test, which computes the reference once. A gradient wrong by 2 % must fail."""
    inputs, dtype = Inputs(case), DTYPES[case.dtype]
    for backend in ON_CPU:
        try:
            assert_agrees(inputs, backend)
        except Exception as error:
            error.add_note(f"backend {backend}")
            raise
        for name, (ours, exact) in inputs.results.get(backend, {}).items():
            for factor in (WRONG, 1 / WRONG):
                with pytest.raises(AssertionError, match=name):
                    assert_near(name, factor * ours, exact, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", ON_GPU)
def test_agrees_on_gpu(backend: str, case: Case):
    assert_case_agrees(case, backend, "cuda")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch 2.11, inside
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_flex_agrees_on_gpu(case: Case):
    torch._dynamo.reset()  # each case is another kernel to compile
    assert_case_agrees(case, "flex", "cuda")


REFUSES = {
    "sdpa-cpu": {
        "score": {"additive", "concat"},
        "bias": {"learned tensor", "t5", "relative"},
    },
    "blocked": {},
    "reference": {},
}


def test_every_factor_is_tested_or_listed_as_unsupported():
    taken = {backend: {name: set() for name in FACTORS} for backend in ON_CPU}
    for case in CASES:
        call = checked(Inputs(case).call(DTYPES[case.dtype])[0])
        for backend in ON_CPU:
            if not BACKENDS[backend].reasons(call):
                for name in FACTORS:
                    taken[backend][name].add(getattr(case, name))
    for backend in ON_CPU:
        missing = {name: set(FACTORS[name]) - taken[backend][name] for name in FACTORS}
        assert {name: values for name, values in missing.items() if values} == REFUSES[backend], backend
