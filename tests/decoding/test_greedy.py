"""Greedy search and sampling against a naive loop."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import BOS, EOS, PAD, Batch
from regard.decoding import Greedy, Rules, Sample, observe, sampling, search
from regard.errors import ArgumentError
from tests.decoding.toys import Looking, Table

SOURCES = [[4, 5, 6], [], [7, 8, 8, 8, 4, 5], [5], [6, 6]]


def plainly(model, source: list[int], longest: int) -> list[int]:
    """Greedy search for one sentence, with a full forward pass for each token."""
    said: list[int] = []
    while len(said) < longest and EOS not in said:
        batch = Batch.collate([source], [said])
        logits = model.eval()(batch)[0, len(said)].clone()
        logits[[PAD, 1, BOS]] = -torch.inf
        said.append(int(logits.argmax()))
    return said


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [Table, Looking])
def test_greedy_equals_a_naive_loop(kind, seed: int):
    model = kind(size=10, seed=seed)
    result = search(model, Batch.collate(SOURCES), Greedy(Rules(maximum=9)))
    for source, (only,) in zip(SOURCES, result, strict=True):
        assert list(only.tokens) == plainly(model, source, 9)
        assert only.ranking == pytest.approx(only.score, abs=1e-5)


def test_empty_batch():
    assert search(Looking(), Batch.collate([]), Greedy()) == []


def test_training_mode_is_restored():
    model = Looking().train()
    model.words.eval()
    first = search(model, Batch.collate(SOURCES), Greedy())
    again = search(model, Batch.collate(SOURCES), Greedy())
    assert [each[0].token_scores for each in first] == [each[0].token_scores for each in again]
    assert model.training and model.dropout.training and not model.words.training
    assert not first[0][0].attention["decoder.cross"].requires_grad
    # The recorded weights can be used in a computation with gradients.
    scale = torch.ones((), requires_grad=True)
    (first[0][0].attention["decoder.cross"] * scale).sum().backward()
    assert scale.grad is not None


def frequencies(how: Sample, logits: list[float], draws: int) -> np.ndarray:
    rows = torch.tensor(logits).log_softmax(-1).expand(draws, -1)
    chance = torch.from_numpy(np.random.default_rng(3).random(draws)).float()
    return np.bincount(how.draw(rows, chance).numpy(), minlength=len(logits)) / draws


@pytest.mark.parametrize(
    ("how", "weights"),
    [
        (Sample(), [1, 2, 4, 8]),
        (Sample(temperature=0.5), [1, 4, 16, 64]),
        (Sample(temperature=2.0), [1, 2**0.5, 2, 8**0.5]),
        (Sample(top_k=2), [0, 0, 4, 8]),
        (Sample(top_p=0.5), [0, 0, 0, 8]),
        (Sample(top_p=0.6), [0, 0, 4, 8]),
        (Sample(top_p=1e-9), [0, 0, 0, 8]),
        (Sample(top_k=9), [1, 2, 4, 8]),
        (Sample(top_k=3, top_p=0.85), [0, 0, 4, 8]),
        (Sample(top_k=3, top_p=0.86), [0, 2, 4, 8]),
        (Sample(top_k=2, top_p=0.1), [0, 0, 0, 8]),
    ],
    ids=str,
)
def test_sampling_frequencies_match_the_probabilities(how: Sample, weights: list[float]):
    draws, expected = 20_000, np.array(weights) / sum(weights)
    result = frequencies(how, np.log([1.0, 2.0, 4.0, 8.0]).tolist(), draws)
    assert (result[expected == 0] == 0).all()
    there = expected > 0
    # Chi-squared with at most 3 degrees of freedom exceeds 30 for one seed in a million.
    assert (draws * (result - expected)[there] ** 2 / expected[there]).sum() < 30


@given(
    chance=st.floats(0, 1 - 2**-24, width=32),
    scores=st.lists(st.floats(-80, 0), min_size=5, max_size=9),
    top_k=st.integers(0, 4),
    top_p=st.floats(0.01, 1),
)
def test_forbidden_tokens_are_never_sampled(chance: float, scores: list[float], top_k: int, top_p: float):
    left = torch.tensor([scores]).log_softmax(-1)
    left[:, ::2] = -torch.inf
    token = int(Sample(top_k=top_k, top_p=top_p).draw(left, torch.tensor([chance])))
    assert token % 2 == 1


def test_top_k_is_applied_before_top_p():
    """The rule of Hugging Face: top-k, then top-p of the probabilities of these k tokens, at least one."""
    left, chances = torch.randn(30, 12).mul_(2).log_softmax(-1), torch.arange(200.0) / 200
    for top_k, top_p, temperature in ((5, 0.7, 1.0), (3, 0.95, 0.6), (12, 0.4, 1.5), (4, 1e-6, 1.0)):
        how = Sample(top_k=top_k, top_p=top_p, temperature=temperature)
        for row in left:
            weights = {token: math.exp(float(row[token]) / temperature) for token in range(12)}
            order = sorted(weights, key=lambda token: -weights[token])[:top_k]
            total, before, permitted = sum(weights[token] for token in order), 0.0, set[int]()
            for token in order:
                if not permitted or before / total < top_p:
                    permitted.add(token)
                before += weights[token]
            drawn = how.draw(row.expand(200, -1), chances).tolist()
            least = min(weights[token] for token in permitted) / sum(weights[token] for token in permitted)
            assert set(drawn) <= permitted
            assert least < 0.01 or set(drawn) == permitted


@pytest.mark.parametrize("spread", [0.01, 3.0, 12.0])
def test_nucleus_from_the_most_probable_tokens_or_from_all(spread: float, monkeypatch: pytest.MonkeyPatch):
    """With spread 0.01, the nucleus has more than NUCLEUS tokens; with 12, it has only a few."""
    torch.manual_seed(4)
    left, chance = (spread * torch.randn(40, 3000)).log_softmax(-1), torch.rand(40)
    how = Sample(top_p=0.8, temperature=0.9)
    drawn = how.draw(left, chance)
    monkeypatch.setattr(sampling, "NUCLEUS", 3000)
    assert torch.equal(drawn, how.draw(left, chance))
    order = left.argsort(descending=True)
    before = (left / 0.9).softmax(-1).gather(1, order).cumsum(-1).roll(1, 1)
    before[:, 0] = 0.0
    rank = (order == drawn[:, None]).int().argmax(-1)
    assert (before[torch.arange(40), rank] < 0.8 + 1e-4).all()
    assert spread < 1 or (rank > 0).any()


def test_low_temperature_takes_the_most_probable_token():
    left = torch.tensor([[-3.0, -1.0, -2.0]]).log_softmax(-1)
    for how in (Sample(temperature=1e-38), Sample(temperature=1e-38, top_k=2)):
        assert how.draw(left, torch.tensor([0.99])).tolist() == [1]


def test_random_streams_of_sentences_are_independent():
    """The first tokens of many sentences follow the model's distribution (chi-squared test)."""

    model, batch = Table(size=8, seed=1, spread=1.0), Batch.collate([[4]] * 4000)
    result = search(model, batch, Sample(seed=5), look=None)
    first = observe(model, Batch.collate([[4]] * 5, [[4], [5], [6], [7], []]))
    share = first.token_scores[:, 0].exp().numpy()
    expected = share / share.sum()
    drawn = np.array([sum(each[0].tokens[0] == token for each in result) for token in (4, 5, 6, 7, EOS)])
    assert ((drawn - 4000 * expected) ** 2 / (4000 * expected)).sum() < 35


