"""The training benchmark: its peers train on the same batches, and its correctness check can fail."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from benchmarks import training_speed
from benchmarks.training_cases import CASES, Case
from benchmarks.training_peers import eager_loop
from regard.fast.captured.graphs import copied
from regard.options.transformer_options import SIZES, Size
from regard.training import losses
from tests.facts import mentions, table_rows

SMALL = Case("transformer", 40, rows=3, length=6)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def precise(precision: str):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            yield

    monkeypatch.setattr(training_speed, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(training_speed, "precise", precise)
    monkeypatch.setattr(training_speed, "pinned", copied)  # without a GPU, there is no pinned memory
    monkeypatch.setitem(SIZES, "base", Size(width=16, heads=2, inner=32, layers=1))


def test_check_passes_and_finds_a_wrong_gradient(on_cpu: None, monkeypatch: pytest.MonkeyPatch):
    errors = training_speed.gate(SMALL)
    assert errors["regard, float32"] < 1e-5 < errors["regard, bfloat16"]
    right = losses.cross_entropy

    def wrong(logits, labels, smoothing):
        total, plain = right(logits, labels, smoothing)
        return total if logits.dtype == torch.float64 else 1.02 * total, plain

    monkeypatch.setattr(losses, "cross_entropy", wrong)
    with pytest.raises(SystemExit):
        training_speed.gate(SMALL)


def test_a_step_trains_the_model_on_the_next_batch(on_cpu: None):
    model = SMALL.build(device="cpu").train()
    before = model.output.weight.detach().clone()
    batches = [SMALL.batch(seed) for seed in range(2)]
    training = training_speed.Training(model, training_speed.our_loss(model), batches, "float32")
    for expected in (0, 1, 0):
        training.step()
        assert torch.equal(training.batch.target, batches[expected].target)
    assert not torch.equal(model.output.weight, before)


def test_the_eager_loop_has_the_loss_of_the_recurrent_case():
    case = replace(CASES["recurrent-80x30"], words=30, rows=2, length=4)
    model = case.build(device="cpu")
    ours, theirs = (loss(model)(case.batch(0)) for loss in (training_speed.our_loss, eager_loop))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_table_has_a_line_for_each_row_and_part():
    row = {"tokens/s": 9e5, "milliseconds": 36.0, "low": 35.0, "high": 37.0, "reserved MiB": 9000.0}
    case = {"gate": {"regard, float32": 1e-6}, "rows": {"regard": row, "peer": {"missing": "no"}}}
    found = {"environment": {"gpu": "H200"}, "cases": {"small": {**case, "parts": {"encoder": "1.0"}}}}
    text = training_speed.table(found)
    assert ["small", "regard", "900,000", "36.00 (35.00 to 37.00)", "9,000"] in table_rows(text)
    assert ["small", "peer", "no", "", ""] in table_rows(text) and mentions(
        text, "encoder | 1.0 |", "1.0e-06"
    )
