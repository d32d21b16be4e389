"""The soft cap of the scores: every backend and looking pass that has it agrees with the equation."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.backends import BACKENDS, flex
from regard.checking import check
from regard.looking import PASSES

ON_CPU = all(flex.CPU_SUPPORT.values())
LOOK = regard.Look(top=2, alignment=True, entropy=True, mass=True, rows=(0, -1))


def inputs(score: str, dtype: torch.dtype = torch.float64) -> dict:
    """Return arguments of attention() with large scores, grouped heads, a mask, a bias and a soft cap."""
    torch.manual_seed(0)
    heads = (4, 2) if score == "scaled_dot" else (2, 2)
    query, key, value = (
        6 * torch.randn(2, h, n, 16, dtype=dtype) for h, n in ((heads[0], 9), (heads[1], 13), (heads[1], 13))
    )
    return {
        "query": query.requires_grad_(),
        "key": key.requires_grad_(),
        "value": value.requires_grad_(),
        "score": regard.build_score(score, 16, 16).to(dtype) if score == "additive" else regard.ScaledDot(),
        "mask": regard.causal() & regard.padding(torch.tensor([13, 5])),
        "bias": torch.randn(1, heads[0], 9, 13, dtype=dtype).requires_grad_(),
        "softcap": 3.0,
        "select": regard.Soft(0.5),
        "start": 2,
    }


def by_hand(given: dict) -> torch.Tensor:
    """Return the weights by the equation: cap, then bias, mask, temperature and softmax."""
    score, query, key = given["score"], given["query"], given["key"]
    if isinstance(score, regard.Additive):
        hidden = torch.tanh((query @ score.query_weight)[..., None, :] + (key @ score.key_weight)[:, :, None])
        scores = hidden @ score.vector
    else:
        scores = query @ key.repeat_interleave(2, 1).transpose(-2, -1) / 4
    scores = 3 * torch.tanh(scores / 3) + given["bias"]
    seen = given["mask"].dense(9, 13, start=2, batch=2)
    return torch.where(seen, scores / 0.5, -torch.inf).softmax(-1)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_output_and_gradients_equal_the_equation(score: str, backend: str):
    given = inputs(score)
    weights = by_hand(given)
    value = given["value"].repeat_interleave(weights.shape[1] // given["value"].shape[1], 1)
    expected, output = weights @ value, regard.attention(**given, backend=backend).output
    torch.testing.assert_close(output, expected)
    learned = [given[name] for name in ("query", "key", "value", "bias")]
    learned += list(given["score"].parameters()) if score == "additive" else []
    sums = torch.randn_like(output)
    for ours, exact in zip(
        torch.autograd.grad(output, learned, sums), torch.autograd.grad(expected, learned, sums), strict=True
    ):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("name", ["blocked", "materialised"])
def test_looks_equal_the_equation(score: str, name: str):
    given = inputs(score)
    call = check(**given, look=LOOK)
    seen = PASSES[name].run(call, BACKENDS["blocked"].run(call), call.look)
    weights = by_hand(given).detach()
    torch.testing.assert_close(seen.rows.detach(), weights[:, :, [0, 8]])
    torch.testing.assert_close(seen.mass.detach(), weights.sum(-2))
    torch.testing.assert_close(seen.entropy.detach(), torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(seen.top.weights.detach(), weights.topk(2).values)
    assert torch.equal(seen.alignment, weights.argmax(-1))


def test_backends_without_a_soft_cap_say_so():
    x = torch.randn(1, 2, 5, 16)
    explanation = regard.explain(x, x, softcap=20.0, look=LOOK)
    assert explanation.backend == "blocked"
    for name in ("sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "sdpa-cpu", "fused"):
        assert any("cap" in reason for reason in explanation.refused[name]), name
    call = check(x, x, score=regard.ScaledDot(), select=regard.Soft(), softcap=20.0, look=LOOK)
    assert not any("cap" in reason for reason in PASSES["fused"].reasons(call, LOOK))
    with pytest.raises(regard.BackendError, match="cap"):
        regard.attention(x, x, softcap=20.0, backend="sdpa")


@pytest.mark.parametrize("softcap", [0, -1.0, float("inf"), float("nan"), "50", True])
def test_a_soft_cap_must_be_a_positive_number(softcap: object):
    x = torch.randn(3, 4)
    with pytest.raises(regard.ArgumentError, match="softcap"):
        regard.attention(x, x, softcap=softcap)


@pytest.mark.slow
@pytest.mark.skipif(not ON_CPU, reason="FlexAttention on CPU needs a C++ compiler and AVX2")
def test_flex_equals_the_equation():
    given = inputs("scaled_dot", torch.float32)
    given |= {name: given[name].detach() for name in ("query", "key", "value", "bias")}
    ours = regard.attention(**given, backend="flex")
    exact = regard.attention(**given, backend="reference")
    torch.testing.assert_close(ours.output, exact.output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.lse, exact.lse)


def test_a_soft_cap_is_not_ignored_after_the_same_call_without_one():
    """Calls without options are planned once per shape; a call with a soft cap must not use such a plan."""
    query = 3 * torch.randn(2, 4, 6, 8)
    plain = [regard.attention(query, query).output for _ in range(3)][-1]
    capped = regard.attention(query, query, softcap=1.0)
    exact = regard.attention(query, query, softcap=1.0, backend="reference")
    assert not torch.allclose(plain, exact.output)
    torch.testing.assert_close(capped.output, exact.output)
