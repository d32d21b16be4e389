"""Beam search against exhaustive search, and with early stopping against without."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data.batch import EOS, Batch
from regard.decoding import GNMT, Average, Beam, Greedy, Length, Rules, coverage, search
from regard.decoding.beam import beam_search, highest
from regard.errors import ArgumentError, RegardError
from regard.models import Encoded, Model, State
from tests.decoding.toys import Looking, Table, everything

PENALTIES = [GNMT(0.0), GNMT(0.6), GNMT(2.0), GNMT(-1.0), Average(1.0), Average(0.3), Average(-0.5)]
SOURCES = [[4, 5, 6], [5], [], [8, 8, 4, 7, 6, 5]]


@pytest.mark.parametrize("length", PENALTIES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_wide_beams_match_exhaustive_search(length: Length, seed: int):
    """V = 5 tokens beside EOS, length 5: 781 sentences, fewer than the beam size, so the search is exact."""
    model = Table(size=9, seed=seed)
    how = Beam(size=5**5, best=6, length=length, rules=Rules(maximum=5))
    for source, result in zip(SOURCES, search(model, Batch.collate(SOURCES), how), strict=True):
        expected = everything(model, source, how)[:6]
        assert [each.tokens for each in result] == [tokens for _, tokens in expected]
        assert [each.ranking for each in result] == pytest.approx(
            [ranking for ranking, _ in expected], abs=1e-5
        )
        assert all(each.finished for each in result)


@pytest.mark.parametrize("seed", range(4))
def test_vocabulary_of_five_tokens_matches_exhaustive_search(seed: int):
    model = Table(size=5, seed=seed, spread=1.0)
    how = Beam(size=5**5, best=40, length=Average(), rules=Rules(maximum=5, forbidden=()))
    (result,) = search(model, Batch.collate([[4]]), how)
    expected = everything(model, [4], how)
    assert len(expected) == 31 == len(result)
    assert [each.tokens for each in result] == [tokens for _, tokens in expected[:40]]


@pytest.mark.parametrize("beta", [0.2, 3.0])
@pytest.mark.parametrize("length", [GNMT(0.0), Average(1.0)], ids=str)
def test_wide_beams_with_coverage_match_exhaustive_search(beta: float, length: Length):
    model, sources = Looking(size=8), [[4, 5, 6, 7], [6, 5]]
    how = Beam(size=4**5, best=4, length=length, coverage=beta, rules=Rules(maximum=5))
    for source, result in zip(sources, search(model, Batch.collate(sources), how), strict=True):
        expected = everything(model, source, how)[:4]
        assert [each.tokens for each in result] == [tokens for _, tokens in expected]
        assert [each.ranking for each in result] == pytest.approx(
            [ranking for ranking, _ in expected], abs=1e-4
        )


class Counted(Table):
    """Counts the rows of all its steps."""

    rows = 0

    def step(self, state, tokens, encoded):
        self.rows += len(tokens)
        return super().step(state, tokens, encoded)


def stopped_and_not(size: int, seeds: range) -> tuple[int, int]:
    """Search with and without early stopping, compare, and return the number of rows stepped by each."""
    rows = [0, 0]
    for seed in seeds:
        for length in PENALTIES:
            how = Beam(size=size, best=1 + seed % 4, length=length, rules=Rules(maximum=12))
            result = []
            for way, stop_early in enumerate((True, False)):
                model = Counted(size=9, seed=seed, spread=1.0 + seed % 3)
                result.append(beam_search(model, Batch.collate(SOURCES), how, stop_early=stop_early))
                rows[way] += model.rows
            assert torch.equal(result[0].tokens, result[1].tokens)
            assert torch.equal(result[0].token_scores, result[1].token_scores)
            assert torch.equal(result[0].ranking, result[1].ranking)
    return rows[0], rows[1]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_early_stopping_is_exact(size: int):
    """The results are equal bit for bit with every penalty, and fewer rows are stepped."""
    early, late = stopped_and_not(size, range(3))
    assert early < 0.9 * late


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_early_stopping_is_exact_for_many_tables(size: int):
    early, late = stopped_and_not(size, range(3, 60))
    assert early < 0.9 * late


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_early_stopping_is_exact_with_coverage(beta: float):
    for seed in range(6):
        how = Beam(size=3, best=2, length=Average(0.7), coverage=beta, rules=Rules(maximum=9))
        model = Looking(seed=seed).eval()
        stopped, whole = (
            beam_search(model, Batch.collate(SOURCES), how, stop_early=stop_early)
            for stop_early in (True, False)
        )
        assert torch.equal(stopped.tokens, whole.tokens)
        torch.testing.assert_close(stopped.ranking, whole.ranking, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", [Table(size=9, seed=3), Looking(seed=4)], ids=["table", "looking"])
def test_beam_size_one_equals_greedy(model: Model):
    batch = Batch.collate(SOURCES)
    for maximum in (1, 4, 20):
        rules = Rules(maximum=maximum)
        beam = search(model, batch, Beam(size=1, length=GNMT(0.0), rules=rules), look=None)
        greedy = search(model, batch, Greedy(rules), look=None)
        assert [each[0].tokens for each in beam] == [each[0].tokens for each in greedy]
        for a, b in zip(beam, greedy, strict=True):
            assert a[0].token_scores == pytest.approx(b[0].token_scores, abs=1e-5)


@given(seed=st.integers(0, 50), size=st.integers(1, 6), best=st.integers(1, 8), alpha=st.floats(-1, 2))
def test_n_best_is_sorted_distinct_and_ranked_by_the_equation(seed: int, size: int, best: int, alpha: float):
    model, how = Table(size=9, seed=seed), Beam(size, best, GNMT(alpha), rules=Rules(maximum=8))
    for result in search(model, Batch.collate(SOURCES), how):
        assert 1 <= len(result) <= best
        assert len({each.tokens for each in result}) == len(result)
        assert [each.ranking for each in result] == sorted((each.ranking for each in result), reverse=True)
        assert len({each.finished for each in result}) == 1
        for each in result:
            divisor = how.length.base(len(each.tokens)) ** alpha
            assert each.ranking == pytest.approx(each.score / divisor, rel=1e-5)


def test_first_hypothesis_does_not_depend_on_n_best():
    model, batch = Table(size=9, seed=5), Batch.collate(SOURCES)
    firsts = [
        [result[0].tokens for result in search(model, batch, Beam(size=4, best=best))] for best in (1, 2, 9)
    ]
    assert firsts[0] == firsts[1] == firsts[2]


class Endless(Model):
    """EOS is almost impossible; token 5 is the most probable."""

    source_size = target_size = 7

    def encode(self, source, lengths):
        return Encoded(lengths)

    def start(self, encoded):
        return State()

    def step(self, state, tokens, encoded):
        logits = torch.tensor([0.0, 0.0, 0.0, -200.0, 1.0, 2.0, 0.5])
        return state, logits.expand(*tokens.shape, 7)


def test_hypotheses_at_the_maximum_length_are_unfinished():
    (result,) = search(Endless(), Batch.collate([[4, 4]]), Beam(size=3, best=5, rules=Rules(maximum=4)))
    assert [each.finished for each in result] == [False] * 3
    assert result[0].tokens == result[0].output_tokens == (5, 5, 5, 5)
    assert [each.ranking for each in result] == sorted((each.ranking for each in result), reverse=True)


def test_default_maximum_length_depends_on_the_source_length():
    sources = [[4], [4, 5, 6, 7, 8], []]
    for how in (Beam(size=2), Greedy()):
        result = search(Endless(), Batch.collate(sources), how)
        assert [len(each[0].tokens) for each in result] == [14, 22, 12]

    class Short(Endless):
        longest_target = 13

    assert [len(each[0].tokens) for each in search(Short(), Batch.collate(sources), Beam(size=3))] == [
        13,
        13,
        12,
    ]


def test_coverage_equals_a_hand_computation():
    attended = torch.tensor([[0.5, 0.25, 2.0, 9.0], [1.0, 1.0, 0.0, 0.0]])
    result = coverage(attended, torch.tensor([3, 2]))
    torch.testing.assert_close(result, torch.tensor([math.log(0.5) + math.log(0.25), 0.0]))
    assert coverage(torch.zeros(1, 1), torch.tensor([1])).isfinite().all()


def test_ranking_with_coverage_equals_the_equation():
    model, source = Looking(seed=2), [4, 5, 6, 7, 8]
    how = Beam(size=4, best=4, length=Average(), coverage=0.7)
    (result,) = search(model, Batch.collate([source]), how)
    for each in result:
        received = each.attention["decoder.cross"].sum(0)
        missing = sum(math.log(min(weight, 1.0)) for weight in received.tolist())
        assert each.ranking == pytest.approx(each.score / len(each.tokens) + 0.7 * missing, abs=1e-4)


def test_coverage_without_cross_attention_raises():
    with pytest.raises(ArgumentError, match="cross-attention"):
        search(Table(size=9, seed=0), Batch.collate([[4]]), Beam(coverage=0.5))


@given(
    st.lists(st.sampled_from([0.0, -0.0, -1.0, 2.5, -math.inf, 1e-30, -3e38]), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_highest_values_break_ties_by_index(numbers: list[float], count: int):
    count = min(count, len(numbers))
    values = torch.tensor([numbers], dtype=torch.float32)
    places = highest(values, count)[0].tolist()
    expected = sorted(range(len(numbers)), key=lambda place: (-torch.tensor(numbers[place]).item(), place))
    # -inf after other values is in any order.
    known = [place for place in expected if numbers[place] > -math.inf or max(numbers) == -math.inf]
    assert places[: len(known)] == known[:count] and len(set(places)) == count


def test_ties_are_broken_the_same_in_any_batch():
    class Flat(Endless):
        def step(self, state, tokens, encoded):
            return state, torch.zeros(*tokens.shape, 7)

    how = Beam(size=3, best=3, rules=Rules(minimum=3, maximum=4))
    together = search(Flat(), Batch.collate([[4], [5], [6, 4]]), how)
    alone = search(Flat(), Batch.collate([[4]]), how)
    assert [[each.tokens for each in result] for result in together] == [
        [each.tokens for each in alone[0]]
    ] * 3
    assert alone[0][0].tokens == (4, 4, EOS)


def test_nan_scores_raise():
    class Broken(Endless):
        def step(self, state, tokens, encoded):
            return state, torch.full((*tokens.shape, 7), torch.nan)

    for how in (Beam(size=2), Greedy()):
        with pytest.raises(RegardError, match="NaN"):
            search(Broken(), Batch.collate([[4]]), how)


def test_invalid_settings_raise():
    for wrong, words in [
        (lambda: Beam(size=0), "size is 0"),
        (lambda: Beam(best=1.5), "best is 1.5"),
        (lambda: Beam(length=0.6), "GNMT"),
        (lambda: Beam(coverage=-1), "coverage is -1"),
        (lambda: GNMT(math.nan), "alpha is nan"),
        (lambda: Average("1"), "alpha is '1'"),
        (lambda: search(Endless(), Batch.collate([[4]]), "beam"), "how is 'beam'"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
    assert issubclass(regard.ArgumentError, ValueError)
