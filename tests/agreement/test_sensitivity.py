"""The agreement checks fail for a gradient or a look that is wrong by 2 %; see also test_backends.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.backends import BACKENDS
from regard.call import Call, Forward
from regard.looking import PASSES, Pass
from tests.agreement.cases import CASES, DTYPES, Case
from tests.agreement.test_backends import WRONG, assert_case_agrees
from tests.agreement.test_looking import assert_looks_agree

HALF = [case for case in CASES if case.dtype in ("bfloat16", "float16")]
CASE = Case("dot", "causal", "tensor", (63, 17), 64, "narrow", (2, 2), 0, 0.5, "plain", "bfloat16")
LEARNED = {
    "blocked": ["query", "key", "value", "vector", "bias"],
    "sdpa-cpu": ["query", "key", "value"],
    "reference": ["query", "key", "value", "vector", "bias"],
}


@pytest.mark.parametrize(
    ("backend", "wrong"), [(backend, name) for backend, names in LEARNED.items() for name in names]
)
def test_a_backend_with_one_wrong_gradient_does_not_agree(
    backend: str, wrong: str, monkeypatch: pytest.MonkeyPatch
):
    """The comparison fails for a backend that scales the gradient of one tensor in its backward pass."""
    case = replace(
        CASE,
        score="additive" if wrong == "vector" else "dot",
        bias="learned tensor" if wrong == "bias" else "tensor",
    )
    assert_case_agrees(case, backend, "cpu")
    right = BACKENDS[backend]

    def run(call: Call) -> Forward:
        # A view, so that the hook scales the gradient of this call only.
        tensor = getattr(call, wrong).view_as(getattr(call, wrong))
        if tensor.requires_grad and tensor.dtype != torch.float64:
            tensor.register_hook(lambda gradient: gradient * WRONG)
        return right.run(replace(call, **{wrong: tensor}))

    monkeypatch.setitem(BACKENDS, backend, replace(right, run=run))
    with pytest.raises(AssertionError):
        assert_case_agrees(case, backend, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", ["rows", "entropy", "mass", "pooled", "top", "alignment"])
def test_a_look_wrong_by_2_percent_does_not_agree(wrong: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    case = replace(CASE, dtype=dtype)
    assert_looks_agree(case, "cpu")
    right = PASSES["blocked"]

    def run(*given):
        seen = right.run(*given)
        look = getattr(seen, wrong)
        if wrong == "top":
            look = look._replace(weights=look.weights * WRONG)
        elif wrong == "alignment":
            look = torch.where(look >= 0, (look + 1) % case.size[1], look)
        else:
            look = look * WRONG
        return seen._replace(**{wrong: look})

    monkeypatch.setitem(PASSES, "blocked", Pass(right.reasons, run))
    with pytest.raises(AssertionError):
        assert_looks_agree(case, "cpu")


def test_the_check_of_looks_is_sharp_in_every_half_precision_case():
    """The tolerance is below 2 % of the largest value of each look, also for large scores."""
    for case in HALF:
        unnoticed = assert_looks_agree(case, "cpu")
        assert all(factor < 0.02 for factor in unnoticed.values()), (str(case), unnoticed)
