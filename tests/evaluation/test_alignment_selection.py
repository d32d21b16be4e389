"""Ways to compute alignments are ranked by gold alignments, or by the agreement of two directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard.evaluation import Links, parse_links, rank_by_agreement, rank_by_links, score_links
from tests.facts import facts

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8)


def lines(*written: str) -> list[Links]:
    return [parse_links(line) for line in written]


def test_rank_by_links_sorts_by_error_rate():
    drawn = lines("0-0 1-1", "0-0 1p1")
    ways = {
        ("layer 0", 1): lines("0-0 1-0", "0-0"),
        ("layer 1", None): lines("0-0 1-1", "0-0 1-1"),
        ("layer 1", 0): lines("0-1 1-0", "0-1"),
    }
    ranked = rank_by_links(ways, drawn)
    assert [way for way, _ in ranked] == [("layer 1", None), ("layer 0", 1), ("layer 1", 0)]
    assert [score for _, score in ranked] == [score_links(ways[way], drawn) for way, _ in ranked]


def test_ties_keep_the_order_of_the_input():
    ways = {name: lines("0-0") for name in "cab"}
    assert [way for way, _ in rank_by_links(ways, lines("0-0"))] == ["c", "a", "b"]
    assert [pair[:2] for pair in rank_by_agreement(ways, ways)][:3] == [("c", "c"), ("c", "a"), ("c", "b")]


def test_agreement_equals_a_hand_computation():
    """Summed over sentences: |A| = 4, |B| = 3, |A & B| = 2."""
    forward, backward = {"a": lines("0-0 1-1 2-2", "0-0")}, {"b": lines("0-0 1-2", "0-0")}
    assert rank_by_agreement(forward, backward) == [("a", "b", pytest.approx(4 / 7))]


def test_agreement_ranks_the_matching_pair_first():
    forward = {"wrong": lines("0-1 1-2 2-0"), "right": lines("0-0 1-1 2-2")}
    backward = {"also wrong": lines("0-2 1-0 2-1"), "also right": lines("0-0 1-1 2-2 3-2")}
    first = rank_by_agreement(forward, backward)[0]
    assert first == ("right", "also right", pytest.approx(6 / 7))


@given(st.lists(st.tuples(LINKS, LINKS), max_size=4))
def test_agreement_is_one_minus_the_alignment_error_rate(pairs):
    ours, theirs = [list(side) for side in zip(*pairs, strict=True)] if pairs else ([], [])
    ((_, _, result),) = rank_by_agreement({"a": ours}, {"b": theirs})
    proposed = sum(map(len, ours + theirs))
    rate = score_links(ours, [Links(each) for each in theirs]).error_rate
    assert result == pytest.approx(1 - rate if proposed else 0)


def test_different_numbers_of_sentences_raise():
    with pytest.raises(ArgumentError, match=facts(1, 2)):
        rank_by_agreement({"a": lines("0-0")}, {"b": lines("0-0", "")})
    with pytest.raises(ArgumentError, match=facts("proposed", 1, "drawn", 0)):
        rank_by_links({"a": lines("0-0")}, [])
