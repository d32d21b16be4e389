"""plan_epochs(): batch size, warm-up and length of runs of classification and captioning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.runs.run_task import Plan
from regard.tasks.batched_task import EpochRules
from regard.tasks.captioning import CaptioningTask
from regard.tasks.captioning.settings import CaptioningSettings
from regard.training.distributed import Processes
from regard.training.settings import build

MODEL = {"width": 8, "embedding": 8, "encoder_options": {"features": 8, "channels": 4}}


def planned(folder: Path, pictures: int = 4, **training: Any) -> Plan:
    """Return the plan of a captioner of a few pictures of `shapes`, with three captions each."""
    given = {"data": {"built_in": "shapes", "pictures": pictures}, "model": MODEL, "training": training}
    settings = build(CaptioningSettings, given, "the settings")
    corpus = CaptioningTask.encode_data(CaptioningTask.read_data(settings), settings, folder)
    return CaptioningTask.plan(given, corpus, "cpu", Processes())


def test_tiny_corpus_has_small_batches_and_enough_steps(tmp_path: Path):
    training = planned(tmp_path).settings["training"]
    # 12 captions in batches of at least 8 are 2 steps; 500 epochs are 1000 steps.
    assert training["batch_size"] == 8 and training["epochs"] == 500.0
    assert training["learning_rate"] == 0.002 and training["warmup_steps"] == 50


@pytest.mark.parametrize(
    ("training", "epochs", "warmup"),
    [({"steps": 6}, 3.0, 1), ({"epochs": 40.0}, 40.0, 4), ({"steps": 6, "accumulation_steps": 2}, 6.0, 1)],
)
def test_length_that_the_user_sets_is_kept(tmp_path: Path, training: dict[str, Any], epochs, warmup):
    plan = planned(tmp_path, batch_size=8, **training)
    assert plan.epochs == epochs and plan.seconds is None
    assert plan.settings["training"] == {
        "batch_size": 8,
        "learning_rate": 0.002,
        "warmup_steps": warmup,
        **training,
    }
    assert "8 captions" in plan.text and "width 8" in plan.text


def test_large_corpus_has_a_limited_number_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CaptioningTask, "len_epoch", lambda self, epoch: 6000)
    plan = planned(tmp_path)
    assert plan.epochs == EpochRules("captions", 8).max_steps / 6000 == 5
    assert plan.settings["training"]["epochs"] == 5.0
