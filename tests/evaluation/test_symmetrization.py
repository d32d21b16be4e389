"""Symmetrization methods against examples computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import align
from regard.errors import UnknownName
from regard.evaluation import SYMMETRISATIONS, Links, parse_links, symmetrise
from tests.facts import facts

LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def joined(forward: str, backward: str, how: str) -> str:
    return str(symmetrise(parse_links(forward), parse_links(backward), how))


def test_intersection_and_union():
    assert joined("0-0 1-1 2-2", "1-1 2-2 2-3", "intersection") == "1-1 2-2"
    assert joined("0-0 1-1 2-2", "1-1 2-2 2-3", "union") == "0-0 1-1 2-2 2-3"


def test_grow_diag_adds_neighbours_of_the_intersection():
    """1-1 is in the intersection. Its neighbour 1-2 has target 2 unaligned; its diagonal neighbour 2-0 has
    both words unaligned; 4-1 has source 4 unaligned, but is no neighbour of a link."""
    assert joined("1-1 1-2 2-0", "1-1 4-1", "grow-diag") == "1-1 1-2 2-0"


def test_grow_diag_adds_neighbours_of_added_links():
    """A chain: 0-0 is in the intersection; then 1-1, 2-2 and 3-2 (source 3 is unaligned) are added."""
    assert joined("0-0 1-1 3-2", "0-0 2-2", "grow-diag") == "0-0 1-1 2-2 3-2"


def test_grow_diag_repeats_for_earlier_neighbours():
    """3-3 adds its neighbour 2-2, which comes before it in the order; the next rounds add 1-1 and 0-0."""
    assert joined("3-3 1-1", "3-3 2-2 0-0", "grow-diag") == "0-0 1-1 2-2 3-3"


def test_grow_diag_adds_no_link_between_aligned_words():
    """The words of 0-1 and 1-0 are all aligned, by 0-0 and 1-1."""
    assert joined("0-0 1-1 0-1", "0-0 1-1 1-0", "grow-diag") == "0-0 1-1"


def test_order_decides_between_competing_links():
    """Neighbours of 1-1 are tried as (target, source): (-1, 0) adds 1-0, then (0, -1) adds 0-1; then both
    words of 0-0 are aligned."""
    assert joined("1-1 1-0 0-0", "1-1 0-1", "grow-diag") == "0-1 1-0 1-1"


def test_empty_intersection_does_not_grow():
    assert joined("0-0", "0-1", "grow-diag") == ""
    assert joined("0-0 1-0", "0-1", "grow-diag-final") == "0-0 0-1 1-0"
    assert joined("0-0 1-0", "0-1", "grow-diag-final-and") == "0-0"


def test_final_adds_links_with_an_unaligned_word():
    """0-0 is in the intersection. 3-0 has source 3 unaligned, 0-4 has target 4, 5-5 has both. 3-4 has none
    when it is tried, because the forward links 3-0 and 0-4 were added before."""
    assert joined("0-0 0-4 3-0", "0-0 3-4 5-5", "grow-diag-final") == "0-0 0-4 3-0 5-5"


def test_final_and_adds_links_with_two_unaligned_words():
    """0-0 is in the intersection. 3-0 and 0-4 have one aligned word, 3-4 has none; then 5-4 has one."""
    assert joined("0-0 0-4 3-0", "0-0 3-4 5-4", "grow-diag-final-and") == "0-0 3-4"


def test_forward_links_are_added_before_backward_links():
    assert joined("2-3", "4-3", "grow-diag-final-and") == "2-3"
    assert joined("4-3", "2-3", "grow-diag-final-and") == "4-3"


@given(LINKS, LINKS)
def test_every_method_is_between_intersection_and_union(forward, backward):
    result = {how: symmetrise(forward, backward, how).sure for how in SYMMETRISATIONS}
    assert result["intersection"] == forward & backward and result["union"] == forward | backward
    for how, links in result.items():
        assert result["intersection"] <= links <= result["union"], how
    assert result["grow-diag"] <= result["grow-diag-final"] & result["grow-diag-final-and"]
    linked = [{link[side] for link in result["grow-diag-final"]} for side in (0, 1)]
    assert linked == [{link[side] for link in forward | backward} for side in (0, 1)]


@given(LINKS)
def test_equal_alignments_stay_unchanged(links):
    assert all(symmetrise(links, links, how) == Links(links) for how in SYMMETRISATIONS)


def test_alignments_are_accepted_and_possible_links_are_ignored():
    result = align(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), [0, 1], [0, 1])
    assert str(symmetrise(result, parse_links("0-0 1p1"), "intersection")) == "0-0"


def test_unknown_method_raises_with_the_known_ones():
    with pytest.raises(UnknownName, match=facts("'grow'", "grow-diag-final-and")):
        symmetrise([], [], "grow")
