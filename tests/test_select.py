"""Each selection against its definition: weights, gradients, samples, and rows without visible keys."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import regard
from regard.select import softmax
from tests.facts import facts
from tests.making import randn

LOCAL = torch.tensor([[[1.3, 2.6, 0.2]]], dtype=torch.float64)
SELECTS: dict[str, regard.Select] = {
    "Soft": regard.Soft(),
    "Soft(0.5)": regard.Soft(temperature=0.5),
    "Sparse(1.5)": regard.Sparse(1.5),
    "Sparse(2)": regard.Sparse(2.0),
    "Gate": regard.Gate(),
    "Hard": regard.Hard(),
    "Best": regard.Best(),
    "StraightThrough": regard.StraightThrough(),
    "LocalP": regard.LocalP(LOCAL, width=2),
}
DIFFERENTIABLE = ("Soft", "Soft(0.5)", "Sparse(1.5)", "Sparse(2)", "Gate", "LocalP")
VISIBLE = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4])[None, None]


def choose(select: regard.Select, scores: Tensor, visible: Tensor | None = None) -> regard.Selection:
    """Apply the selection to a matrix of scores, (T, S)."""
    visible = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible
    return select.choose(scores[None, None], visible.expand(1, 1, *scores.shape))


def by_bisection(scores: list[float], alpha: float) -> list[float]:
    """[(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)), with tau by bisection, without sorting."""
    z = (alpha - 1) * numpy.array(scores, dtype=numpy.float64)
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        tau = (low + high) / 2
        total = (numpy.clip(z - tau, 0, None) ** (1 / (alpha - 1))).sum()
        low, high = (tau, high) if total > 1 else (low, tau)
    return (numpy.clip(z - tau, 0, None) ** (1 / (alpha - 1))).tolist()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_soft_is_the_softmax(temperature: float):
    scores = torch.randn(3, 5, dtype=torch.float64)
    found = choose(regard.Soft(temperature), scores)
    torch.testing.assert_close(found.weights[0, 0], torch.softmax(scores / temperature, -1))
    torch.testing.assert_close(found.lse[0, 0], torch.logsumexp(scores / temperature, -1))
    with pytest.raises(regard.ArgumentError, match=facts("temperature", 0)):
        regard.Soft(temperature=0.0)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_sparse_agrees_with_another_solver(alpha: float, scale: float):
    scores = torch.randn(20, 9, dtype=torch.float64) * scale
    scores[0], scores[1, 1] = 0.0, scores[1, 0]
    found = choose(regard.Sparse(alpha), scores).weights[0, 0]
    expected = torch.tensor([by_bisection(row, alpha) for row in scores.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_sparse_gives_exact_zeros_and_respects_the_mask(alpha: float):
    scores = torch.tensor([[3.0, 0.5, 2.9, 50.0]], dtype=torch.float64)
    weights = choose(regard.Sparse(alpha), scores, torch.tensor([[True, True, True, False]])).weights[0, 0, 0]
    assert weights[1] == 0 and weights[3] == 0 and (weights[[0, 2]] > 0).all()
    assert weights[[0, 2]].tolist() == pytest.approx(by_bisection([3.0, 2.9], alpha))
    with pytest.raises(regard.ArgumentError, match=facts("alpha", "1.7")):
        regard.Sparse(1.7)


def test_gate_is_the_sigmoid_of_each_score():
    scores = torch.randn(3, 5)
    torch.testing.assert_close(choose(regard.Gate(), scores).weights[0, 0], torch.sigmoid(scores))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str):
    query, key, value = randn(1, 1, 3, 4), randn(1, 1, 4, 4), randn(1, 1, 4, 2)
    query.data *= 2  # so that Sparse gives some keys weight 0

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        select = SELECTS[name]
        seen = regard.attention(query, key, value, select=select, mask=VISIBLE, backend="reference")
        return seen.output

    assert torch.autograd.gradcheck(output, (query, key, value))


def test_the_centre_of_local_p_gets_a_gradient():
    centre = LOCAL.clone().requires_grad_()
    scores = randn(3, 4)

    def weights(centre: Tensor, scores: Tensor) -> Tensor:
        return choose(regard.LocalP(centre, width=2), scores, VISIBLE).weights

    assert torch.autograd.gradcheck(weights, (centre, scores))


def test_local_p_is_equation_10_and_is_not_renormalised():
    scores, centres, width = torch.randn(2, 6, dtype=torch.float64), [2.3, 4.0], 2
    centre = torch.tensor(centres, dtype=torch.float64)[None, None]
    found = choose(regard.LocalP(centre, width), scores).weights[0, 0]
    for t, p in enumerate(centres):
        near = [s for s in range(6) if abs(s - p) <= width]
        total = sum(math.exp(scores[t, s]) for s in near)
        gaussian = [math.exp(-((s - p) ** 2) / (2 * (width / 2) ** 2)) for s in range(6)]
        for s in range(6):
            expected = math.exp(scores[t, s]) / total * gaussian[s] if s in near else 0.0
            assert found[t, s].item() == pytest.approx(expected, abs=1e-12)
        assert found[t].sum() < 1


@pytest.mark.parametrize("centre", [2.3, torch.tensor([2.25])])
def test_local_p_of_a_float64_call_is_computed_in_float64(centre: float | torch.Tensor):
    scores, p = torch.zeros(1, 1, 1, 5, dtype=torch.float64), float(centre)
    found = choose(regard.LocalP(centre, 3), scores).weights.flatten().tolist()
    near = [s for s in range(5) if abs(s - p) <= 3]
    expected = [math.exp(-((s - p) ** 2) / 4.5) / len(near) for s in near]
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_centre_per_query(shape: tuple[int, ...]):
    query, key, centre = randn(*shape, 4), randn(*shape[:-1], 5, 4), torch.rand(shape).double() * 4
    found = regard.attention(query, key, select=regard.LocalP(centre, 1), look=regard.Look(weights=True))
    far = (torch.arange(5) - centre.unsqueeze(-1)).abs() > 1
    assert torch.equal(found.weights == 0, far)


@pytest.mark.parametrize("mask", [None, regard.padding(torch.tensor([4, 4]))], ids=["unmasked", "padded"])
def test_local_p_aligns_to_keys_in_its_window_only(mask: regard.Mask | None):
    query, key = torch.randn(2, 3, 4), torch.randn(2, 9, 4)
    # The windows are keys 0 to 2, keys 4 to 6 (hidden by the padding), and none.
    select = regard.LocalP(torch.tensor([[1.0, 5.0, 30.0]] * 2), width=1)
    look = regard.Look(alignment=True, top=4, weights=True)
    seen = regard.attention(query, key, mask=mask, select=select, look=look)
    assert seen.alignment is not None and seen.top is not None and seen.weights is not None
    empty = torch.tensor([[False, mask is not None, True]] * 2)
    assert torch.equal(seen.alignment == -1, empty)
    assert torch.equal(seen.lse == -torch.inf, empty)
    # Three keys are in a window; the fourth of the largest four does not exist.
    assert torch.equal((seen.top.keys >= 0).sum(-1), torch.where(empty, 0, 3))
    assert torch.equal(seen.alignment[~empty], seen.weights.argmax(-1)[~empty])


def test_local_p_ignores_nan_outside_its_window():
    query, key, value = torch.randn(1, 4), torch.randn(9, 4), torch.randn(9, 4)
    select = regard.LocalP(torch.tensor([2.0]), width=1)
    clean = regard.attention(query, key, value, select=select).output
    key[7] = value[8] = torch.nan
    assert torch.equal(regard.attention(query, key, value, select=select).output, clean)


def test_hard_samples_from_the_softmax():
    scores = torch.tensor([0.0, 1.0, 2.0, -torch.inf, 0.5])
    visible = torch.tensor([True, True, True, False, True])
    select = regard.Hard(torch.Generator().manual_seed(3))
    chosen = choose(select, scores.expand(4000, 5), visible).chosen.flatten().tolist()
    expected = torch.softmax(scores, -1) * 4000
    counts = Counter(chosen)
    assert counts[3] == 0
    chi = sum((counts[s] - expected[s].item()) ** 2 / expected[s].item() for s in (0, 1, 2, 4))
    assert chi < 16.27  # 3 degrees of freedom, p = 0.001


def test_hard_returns_the_value_and_log_probability_of_its_sample():
    query, key, value = randn(2, 5, 3), randn(2, 4, 3), randn(2, 4, 2)
    seen = regard.attention(query, key, value, select=regard.Hard(), look=regard.Look(weights=True))
    soft = regard.attention(query, key, value, look=regard.Look(weights=True, entropy=True))
    torch.testing.assert_close(seen.output, value.gather(1, seen.chosen.unsqueeze(-1).expand(2, 5, 2)))
    torch.testing.assert_close(seen.weights.argmax(-1), seen.chosen)
    at_chosen = soft.weights.gather(-1, seen.chosen.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(seen.log_probability, at_chosen.log())
    torch.testing.assert_close(seen.entropy, soft.entropy)


def test_a_generator_reproduces_samples_with_and_without_looking():
    scores, draws = torch.randn(6, 3, 4), []
    for look in (None, regard.Look(weights=True, mass=True), None):
        select = regard.Hard(torch.Generator().manual_seed(5))
        twice = [regard.attention(scores, scores, select=select, look=look).chosen for _ in range(2)]
        draws.append(torch.stack(twice))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("field", ["log_probability", "entropy"])
def test_gradients_of_hard(field: str):
    def found(scores: Tensor) -> Tensor:
        select = regard.Hard(torch.Generator().manual_seed(1))
        return getattr(choose(select, scores, VISIBLE), field)

    assert torch.autograd.gradcheck(found, (randn(3, 4),))


def test_reinforce_is_the_gradient_of_the_expectation():
    scores, reward = randn(1, 3), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    probabilities = torch.softmax(scores, -1).squeeze()
    (expected,) = torch.autograd.grad(probabilities @ reward, scores)
    estimates: dict[int, Tensor] = {}
    for seed in range(60):
        drawn = choose(regard.Hard(torch.Generator().manual_seed(seed)), scores)
        (gradient,) = torch.autograd.grad(drawn.log_probability.sum(), scores)
        estimates[drawn.chosen.item()] = reward[drawn.chosen.item()] * gradient
    assert set(estimates) == {0, 1, 2}
    mean = sum(probabilities[s].detach() * estimate for s, estimate in estimates.items())
    torch.testing.assert_close(mean, expected)


def test_best_is_the_first_argmax_without_gradient_of_query_and_key():
    query, key, value = randn(3, 4), randn(5, 4), randn(5, 2)
    key.data[3] = key.data[1]
    seen = regard.attention(query, key, value, select=regard.Best())
    assert torch.equal(seen.chosen, (query @ key.T).argmax(-1))
    assert torch.equal(seen.output, value[seen.chosen])
    gradients = torch.autograd.grad(seen.output.sum(), (query, key, value), allow_unused=True)
    assert all(each is None or not each.any() for each in gradients[:2])
    assert torch.equal(gradients[2][:, 0], torch.bincount(seen.chosen, minlength=5).double())


def test_straight_through_is_best_forward_and_soft_backward():
    query, key, value = randn(3, 4), randn(5, 4), randn(5, 2)
    found: dict[str, Any] = {}
    for select in (regard.StraightThrough(), regard.Soft(), regard.Best()):
        output = regard.attention(query, key, value, select=select).output
        gradients = torch.autograd.grad(output.sum(), (query, key), allow_unused=True)
        found[type(select).__name__] = output, gradients
    assert torch.equal(found["StraightThrough"][0], found["Best"][0])
    torch.testing.assert_close(found["StraightThrough"][1], found["Soft"][1])


@pytest.mark.parametrize("name", SELECTS)
def test_rows_without_visible_keys_select_nothing(name: str):
    scores = randn(3, 4)
    found = choose(SELECTS[name], scores, VISIBLE)
    assert (found.weights[~VISIBLE] == 0).all()
    sums = [each.sum() for each in (found.weights, found.log_probability, found.entropy) if each is not None]
    if any(each.requires_grad for each in sums):
        (gradient,) = torch.autograd.grad(sum(sums), scores)
        assert gradient.isfinite().all() and (gradient[2] == 0).all()
    if found.lse is not None:
        assert found.lse[0, 0, 2] == -torch.inf and found.lse[0, 0, :2].isfinite().all()
    if found.chosen is not None:
        assert found.chosen[0, 0, 2] == -1 and (found.chosen[0, 0, :2] >= 0).all()
    if found.log_probability is not None:
        assert found.log_probability[0, 0, 2] == 0 and found.entropy[0, 0, 2] == 0


@pytest.mark.parametrize("name", SELECTS)
@pytest.mark.parametrize(("queries", "keys"), [(0, 4), (3, 0), (0, 0)])
def test_no_queries_or_no_keys(name: str, queries: int, keys: int):
    select = SELECTS[name]
    if isinstance(select, regard.LocalP):
        select = regard.LocalP(LOCAL[0, :, :queries], width=2)
    query, key, value = randn(1, queries, 3), randn(1, keys, 3), randn(1, keys, 2)
    looks = [name for name in ("alignment", "mass", "weights") if name in select.looks]
    seen = regard.attention(query, key, value, select=select, look=regard.Look(**dict.fromkeys(looks, True)))
    assert torch.equal(seen.output, torch.zeros(1, queries, 2).double())
    assert seen.weights.shape == (1, queries, keys) and torch.equal(seen.mass, torch.zeros(1, keys).double())
    assert torch.equal(seen.alignment, torch.full((1, queries), -1))


@pytest.mark.parametrize("name", ["Soft", "Sparse(1.5)", "Sparse(2)"])
@pytest.mark.parametrize("scale", [0.1, 10.0, 1e4])
@pytest.mark.parametrize("keys", [1, 17, 1000])
def test_rows_sum_to_one(name: str, scale: float, keys: int):
    scores = torch.randn(8, keys) * scale
    weights = choose(SELECTS[name], scores).weights[0, 0]
    allowed = 1e-6 * max(1.0, scores.abs().max().item())
    assert (weights >= 0).all() and (weights.double().sum(-1) - 1).abs().max() <= allowed


@pytest.mark.parametrize("name", SELECTS)
def test_a_visible_nan_affects_only_the_output_of_its_row(name: str):
    query, key, value = randn(1, 1, 3, 4), randn(1, 1, 4, 4), randn(1, 1, 4, 2)
    key.data[0, 0, 1] = torch.nan  # row 0 sees it, and it is near the centre of row 0; row 2 sees nothing
    mask = torch.tensor([[True] * 4, [True, False, True, True], [False] * 4])[None, None]
    output = regard.attention(query, key, value, select=SELECTS[name], mask=mask, backend="reference").output[
        0, 0
    ]
    assert output[0].isnan().all() and output[1].isfinite().all() and (output[2] == 0).all()


def test_softmax_in_half_precision_keeps_its_dtype():
    scores = torch.randn(1, 1, 2, 3).half()
    weights, lse = softmax(scores, torch.ones(1, 1, 2, 3, dtype=torch.bool))
    assert weights.dtype == lse.dtype == torch.float16
