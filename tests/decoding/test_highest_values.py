"""The highest sums of a row are those of a complete sort, also with equal values and forbidden tokens."""

from __future__ import annotations

import pytest
import torch

from regard.decoding import beam as highest_values
from regard.decoding.beam import highest_sums, largest


@pytest.mark.parametrize("vocabulary", [128, 133, 640])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
@pytest.mark.parametrize("hidden", ["nothing", "beams", "most tokens", "all tokens"])
def test_the_highest_sums_are_those_of_a_complete_sort(
    vocabulary: int, levels: int, hidden: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(highest_values, "FEWEST_VALUES", 1)
    monkeypatch.setattr(highest_values, "BLOCK", 16)
    torch.manual_seed(levels + vocabulary)
    values = torch.randint(0, levels, (4, 3, vocabulary)).float()
    first = torch.randint(0, levels, (4, 3)).float()
    if hidden == "beams":
        first[:, 1:] = -torch.inf
    elif hidden == "most tokens":
        values[:, :, torch.arange(vocabulary) != 5] = -torch.inf
    elif hidden == "all tokens":
        values[2] = -torch.inf
    sums, places = highest_sums(first, values, 6)
    for row in range(4):
        every = (first[row, :, None] + values[row]).flatten().tolist()
        order = sorted(range(len(every)), key=lambda place: (-every[place], place))[:6]
        assert sums[row].tolist() == [every[place] for place in order]
        # -inf after other values is in any order.
        known = [place for place in order if every[place] > -torch.inf or every[order[0]] == -torch.inf]
        assert places[row, : len(known)].tolist() == known
        assert len(set(places[row].tolist())) == 6


def test_largest_is_the_first_of_equal_values_and_nan_is_highest() -> None:
    values = torch.tensor([[0.0, 3.0, 3.0], [-torch.inf, -torch.inf, -1.0], [5.0, torch.nan, torch.nan]])
    assert largest(values).tolist() == values.argmax(-1).tolist() == [1, 2, 1]
