"""Rules against a naive implementation, and in every search."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import BOS, EOS, PAD, UNK, Batch
from regard.decoding import Average, Beam, Greedy, Rules, Sample, search
from regard.errors import ArgumentError
from tests.decoding.toys import Table

SIZE = 9
SAID = st.lists(st.integers(4, SIZE - 1), max_size=7)


def may_follow(rules: Rules, said: list[int], must: int, token: int) -> bool:
    """The rules, naively; the case that every token is forbidden is not handled."""
    if must != PAD:
        return token == must
    longer = [*said, token]
    grams = [tuple(longer[i : i + rules.repeat]) for i in range(len(longer) - rules.repeat + 1)]
    again = rules.repeat > 0 and len(grams) > 0 and grams[-1] in grams[:-1]
    early = token == EOS and len(longer) < rules.minimum
    return token not in (PAD, BOS, *rules.forbidden) and not again and not early


@given(
    rows=st.lists(st.tuples(SAID, st.sampled_from([PAD, 4, 8])), min_size=1, max_size=4),
    minimum=st.integers(1, 8),
    repeat=st.integers(0, 4),
    forbidden=st.lists(st.sampled_from([1, 5, 6, 7, 8, 99]), max_size=3),
)
def test_permitted_tokens_match_a_naive_implementation(rows, minimum: int, repeat: int, forbidden: list[int]):
    length = min(len(said) for said, _ in rows)
    rules = Rules(minimum=minimum, repeat=repeat, forbidden=tuple(forbidden))
    said = [said[:length] for said, _ in rows]
    must = [token for _, token in rows]
    scores = torch.arange(len(rows) * SIZE).view(-1, SIZE).float()
    tokens = torch.tensor(said, dtype=torch.long).reshape(len(rows), length)
    left = rules.permitted(scores, tokens, torch.tensor(must))
    for row in range(len(rows)):
        expected = [may_follow(rules, said[row], must[row], token) for token in range(SIZE)]
        if not any(expected):
            expected[EOS] = True
        assert (left[row] > -torch.inf).tolist() == expected
        assert torch.equal(left[row][expected], scores[row][expected])


def test_permitted_does_not_change_its_input():
    scores = torch.zeros(1, SIZE)
    Rules(minimum=5, repeat=1).permitted(scores, torch.tensor([[4, 5]]), torch.tensor([6]))
    assert torch.equal(scores, torch.zeros(1, SIZE))


WAYS = {
    "greedy": lambda rules: Greedy(rules),
    "beam": lambda rules: Beam(size=4, best=3, length=Average(), rules=rules),
    "sample": lambda rules: Sample(count=3, rules=rules),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
SOURCES = [[4, 5, 6], [], [7]]


@EVERY_WAY
@given(minimum=st.integers(1, 6), more=st.integers(0, 4), repeat=st.integers(0, 3), seed=st.integers(0, 9))
def test_every_search_obeys_the_rules(way, minimum: int, more: int, repeat: int, seed: int):
    rules = Rules(minimum=minimum, maximum=minimum + more, repeat=repeat)
    for result in search(Table(SIZE, seed), Batch.collate(SOURCES), way(rules)):
        for each in result:
            assert len(each.tokens) == len(each.token_scores)
            assert len(each.tokens) <= minimum + more
            assert len(each.tokens) >= minimum or (each.finished and repeat == 1)  # every word was used
            assert not {PAD, BOS, UNK} & set(each.tokens) and EOS not in each.output_tokens
            grams = [each.output_tokens[i : i + repeat] for i in range(len(each.output_tokens) - repeat + 1)]
            assert not repeat or len(set(grams)) == len(grams)


@EVERY_WAY
def test_prefixes_are_forced_and_scored(way):
    model, batch, prefixes = Table(SIZE, 5), Batch.collate(SOURCES), [[8, 8, 8, UNK], [], [4]]
    result = search(model, batch, way(Rules(repeat=2, minimum=3)), prefixes=prefixes)
    free = search(model, batch, way(Rules(repeat=2, minimum=3)))
    for prefix, some, other in zip(prefixes, result, free, strict=True):
        for each in some:
            assert list(each.tokens[: len(prefix)]) == prefix
            assert all(score < 0 for score in each.token_scores[: len(prefix)])
        if not prefix:
            assert [each.tokens for each in some] == [each.tokens for each in other]


def test_invalid_prefixes_raise():
    model, batch = Table(SIZE, 5), Batch.collate(SOURCES)
    for prefixes, words in [
        ([[4]], "1 prefixes for 3 sentences"),
        ([[4], [EOS], []], "prefix of sentence 1 has token 3"),
        ([[4], [], [SIZE]], "prefix of sentence 2 has token 9"),
        ([[], [4] * 5, []], "prefix of sentence 1 has 5 tokens"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            search(model, batch, Greedy(Rules(maximum=5)), prefixes=prefixes)


def test_invalid_rules_raise():
    for wrong, words in [
        (lambda: Rules(minimum=0), "minimum is 0"),
        (lambda: Rules(minimum=4, maximum=3), "minimum = 4 .* maximum = 3"),
        (lambda: Rules(repeat=True), "repeat is True"),
        (lambda: Rules(forbidden=(EOS,)), "EOS"),
        (lambda: Rules(forbidden=("the",)), "forbidden token is 'the'"),
        (lambda: Rules(forbidden=5), "forbidden is 5"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
