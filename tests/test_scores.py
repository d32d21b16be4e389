"""Each score against its equation, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from tests.facts import facts
from tests.making import make_score, parameters, randn

Vector = list[float]
SEES = regard.Look(weights=True)


def scores_of(query: Tensor, key: Tensor, score: regard.Score) -> Tensor:
    """Return the scores, recomputed from the weights and the lse."""
    seen = regard.attention(query, key, score=score, look=SEES, backend="reference")
    return (seen.weights.log() + seen.lse.unsqueeze(-1)).detach()


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(vector: Vector, matrix: list[Vector]) -> Vector:
    """Return vector @ matrix, for a matrix as a list of rows."""
    return [
        sum(x * row[column] for x, row in zip(vector, matrix, strict=True))
        for column in range(len(matrix[0]))
    ]


def through_tanh(v: Vector, hidden: Vector) -> float:
    return sum(weight * math.tanh(x) for weight, x in zip(v, hidden, strict=True))


def _additive(s: regard.Additive, q: Vector, k: Vector, _: int) -> float:
    both = zip(times(q, s.query_weight.tolist()), times(k, s.key_weight.tolist()), strict=True)
    return through_tanh(s.vector.tolist(), [a + b for a, b in both])


EQUATIONS: dict[str, Callable[[regard.Score, Vector, Vector, int], float]] = {
    "dot": lambda s, q, k, j: dot(q, k),
    "scaled_dot": lambda s, q, k, j: dot(q, k) / math.sqrt(len(q)),
    "general": lambda s, q, k, j: dot(times(q, s.weight.tolist()), k),
    "additive": _additive,
    "concat": lambda s, q, k, j: through_tanh(s.vector.tolist(), times(q + k, s.weight.tolist())),
    "cosine": lambda s, q, k, j: s.sharpness * dot(q, k) / (math.hypot(*q) * math.hypot(*k)),
    "location": lambda s, q, k, j: times(q, s.weight.tolist())[j],
}
PROJECT = ("additive", "concat", "general", "location")


@pytest.mark.parametrize("name", EQUATIONS)
def test_each_score_agrees_with_its_equation(name: str):
    key_size = 5 if name in PROJECT else 3
    query, key, score = randn(4, 3), randn(6, key_size), make_score(name, 3, key_size)
    by_hand = [[EQUATIONS[name](score, q, k, j) for j, k in enumerate(key.tolist())] for q in query.tolist()]
    torch.testing.assert_close(scores_of(query, key, score), torch.tensor(by_hand, dtype=torch.float64))


@pytest.mark.parametrize("name", regard.SCORES)
@pytest.mark.parametrize("heads", [None, 2])
def test_gradients(name: str, heads: int | None):
    score = make_score(name, 3, 3, heads)
    query, key, value = (randn(1, heads or 1, length, 3) for length in (2, 4, 4))

    def output(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        mask = regard.padding(torch.tensor([3]))
        return regard.attention(query, key, value, score=score, mask=mask, backend="reference").output

    assert torch.autograd.gradcheck(output, (query, key, value, *parameters(score)))


@pytest.mark.parametrize("name", PROJECT)
def test_parameters_per_head(name: str):
    query, key, score = randn(2, 3, 4, 3), randn(2, 3, 5, 6), make_score(name, 3, 6, heads=3)
    together = regard.attention(query, key, score=score, look=SEES).weights
    for head in range(3):
        alone = make_score(name, 3, 6)
        for ours, shared in zip(parameters(alone), parameters(score), strict=True):
            ours.data.copy_(shared[head])
        apart = regard.attention(query[:, head], key[:, head], score=alone, look=SEES).weights
        torch.testing.assert_close(together[:, head], apart)


def test_concat_equals_additive_with_a_split_matrix():
    concat, additive = make_score("concat", 3, 5), make_score("additive", 3, 5)
    additive.query_weight.data, additive.key_weight.data = concat.weight.data[:3], concat.weight.data[3:]
    additive.vector.data = concat.vector.data
    query, key = randn(2, 4, 3), randn(2, 6, 5)
    assert torch.equal(scores_of(query, key, concat), scores_of(query, key, additive))


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4)])
def test_sharpness_per_query(shape: tuple[int, ...]):
    query, key, beta = randn(*shape, 3), randn(*shape[:-1], 5, 3), torch.rand(shape, dtype=torch.float64) + 1
    plain = scores_of(query, key, regard.Cosine())
    sharp = scores_of(query, key, regard.Cosine(beta))
    torch.testing.assert_close(sharp, plain * beta.unsqueeze(-1))


def test_sharpness_gets_a_gradient():
    beta, query, key = (torch.rand(4, dtype=torch.float64) + 1).requires_grad_(), randn(4, 3), randn(5, 3)

    def output(beta: Tensor) -> Tensor:
        return regard.attention(query.detach(), key.detach(), score=regard.Cosine(beta)).output

    assert torch.autograd.gradcheck(output, (beta,))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_sharpness_does_not_change_the_dtype(backend: str):
    query, key = torch.randn(4, 3).bfloat16(), torch.randn(5, 3).bfloat16()
    seen = regard.attention(query, key, score=regard.Cosine(torch.full((4,), 2.0)), backend=backend)
    assert seen.output.dtype == torch.bfloat16


def test_a_zero_vector_has_cosine_zero_and_a_finite_gradient():
    query, key = randn(3, 4), randn(5, 4)
    query.data[1], key.data[2] = 0.0, 0.0
    scores = scores_of(query, key, regard.Cosine(7.0))
    assert (scores[1].abs() < 1e-12).all() and (scores[:, 2].abs() < 1e-12).all()
    regard.attention(query, key, score=regard.Cosine(7.0)).output.square().sum().backward()
    assert query.grad.isfinite().all() and key.grad.isfinite().all()


def test_location_raises_beyond_max_length():
    score, query = regard.Location(3, max_length=4), torch.randn(2, 3)
    assert regard.attention(query, torch.randn(4, 9), score=score).output.shape == (2, 9)
    with pytest.raises(regard.ArgumentError, match=facts("S = 5", "max_length=4")):
        regard.attention(query, torch.randn(5, 9), score=score)


def test_location_ignores_the_content_of_keys():
    score, query, value = make_score("location", 3, 3), randn(4, 3), randn(6, 2)
    outputs = [regard.attention(query, randn(6, 5), value, score=score).output for _ in range(2)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("name", regard.SCORES)
def test_prepare_projects_keys_once(name: str, monkeypatch: pytest.MonkeyPatch):
    score, asked = make_score(name, 3, 3), []
    kind, project = type(score), type(score).project_key
    monkeypatch.setattr(
        kind, "project_key", lambda self, key, *at: asked.append(key.shape) or project(self, key, *at)
    )
    key = randn(2, 5, 3)
    memory = regard.prepare(key, score=score)
    steps = [regard.attention(query, memory).output for query in randn(4, 2, 1, 3)]
    assert asked == [(2, 5, 3)]
    assert len(steps) == 4
    regard.attention(randn(2, 1, 3), key, score=score)
    assert len(asked) == 2


def test_build_score_returns_a_score_unchanged_and_lists_known_names():
    score = regard.Dot()
    assert regard.build_score(score, 3, 3) is score
    for name, kind in regard.SCORES.items():
        assert isinstance(regard.build_score(name, 3, 3), kind)
        assert kind.equation and kind.combine in ("additive", "inner")
    with pytest.raises(regard.UnknownName, match="'additive'"):
        regard.build_score("aditive", 3, 3)
