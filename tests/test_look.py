"""Each look against NumPy, with and without gradients; looking does not change the output."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import regard
from regard.looking import PASSES
from tests.facts import facts
from tests.making import MASKS, ON_CPU, make_score, randn

EVERYTHING = {
    "weights": True,
    "rows": (0, -1),
    "top": 3,
    "alignment": True,
    "entropy": True,
    "mass": True,
    "pooled": 3,
}
IN_BLOCKS = {name: asked for name, asked in EVERYTHING.items() if name != "weights"}


def by_numpy(scores: numpy.ndarray, seen: numpy.ndarray, top: int) -> dict[str, numpy.ndarray]:
    """Return every look for one matrix of scores (T, S), row by row."""
    weights = numpy.zeros_like(scores)
    for t, row in enumerate(seen):
        if row.any():
            powers = numpy.exp(scores[t][row] - scores[t][row].max())
            weights[t][row] = powers / powers.sum()
    order = numpy.argsort(numpy.where(seen, -scores, numpy.inf), axis=-1, kind="stable")
    order = numpy.where(numpy.take_along_axis(seen, order, -1), order, -1)
    keys = numpy.full((len(scores), top), -1)
    keys[:, : scores.shape[1]] = order[:, :top]
    some = numpy.where(weights > 0, weights, 1.0)
    return {
        "weights": weights,
        "rows": weights[[0, -1]],
        "top.keys": keys,
        "top.weights": numpy.where(keys >= 0, numpy.take_along_axis(weights, keys.clip(0), -1), 0.0),
        "alignment": keys[:, 0],
        "entropy": -(weights * numpy.log(some)).sum(-1),
        "mass": weights.sum(0),
        "pooled": numpy.array(
            [
                [weights[t : t + 3, s : s + 3].mean() for s in range(0, weights.shape[1], 3)]
                for t in range(0, len(weights), 3)
            ]
        ),
    }


def found_by(seen: regard.Attended) -> dict[str, Tensor]:
    fields = {name: field for name, field in seen._asdict().items() if isinstance(field, Tensor)}
    if seen.top is not None:
        fields |= {"top.weights": seen.top.weights, "top.keys": seen.top.keys}
    return fields


@pytest.fixture(params=[*PASSES, "at once"])
def by_pass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the looks that this pass computes; with small blocks, so that there are several."""
    if request.param == "at once":  # as on a CPU by default
        return EVERYTHING
    if request.param == "materialised":
        monkeypatch.setattr("regard.looking.choose_pass", lambda call, look: "materialised")
        return EVERYTHING
    monkeypatch.setattr("regard.looking.blockwise.AT_ONCE", 0)
    monkeypatch.setattr("regard.looking.SMALL", 0)
    monkeypatch.setattr("regard.blocks.ROWS", 2)
    monkeypatch.setattr("regard.blocks.AT_ONCE", 1)
    return EVERYTHING if request.param == "blocked" else IN_BLOCKS


@pytest.mark.parametrize(("keys", "top"), [(40, 3), (2, 3), (1, 1)])
@pytest.mark.parametrize("backend", ON_CPU)
def test_each_look_agrees_with_numpy(by_pass: dict[str, Any], backend: str, keys: int, top: int):
    query, key = randn(2, 3, 5, 4), randn(2, 3, keys, 4)
    mask = torch.rand(2, 3, 5, keys) < 0.7
    mask[0, 0, 2] = False
    look = regard.Look(**(by_pass | {"top": top}))
    assert regard.explain(query, key, look=look, mask=mask).looking in PASSES
    seen = regard.attention(query, key, mask=mask, look=look, backend=backend)
    scores = (query @ key.mT / 2).detach().numpy()
    for batch in range(2):
        for head in range(3):
            expected = by_numpy(scores[batch, head], mask[batch, head].numpy(), top)
            for name, field in found_by(seen).items():
                if name in expected:
                    numpy.testing.assert_allclose(field[batch, head].detach(), expected[name], atol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_looks_respect_the_mask(by_pass: dict[str, Any], name: str):
    query, key, mask = randn(2, 2, 3, 4), randn(2, 2, 7, 4), MASKS[name]()
    seen = regard.attention(query, key, mask=mask, look=regard.Look(**by_pass))
    visible = mask.dense(3, 7, batch=2, heads=2).expand(2, 2, 3, 7)
    chosen = visible.gather(-1, seen.top.keys.clamp_min(0)) | (seen.top.keys == -1)
    assert chosen.all() and (seen.mass[~visible.any(-2)] == 0).all()
    assert ((seen.rows == 0) | visible[:, :, [0, 2]]).all()
    assert torch.equal((seen.top.keys >= 0).sum(-1), visible.sum(-1).clamp_max(3))


def test_a_query_that_is_nan_has_no_weight_for_keys_that_it_does_not_see(monkeypatch: pytest.MonkeyPatch):
    query, key = randn(2, 9, 4).detach(), randn(2, 9, 4).detach()
    query[0, 3] = torch.nan
    look, mask = regard.Look(weights=True, mass=True, entropy=True), regard.window(2, 1)
    expected = regard.attention(query, key, mask=mask, look=look)
    monkeypatch.setattr("regard.looking.SMALL", 0)
    assert regard.explain(query, key, mask=mask, look=look).looking == "blocked"
    seen = regard.attention(query, key, mask=mask, look=look)
    assert seen.weights.isnan().sum() == 4 and seen.mass.isnan().sum() == 4
    for name in ("weights", "mass", "entropy"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name), equal_nan=True)


