"""flex on CPU: the forward alone, compiled, for a mask or bias of every kind; never taken by auto there."""

from __future__ import annotations

import shutil

import pytest
import torch

import regard

COMPILER = shutil.which("g++") or shutil.which("clang++")
CASES = {
    "plain": {},
    "causal padding": {"mask": regard.causal() & regard.padding(torch.tensor([20, 9]))},
    "window from 5": {"mask": regard.window(3, 2), "start": 5},
    "question with alibi": {
        "mask": regard.where(lambda b, h, q, k: (q + k + h) % 3 > 0),
        "bias": regard.ALiBi(4),
    },
    "table with bias": {
        "mask": torch.ones(20, 20, dtype=torch.bool).tril(),
        "bias": torch.randn(1, 4, 1, 20),
    },
    "empty rows": {"mask": regard.padding(torch.tensor([0, 20]))},
}


@pytest.mark.skipif(not COMPILER, reason="FlexAttention on CPU needs a C++ compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "question with alibi" else pytest.mark.slow) for n in CASES]
)
def test_agrees_with_the_oracle(name: str):
    torch._dynamo.reset()
    query, key = torch.randn(2, 4, 20, 16), torch.randn(2, 2, 20, 16)
    ours = regard.attention(query, key, **CASES[name], backend="flex")
    exact = regard.attention(query, key, **CASES[name], backend="reference")
    torch.testing.assert_close(ours.output, exact.output)
    torch.testing.assert_close(ours.lse, exact.lse)


def test_says_what_it_cannot():
    x = torch.randn(2, 4, 20, 16)
    assert "has no dropout" in regard.explain(x, x, dropout=0.1).refused["flex"]
    assert "computes no gradients on cpu" in regard.explain(x.clone().requires_grad_(), x).refused["flex"]
    assert regard.explain(x, x, mask=regard.where(lambda b, h, q, k: q > k)).backend != "flex"
