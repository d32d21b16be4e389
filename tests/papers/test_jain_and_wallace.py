"""Whether attention explains: Jain and Wallace, Wiegreffe and Pinter, Serrano and Smith (all 2019).

On two tasks, one that a look anywhere answers (is a symbol there at all?) and one that needs to look at the
right place (copying), each learned with free attention and with attention held even.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache

import numpy
import pytest
import torch

import regard
from benchmarks.loop import perplexity, steps, train
from regard.data.algorithms import algorithm_batch
from regard.data.batch import Batch
from regard.evaluation.erasure import Pair, Trial, ended, word_scores
from regard.interventions import Force
from regard.models import Model, build_model

LENGTH, SYMBOLS = 6, 9
THERE, MISSING, SOUGHT = 4, 5, 7
STEPS = {"find": 100, "copy": 220}


def drawn(task: str, count: int, source: torch.Generator) -> Batch:
    """Sequences to copy, or to find a symbol in."""
    batch = algorithm_batch("copy", count, LENGTH, SYMBOLS, source)
    if task == "copy":
        return batch
    sources = [row[:LENGTH] for row in batch.source.tolist()]
    return Batch.collate(sources, [[THERE if SOUGHT in row else MISSING] for row in sources])


@cache
def learned(task: str, even: bool = False) -> Model:
    """A small Bahdanau that has learned a task; with its attention even all the while, or free."""
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)

    def batches() -> Iterator[Batch]:
        while True:
            yield drawn(task, 48, source)

    model = build_model("bahdanau", SYMBOLS + 4, SYMBOLS + 4, width=32)
    with torch.enable_grad(), regard.intervene(uniform=True) if even else nullcontext():
        train(model, batches(), steps(STEPS[task]), rate=8e-3, warm_up=20)
    return model


def unseen(task: str, count: int = 100) -> Batch:
    return drawn(task, count, torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_even_attention_learns_what_needs_no_attention_and_nothing_else():
    """Wiegreffe and Pinter, section 3.2: only where this baseline fails is there attention to explain."""
    free = {task: math.log(perplexity(learned(task), unseen(task))) for task in STEPS}
    with regard.intervene(uniform=True):
        even = {task: math.log(perplexity(learned(task, even=True), unseen(task))) for task in STEPS}
    assert free["find"] < 0.05 and free["copy"] < 0.05
    assert even["find"] < 0.05 and even["copy"] > 0.15 and even["copy"] > 5 * free["copy"]


@torch.no_grad()
def permuted(task: str, row: int) -> float:
    """The median change of the output when weights are permuted: Jain and Wallace, section 4.2.1."""
    model, source = learned(task), numpy.random.default_rng(0)
    changes = []
    for number in range(12):
        batch = drawn(task, 1, torch.Generator().manual_seed(number))
        with regard.record() as seen:
            before = model(batch)[0, row].softmax(-1)
        weights = seen["decoder.cross"][row].weights[0, 0].double()
        for _ in range(5):
            moved = weights[torch.from_numpy(source.permutation(len(weights)))]
            moved = (moved / moved.sum()).tolist()
            with regard.intervene(*(Force(row, key, weight) for key, weight in enumerate(moved))):
                after = model(batch)[0, row].softmax(-1)
            changes.append(0.5 * float((after - before).abs().sum()))
    return float(numpy.median(changes))


def test_other_weights_give_the_same_answer_where_looking_anywhere_does():
    assert permuted("find", row=0) < 0.1
    assert permuted("copy", row=2) > 0.5


def erased(task: str, rows: range) -> tuple[float, float]:
    """The mean cost of hiding the key with most weight, and one at random (Serrano and Smith, section 4)."""
    model, batch, source = learned(task), unseen(task, 40), numpy.random.default_rng(0)
    with torch.no_grad(), regard.record() as seen:
        model(batch)
    lengths = zip(batch.source.tolist(), batch.labels.tolist(), batch.target_lengths.tolist(), strict=True)
    pairs = [Pair(ended(read[:LENGTH]), ended(said[: length - 1])) for read, said, length in lengths]
    plain, most, other = [], [], []
    for pair in range(len(batch)):
        for row in rows:
            top = int(seen["decoder.cross"][row].weights[pair, 0].argmax())
            rest = [key for key in range(LENGTH + 1) if key != top]
            plain.append(Trial(pair, (row,)))
            most.append(Trial(pair, (row,), (top,)))
            other.append(Trial(pair, (row,), (int(source.choice(rest)),)))
    before, without_most, without_other = (word_scores(model, pairs, each) for each in (plain, most, other))
    return float((before - without_most).mean()), float((before - without_other).mean())


def test_what_has_most_weight_matters_more_than_another():
    top, random = erased("copy", range(LENGTH))
    assert top > 2 and top > 10 * max(random, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["luong", "transformer"])
def test_copying_needs_the_link_in_other_models_too(kind: str):
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)
    options = (
        {"width": 32, "cell": "gru"}
        if kind == "luong"
        else {"width": 32, "heads": 2, "inner": 64, "layers": 1}
    )
    model = build_model(kind, SYMBOLS + 4, SYMBOLS + 4, **options)
    train(model, (drawn("copy", 48, source) for _ in iter(int, 1)), steps(900), rate=5e-3)
    batch = unseen("copy")
    with regard.intervene(uniform=True, at="*cross"):
        assert perplexity(model, batch) > 3
    assert perplexity(model, batch) < 1.1
