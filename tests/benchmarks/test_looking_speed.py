"""The benchmarks of looks: their gates pass for right results, and fail for wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard
from benchmarks import huggingface_speed, looking_speed
from regard.call import Forward
from regard.checking import check
from tests.conftest import SKIPS


@pytest.mark.parametrize("causal", [False, True])
def test_the_gate_of_the_looking_pass_fails_for_a_wrong_lse(causal: bool):
    query, key = torch.randn(1, 2, 70, 16), torch.randn(1, 2, 70, 16)
    mask = regard.causal() if causal else None
    lse = regard.attention(query, key, mask=mask).lse
    call = check(query, key, key, score=regard.ScaledDot(), select=regard.Soft(), mask=mask)
    looking_speed.gate(call, Forward(query, lse), "blocked")
    with pytest.raises(ValueError, match="entropy"):
        looking_speed.gate(call, Forward(query, lse + 0.01), "blocked")


def test_a_row_has_a_cell_for_each_title(monkeypatch: pytest.MonkeyPatch):
    def two(function: Callable[[], object], device: str) -> float:
        function()
        return 2.0

    monkeypatch.setattr(looking_speed, "median_ms", two)
    rows = [looking_speed.row((1, 2, 40, 16), True, "cpu")]
    titles, _, line = looking_speed.report(rows, "cpu").splitlines()
    cells = line.strip("| ").split(" | ")
    assert len(titles.strip("| ").split(" | ")) == len(cells)
    assert cells[:3] == ["1,2,40,16", "yes", "2.000"] and len(cells) == 3 + 2 * len(looking_speed.LOOKS)


@pytest.mark.parametrize("causal", [False, True])
def test_the_peers_compute_the_same_attention(causal: bool):
    pytest.importorskip("transformers", reason=SKIPS["transformers"])
    query, key, value = (torch.randn(2, 3, 9, 4) for _ in range(3))
    expected = regard.attention(query, key, value, mask=regard.causal() if causal else None).output
    outputs = [peer()[0] for peer in looking_speed._eagers(query, key, value, causal)]
    assert len(outputs) == len(looking_speed.EAGERS)
    for output in (*outputs[:2], outputs[2].transpose(1, 2)):
        torch.testing.assert_close(output, expected)


def test_the_gate_of_the_model_fails_if_attention_is_changed(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers", reason=SKIPS["transformers"])
    from regard import huggingface

    huggingface.register()
    model, ids = huggingface_speed.build("cpu", layers=1, width=256), torch.randint(0, 32000, (1, 20))
    huggingface_speed.gate(model, ids)
    run = huggingface_speed.run

    def changed(*arguments: Any) -> torch.Tensor:
        hidden = run(*arguments)
        return hidden if arguments[3] is None else 1.1 * hidden

    monkeypatch.setattr(huggingface_speed, "run", changed)
    with pytest.raises(ValueError, match="sdpa"):
        huggingface_speed.gate(model, ids)
