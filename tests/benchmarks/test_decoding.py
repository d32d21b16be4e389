"""benchmarks.decoding: the beam search of the peer in plain PyTorch, and the files of the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import decoding
from benchmarks.decoding_peers import eager_beam_search
from regard.data.batch import Batch
from regard.decoding import Beam, Rules, search
from regard.models.bahdanau import Bahdanau
from tests.facts import table_rows


@torch.no_grad()
def test_plain_pytorch_finds_the_same_tokens() -> None:
    torch.manual_seed(0)
    model = Bahdanau(20, 20, 8).eval().double()
    batch = Batch.collate([[4, 5, 6], [7, 8, 9], [10, 11, 12]])
    # The peer never generates EOS, so that each output has the maximum length.
    model.readout.output.bias[3] = -1e4
    tokens = eager_beam_search(model, batch, beams=4, length=9)()
    hypotheses = search(model, batch, Beam(4, rules=Rules(maximum=9)), look=None)
    assert [best.tokens for best, *_ in hypotheses] == [tuple(row) for row in tokens.tolist()]


def test_creates_the_folder_of_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = {"peer": "regard", "dtype": "float32", "tokens/s": 7.0, "best tokens/s": 9.0}
    record = {"rows": [row | {"tokens per CPU second": 5.0, "runs": 3}], "same hypotheses, float64": 1.0}
    monkeypatch.setattr(decoding, "measure", lambda *_: record)
    folder = tmp_path / "new" / "results"
    monkeypatch.setattr(sys, "argv", ["decoding", "--device", "cpu", "--into", str(folder), "bahdanau-1"])
    assert decoding.main() == 0
    (numbers,), (text,) = folder.glob("*-decoding-cpu.json"), folder.glob("*-decoding-cpu.md")
    assert json.loads(numbers.read_text())["cases"]["bahdanau-1"]["rows"][0]["tokens/s"] == 7.0
    assert ["bahdanau-1", "regard", "float32", "7", "9", "5", "3"] in table_rows(text.read_text())