def test_samples_do_not_depend_on_the_batch():
    model, how = Looking(), Sample(count=3, seed=11, temperature=1.5)
    together = search(model, Batch.collate(SOURCES), how)
    for number, source in enumerate(SOURCES):
        (alone,) = search(model, Batch.collate([source], index=[number]), how)
        assert [each.tokens for each in alone] == [each.tokens for each in together[number]]
    fewer = search(model, Batch.collate(SOURCES), replace(how, count=2))
    assert [[each.tokens for each in row] for row in fewer] == [
        [each.tokens for each in row[:2]] for row in together
    ]
    (elsewhere,) = search(model, Batch.collate([SOURCES[0]], index=[1]), how)
    assert [each.tokens for each in elsewhere] != [each.tokens for each in together[0]]
    other = search(model, Batch.collate(SOURCES), Sample(count=3, seed=12, temperature=1.5))
    assert [each[0].tokens for each in other] != [each[0].tokens for each in together]


def test_invalid_settings_raise():
    for wrong, words in [
        (lambda: Sample(temperature=0), "temperature is 0"),
        (lambda: Sample(top_k=-1), "top_k is -1"),
        (lambda: Sample(top_p=1.5), "top_p is 1.5"),
        (lambda: Sample(count=0), "count is 0"),
        (lambda: Sample(seed=-3), "seed is -3"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