def test_only_requested_fields_are_returned():
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    for name, asked in EVERYTHING.items():
        seen = regard.attention(query, key, look=regard.Look(**{name: asked}))
        given = {name for name, field in seen._asdict().items() if field is not None}
        assert given == {"output", "lse", name}
    assert regard.attention(query, key, look=regard.Look()).weights is None


@pytest.mark.parametrize("rows", [(-1,), [4, 0], (-5, 2, 2), ()])
def test_rows_count_from_either_end(rows: Any):
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    seen = regard.attention(query, key, look=regard.Look(weights=True, rows=rows))
    assert torch.equal(seen.rows, seen.weights[:, list(rows)])


@pytest.mark.parametrize("backend", ["auto", *ON_CPU])
def test_looks_have_gradients_only_if_requested(backend: str):
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    for gradient in (False, True):
        look = regard.Look(**EVERYTHING, gradient=gradient)
        seen = regard.attention(query, key, look=look, backend=backend)
        fields = (seen.lse, seen.weights, seen.rows, seen.top.weights, seen.entropy, seen.mass)
        assert [each.requires_grad for each in fields] == [gradient] * 6
        assert seen.output.requires_grad
    assert not regard.attention(query, key, backend=backend).lse.requires_grad


def test_gradient_alone_gives_lse_its_gradient():
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    lse = regard.attention(query, key, look=regard.Look(gradient=True)).lse
    (found,) = torch.autograd.grad(lse.sum(), query)
    (expected,) = torch.autograd.grad(torch.logsumexp(query @ key.mT / 2, -1).sum(), query)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["dot", "additive", "cosine"])
def test_gradients_of_entropy_penalty_and_guided_alignment(name: str):
    score, key, value = make_score(name, 4, 4), randn(2, 6, 4), randn(2, 6, 3)
    target = torch.softmax(torch.randn(2, 5, 6, dtype=torch.float64), -1)
    mask, look = regard.padding(torch.tensor([6, 4])), regard.Look(weights=True, entropy=True, gradient=True)

    def loss(query: Tensor, key: Tensor) -> Tensor:
        seen = regard.attention(query, key, value, score=score, mask=mask, look=look)
        guided = -(target * torch.where(seen.weights > 0, seen.weights, 1.0).log()).sum()
        return seen.output.sum() + guided + seen.entropy.sum() + seen.lse.sum()

    assert torch.autograd.gradcheck(loss, (randn(2, 5, 4), key))


@pytest.mark.parametrize(
    ("select", "look", "says"),
    [
        (regard.Gate(), {"entropy": True}, "entropy.*Gate"),
        (regard.LocalP(torch.zeros(2, 5), 1), {"entropy": True}, "entropy.*LocalP"),
        (regard.Soft(), {"rows": (5,)}, "row 5"),
        (regard.Soft(), {"rows": (0, -6)}, "row -6"),
    ],
)
def test_unavailable_looks_raise(select: regard.Select, look: dict[str, Any], says: str):
    x = torch.randn(2, 5, 4)
    with pytest.raises(regard.LookError, match=says) as error:
        regard.attention(x, x, select=select, look=regard.Look(**look))
    assert "expected: " in str(error.value)
    with pytest.raises(regard.LookError, match=facts("top", -1)):
        regard.Look(top=-1)


@pytest.mark.parametrize("backend", ["blocked", "reference"])
def test_returned_weights_are_those_before_dropout(backend: str):
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    look = regard.Look(**EVERYTHING)
    plain = regard.attention(query, key, look=look, backend=backend)
    dropped = regard.attention(query, key, look=look, dropout=0.5, backend=backend)
    assert not torch.allclose(plain.output, dropped.output)
    for name, field in found_by(plain).items():
        if name != "output":
            assert torch.equal(found_by(dropped)[name], field)


@pytest.mark.parametrize("backend", [*ON_CPU, pytest.param("flex", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient", [False, True])
def test_looking_does_not_change_the_output(
    by_pass: dict[str, Any], backend: str, dtype: torch.dtype, gradient: bool
):
    query, key, value = (torch.randn(2, 2, length, 16, dtype=dtype) for length in (9, 33, 33))
    arguments: dict[str, Any] = {"mask": regard.causal() & regard.padding(torch.tensor([20, 3])), "start": 4}
    arguments["dropout"] = 0.3 if backend in ("blocked", "reference") else 0.0
    outputs = []
    for look in (None, regard.Look(**by_pass, gradient=gradient), regard.Look(entropy=True)):
        torch.manual_seed(1)
        seen = regard.attention(query, key, value, look=look, backend=backend, **arguments)
        outputs.append((seen.output, torch.rand(())))  # the state of the random generator must not change
    assert all(torch.equal(a, b) for other in outputs[1:] for a, b in zip(outputs[0], other, strict=True))


def test_the_union_of_two_looks():
    both = regard.Look(rows=(1, 2), top=2, pooled=8) | regard.Look(
        rows=(2, 0), top=5, mass=True, gradient=True
    )
    assert both == regard.Look(rows=(1, 2, 0), top=5, mass=True, pooled=8, gradient=True)
    with pytest.raises(regard.LookError, match="8 and 4"):
        _ = both | regard.Look(pooled=4)
    assert regard.Look(weights=True) | None == regard.Look(weights=True)
    assert (regard.Look() | regard.Look(entropy=True)).requested == ("entropy",)


def test_an_unknown_argument_raises_and_suggests_the_nearest():
    with pytest.raises(regard.UnknownName, match="'weights'"):
        regard.Look(weight=True)  # type: ignore[call-arg]


def test_the_name_of_a_look_is_not_a_flag():
    with pytest.raises(regard.errors.LookError, match=r"weights is 'weights'(.|\n)*weights=True"):
        regard.Look("weights")
