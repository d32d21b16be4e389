"""Algorithmic tasks: sources, targets, and reproducibility with a seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import BOS, EOS, PAD, Batch
from regard.data.tape_tasks import TASKS, algorithm_batch
from regard.errors import ArgumentError, UnknownName
from tests.facts import facts


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Return the sources and targets of a batch, without special tokens and padding."""
    sources = [row[: length - 1] for row, length in zip(batch.source, batch.source_lengths, strict=True)]
    targets = [row[1:length] for row, length in zip(batch.target, batch.target_lengths, strict=True)]
    return [(source.tolist(), target.tolist()) for source, target in zip(sources, targets, strict=True)]


def drawn(name: str, seed: int = 0, **options: int) -> Batch:
    options = {"count": 20, "length": 10, "symbols": 16} | options
    return algorithm_batch(name, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("length", [5, 10])
def test_targets_follow_the_task(length: int):
    for source, target in rows(drawn("copy", length=length)):
        assert target == source and len(source) == length
    for source, target in rows(drawn("reverse", length=length)):
        assert target == list(reversed(source))
    for source, target in rows(drawn("sort", length=length)):
        assert sorted(source) == target


@given(name=st.sampled_from([*TASKS]), seed=st.integers(0, 99), length=st.integers(0, 12), data=st.data())
def test_sequences_have_the_requested_lengths_and_symbols(
    name: str, seed: int, length: int, data: st.DataObject
):
    shortest = data.draw(st.integers(0, length))
    batch = drawn(name, seed, length=length, symbols=3, shortest=shortest)
    for source, target in rows(batch):
        assert shortest <= len(source) == len(target) <= length
        assert set(source) <= {4, 5, 6}
    assert set(batch.source.flatten().tolist()) <= {PAD, EOS, 4, 5, 6}
    assert (batch.target[:, 0] == BOS).all() and batch.index.tolist() == list(range(20))


def test_every_length_and_symbol_occurs():
    batch = drawn("copy", count=500, length=4, symbols=3, shortest=2)
    assert set((batch.source_lengths - 1).tolist()) == {2, 3, 4}
    assert {symbol for source, _ in rows(batch) for symbol in source} == {4, 5, 6}


def test_batches_are_reproducible_with_a_seed():
    first, again, other = drawn("sort", 3), drawn("sort", 3), drawn("sort", 4)
    assert torch.equal(first.source, again.source) and torch.equal(first.target, again.target)
    assert not torch.equal(first.source, other.source)


def test_invalid_arguments_raise():
    with pytest.raises(UnknownName, match="'reverse'"):
        drawn("revers")
    for options in ({"symbols": 0}, {"count": 0}, {"length": -1}, {"length": 3, "shortest": 4}):
        with pytest.raises(ArgumentError, match=facts("algorithm_batch()", "count")):
            drawn("copy", **options)
