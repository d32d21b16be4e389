"""Word alignments against hand computations: subwords joined, EOS dropped, Pharaoh format."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import Alignment, Choice, Passage, Scored, align, averaged, choices
from regard.errors import ArgumentError, UnknownName
from tests.facts import facts


def test_subwords_are_joined_and_eos_is_dropped():
    weights = torch.tensor(
        [
            [0.1, 0.2, 0.3, 0.4],
            [0.0, 0.6, 0.3, 0.1],
            [0.4, 0.4, 0.2, 0.0],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )
    result = align(weights, [0, 1, 1, -1], [0, 0, 1, -1])
    torch.testing.assert_close(result.matrix, torch.tensor([[0.05, 0.7], [0.4, 0.6]]))
    assert result.links == ((1, 0), (1, 1)) and str(result) == "1-0 1-1"


def test_ties_link_the_first_word_and_zero_weight_gives_no_link():
    result = align(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), [0, 1, -1], [0, 1])
    assert result.links == ((0, 0),)


@pytest.mark.parametrize(("source", "target"), [([], []), ([0], []), ([], [0, 1]), ([-1], [-1])])
def test_align_with_an_empty_side(source: list[int], target: list[int]):
    result = align(torch.ones(len(target), len(source)), source, target)
    assert str(result) == "" and result.links == ()
    assert result.matrix.numel() == 0


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_word_weights_are_sums_and_means_of_token_weights(rows: int, columns: int, data: st.DataObject):
    def words(tokens: int) -> list[int]:
        steps = data.draw(st.lists(st.integers(0, 1), min_size=tokens - 1, max_size=tokens - 1))
        return [sum(steps[:place]) for place in range(tokens)]

    source, target = words(columns), words(rows)
    weights = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows * 7 + columns))
    matrix = align(weights, source, target).matrix
    for word, row in enumerate(matrix.tolist()):
        mine = [place for place in range(rows) if target[place] == word]
        for other, result in enumerate(row):
            theirs = [place for place in range(columns) if source[place] == other]
            mean = sum(float(weights[a, b]) for a in mine for b in theirs) / len(mine)
            assert result == pytest.approx(mean, abs=1e-5)


def test_joined_alignments_keep_the_word_indices_of_the_line():
    first = align(torch.tensor([[0.9, 0.1]]), [0, 1], [0])
    second = align(torch.tensor([[0.3, 0.7], [0.6, 0.4]]), [2, 3], [1, 2])
    result = Alignment.joined([first, second])
    assert str(result) == "0-0 3-1 2-2"
    expected = torch.tensor([[0.9, 0.1, 0, 0], [0, 0, 0.3, 0.7], [0, 0, 0.6, 0.4]])
    torch.testing.assert_close(result.matrix, expected)


def test_averaged_over_sites_and_heads_or_one_of_them():
    attention = {
        "decoder.0.cross": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]),
        "decoder.1.cross": torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
        "decoder.1.self": torch.zeros(2, 1, 1),
    }
    assert averaged(attention).tolist() == [[0.75, 0.25]]
    assert averaged(attention, "decoder.0.cross").tolist() == [[0.5, 0.5]]
    assert averaged(attention, "*cross", head=1).tolist() == [[0.5, 0.5]]
    assert averaged({"decoder.cross": torch.tensor([[0.25, 0.75]])}).tolist() == [[0.25, 0.75]]
    with pytest.raises(UnknownName, match=facts("known", "decoder.0.cross")):
        averaged(attention, "decoder.2.cross")
    with pytest.raises(UnknownName, match="known: 0, 1"):
        averaged(attention, head=2)


def test_threshold_gives_several_links_or_none_per_word():
    result = align(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]), [0, 1, -1], [0, 1])
    assert result.written(threshold=0.3) == "0-0 1-0 1-1" and result.written(threshold=0.4) == "0-0"
    assert result.written(threshold=0.9) == "" and result.written() == "0-0 1-1"
    second = align(torch.tensor([[0.1, 0.9]]), [2, 3], [2])
    assert Alignment.joined([result, second]).written(threshold=0.45) == "0-0 3-2"


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.5, float("nan")])
def test_invalid_thresholds_raise(threshold: float):
    with pytest.raises(ArgumentError, match="threshold"):
        align(torch.ones(1, 1), [0], [0]).weighted(threshold)


def test_links_are_written_with_their_weights():
    result = align(torch.tensor([[0.125, 0.75, 0.125], [1.0, 0.0, 0.0]]), [0, 1, -1], [0, 1])
    assert result.written(probabilities=True) == "1-0:0.750 0-1:1.000"
    assert result.written(0.1, probabilities=True) == "0-0:0.125 1-0:0.750 0-1:1.000"
    assert result.weighted() == [(1, 0, 0.75), (0, 1, 1.0)]


def scored(rows: list[list[float]], words: list[int], ended: bool = True) -> Scored:
    """A pair with two source words; the second head always attends to EOS."""
    heads = torch.tensor([rows, [[0.0, 0.0, 1.0]] * len(rows)])
    end = ["</s>"] if ended else []
    pieces = tuple([f"piece {place}" for place in range(len(rows) - len(end))] + end)
    seen = {"decoder.0.cross": heads, "decoder.1.cross": heads.flip(0), "decoder.1.self": torch.ones(2, 1, 1)}
    passage = Passage(("a", "b", "</s>"), (0, 1, -1), pieces, tuple(words), (0.0,) * len(rows), seen)
    return Scored("a b", "any", (passage,))


def test_shifted_takes_the_row_of_the_step_after_the_word():
    """Words 0 and 1 are outputs of steps 0 and 1, and inputs of steps 1 and 2; step 2 outputs EOS."""
    each = scored([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]], [0, 1, -1])
    assert str(each.align("decoder.0.cross", 0)) == "0-0 1-1"
    assert str(each.align("decoder.0.cross", 0, shifted=True)) == "1-0 0-1"


def test_shifted_averages_the_steps_after_each_subword():
    """Word 0 has two tokens, inputs of steps 1 and 2: the mean of [0, 0.5] and [0.2, 0.1] is [0.1, 0.3]."""
    rows = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.2, 0.1, 0.7], [0.9, 0.1, 0.0]]
    result = scored(rows, [0, 0, 1, -1]).align("decoder.0.cross", 0, shifted=True)
    torch.testing.assert_close(result.matrix, torch.tensor([[0.1, 0.3], [0.9, 0.1]]))


def test_shifted_gives_no_link_to_the_last_word_of_an_unfinished_target():
    each = scored([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], [0, 1], ended=False)
    assert str(each.align("decoder.0.cross", 0, shifted=True)) == "1-0"


def test_instead_replaces_fields_and_a_new_site_resets_them():
    chosen = Choice("decoder.1.cross", 3, shifted=True)
    assert chosen.instead() == chosen
    assert chosen.instead(head=0) == Choice("decoder.1.cross", 0, shifted=True)
    assert chosen.instead(shifted=False) == Choice("decoder.1.cross", 3)
    assert chosen.instead("cross") == Choice()
    assert chosen.instead("decoder.0.cross", 1) == Choice("decoder.0.cross", 1)
    assert Choice.of("decoder.0.cross") == Choice("decoder.0.cross") and Choice.of(chosen) is chosen


def test_choices_are_all_cross_sites_and_heads_with_and_without_shift():
    seen = scored([[1.0, 0.0, 0.0]], [-1]).passages[0].attention
    result = choices(seen)
    assert len(result) == len(set(result)) == (1 + 2 * 3) * 2
    assert {choice.site for choice in result} == {"cross", "decoder.0.cross", "decoder.1.cross"}
    assert choices({"decoder.cross": torch.ones(2, 3)}) == [
        Choice("decoder.cross"),
        Choice("decoder.cross", shifted=True),
    ]
