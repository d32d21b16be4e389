"""Is attention explanation? Jain and Wallace, Wiegreffe and Pinter, Serrano and Smith (all 2019).

Two tasks: one that does not need attention to a certain word ("find": does the source contain a symbol?), and
one that does ("copy"). Models are trained with learned attention and with uniform attention.
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
from regard.data.batch import EOS, Batch
from regard.data.tape_tasks import algorithm_batch
from regard.evaluation.erasure import Trial
from regard.evaluation.faithfulness import Pair, word_scores
from regard.interventions import Force
from regard.models import Model, build_model

LENGTH, SYMBOLS = 6, 9
PRESENT, MISSING, SYMBOL = 4, 5, 7
STEPS = {"find": 100, "copy": 220}


def drawn(task: str, count: int, source: torch.Generator) -> Batch:
    """Random sequences to copy, or to find a symbol in."""
    batch = algorithm_batch("copy", count, LENGTH, SYMBOLS, source)
    if task == "copy":
        return batch
    sources = [row[:LENGTH] for row in batch.source.tolist()]
    return Batch.collate(sources, [[PRESENT if SYMBOL in row else MISSING] for row in sources])


@cache
def learned(task: str, uniform: bool = False) -> Model:
    """Train a small Bahdanau model on a task, with uniform attention if `uniform`."""
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)

    def batches() -> Iterator[Batch]:
        while True:
            yield drawn(task, 48, source)

    model = build_model("bahdanau", SYMBOLS + 4, SYMBOLS + 4, width=32)
    with torch.enable_grad(), regard.intervene(uniform=True) if uniform else nullcontext():
        train(model, batches(), steps(STEPS[task]), rate=8e-3, warm_up=20)
    return model


def unseen(task: str, count: int = 100) -> Batch:
    return drawn(task, count, torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_uniform_attention_learns_find_but_not_copy():
    """Wiegreffe and Pinter, section 3.2: attention can only explain where uniform attention fails."""
    free = {task: math.log(perplexity(learned(task), unseen(task))) for task in STEPS}
    with regard.intervene(uniform=True):
        uniform = {task: math.log(perplexity(learned(task, uniform=True), unseen(task))) for task in STEPS}
    assert free["find"] < 0.05 and free["copy"] < 0.05
    assert uniform["find"] < 0.05 and uniform["copy"] > 0.15 and uniform["copy"] > 5 * free["copy"]


@torch.no_grad()
def permuted(task: str, row: int) -> float:
    """Median change of the output when the weights are permuted (Jain and Wallace, section 4.2.1)."""
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


def test_permuted_weights_change_copy_but_not_find():
    assert permuted("find", row=0) < 0.1
    assert permuted("copy", row=2) > 0.5


def erased(task: str, rows: range) -> tuple[float, float]:
    """Mean drop in score when the key with the largest weight is masked, and when a random one is.

    Serrano and Smith, section 4.
    """
    model, batch, source = learned(task), unseen(task, 40), numpy.random.default_rng(0)
    with torch.no_grad(), regard.record() as seen:
        model(batch)
    lengths = zip(batch.source.tolist(), batch.labels.tolist(), batch.target_lengths.tolist(), strict=True)
    pairs = [Pair((*words[:LENGTH], EOS), (*labels[: length - 1], EOS)) for words, labels, length in lengths]
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


def test_masking_the_largest_weight_costs_more_than_a_random_one():
    top, random = erased("copy", range(LENGTH))
    assert top > 2 and top > 10 * max(random, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["luong", "transformer"])
def test_other_models_cannot_copy_with_uniform_attention(kind: str):
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
