"""benchmarks/call_time.py: each call agrees with its peer before it is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import call_time
from benchmarks.call_time import Pair, Row
from tests.facts import table_rows


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


def test_the_table_shows_losses_and_the_spread(tmp_path: Path):
    right = Pair("right", True, lambda: torch.ones(3), lambda: torch.ones(3))
    (row,) = call_time.measured(right, "cpu", 0.0)
    assert 0 < row.ours <= row.ours_median and 0 < row.theirs <= row.theirs_median
    processes = [
        [Row("lost", False, "wall", ours, 4.0, 9.5, 4.5), Row("lost", False, "device", 6.0, 5.0, 6.0, 5.0)]
        for ours in (9.0, 7.0, 12.0)
    ]
    results = call_time.merged([*processes, [row]])
    text = call_time.table(results)
    assert ["lost", "no", "9.0", "4.0", "5.0", "7.0 to 12.0", "6.0", "5.0", "1.20"] in table_rows(text)
    assert any(row[:2] == ["right", "yes"] for row in table_rows(text))
    call_time.write(tmp_path / "new" / "folder", "cuda", "A note.", {"torch": "2"}, results)
    (page,) = (tmp_path / "new" / "folder").glob("*-call-cuda.md")
    assert text in page.read_text() and "A note." in page.read_text()
    assert len(json.loads(page.with_suffix(".json").read_text())["rows"]) == 3
