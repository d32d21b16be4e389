"""Any shape at all, drawn by hypothesis, sizes of 0 and 1 among them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.backends import BACKENDS, choose_backend
from tests.agreement.cases import checked

size = st.integers(0, 9)


@st.composite
def calls(draw: st.DrawFn) -> dict:
    key_heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, queries, keys, width, value = (draw(size) for _ in range(5))
    torch.manual_seed(draw(st.integers(0, 99)))
    score = draw(
        st.sampled_from([regard.Dot(), regard.ScaledDot(), regard.Cosine(), regard.Additive(width, width, 3)])
    )
    mask = draw(
        st.sampled_from(
            [
                None,
                regard.causal(),
                regard.window(1, 0),
                regard.causal() & regard.window(2, 2),
                regard.padding(torch.arange(batch) % (keys + 1)),
                regard.where(lambda b, h, q, k: (q * k) % 2 == 1),
                torch.rand(queries, keys) < 0.5,
            ]
        )
    )
    return {
        "query": torch.randn(
            batch, key_heads * groups, queries, width, dtype=torch.float64, requires_grad=True
        ),
        "key": torch.randn(batch, key_heads, keys, width, dtype=torch.float64, requires_grad=True),
        "value": torch.randn(batch, key_heads, keys, value, dtype=torch.float64, requires_grad=True),
        "score": score.double() if isinstance(score, torch.nn.Module) else score,
        "mask": mask,
        "bias": draw(st.sampled_from([None, regard.ALiBi(key_heads * groups)])),
        "select": regard.Soft(draw(st.sampled_from([1.0, 2.0]))),
        "start": draw(st.integers(0, 4)),
    }


@given(calls())
@settings(max_examples=150, deadline=None)
def test_every_backend_takes_it_or_says_why(arguments: dict):
    inputs = [arguments[name] for name in ("query", "key", "value")]
    batch, heads, queries, _ = inputs[0].shape
    oracle = regard.attention(**arguments, backend="reference")
    wanted = torch.autograd.grad(oracle.output.sum() + oracle.output.square().sum(), inputs)
    assert oracle.output.shape == (batch, heads, queries, inputs[2].shape[-1])
    assert all(gradient.isfinite().all() for gradient in wanted)
    seeing = (
        checked(arguments).mask.dense(queries, inputs[1].shape[2], arguments["start"], batch, heads).any(-1)
    )
    seeing = seeing.expand(batch, heads, queries)
    assert torch.equal(oracle.lse == -torch.inf, ~seeing)
    assert (oracle.output[~seeing] == 0).all() and (wanted[0][~seeing] == 0).all()
    for name in ("sdpa-cpu", "blocked", choose_backend(checked(arguments))):
        if BACKENDS[name].reasons(checked(arguments)):
            continue
        found = regard.attention(**arguments, backend=name)
        gradients = torch.autograd.grad(found.output.sum() + found.output.square().sum(), inputs)
        for ours, theirs in zip(
            (found.output, found.lse, *gradients), (oracle.output, oracle.lse, *wanted), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_auto_answers_for_sizes_of_zero(shape: tuple[int, int, int]):
    batch, queries, keys = shape
    query, key = (
        torch.randn(batch, queries, 4, requires_grad=True),
        torch.randn(batch, keys, 4, requires_grad=True),
    )
    look = regard.Look(weights=True, top=2, alignment=True, entropy=True, mass=True)
    seen = regard.attention(query, key, look=look)
    assert seen.output.shape == (batch, queries, 4) and seen.top.keys.shape == (batch, queries, 2)
    seen.output.sum().backward()
    assert (query.grad == 0).all() and key.grad.isfinite().all()
