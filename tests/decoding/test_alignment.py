"""Alignment by hand: subwords joined, EOS dropped, Pharaoh format."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import Alignment, align, averaged
from regard.errors import UnknownName


def test_subwords_are_joined_and_eos_is_dropped():
    weights = torch.tensor(
        [
            [0.1, 0.2, 0.3, 0.4],
            [0.0, 0.6, 0.3, 0.1],
            [0.4, 0.4, 0.2, 0.0],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )
    found = align(weights, [0, 1, 1, -1], [0, 0, 1, -1])
    torch.testing.assert_close(found.matrix, torch.tensor([[0.05, 0.7], [0.4, 0.6]]))
    assert found.links == ((1, 0), (1, 1)) and str(found) == "1-0 1-1"


def test_the_first_of_equals_and_no_link_without_weight():
    found = align(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), [0, 1, -1], [0, 1])
    assert found.links == ((0, 0),)


@pytest.mark.parametrize(("source", "target"), [([], []), ([0], []), ([], [0, 1]), ([-1], [-1])])
def test_nothing_on_a_side(source: list[int], target: list[int]):
    found = align(torch.ones(len(target), len(source)), source, target)
    assert str(found) == "" and found.links == ()
    assert found.matrix.numel() == 0


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_words_receive_what_their_tokens_did(rows: int, columns: int, data: st.DataObject):
    def words(tokens: int) -> list[int]:
        steps = data.draw(st.lists(st.integers(0, 1), min_size=tokens - 1, max_size=tokens - 1))
        return [sum(steps[:place]) for place in range(tokens)]

    source, target = words(columns), words(rows)
    weights = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows * 7 + columns))
    matrix = align(weights, source, target).matrix
    for word, row in enumerate(matrix.tolist()):
        mine = [place for place in range(rows) if target[place] == word]
        for other, found in enumerate(row):
            theirs = [place for place in range(columns) if source[place] == other]
            mean = sum(float(weights[a, b]) for a in mine for b in theirs) / len(mine)
            assert found == pytest.approx(mean, abs=1e-5)


def test_parts_of_a_line_are_numbered_through():
    first = align(torch.tensor([[0.9, 0.1]]), [0, 1], [0])
    second = align(torch.tensor([[0.3, 0.7], [0.6, 0.4]]), [2, 3], [1, 2])
    found = Alignment.joined([first, second])
    assert str(found) == "0-0 3-1 2-2"
    expected = torch.tensor([[0.9, 0.1, 0, 0], [0, 0, 0.3, 0.7], [0, 0, 0.6, 0.4]])
    torch.testing.assert_close(found.matrix, expected)


def test_sites_and_heads_are_averaged_or_chosen():
    attention = {
        "decoder.0.cross": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]),
        "decoder.1.cross": torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
        "decoder.1.self": torch.zeros(2, 1, 1),
    }
    assert averaged(attention).tolist() == [[0.75, 0.25]]
    assert averaged(attention, "decoder.0.cross").tolist() == [[0.5, 0.5]]
    assert averaged(attention, "*cross", head=1).tolist() == [[0.5, 0.5]]
    assert averaged({"decoder.cross": torch.tensor([[0.25, 0.75]])}).tolist() == [[0.25, 0.75]]
    with pytest.raises(UnknownName, match=r"known: decoder\.0\.cross"):
        averaged(attention, "decoder.2.cross")
    with pytest.raises(UnknownName, match="known: 0, 1"):
        averaged(attention, head=2)
