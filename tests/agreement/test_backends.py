"""Every backend against the reference in float64: output, lse and all gradients, elementwise and by norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard
from regard.backends import BACKENDS, reference
from tests.agreement.cases import CASES, DTYPES, FACTORS, Case, Inputs, checked
from tests.agreement.exact import assert_near, exact_gradients, frobenius, without_normaliser

WRONG = 1.02
ON_CPU = ["sdpa-cpu", "blocked", "reference"]
ON_GPU = ["sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "fused", "blocked"]


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
    return [torch.zeros(()) if t is None else t.detach().double().cpu() for t in found]


def assert_as_good(
    ours: torch.Tensor,
    plain: torch.Tensor,
    oracle: torch.Tensor,
    dtype: torch.dtype,
    size: float,
    loudest: float,
) -> None:
    """Assert that our error is at most twice that of plain PyTorch in the same dtype, plus one rounding step.

    The rounding step is that of the result itself plus, because a weight is exp(score - lse), that of the
    scores in float32.
    """
    finite = oracle.isfinite()
    assert torch.equal(ours[~finite], oracle[~finite])
    ours, plain, oracle = ours[finite], plain[finite], oracle[finite]
    if not oracle.numel():
        return
    error, plain_error = ((each - oracle).abs().max().item() for each in (ours, plain))
    step = (torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * loudest) * size
    if dtype == torch.float64:  # same dtype as the reference: only the order of sums differs
        plain_error, step = 0.0, 1e-12 * max(size, 1.0)
    assert error <= 2 * plain_error + step


def largest(tensors: list[torch.Tensor]) -> float:
    """Return the largest absolute value among finite elements."""
    return max((t[t.isfinite()].abs().max().item() for t in tensors if t.isfinite().any()), default=0.0)


def cancelled(inputs: Inputs) -> torch.Tensor:
    """Return the gradient of the weights, dO . v, which sets the size of rounding errors.

    If a row sees a single key, the gradients of query and key are exactly 0: the difference of two equal
    terms. A kernel that computes the terms separately leaves the rounding error of each.
    """
    value = inputs.value.repeat_interleave(inputs.case.heads[0] // inputs.case.heads[1], 1).double()
    (batch, heads), start = (2, inputs.case.heads[0]), inputs.case.start
    mask = checked(inputs.call(torch.float64)[0]).mask.to(torch.device("cpu"))
    visible = mask.dense(*inputs.case.size, start, batch, heads)
    return torch.where(visible, inputs.doutput.double() @ value.transpose(-2, -1), 0.0)


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
    refused = BACKENDS[backend].reasons(checked(inputs.call(dtype)[0]))
    if refused:
        with pytest.raises(regard.BackendError) as error:
            regard.attention(**inputs.call(dtype)[0], backend=backend)
        assert refused[0] in str(error.value)
        return False
    ours = run(inputs, dtype, backend)
    plain = once(inputs, "plain", lambda: run(inputs, dtype, "plain"))
    oracle = once(inputs, "oracle", lambda: run(inputs, torch.float64, "reference"))
    # A parameter's gradient is a sum over all rows, whose rounding error varies in plain PyTorch too.
    # Where a weight rounds to 1, plain PyTorch subtracts two equal numbers and has no error; a kernel that
    # computes them in different ways has that of two sums over the width.
    # With a single key, exact gradients of query and key are 0, and two such sums are subtracted.
    long_sum, width_sum, single_key = 16.0, 4.0, 32.0
    sizes: dict[str, torch.Tensor] = {}
    if saturated and gradients:
        sizes = without_normaliser(checked(inputs.call(dtype)[0]), inputs.doutput)
    terms = once(inputs, "cancelled", lambda: cancelled(inputs))
    of_gradients = largest([terms, *oracle[2:], *sizes.values()])
    of_gradients *= single_key if case.size[1] == 1 else width_sum if saturated else 1.0
    loudest = largest([oracle[1]])
    for place, three in enumerate(zip(ours, plain, oracle, strict=True)):
        size = largest([three[2]]) if place < 2 else of_gradients
        if saturated and place == 1:  # the lse of one small score: the terms of its sum over the width cancel
            size *= width_sum
        assert_as_good(*three, dtype, size * (long_sum if place >= 5 else 1.0), loudest)
    if gradients and dtype in (
        torch.bfloat16,
        torch.float16,
    ):  # else the elementwise check suffices
        call = checked(inputs.call(dtype)[0])
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
