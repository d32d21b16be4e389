"""The benchmark of neural Turing machines: variants are valid settings; the table; the speed cases agree."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import algorithms_speed
from benchmarks.algorithms import DRAWN, RECIPES, VARIANTS, jobs_of, table, training_bits
from regard.data.tape_tasks import build_tape_task
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.run_task import smallest_model
from regard.tasks.algorithms import AlgorithmsSettings, AlgorithmsTask
from regard.training.settings import build
from tests.facts import table_rows


def arguments(**changes: object) -> Namespace:
    given = {
        "data": Path("d"),
        "runs": Path("r"),
        "device": "cpu",
        "threads": 1,
        "measured": False,
        "set": [],
    }
    return Namespace(**{**given, "only": [*RECIPES], "variants": [*VARIANTS], "seeds": 2, **changes})


def test_variants_are_valid():
    jobs = jobs_of(arguments())
    assert len({job.name for job in jobs}) == len(jobs) == len(RECIPES) * len(VARIANTS)
    for job in jobs:
        settings = build(AlgorithmsSettings, job.settings, job.name)
        AlgorithmsTask.check(settings, smallest_model(AlgorithmsTask, settings))
        assert settings.seeds == [0, 1]
        if job.variant in ("lstm", "gru"):
            count = settings.model.options["parameters"]
            with torch.device("meta"):
                model = AlgorithmsTask.build_model(settings.model, (9, 8))
            assert abs(sum(each.numel() for each in model.parameters()) / count - 1) < 0.05


def test_table():
    result = {"recipe": "ntm-copy", "variant": "ntm", "parameters": 1000, "steps": 5, "seconds": 2.0}
    result |= {"failed": {}, "machine": {"torch": "2"}}
    result["seeds"] = {"0": {"length 20": 0.001}, "1": {"length 20": 3.0}, "2": {"length 20": 0.002}}
    result["training_sequences"] = 1234
    text = table([result], notes="remark")
    assert [
        "ntm-copy",
        "ntm",
        "1,000",
        "5",
        "2",
        "length 20",
        "0.002 [0.001 to 3]",
        "2 of 3 < 0.01",
        "0",
    ] in table_rows(text)
    assert "remark" in text
    result["seeds"] = {"0": {"training lengths": 0.5}}
    assert "| training lengths (1,234 sequences) | 0.5 [0.5 to 0.5] |" in table([result])


def test_training_lengths_are_evaluated_on_different_sequences(monkeypatch: pytest.MonkeyPatch):
    """If few sizes are drawn many times, as for recall, the sequences of a size must not be the same ones."""
    task = build_tape_task("associative-recall")
    model = build_sequence_model("lstm", task.input_size, task.target_size, width=2)
    batches = []
    draw = type(task).draw

    def kept(self: Any, *arguments: Any) -> Any:
        batches.append(draw(self, *arguments))
        return batches[-1]

    monkeypatch.setattr(type(task), "draw", kept)
    bits = training_bits(model, task)
    sequences = [tuple(each.flatten().tolist()) for batch in batches for each in batch.inputs]
    assert len(set(sequences)) == len(sequences) == DRAWN * 64
    assert 10 < bits < 40 and bits == training_bits(model, task)


def test_speed(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"BATCH": 2, "LENGTH": 1, "SECONDS": 0.0, "WARM_UPS": 0}.items():
        monkeypatch.setattr(algorithms_speed, name, value)
    text, results = algorithms_speed.speed_table("cpu")
    assert len(results) == 3 and all(each["sequences_per_second"] > 0 for each in results)
    assert "pytorch-ntm" in text


def test_head_modules_learn_the_same_shapes():
    model = algorithms_speed.HeadModules(9, 8, width=6, slots=5, size=4)
    logits, _ = model(torch.randn(2, 3, 9))
    logits.sum().backward()
    assert logits.shape == (2, 3, 8) and all(each.grad.isfinite().all() for each in model.parameters())
