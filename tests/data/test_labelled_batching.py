"""Encoded labelled texts and their batches: the rules of Batches, with the labels of the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import LabelledBatch, LabelledBatches, Labels, encode_texts, labelled_from_lists
from regard.data.batch import EOS, NO_LABEL
from regard.data.batching import EncodedTexts
from regard.data.tokenizers import train_tokenizer
from regard.errors import ArgumentError, DataError, UnknownName
from tests.facts import facts

LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)


def data_of(lengths: Sequence[tuple[int, int]], pairs: bool) -> EncodedTexts:
    """Texts of these lengths, whose tokens and labels identify the text."""
    firsts = [[4 + number] * length for number, (length, _) in enumerate(lengths)]
    seconds = [[1004 + number] * length for number, (_, length) in enumerate(lengths)]
    return EncodedTexts.in_memory(firsts, range(7, 7 + len(lengths)), seconds if pairs else None)


def same(one: LabelledBatch, other: LabelledBatch) -> bool:
    both = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return all((a is None and b is None) or torch.equal(a, b) for a, b in both)


@settings(max_examples=40)
@given(lengths=LENGTHS, tokens=st.integers(1, 60), epoch=st.integers(0, 3), pairs=st.booleans())
def test_every_text_occurs_once_with_its_label(lengths, tokens: int, epoch: int, pairs: bool):
    data = data_of(lengths, pairs)
    batches = list(LabelledBatches(data, tokens).epoch(epoch))
    assert sorted(number for batch in batches for number in batch.index.tolist()) == list(range(len(data)))
    for batch in batches:
        rows = batch.index.tolist()
        expected = LabelledBatch.collate(
            [data.firsts.at(row).tolist() for row in rows],
            [data.seconds.at(row).tolist() for row in rows] if data.seconds is not None else None,
            [row + 7 for row in rows],
            rows,
        )
        assert same(batch, expected)
        longest = max(batch.first.shape[1], 0 if batch.second is None else batch.second.shape[1])
        assert len(batch) == 1 or len(batch) * longest <= tokens


@pytest.mark.parametrize("pairs", [False, True])
def test_epochs_resume_and_processes_share_batches(pairs: bool):
    generator = numpy.random.default_rng(0)
    data = data_of(list(zip(*generator.integers(1, 20, (2, 97)).tolist(), strict=True)), pairs)
    batches = LabelledBatches(data, 40, seed=3)
    whole = list(batches.epoch(2))
    assert batches.len_epoch(2) == len(whole) > 5 and batches.left_out == 0
    assert all(map(same, batches.epoch(2, start=4), whole[4:]))
    assert batches.plan(2).rows(0).tolist() == whole[0].index.tolist()
    largest = whole[batches.largest(2)]
    assert largest.first.numel() > 0 and all(
        len(largest) * max(largest.first.shape[1], 0 if largest.second is None else largest.second.shape[1])
        >= len(batch) * max(batch.first.shape[1], 0 if batch.second is None else batch.second.shape[1])
        for batch in whole
    )
    again = [batch.index.tolist() for batch in LabelledBatches(data, 40, seed=3).epoch(2)]
    assert again == [batch.index.tolist() for batch in whole]
    assert again != [batch.index.tolist() for batch in LabelledBatches(data, 40, seed=4).epoch(2)]
    one = LabelledBatches(data, 80, seed=3)
    ranks = [LabelledBatches(data, 40, seed=3, rank=rank, world=2).epoch(2) for rank in range(2)]
    for together, *parts in zip(one.epoch(2), *ranks, strict=True):
        rows = [row for part in parts for row in part.index.tolist()]
        assert sorted(rows) == sorted(together.index.tolist())
        assert [label for part in parts for label in part.labels.tolist()] == [row + 7 for row in rows]


def test_batch_is_moved_selected_and_repeated_as_a_whole():
    for seconds in (None, [[7], [8, 9], []]):
        batch = LabelledBatch.collate([[4, 5], [6], []], seconds, [1, 0, 2], [10, 11, 12])
        chosen = batch.select(torch.tensor([2, 0, 2]))
        assert chosen.index.tolist() == [12, 10, 12] and chosen.labels.tolist() == [2, 1, 2]
        assert chosen.first_lengths.tolist() == [1, 3, 1] and len(chosen) == 3
        assert same(batch.repeat(2), batch.select(torch.tensor([0, 0, 1, 1, 2, 2])))
        assert same(batch.to("cpu"), batch) and batch.to("meta").labels.device.type == "meta"
        for field in fields(batch):
            tensor = getattr(batch, field.name)
            assert (tensor is None) == (seconds is None and field.name.startswith("second"))
            assert tensor is None or len(getattr(chosen, field.name)) == 3
    assert batch.second.tolist() == [[7, EOS, 0], [8, 9, EOS], [EOS, 0, 0]]


def test_padded_batch_has_empty_texts_without_label():
    for seconds in (None, [[7], [8, 9, 9]]):
        batch = LabelledBatch.collate([[4, 5], [6]], seconds, [1, 0])
        padded = batch.padded_to(rows=4, length=8)
        assert padded.first.shape == (4, 8) and padded.labels.tolist() == [1, 0, NO_LABEL, NO_LABEL]
        assert padded.first_lengths.tolist() == [3, 2, 1, 1] and padded.first[2:, 0].tolist() == [EOS, EOS]
        kept = padded.select(torch.arange(2))
        assert torch.equal(kept.first[:, :3], batch.first) and not kept.first[:, 3:].any()
        if seconds:
            assert padded.second.shape == (4, 8) and padded.second_lengths.tolist() == [2, 4, 1, 1]
    for rows, length in ((1, 8), (2, 3)):
        with pytest.raises(ArgumentError, match=facts("2 rows", "length 4")):
            batch.padded_to(rows, length)
    loss = torch.nn.functional.cross_entropy(torch.randn(4, 2), padded.labels)
    assert loss.isfinite()


def test_collate_checks_counts():
    for options in ({"labels": [0]}, {"seconds": [[4]]}, {"index": [1]}):
        with pytest.raises(ArgumentError, match=facts("2 firsts", 1)):
            LabelledBatch.collate([[4], [5]], **options)
    with pytest.raises(ArgumentError, match=facts("2 firsts", "1 labels")):
        EncodedTexts.in_memory([[4], [5]], [1])
    assert LabelledBatch.collate([[4]]).labels.tolist() == [NO_LABEL]


def test_long_texts_are_truncated_or_skipped():
    texts = labelled_from_lists(["a b c", "a", "b"], ["x", "y", "x"], seconds=["a", "a b", "c"])
    tokenizer, labels = train_tokenizer("word", texts.texts), texts.label_set()
    cut = encode_texts(texts, labels, tokenizer, longest=1)
    assert (cut.truncated, cut.skipped, len(cut)) == (2, 0, 3) and cut.pairs
    assert cut.firsts.lengths().tolist() == cut.seconds.lengths().tolist() == [1, 1, 1]
    left = encode_texts(texts, labels, tokenizer, longest=2, over="skip")
    assert (left.truncated, left.skipped) == (0, 1) and left.numbers.tolist() == [1, 2]
    (batch,) = LabelledBatches(left, 100, shuffle=False).epoch(0)
    assert batch.index.tolist() == [2, 1] and batch.labels.tolist() == [0, 1]
    assert encode_texts(texts, labels, tokenizer, longest=None).truncated == 0
    assert "2 pairs, 1 skipped" in repr(left)
    with pytest.raises(DataError, match=facts("3 texts", "1 tokens")):
        encode_texts(texts.select([0, 1, 0]), labels, tokenizer, longest=1, over="skip")
    with pytest.raises(UnknownName):
        encode_texts(texts, labels, tokenizer, over="drop")
    with pytest.raises(ArgumentError, match=facts("longest", 0)):
        encode_texts(texts, labels, tokenizer, longest=0)
    with pytest.raises(DataError, match="line 2"):
        encode_texts(texts, Labels(("x", "z")), tokenizer)
