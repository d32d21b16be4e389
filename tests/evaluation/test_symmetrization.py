"""Symmetrization methods against examples computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import align
from regard.errors import UnknownName
from regard.evaluation import SYMMETRISATIONS, Links, parse_links, symmetrise

LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def joined(forward: str, backward: str, how: str) -> str:
    return str(symmetrise(parse_links(forward), parse_links(backward), how))


def test_intersection_and_union():
    assert joined("0-0 1-1 2-2", "1-1 2-2 2-3", "intersection") == "1-1 2-2"
    assert joined("0-0 1-1 2-2", "1-1 2-2 2-3", "union") == "0-0 1-1 2-2 2-3"


def test_grow_diag_adds_neighbours_of_the_intersection():
    """1-1 is agreed on. 1-2 is beside it, and target 2 is free; 2-0 is diagonal to it, and both are free; 4-1
    has source 4 free, but is beside nothing."""
    assert joined("1-1 1-2 2-0", "1-1 4-1", "grow-diag") == "1-1 1-2 2-0"


def test_grow_diag_adds_neighbours_of_added_links():
    """A chain: 0-0 agreed, 1-1 beside it, 2-2 beside that, 3-2 beside that (source 3 is free)."""
    assert joined("0-0 1-1 3-2", "0-0 2-2", "grow-diag") == "0-0 1-1 2-2 3-2"


def test_grow_diag_repeats_for_earlier_neighbours():
    """From 3-3, 2-2 is found, which stands before it, and from there in the next round 1-1 and 0-0."""
    assert joined("3-3 1-1", "3-3 2-2 0-0", "grow-diag") == "0-0 1-1 2-2 3-3"


def test_grow_diag_adds_no_link_between_aligned_words():
    """0-1 and 1-0 lie between 0-0 and 1-1, whose words all have links."""
    assert joined("0-0 1-1 0-1", "0-0 1-1 1-0", "grow-diag") == "0-0 1-1"


def test_order_decides_between_competing_links():
    """Around 1-1, target 0 before source 0: (-1, 0) as (target, source) is 1-0, then (0, -1) is 0-1, and then
    0-0 finds both its words with links."""
    assert joined("1-1 1-0 0-0", "1-1 0-1", "grow-diag") == "0-1 1-0 1-1"


def test_empty_intersection_does_not_grow():
    assert joined("0-0", "0-1", "grow-diag") == ""
    assert joined("0-0 1-0", "0-1", "grow-diag-final") == "0-0 0-1 1-0"
    assert joined("0-0 1-0", "0-1", "grow-diag-final-and") == "0-0"


def test_final_adds_links_with_an_unaligned_word():
    """0-0 is agreed on. 3-0: source 3 is free. 0-4: target 4 is free. 5-5: both. 3-4, by then: neither, for
    the forward links came first, those of target 0 before those of target 4."""
    assert joined("0-0 0-4 3-0", "0-0 3-4 5-5", "grow-diag-final") == "0-0 0-4 3-0 5-5"


def test_final_and_adds_links_with_two_unaligned_words():
    """0-0 is agreed on. 3-0 and 0-4 have a word with a link; 3-4 has two without; 5-4 then has one."""
    assert joined("0-0 0-4 3-0", "0-0 3-4 5-4", "grow-diag-final-and") == "0-0 3-4"


def test_forward_links_are_added_before_backward_links():
    assert joined("2-3", "4-3", "grow-diag-final-and") == "2-3"
    assert joined("4-3", "2-3", "grow-diag-final-and") == "4-3"


@given(LINKS, LINKS)
def test_every_method_is_between_intersection_and_union(forward, backward):
    found = {how: symmetrise(forward, backward, how).sure for how in SYMMETRISATIONS}
    assert found["intersection"] == forward & backward and found["union"] == forward | backward
    for how, links in found.items():
        assert found["intersection"] <= links <= found["union"], how
    assert found["grow-diag"] <= found["grow-diag-final"] & found["grow-diag-final-and"]
    linked = [{link[side] for link in found["grow-diag-final"]} for side in (0, 1)]
    assert linked == [{link[side] for link in forward | backward} for side in (0, 1)]


@given(LINKS)
def test_equal_alignments_stay_unchanged(links):
    assert all(symmetrise(links, links, how) == Links(links) for how in SYMMETRISATIONS)


def test_alignments_are_accepted_and_possible_links_are_ignored():
    found = align(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), [0, 1], [0, 1])
    assert str(symmetrise(found, parse_links("0-0 1p1"), "intersection")) == "0-0"


def test_unknown_method_raises_with_the_known_ones():
    with pytest.raises(UnknownName, match=r"(?s)unknown symmetrisation 'grow'.*grow-diag-final-and"):
        symmetrise([], [], "grow")
