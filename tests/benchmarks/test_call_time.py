"""benchmarks/call_time.py: each call agrees with its peer before it is measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks import call_time
from benchmarks.call_time import Pair, Row


@pytest.mark.parametrize("gradients", [False, True])
def test_every_call_agrees_with_its_peer(gradients: bool):
    found = list(call_time.pairs("cpu", gradients))
    assert len({pair.name for pair in found}) == len(found) > 10
    for pair in found:
        output = pair.ours()
        assert output.requires_grad == gradients and output.shape == pair.theirs().shape
        if "new lengths" not in pair.name:
            call_time.same(pair)


def test_a_wrong_result_is_not_measured():
    wrong = Pair("wrong", False, lambda: torch.ones(3), lambda: torch.ones(3) * 1.01)
    with pytest.raises(AssertionError, match="wrong"):
        call_time.measured(wrong, "cpu", 0.0)


def test_the_table_shows_losses_too():
    right = Pair("right", True, lambda: torch.ones(3), lambda: torch.ones(3))
    (row,) = call_time.measured(right, "cpu", 0.0)
    assert 0 < row.ours <= row.ours_median and 0 < row.theirs <= row.theirs_median
    text = call_time.table([Row("lost", False, "wall", 9.0, 4.0, 9.5, 4.5)])
    assert "| lost | no | wall | 9.0 | 4.0 | 5.0 | 9.5 | 4.5 |" in text
