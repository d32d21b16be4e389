"""Batches of running text: every token once, any start, any number of processes, and clear errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import BOS, EOS, PAD, TextBatch
from regard.data.encoded_text import (
    DocumentBatches,
    EncodedText,
    SlidingWindows,
    StreamBatches,
    WindowBatches,
)
from regard.data.tokenizers import train_tokenizer
from regard.errors import ArgumentError, DataError

NUMBERS = [f"n{number}" for number in range(300)]
TOKENIZER = train_tokenizer("word", NUMBERS)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def text_of(lengths: Sequence[int], layout: str) -> EncodedText:
    """A text with lines of these lengths, in which no word occurs twice."""
    words = iter(NUMBERS)
    lines = [" ".join(itertools.islice(words, length)) for length in lengths]
    return EncodedText.from_lines(lines, TOKENIZER, layout=layout, name="file.txt")


def predicted(batches: Sequence[TextBatch]) -> list[tuple[int, int]]:
    """All counted (input, target) pairs."""
    pairs = []
    for batch in batches:
        counted = batch.targets != PAD
        pairs += zip(batch.inputs[counted].tolist(), batch.targets[counted].tolist(), strict=True)
    return pairs


def same(ones: Sequence[TextBatch], others: Sequence[TextBatch]) -> bool:
    names = ("inputs", "targets", "lengths", "index")
    return len(ones) == len(others) and all(
        one.carried == other.carried
        and all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)
        for one, other in zip(ones, others, strict=True)
    )


def joined(parts: Sequence[TextBatch]) -> TextBatch:
    """The batch of one process from those of several: row r of process p is row r * world + p."""
    order = sorted((row, part) for part, batch in enumerate(parts) for row in range(len(batch)))
    widest = max(batch.inputs.shape[1] for batch in parts)
    rows = [parts[part].select(torch.tensor([row])) for row, part in order]

    def concatenated(name: str) -> torch.Tensor:
        tensors = [getattr(row, name) for row in rows]
        if tensors[0].dim() == 2:
            tensors = [torch.nn.functional.pad(each, (0, widest - each.shape[1])) for each in tensors]
        return torch.cat(tensors)

    names = ("inputs", "targets", "lengths", "index")
    return TextBatch(*map(concatenated, names), carried=parts[0].carried)  # type: ignore[misc, arg-type]


def all_pairs(text: EncodedText) -> list[tuple[int, int]]:
    flat = text.flat().tolist()
    return [pair for pair in itertools.pairwise(flat) if pair[1] != BOS]


@given(lengths=LENGTHS, window=st.integers(1, 12), streams=st.integers(1, 4), world=st.integers(1, 2))
def test_streams_read_the_text_in_order(lengths: list[int], window: int, streams: int, world: int):
    text = text_of(lengths, "continuous")
    rows = streams * world
    length = text.token_count // rows
    if length < window:
        with pytest.raises(DataError, match=rf"file.txt: the window has {window} tokens"):
            StreamBatches(text, window, streams, world=world)
        return
    each = [StreamBatches(text, window, streams, rank=rank, world=world) for rank in range(world)]
    batches = [joined(parts) for parts in zip(*(part.epoch(0) for part in each), strict=True)]
    assert len(batches) == each[0].len_epoch(0) == -(-length // window)
    assert [batch.carried for batch in batches] == [False] + [True] * (len(batches) - 1)
    inputs = torch.cat([batch.inputs for batch in batches], 1)
    targets = torch.cat([batch.targets for batch in batches], 1)
    flat = torch.tensor(text.flat().tolist())
    assert torch.equal(inputs.flatten(), flat[: rows * length])
    assert torch.equal(targets.flatten(), flat[1 : rows * length + 1])
    assert each[0].left_out == text.token_count - rows * length < rows
    for batch in batches:
        assert batch.inputs.shape[1] <= window and set(batch.lengths.tolist()) == {batch.inputs.shape[1]}
        for row in range(len(batch)):
            assert int(flat[1 + batch.index[row]]) == int(batch.targets[row, 0])


def test_streams_are_the_same_in_every_epoch_and_from_any_batch():
    batches = StreamBatches(text_of([7] * 9, "continuous"), window=5, streams=3)
    whole = list(batches.epoch(0))
    assert len(whole) == 5 and same(whole, list(batches.epoch(4)))
    for start in range(6):
        assert same(whole[start:], list(batches.epoch(1, start)))
    assert batches.largest(0) == 0 and whole[-1].inputs.shape == (3, 4)


@given(
    lengths=LENGTHS,
    window=st.integers(1, 9),
    tokens=st.integers(1, 40),
    world=st.integers(1, 3),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_windows_predict_every_token_once(
    lengths: list[int], window: int, tokens: int, world: int, shuffle: bool, epoch: int
):
    text = text_of(lengths, "continuous")
    if text.token_count < window * world:
        with pytest.raises(DataError, match=r"file.txt: the window has"):
            WindowBatches(text, window, tokens, world=world)
        return
    each = [
        WindowBatches(text, window, tokens, shuffle=shuffle, rank=rank, world=world) for rank in range(world)
    ]
    batches = [joined(parts) for parts in zip(*(part.epoch(epoch) for part in each), strict=True)]
    assert sorted(predicted(batches)) == sorted(all_pairs(text))
    assert {batch.inputs.shape[1] for batch in batches} == {window} and len(batches) == each[0].len_epoch(
        epoch
    )
    assert not any(batch.carried for batch in batches)
    rows = max(tokens // window, 1) * world
    assert all(len(batch) <= rows + world - 1 for batch in batches)
    assert len(batches[each[0].largest(epoch)]) == max(map(len, batches))
    if world == 1:
        whole = list(each[0].epoch(epoch))
        for start in range(len(whole) + 1):
            assert same(whole[start:], list(each[0].epoch(epoch, start)))
        if not shuffle:
            assert predicted(batches) == all_pairs(text)


def test_windows_depend_on_seed_and_epoch_only():
    text = text_of([9] * 20, "continuous")

    def order(seed: int, epoch: int) -> list[TextBatch]:
        return list(WindowBatches(text, 8, 32, seed=seed).epoch(epoch))

    assert same(order(1, 2), order(1, 2))
    assert not same(order(1, 2), order(1, 3)) and not same(order(1, 2), order(2, 2))
    begins = {int(batch.index.max()) % 8 for epoch in range(20) for batch in order(0, epoch)}
    assert len(begins) > 3, "windows begin at other positions in each epoch"


@settings(max_examples=50)
@given(lengths=LENGTHS, tokens=st.integers(1, 40), epoch=st.integers(0, 2))
def test_documents_are_whole(lengths: list[int], tokens: int, epoch: int):
    text = text_of(lengths, "documents")
    batches = DocumentBatches(text, tokens)
    whole = list(batches.epoch(epoch))
    assert len(whole) == batches.len_epoch(epoch) and not any(batch.carried for batch in whole)
    assert sorted(predicted(whole)) == sorted(all_pairs(text))
    for batch in whole:
        assert batch.inputs[:, 0].eq(BOS).all() and batch.inputs.numel() <= max(tokens, 10)
        for row, number in enumerate(batch.index.tolist()):
            line = text.lines.at(number).tolist()
            assert batch.targets[row, : batch.lengths[row]].tolist() == [*line, EOS]
    assert same(whole[1:], list(batches.epoch(epoch, 1)))
    largest = whole[batches.largest(epoch)]
    assert largest.inputs.numel() == max(batch.inputs.numel() for batch in whole)


def test_documents_of_several_processes_and_long_ones():
    text = text_of([3, 9, 4, 4, 5, 3, 2], "documents")
    one = list(DocumentBatches(text, 12).epoch(0))
    parts = [DocumentBatches(text, 6, rank=rank, world=2) for rank in (0, 1)]
    both = [joined(each) for each in zip(*(part.epoch(0) for part in parts), strict=True)]
    assert sorted(predicted(both)) == sorted(predicted(one))
    assert DocumentBatches(text, 12, longest=4).left_out == 2


@given(
    lengths=LENGTHS,
    window=st.integers(1, 12),
    stride=st.integers(1, 12),
    tokens=st.integers(1, 50),
    layout=st.sampled_from(["documents", "continuous"]),
)
def test_sliding_windows_predict_every_token_once_with_context(
    lengths: list[int], window: int, stride: int, tokens: int, layout: str
):
    text = text_of(lengths, layout)
    if stride > window:
        with pytest.raises(ArgumentError, match=f"stride is {stride}"):
            SlidingWindows(text, window, stride)
        return
    windows = SlidingWindows(text, window, stride, tokens=tokens)
    batches = list(windows)
    assert len(batches) == len(windows) and predicted(batches) == all_pairs(text)
    for batch in batches:
        assert batch.inputs.shape[1] <= window and len(batch) <= max(tokens // window, 1)
        for row, (inputs, targets, length) in enumerate(
            zip(batch.inputs, batch.targets, batch.lengths, strict=True)
        ):
            at_start = inputs[0] == BOS if layout == "documents" else batch.index[row] == 0
            assert int((targets != PAD).nonzero()[0, 0]) == (0 if at_start else window - stride)
            assert inputs[length:].eq(PAD).all() and targets[length:].eq(PAD).all()
    if layout == "documents":
        first_words = {number: text.lines.at(number)[0] for number in range(len(text))}
        for batch in batches:
            for inputs, targets, number in zip(
                batch.inputs, batch.targets, batch.index.tolist(), strict=True
            ):
                assert inputs[0] != BOS or targets[0] == first_words[number]


def test_sliding_windows_of_a_short_text_and_the_default_stride():
    text = text_of([2], "continuous")
    (batch,) = SlidingWindows(text, window=100)
    assert batch.inputs.shape == (1, 3) and batch.count == 3
    assert SlidingWindows(text, window=100).stride == 50 and SlidingWindows(text, window=1).stride == 1


def test_invalid_arguments_raise():
    continuous, documents = text_of([9, 9], "continuous"), text_of([9, 9], "documents")
    for make in (StreamBatches, WindowBatches):
        with pytest.raises(ArgumentError, match=r"layout of the text is 'documents'\nhint: .*continuous"):
            make(documents, 2)  # type: ignore[operator]
        with pytest.raises(ArgumentError, match="window is 0"):
            make(continuous, 0)  # type: ignore[operator]
        with pytest.raises(ArgumentError, match="rank is 2"):
            make(continuous, 2, 2, rank=2, world=2)  # type: ignore[operator]
        with pytest.raises(ArgumentError, match=r"start is 99\nexpected: 0 to \d+"):
            make(continuous, 2, 2).epoch(0, 99)  # type: ignore[operator]
    with pytest.raises(ArgumentError, match="layout of the text is 'continuous'"):
        DocumentBatches(continuous)
    with pytest.raises(ArgumentError, match="seed is -1"):
        WindowBatches(continuous, 2, seed=-1)
    with pytest.raises(ArgumentError, match="epoch is -1"):
        WindowBatches(continuous, 2).epoch(-1)
    with pytest.raises(ArgumentError, match="tokens is 0"):
        SlidingWindows(continuous, 4, tokens=0)


def test_a_window_longer_than_a_stream_raises_with_the_numbers():
    text = text_of([9, 9], "continuous")
    assert len(list(StreamBatches(text, window=20, streams=1).epoch(0))) == 1
    with pytest.raises(DataError, match=r"file\.txt: .*21 tokens, but the text has 20 \(one stream\)"):
        StreamBatches(text, window=21, streams=1)
    with pytest.raises(DataError, match=r"file\.txt: .*6 tokens, but the text has 20 \(4 streams of 5\)"):
        StreamBatches(text, window=6, streams=2, world=2)
    with pytest.raises(DataError, match=r"file\.txt: .*11 tokens for each of 2 processes"):
        WindowBatches(text, window=11, world=2)
    for processes, remedy in ((2, "window"), (21, "processes")):
        with pytest.raises(DataError, match=rf"hint: use .*{remedy}"):
            WindowBatches(text, window=11, world=processes)
