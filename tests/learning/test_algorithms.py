"""Every model learns to copy, reverse and sort: the Transformer to copy here, all of it in make test-all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.loop import accuracy, perplexity, steps, train
from regard.data.algorithms import TASKS, algorithm_batch
from regard.data.batch import Batch
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
    "luong dot": ("luong", {**GRU, "score": "dot"}, 10, 600),
    "luong concat": ("luong", {**GRU, "score": "concat"}, 10, 600),
    "luong location": ("luong", {**GRU, "score": "location"}, 10, 600),
    "luong unfed": ("luong", {**GRU, "feeding": False}, 10, 900),
    "luong affine": ("luong", {**GRU, **PLAIN}, 10, 1200),
    "luong local-p": ("luong", {**GRU, "view": "local-p"}, 10, 900),
    "luong local-m": ("luong", {**GRU, "view": Monotonic(reach=2)}, 10, 600),
    "luong both ways": ("luong", {**GRU, "both_ways": True}, 10, 900),
}
"""Name: model, options, length of the sequences, steps; twice as many to sort, which no word tells alone."""

QUICK = [("transformer", "copy")]
EVERY = [(name, task) for name in ("seq2seq", "bahdanau", "transformer") for task in TASKS]
EVERY += [(name, task) for name in LEARNERS if name.startswith("luong") for task in ("copy", "reverse")]
EVERY += [("luong both ways", "sort")]
LONG = [each for each in EVERY if each not in (*QUICK, ("luong local-m", "reverse"))]


def learn(name: str, task: str) -> tuple[float, float]:
    """Perplexity and sequence accuracy on sequences that were not trained on."""
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
def test_it_learns(name: str, task: str):
    found_perplexity, found_accuracy = learn(name, task)
    assert found_perplexity <= 1.05 and found_accuracy >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), LONG)
def test_it_learns_the_others_too(name: str, task: str):
    found_perplexity, found_accuracy = learn(name, task)
    assert found_perplexity <= 1.05 and found_accuracy >= 0.98
