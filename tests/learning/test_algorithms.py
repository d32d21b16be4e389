"""Models learn to copy, reverse and sort; only the Transformer on copying short sequences is a quick test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.loop import accuracy, perplexity, steps, train
from regard.data.batch import Batch
from regard.data.tape_tasks import TASKS, algorithm_batch
from regard.models import build_model
from regard.models.luong import Monotonic
from tests.conftest import seed

SYMBOLS = 20
SMALL = {"width": 64, "heads": 4, "inner": 128, "layers": 2, "dropout": 0.0}
GRU = {"width": 64, "cell": "gru"}
PLAIN = {"score": "dot", "readout": "affine", "feeding": False}
LEARNERS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "seq2seq": ("seq2seq", {"width": 128}, 5, 2000),
    "bahdanau": ("bahdanau", {"width": 64}, 10, 500),
    "luong": ("luong", GRU, 10, 600),
    "transformer": ("transformer", SMALL, 10, 800),
    "transformer, short": ("transformer", SMALL, 5, 240),
    "luong dot": ("luong", {**GRU, "score": "dot"}, 10, 600),
    "luong concat": ("luong", {**GRU, "score": "concat"}, 10, 600),
    "luong location": ("luong", {**GRU, "score": "location"}, 10, 600),
    "luong unfed": ("luong", {**GRU, "feeding": False}, 10, 900),
    "luong affine": ("luong", {**GRU, **PLAIN}, 10, 1200),
    "luong local-p": ("luong", {**GRU, "view": "local-p"}, 10, 900),
    "luong local-m": ("luong", {**GRU, "view": Monotonic(reach=2)}, 10, 900),
    "luong both ways": ("luong", {**GRU, "both_ways": True}, 10, 900),
    "lstmn deep": ("lstmn", {"width": 64}, 10, 1500),
    "lstmn shallow": ("lstmn", {"width": 64, "fusion": "shallow"}, 10, 900),
}
"""Name: (model, options, sequence length, training steps). Sorting gets twice as many steps."""

QUICK = [("transformer, short", "copy")]
EVERY = [(name, task) for name in ("seq2seq", "bahdanau", "transformer") for task in TASKS]
EVERY += [
    (name, task) for name in LEARNERS if name.startswith(("luong", "lstmn")) for task in ("copy", "reverse")
]
EVERY += [("luong both ways", "sort")]
LONG = [each for each in EVERY if each != ("luong local-m", "reverse")]


def learn(name: str, task: str) -> tuple[float, float]:
    """Train a model; return its perplexity and sequence accuracy on unseen sequences."""
    kind, options, length, count = LEARNERS[name]
    source = torch.Generator().manual_seed(seed())

    def batches(size: int = 64) -> Iterator[Batch]:
        while True:
            yield algorithm_batch(task, size, length, SYMBOLS, source)

    model = build_model(kind, SYMBOLS + 4, SYMBOLS + 4, **options)
    train(model, batches(), steps(2 * count if task == "sort" else count))
    unseen = next(batches(500))
    return perplexity(model, unseen), accuracy(model, unseen)


@pytest.mark.parametrize(("name", "task"), QUICK)
def test_transformer_learns_to_copy(name: str, task: str):
    final_perplexity, final_accuracy = learn(name, task)
    assert final_perplexity <= 1.05 and final_accuracy >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), LONG)
def test_model_learns_task(name: str, task: str):
    final_perplexity, final_accuracy = learn(name, task)
    assert final_perplexity <= 1.05 and final_accuracy >= 0.98
