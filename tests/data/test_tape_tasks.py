"""The algorithmic tasks: layouts, optimal estimator, sequences of a user, and bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.data.batch import TapeBatch
from regard.data.tape_tasks import TAPE_TASKS, DynamicNGrams, build_tape_task
from regard.errors import ArgumentError, DataError, UnknownName
from regard.tasks.algorithms.task import optimal_bits
from tests.facts import mentions


def drawn(name: str, count: int = 5, **sizes: int) -> tuple[Any, TapeBatch]:
    task = build_tape_task(name)
    return task, task.draw(count, {**task.longest, **sizes}, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", TAPE_TASKS)
def test_shapes_and_seeds(name: str):
    task, batch = drawn(name)
    assert batch.inputs.shape == (5, batch.steps, task.input_size)
    assert batch.targets.shape == (5, batch.steps, task.target_size)
    assert batch.steps == task.steps(task.longest) and batch.scored.any(1).all()
    assert set(batch.targets.unique().tolist()) <= {0.0, 1.0}
    assert drawn(name)[1].inputs.equal(batch.inputs)
    for sizes in task.longer:
        assert task.steps(sizes) > batch.steps


def test_copy_repeats_the_vectors_after_the_delimiter():
    _, batch = drawn("copy", length=7)
    assert batch.targets[:, 8:].equal(batch.inputs[:, :7, :8])
    assert batch.inputs[:, 7].tolist() == [[0.0] * 8 + [1.0]] * 5
    assert not batch.inputs[:, 8:].any() and batch.scored_bits == 5 * 7 * 8


def test_repeat_copy_ends_with_a_marker():
    _, batch = drawn("repeat-copy", length=3, repeats=4)
    assert batch.steps == 3 + 1 + 12 + 1
    assert batch.targets[:, 4:16, :8].equal(batch.inputs[:, :3, :8].repeat(1, 4, 1))
    assert batch.targets[:, :, 8].sum() == 5 and batch.targets[:, -1, 8].all()
    counts = [float(drawn("repeat-copy", repeats=each)[1].inputs[0, 10, 9]) for each in range(1, 11)]
    assert sum(counts) == pytest.approx(0, abs=1e-5)
    assert sum(each**2 for each in counts) / 10 == pytest.approx(1)


def test_associative_recall_answers_the_item_after_the_query():
    _, batch = drawn("associative-recall", count=20, length=4)
    items = batch.inputs[:, :16].unflatten(1, (4, 4))
    assert items[:, :, 0, 6].all() and batch.inputs[0, [16, 20], 7].tolist() == [1, 1]
    assert batch.inputs[..., 6:].sum() == 20 * (4 + 2)  # the delimiters of 4 items, and 2 of the query
    for row in range(20):
        query = batch.inputs[row, 17:20, :6]
        places = [place for place in range(3) if items[row, place, 1:, :6].equal(query)]
        assert any(items[row, place + 1, 1:, :6].equal(batch.targets[row, -3:]) for place in places)


def test_priority_sort_answers_the_highest_priorities_first():
    _, batch = drawn("priority-sort")
    order = batch.inputs[0, :20, 8].argsort(descending=True)
    assert batch.targets[0, 21:].equal(batch.inputs[0, order[:16], :8]) and batch.steps == 37


@pytest.mark.parametrize("changes", [None, 7])
def test_overwrite_answers_the_last_value_of_a_key(changes: int | None):
    task = build_tape_task("overwrite", changes=None if changes is None else (2, changes))
    batch = task.draw(20, {**task.longest, "length": 5}, torch.Generator().manual_seed(3))
    changed = 0
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        values: dict[tuple[float, ...], list[float]] = {}
        for step, vector in enumerate(inputs):
            key, value = tuple(vector[:6]), vector[6:12]
            if vector[12]:
                changed += key in values
                values[key] = value
            elif vector[13]:
                assert targets[step + 1] == values[key]
        assert len(values) == 5
    assert changed == 20 * (changes or 3)


def test_every_key_of_overwrite_is_drawn_once():
    task = build_tape_task("overwrite", width=2, length=(4, 4))
    task.check_sizes({"length": 4}, "overwrite")
    batch = task.draw(20, {"length": 4}, torch.Generator().manual_seed(3))
    for inputs in batch.inputs:
        assert sorted(inputs[:4, :2].tolist()) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    with pytest.raises(ArgumentError, match="length"):
        task.check_sizes({"length": 5}, "overwrite")


def test_n_grams_and_their_optimal_estimator():
    task = build_tape_task("n-grams", order=3, length=(12, 12))
    assert isinstance(task, DynamicNGrams)
    batch, sizes = task.given({"bits": "110110110110"}, "line 1")
    assert sizes == {"length": 12} and batch.scored.tolist() == [[False] + [True] * 10]
    # The context 11 is followed by 0: before, 0, 1, 2 and 3 times. P(1) = (N1 + 1/2) / (N + 1).
    chances = task.optimal_chances(batch)[0]
    assert chances[[1, 4, 7, 10]].tolist() == pytest.approx([0.5, 0.25, 0.5 / 3, 0.125])
    assert float(optimal_bits(task, batch)) < 10


@pytest.mark.parametrize("length", [20, 100])
def test_the_optimal_estimator_beats_a_coin(length: int):
    task = DynamicNGrams(length=(length, length))
    batch = task.draw(200, {"length": length}, torch.Generator().manual_seed(0))
    assert float(optimal_bits(task, batch).mean()) < (length - 5) * (0.99 if length == 20 else 0.9)


GIVEN: dict[str, dict[str, Any]] = {
    "copy": {"vectors": ["10110010", "01101001"]},
    "repeat-copy": {"vectors": "10110010 01101001", "repeats": 3},
    "associative-recall": {"items": [["101101"] * 3, ["000111"] * 3], "query": 1},
    "n-grams": {"bits": "0101101"},
    "priority-sort": {"vectors": ["10110010", "01101001"], "priorities": [0.5, -1]},
    "overwrite": {"writes": [["000001", "111111"], ["000001", "101010"]], "queries": ["000001"]},
}


@pytest.mark.parametrize("name", TAPE_TASKS)
def test_sequences_of_a_user(name: str):
    batch, sizes = build_tape_task(name).given(GIVEN[name], "a.jsonl, line 3")
    assert len(batch) == 1 and batch.scored.any() and set(sizes) == set(build_tape_task(name).ranges)
    if name == "overwrite":
        assert batch.targets[0, -1].tolist() == [1, 0, 1, 0, 1, 0] and sizes == {"length": 1}


BAD = [
    ("copy", {}, "vectors"),
    ("copy", {"vectors": [], "x": 1}, "x"),
    ("copy", {"vectors": []}, "vectors"),
    ("copy", {"vectors": ["101"]}, "8 bits"),
    ("copy", {"vectors": [[2] * 8]}, "8 bits"),
    ("copy", {"vectors": 3}, "vectors"),
    ("repeat-copy", {"vectors": ["10110010"], "repeats": 0}, "repeats"),
    ("repeat-copy", {"vectors": ["10110010"], "repeats": True}, "repeats"),
    ("associative-recall", {"items": [["101101"] * 3], "query": 1}, "two or more"),
    ("associative-recall", {"items": [["101101"] * 3, ["101101"] * 2], "query": 1}, "3 vectors"),
    ("associative-recall", {"items": [["101101"] * 3] * 2, "query": 2}, "query"),
    ("n-grams", {"bits": "01"}, "bits"),
    ("n-grams", {"bits": "01x0101"}, "bits"),
    ("priority-sort", {"vectors": ["10110010"], "priorities": [2]}, "priorities"),
    ("priority-sort", {"vectors": ["10110010"], "priorities": []}, "priorities"),
    ("overwrite", {"writes": [["000001"]], "queries": ["000001"]}, "pairs"),
    ("overwrite", {"writes": [["000001", "111111"]], "queries": ["100001"]}, "query"),
]


@pytest.mark.parametrize(("name", "fields", "text"), BAD)
def test_bad_sequences_name_their_place(name: str, fields: dict[str, Any], text: str):
    with pytest.raises(DataError) as caught:
        build_tape_task(name).given(fields, "a.jsonl, line 3")
    assert mentions(caught.value, "a.jsonl", "line 3", text)


def test_bad_options():
    with pytest.raises(UnknownName):
        build_tape_task("sort")
    with pytest.raises(UnknownName):
        build_tape_task("copy", repeats=(1, 2))
    for options in ({"length": (5, 2)}, {"length": (0, 2)}):
        with pytest.raises(ArgumentError):
            build_tape_task("copy", **options)
    with pytest.raises(ArgumentError, match="64"):
        build_tape_task("overwrite", length=(2, 65))
    with pytest.raises(ArgumentError, match="length"):
        build_tape_task("associative-recall", length=(1, 3))


def test_padding_is_not_scored():
    _, batch = drawn("copy", length=3)
    padded = batch.padded_to(6, 9)
    assert padded.inputs.shape == (6, 9, 9) and padded.scored_bits == batch.scored_bits
    assert padded.padded_to(6, 9) is padded
    joined = TapeBatch.joined([batch, drawn("copy", length=5)[1]])
    assert len(joined) == 10 and joined.steps == 11
