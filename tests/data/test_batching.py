"""Batches: each sample once, within the token budget, in an order given by the seed, from any batch on."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import batching as module
from regard.data.batch import Batch
from regard.data.batching import Batches, EncodedPairs, Side
from regard.errors import ArgumentError, DataError
from tests.facts import facts

LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60)


def data_of(lengths: Sequence[tuple[int, int]]) -> EncodedPairs:
    """Pairs of these lengths, whose tokens identify the pair."""
    return EncodedPairs.in_memory(
        [[4 + number] * source for number, (source, _) in enumerate(lengths)],
        [[1004 + number] * target for number, (_, target) in enumerate(lengths)],
    )


def many(count: int, seed: int = 0) -> EncodedPairs:
    generator = numpy.random.default_rng(seed)
    return data_of(list(zip(*generator.integers(0, 30, (2, count)).tolist(), strict=True)))


def samples(batches: Sequence[Batch]) -> list[int]:
    return [number for batch in batches for number in batch.index.tolist()]


def same(one: Batch, other: Batch) -> bool:
    names = ("source", "source_lengths", "target", "target_lengths", "index")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def all_same(ones: Sequence[Batch], others: Sequence[Batch]) -> bool:
    return len(ones) == len(others) and all(map(same, ones, others))


@given(lengths=LENGTHS, tokens=st.integers(1, 60), epoch=st.integers(0, 3), shuffle=st.booleans())
def test_every_sample_occurs_once_and_equals_collate(
    lengths: list[tuple[int, int]], tokens: int, epoch: int, shuffle: bool
):
    data = data_of(lengths)
    made = list(Batches(data, tokens, shuffle=shuffle).epoch(epoch))
    assert sorted(samples(made)) == list(range(len(data)))
    for batch in made:
        index = batch.index.tolist()
        sources, targets = [data.source(i).tolist() for i in index], [data.target(i).tolist() for i in index]
        assert same(batch, Batch.collate(sources, targets, index))
        assert batch.source.dtype == batch.source_lengths.dtype == batch.index.dtype == torch.int64


@given(lengths=LENGTHS, tokens=st.integers(1, 60), sentences=st.none() | st.integers(1, 5))
def test_batches_fill_but_do_not_exceed_the_budget(
    lengths: list[tuple[int, int]], tokens: int, sentences: int | None
):
    made = list(Batches(data_of(lengths), tokens, sentences=sentences, shuffle=False).epoch(0))
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(batch.source.shape[1], batch.labels.shape[1]) <= tokens
        assert len(batch) <= (sentences or len(batch))
    for batch, following in itertools.pairwise(made):
        one_more = int(torch.maximum(following.source_lengths, following.target_lengths).min())
        assert (len(batch) + 1) * one_more > tokens or len(batch) == sentences


def test_sentences_of_a_batch_have_similar_lengths():
    data = many(5000)
    made = list(Batches(data, 600).epoch(1))
    real = sum(int(torch.maximum(batch.source_lengths, batch.target_lengths).sum()) for batch in made)
    padded = sum(len(batch) * max(batch.source.shape[1], batch.labels.shape[1]) for batch in made)
    assert real / padded > 0.97 and padded / len(made) > 0.9 * 600


def test_order_depends_on_seed_and_epoch():
    data = many(300)
    batches = Batches(data, 100, seed=5)
    first = list(batches.epoch(2))
    list(batches.epoch(0))
    assert all_same(list(batches.epoch(2)), first)
    assert all_same(list(Batches(data, 100, seed=5).epoch(2)), first)
    others = [Batches(data, 100, seed=5).epoch(3), Batches(data, 100, seed=6).epoch(2)]
    others.append(Batches(data, 100, seed=2).epoch(5))
    for other in map(list, others):
        assert samples(other) != samples(first)
        assert {frozenset(batch.index.tolist()) for batch in other} != {
            frozenset(batch.index.tolist()) for batch in first
        }


def test_order_is_pinned():
    """A run resumed with another version of numpy or of this code gets the same batches."""
    made = Batches(data_of([(n % 5, n % 3) for n in range(12)]), 12, seed=1).epoch(3)
    assert [batch.index.tolist() for batch in made] == [[0, 10, 1, 6], [5, 11, 2, 7], [8, 3], [9, 4]]


def test_without_shuffling_the_shortest_come_first():
    batches = Batches(many(300), 100, shuffle=False)
    made = list(batches.epoch(0))
    widths = [max(batch.source.shape[1], batch.labels.shape[1]) for batch in made]
    assert widths == sorted(widths) and all_same(made, list(batches.epoch(7)))


@settings(max_examples=30)
@given(start=st.integers(0, 40), seed=st.integers(0, 5), world=st.integers(1, 3))
def test_an_epoch_can_start_at_any_batch(start: int, seed: int, world: int):
    data = many(200, seed)
    whole = list(Batches(data, 60, seed=seed, world=world).epoch(1))
    batches = Batches(data, 60, seed=seed, world=world)
    start = min(start, batches.len_epoch(1))
    assert batches.len_epoch(1) == len(whole)
    assert all_same(list(batches.epoch(1, start)), whole[start:])


def test_batches_before_the_start_are_not_built(monkeypatch: pytest.MonkeyPatch):
    built = []
    monkeypatch.setattr(
        module,
        "padded_rows",
        lambda side, rows, begin: built.append(len(rows)) or (torch.ones(1), torch.ones(1)),
    )
    batches = Batches(many(300), 100)
    iterator = batches.epoch(0, start=batches.len_epoch(0) - 1)
    assert not built and len(list(iterator)) == 1 and len(built) == 2


@settings(max_examples=50)
@given(lengths=LENGTHS, tokens=st.integers(1, 40), world=st.integers(2, 4), seed=st.integers(0, 3))
def test_processes_together_see_the_batches_of_one(
    lengths: list[tuple[int, int]], tokens: int, world: int, seed: int
):
    data = data_of(lengths * world)
    ranks = [list(Batches(data, tokens, seed=seed, rank=rank, world=world).epoch(2)) for rank in range(world)]
    assert len(set(map(len, ranks))) == 1
    plan = Batches(data, tokens, seed=seed, world=world).plan(2)
    for number, parts in enumerate(zip(*ranks, strict=True)):
        assert all(len(part) > 0 for part in parts)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sorted(samples(parts)) == sorted(plan.rows(number).tolist())
        for part in parts:
            width = max(part.source.shape[1], part.labels.shape[1])
            assert len(part) == 1 or (len(part) - 1) * width <= tokens + width
    assert sorted(samples([batch for rank in ranks for batch in rank])) == list(range(len(data)))


def test_one_process_with_larger_batches_has_the_same_plan():
    data = many(1000)
    one, two = Batches(data, 400).plan(1), Batches(data, 200, world=2).plan(1)
    whole = [set(one.rows(number).tolist()) for number in range(len(one.begins))]
    assert [set(two.rows(number).tolist()) for number in range(len(two.begins))] == whole


def test_windows_have_equal_sizes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "WINDOW", 64)
    data = many(64 * 3 + 1)
    for world in (1, 3):
        parts = [list(Batches(data, 100, rank=rank, world=world).epoch(0)) for rank in range(world)]
        made = list(itertools.chain.from_iterable(parts))
        assert sorted(samples(made)) == list(range(len(data))) and all(map(len, made))


def test_samples_over_longest_are_left_out():
    data = data_of([(3, 9), (2, 2), (10, 1), (9, 9)])
    batches = Batches(data, 20, longest=9)
    assert sorted(samples(list(batches.epoch(0)))) == [0, 1, 3] and batches.left_out == 1
    with pytest.raises(DataError, match=facts("0 of 4", "longest")):
        Batches(data, 20, longest=1)


def test_index_is_the_position_in_the_data():
    data = data_of([(1, 1), (2, 2), (3, 3)])
    data.numbers = numpy.array([10, 20, 30])
    assert sorted(samples(list(Batches(data).epoch(0)))) == [10, 20, 30]


def test_invalid_arguments_raise():
    data = many(5)
    for options in (
        {"tokens": 0},
        {"tokens": 10.5},
        {"rank": 0.5},
        {"sentences": 0},
        {"longest": 0},
        {"world": 0},
        {"rank": 1},
        {"rank": -1},
        {"seed": -1},
    ):
        ((name, value),) = options.items()
        with pytest.raises(ArgumentError, match=rf"Batches\(\): {name} is {value}\nexpected"):
            Batches(data, **options)
    with pytest.raises(DataError, match=r"5 of 5 .* 6 "):
        Batches(data, world=6)
    with pytest.raises(DataError, match="0 of 0 "):
        Batches(EncodedPairs.in_memory([], []))
    with pytest.raises(ArgumentError, match=facts("start", 99)):
        Batches(data).epoch(0, start=99)
    with pytest.raises(ArgumentError, match=facts("epoch", -1)):
        Batches(data).epoch(-1)


def test_planning_a_million_samples_takes_little_memory():
    count = 1_000_000
    lengths = numpy.random.default_rng(0).integers(1, 60, (2, count))
    sides = [
        Side(numpy.zeros(0, numpy.uint16), numpy.cumsum([0, *each], dtype=numpy.int64)) for each in lengths
    ]
    data = EncodedPairs(*sides, numpy.arange(count))
    tracemalloc.start()
    try:
        plan = Batches(data, 4096).plan(0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 4 bytes a number: three lengths, the kept, and the order; and sorting takes as much again for a while.
    assert held < 24 * count and peak < 48 * count
    assert len(plan.order) == count and (plan.ends > plan.begins).all()
    assert int((plan.ends - plan.begins).sum()) == count


@given(lengths=LENGTHS, sentences=st.integers(1, 9), world=st.integers(1, 3), shuffle=st.booleans())
def test_batches_of_a_number_of_sentences_have_that_number(
    lengths: list[tuple[int, int]], sentences: int, world: int, shuffle: bool
):
    if len(lengths) < world:
        return
    data = data_of(lengths)
    parts = [
        list(Batches(data, None, sentences=sentences, shuffle=shuffle, rank=rank, world=world).epoch(2))
        for rank in range(world)
    ]
    assert sorted(number for part in parts for number in samples(part)) == list(range(len(data)))
    rows = [sum(map(len, together)) for together in zip(*parts, strict=True)]
    others = [count for count in rows if count != sentences * world]
    assert len(others) <= 1 and all(count < (sentences + 1) * world for count in others)


def test_batches_of_a_number_of_sentences_are_of_similar_lengths_and_repeatable():
    data = many(3000)
    made = list(Batches(data, None, sentences=16, seed=3).epoch(1))
    real = sum(int(torch.maximum(batch.source_lengths, batch.target_lengths).sum()) for batch in made)
    padded = sum(len(batch) * max(batch.source.shape[1], batch.labels.shape[1]) for batch in made)
    assert real > 0.95 * padded and {len(batch) for batch in made} == {16, 3000 % 16}
    assert all_same(list(Batches(data, None, sentences=16, seed=3).epoch(1, start=40)), made[40:])
    assert samples(made) != samples(list(Batches(data, None, sentences=16, seed=3).epoch(2)))
    with pytest.raises(ArgumentError, match=facts("tokens", "sentences")):
        Batches(data, None)
