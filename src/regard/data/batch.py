"""Batches: the inputs of models, as dataclasses of tensors with one row for each sequence.

pack() copies the tensors of a batch to one buffer, which one copy moves to a device: a copy to a GPU takes
several microseconds, even of a few bytes, and a batch has several small tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

import numpy
import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.memory import Memory

ALIGNMENT = 16
"""The offset of each tensor in the buffer is a multiple of this number of bytes."""


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in order. A batch is a tensor, or a tuple or dataclass of batches.

    >>> [each.shape for each in tensors_in((torch.zeros(2), None, (torch.zeros(3, 1),)))]
    [torch.Size([2]), torch.Size([3, 1])]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for each in batch:
            yield from tensors_in(each)
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from tensors_in(getattr(batch, field.name))


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return a copy of a batch with function(tensor) for each tensor, in the order of tensors_in()."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple):
        parts = [map_tensors(function, each) for each in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if is_dataclass(batch) and not isinstance(batch, type):
        changed = {each.name: map_tensors(function, getattr(batch, each.name)) for each in fields(batch)}
        return replace(batch, **changed)
    return batch


def pack(tensors: Sequence[Tensor], pin_memory: bool = False) -> list[Tensor]:
    """Return copies of the tensors, all on one device, that are parts of one new buffer.

    pin_memory: whether the buffer is in pinned memory. Then the tensors must be on the CPU.

    >>> first, second = pack([torch.tensor([1, 2]), torch.tensor([[True]])])
    >>> first, second, buffer_of([first, second]).shape
    (tensor([1, 2]), tensor([[True]]), torch.Size([32]))
    """
    device = tensors[0].device if tensors else None
    buffer = torch.empty(_offsets(tensors)[-1], dtype=torch.uint8, device=device, pin_memory=pin_memory)
    parts = parts_of(buffer, tensors)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return parts


def parts_of(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a buffer with the shapes and dtypes of the tensors, in the layout of pack()."""
    offsets = _offsets(tensors)
    return [
        buffer[offset : offset + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=False)
    ]


def buffer_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the buffer of tensors that pack() or parts_of() returned; None if they are other tensors."""
    if len(tensors) < 2:
        return None
    storage, offsets = tensors[0].untyped_storage(), _offsets(tensors)
    if storage.nbytes() != offsets[-1]:
        return None
    for tensor, offset in zip(tensors, offsets, strict=False):
        same = tensor.untyped_storage().data_ptr() == storage.data_ptr() and tensor.is_contiguous()
        if not same or tensor.storage_offset() * tensor.element_size() != offset:
            return None
    return torch.empty(0, dtype=torch.uint8, device=tensors[0].device).set_(storage)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to the target of the same shape and dtype, without waiting for the copies.

    If the targets have one buffer and the sources have another, one copy is enough.
    """
    buffer, source = buffer_of(targets), buffer_of(sources)
    if buffer is not None and source is not None:
        buffer.copy_(source, non_blocking=True)
        return
    for target, tensor in zip(targets, sources, strict=True):
        target.copy_(tensor, non_blocking=True)


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return the offset of each tensor in the buffer in bytes, and the size of the buffer."""
    offsets = [0]
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets


class BatchRows:
    """Base class of dataclasses of tensors with one row per sequence, for example of batches.

    The methods change all fields together: they move the tensors to a device, or select or repeat rows. The
    first dimension of every tensor, and of every regard.Memory (prepared keys and values), is the batch
    dimension. Tensors and memories may be in tuples and in other BatchRows. Values of other types, such as
    None or a bool, are the same for all rows and are not changed. So a subclass can add a field without
    further code.

    >>> import dataclasses, torch
    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class Points(BatchRows):
    ...     x: torch.Tensor
    ...     y: torch.Tensor | None = None
    >>> points = Points(torch.tensor([1.0, 2.0, 3.0]))
    >>> points.select(torch.tensor([2, 0])).repeat(2).x
    tensor([3., 3., 1., 1.])
    """

    def to(self, device: torch.device | str) -> Self:
        """Return a copy with all tensors on `device`.

        If all tensors are parts of one buffer (pack()), they are moved together.
        """
        tensors: list[Tensor] = []

        def listed(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self._map(listed, lambda memory: memory)
        buffer = None if torch.device(device).type == "cpu" else buffer_of(tensors)
        if buffer is not None:
            moved = iter(parts_of(buffer.to(device, non_blocking=True), tensors))
            return self._map(lambda tensor: next(moved), lambda memory: memory.to(device))
        # A non-blocking copy to the CPU could be read before it is complete.
        non_blocking = torch.device(device).type != "cpu"
        return self._map(
            lambda tensor: tensor.to(device, non_blocking=non_blocking), lambda memory: memory.to(device)
        )

    def select(self, rows: Tensor | slice) -> Self:
        """Return a copy with only some rows.

        rows: the indices of the rows, (B',), in which an index may occur more than once; or a slice.
        """
        if isinstance(rows, slice):
            return self._map(
                lambda tensor: tensor[rows], lambda memory: memory.reorder(_rows_of(memory)[rows])
            )
        return self._map(
            lambda tensor: tensor.index_select(0, rows.to(tensor.device)),
            lambda memory: memory.reorder(rows.to(memory.key.device)),
        )

    def reorder(self, index: Tensor) -> Self:
        """Alias of select(), for code written for earlier versions."""
        return self.select(index)

    def repeat(self, count: int) -> Self:
        """Return a copy in which each row occurs `count` times, one after the other."""
        return self._map(
            lambda tensor: tensor.repeat_interleave(count, 0),
            lambda memory: memory.reorder(_rows_of(memory).repeat_interleave(count)),
        )

    def detach(self) -> Self:
        """Return a copy with detached tensors: no gradient flows back through them."""
        return self._map(Tensor.detach, Memory.detach)

    def add_rows(self, count: int) -> Self:
        """Return a copy with `count` rows of zeros appended to every tensor.

        If 0 is not the right value for a field, change the result with dataclasses.replace(). Raises
        TypeError if a field has a regard.Memory.
        """

        def refuse(memory: Memory) -> Memory:
            raise TypeError("add_rows() does not support a Memory")

        return self._map(
            lambda tensor: torch.cat((tensor, tensor.new_zeros(count, *tensor.shape[1:]))), refuse
        )

    def grown(self, rows: int, sizes: Mapping[str, int], added: Mapping[str, int]) -> Self:
        """Return a copy that is padded with zeros to a given number of rows and to given sizes.

        rows: number of rows.
        sizes: field -> the size of the second dimension of its tensor.
        added: field -> its value in the added rows. In a field of `sizes`, only the first column gets it.
        """
        count = len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]
        least = {name: getattr(self, name).shape[1] for name in sizes}
        longest = max(least.values(), default=0)
        if rows < count or any(sizes[name] < size for name, size in least.items()):
            named = ", ".join(f"{name} {size}" for name, size in sizes.items())
            problem = f"rows={rows} and length {named} are too small"
            expected = f"at least {count} rows and length {longest}"
            raise ArgumentError(message(f"{type(self).__name__}.padded_to()", problem, expected=expected))
        copy = self.add_rows(rows - count)
        changed = {}
        for name in (*sizes, *(each for each in added if each not in sizes)):
            tensor = getattr(copy, name)
            if name in sizes:
                padding = tensor.new_zeros(rows, sizes[name] - least[name], *tensor.shape[2:])
                tensor = torch.cat((tensor, padding), 1)
            (tensor[:, :1] if name in sizes else tensor)[count:] = added.get(name, PAD)
            changed[name] = tensor
        return replace(copy, **changed)  # type: ignore[type-var]

    def _map(self, change: Callable[[Tensor], Tensor], change_memory: Callable[[Memory], Memory]) -> Self:
        """Return a copy, with one function applied to every tensor and another one to every regard.Memory."""

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, Memory):
                return change_memory(value)
            if isinstance(value, BatchRows):
                return value._map(change, change_memory)
            if isinstance(value, tuple):
                parts = map(changed, value)
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            return value

        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{name: changed(value) for name, value in values.items()})  # type: ignore[type-var]


def _rows_of(memory: Memory) -> Tensor:
    return torch.arange(len(memory.key), device=memory.key.device)


PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Ids of the special tokens, the first four of every vocabulary: padding, unknown token, begin of sentence
and end of sentence."""


@dataclass(frozen=True, eq=False)
class Batch(BatchRows):
    """A batch of source sentences with EOS and target sentences with BOS and EOS, padded with PAD.

    source: (B, S), token ids.
    source_lengths: (B,), number of tokens of each source, including EOS.
    target: (B, 1 + T), token ids, starting with BOS.
    target_lengths: (B,), number of tokens of each target, including EOS but not BOS.
    index: (B,), position of each sample in its dataset.

    >>> from regard.data.batch import Batch
    >>> batch = Batch.collate([[7, 8], [9]], [[5], [6, 4]])
    >>> batch.source, batch.inputs, batch.labels
    (tensor([[7, 8, 3],
            [9, 3, 0]]), tensor([[2, 5, 3],
            [2, 6, 4]]), tensor([[5, 3, 0],
            [6, 4, 3]]))
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.source)

    @property
    def inputs(self) -> Tensor:
        """Decoder input for teacher forcing, (B, T): `target` without its last column."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """Tokens to predict, (B, T): `target` without its first column, BOS."""
        return self.target[:, 1:]

    @classmethod
    def collate(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]] | None = None,
        index: Sequence[int] | None = None,
    ) -> Batch:
        """Add BOS and EOS to lists of token ids, and pad them to a batch.

        sources: the token ids of each source sentence.
        targets: the token ids of each target sentence. None for inference: each target is only BOS.
        index: position of each sample in its dataset; the default is 0, 1, ...
        """
        source_rows = [[*source, EOS] for source in sources]
        if targets is None:
            target_rows = [[BOS]] * len(source_rows)
        else:
            target_rows = [[BOS, *target, EOS] for target in targets]
        return cls(
            padded(source_rows),
            torch.tensor([len(row) for row in source_rows]),
            padded(target_rows),
            torch.tensor([len(row) - 1 for row in target_rows]),
            torch.as_tensor(range(len(source_rows)) if index is None else index),
        )

    def padded_to(self, rows: int, source_length: int, target_length: int) -> Batch:
        """Return a copy that is padded to a given batch size and to given lengths.

        rows: number of rows of the copy. The source of an added row is only EOS. Its labels are PAD, so that
            it does not count in the loss.
        source_length: number of tokens in each row of the source, including EOS and padding.
        target_length: number of tokens in each row of the target, including EOS and padding but not BOS.

        In the example, a batch of 1 row is padded to 2 rows, and its target from 2 tokens to 3.

        >>> Batch.collate([[7]], [[5]]).padded_to(2, 3, 3).target
        tensor([[2, 5, 3, 0],
                [2, 0, 0, 0]])
        """
        sizes = {"source": source_length, "target": target_length + 1}
        return self.grown(rows, sizes, {"source": EOS, "target": BOS, "source_lengths": 1})


def padded(rows: Sequence[Sequence[int]], value: int = PAD, width: int = 0) -> Tensor:
    """Return lists of integers as one tensor, padded with `value` to the longest list, or to `width`."""
    lengths = numpy.array([len(row) for row in rows], numpy.int64)
    filled = numpy.full((len(rows), lengths.max(initial=width)), value, numpy.int64)
    numbers = numpy.fromiter(itertools.chain.from_iterable(rows), numpy.int64, int(lengths.sum()))
    filled[numpy.arange(filled.shape[1]) < lengths[:, None]] = numbers
    return torch.from_numpy(filled)


NO_LABEL = -100
"""The label of a text whose class is not known: the default of ignore_index in torch's cross_entropy."""


@dataclass(frozen=True, eq=False)
class LabelledBatch(BatchRows):
    """A batch of texts, or of pairs of texts, with class labels. Texts end with EOS and are padded with PAD.

    first: (B, S), the token ids of the texts, or of the first text of each pair.
    first_lengths: (B,), number of tokens of each text in `first`, including EOS.
    labels: (B,), class indices from 0; NO_LABEL if the class is not known.
    index: (B,), index of each text in its dataset.
    second: (B, T), the token ids of the second text of each pair; None if the texts are not pairs.
    second_lengths: (B,), number of tokens of each text in `second`, including EOS, or None.

    >>> batch = LabelledBatch.collate([[7, 8], [9]], labels=[1, 0])
    >>> batch.first, batch.labels, batch.second
    (tensor([[7, 8, 3],
            [9, 3, 0]]), tensor([1, 0]), None)
    >>> batch.select(torch.tensor([1])).repeat(2).first_lengths
    tensor([2, 2])
    """

    first: Tensor
    first_lengths: Tensor
    labels: Tensor
    index: Tensor
    second: Tensor | None = None
    second_lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def collate(
        cls,
        firsts: Sequence[Sequence[int]],
        seconds: Sequence[Sequence[int]] | None = None,
        labels: Sequence[int] | None = None,
        index: Sequence[int] | None = None,
    ) -> LabelledBatch:
        """Add EOS to lists of token ids, and pad them to a batch.

        firsts: the token ids of each text, or of the first text of each pair.
        seconds: the token ids of the second text of each pair, or None if the texts are not pairs.
        labels: class indices, or None for inference: every label is NO_LABEL.
        index: index of each text in its dataset; the default is 0, 1, ...
        """
        for name, rows in (("seconds", seconds), ("labels", labels), ("index", index)):
            if rows is not None and len(rows) != len(firsts):
                problem = f"there are {len(firsts)} firsts and {len(rows)} {name}"
                raise ArgumentError(message("LabelledBatch.collate()", problem, expected="the same number"))
        batch, pairs = Batch.collate(firsts, seconds, index), seconds is not None
        known = torch.full((len(firsts),), NO_LABEL) if labels is None else torch.as_tensor(labels)
        second = (batch.labels, batch.target_lengths) if pairs else (None, None)
        return cls(batch.source, batch.source_lengths, known.to(torch.long), batch.index, *second)

    def padded_to(self, rows: int, length: int, second_length: int | None = None) -> LabelledBatch:
        """Return a copy that is padded to a given batch size and to given lengths.

        rows: number of rows of the copy. An added row is an empty text (EOS alone) with the label NO_LABEL.
        length: number of tokens of each text, including EOS and padding.
        second_length: number of tokens of the second text of each pair, including EOS and padding. Default:
            `length`.

        Padding limits the number of different batch shapes, for CUDA graphs and torch.compile. It also gives
        one common shape to the batches of models that are trained together with different random seeds.
        """
        sizes, added = {"first": length}, {"first": EOS, "first_lengths": 1, "labels": NO_LABEL}
        if self.second is not None:
            sizes["second"] = length if second_length is None else second_length
            added |= {"second": EOS, "second_lengths": 1}
        return self.grown(rows, sizes, added)


@dataclass(frozen=True, eq=False)
class ImageBatch(Batch):
    """A batch of images with captions: a Batch whose source is images.

    source: images (B, 3, H, W), uint8, or feature vectors (B, L, F) that were computed before.
    source_lengths: (B,), zeros, because images have no length.
    target: (B, T + 1), the token ids of the captions with BOS and EOS, padded with PAD.
    target_lengths: (B,), number of tokens to predict of each caption, with EOS.
    index: (B,), index of each example in its dataset.

    >>> batch = ImageBatch.of(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), [[5], [6, 4]])
    >>> batch.image.shape, batch.inputs, batch.targets
    (torch.Size([2, 3, 8, 8]), tensor([[2, 5, 3],
            [2, 6, 4]]), tensor([[5, 3, 0],
            [6, 4, 3]]))
    """

    @classmethod
    def of(
        cls,
        image: Tensor,
        captions: Sequence[Sequence[int]] | None = None,
        index: Sequence[int] | None = None,
    ) -> ImageBatch:
        """Create a batch from images and the token ids of one caption for each image.

        image: images (B, 3, H, W), or feature vectors (B, L, F) that were computed before.
        captions: the token ids of each caption, without BOS and EOS; None for inference.
        index: index of each example in its dataset. Default: 0, 1, 2, ...
        """
        if captions is not None and len(captions) != len(image):
            problem = f"there are {len(image)} images and {len(captions)} captions"
            raise ArgumentError(message("ImageBatch.of()", problem, expected="one caption for each image"))
        text = Batch.collate([()] * len(image), captions, index)
        return cls.of_text(image, text)

    @classmethod
    def of_text(cls, image: Tensor, text: Batch) -> ImageBatch:
        """Create a batch from B images and their captions.

        image: images (B, 3, H, W), or feature vectors (B, L, F).
        text: a Batch whose target has the token ids of the captions; its source is ignored.
        """
        return cls(image, torch.zeros_like(text.index), text.target, text.target_lengths, text.index)

    @property
    def image(self) -> Tensor:
        """The images (B, 3, H, W), or their feature vectors (B, L, F)."""
        return self.source

    @property
    def targets(self) -> Tensor:
        """Token ids to predict, (B, T): the captions with EOS, without BOS, padded with PAD."""
        return self.labels

    def padded_to(self, rows: int, source_length: int, target_length: int) -> ImageBatch:
        """Return a batch padded to `rows` rows, with target_length tokens to predict in each row.

        The image of an added row is black, and its targets are PAD, so that it does not count in the loss.

        rows: number of rows; at least the number of rows of this batch.
        source_length: ignored, because images have no length.
        target_length: T, number of tokens to predict with EOS and padding.

        >>> ImageBatch.of(torch.zeros(1, 3, 2, 2), [[5]]).padded_to(2, 0, 3).target
        tensor([[2, 5, 3, 0],
                [2, 0, 0, 0]])
        """
        return self.grown(rows, {"target": target_length + 1}, {"target": BOS})


@dataclass(frozen=True, eq=False)
class TextBatch(BatchRows):
    """A batch of windows of a text, or of whole documents, for language models, padded with PAD.

    Each position has an input token and a target, the next token.

    inputs: (B, T), the tokens to read.
    targets: (B, T), the tokens to predict. PAD at padding, and at positions that are not counted in the loss.
    lengths: (B,), number of input tokens of each row, without padding.
    index: (B,), where each row is in the text. In the layout "documents" (each line is a document), it is the
        index of the line. In the layout "continuous" (all lines are one text), it is the position of the
        first target in the text.
    carried: whether each row continues the same row of the previous batch. If True, a recurrent model
        continues from its last state. If False, it starts from the initial state.

    >>> batch = TextBatch.collate([[7, 8], [9]])
    >>> batch.inputs, batch.targets, batch.count
    (tensor([[2, 7, 8],
            [2, 9, 3]]), tensor([[7, 8, 3],
            [9, 3, 0]]), 5)
    >>> batch.select(slice(1, 2)).repeat(2).index
    tensor([1, 1])
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor
    index: Tensor
    carried: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def count(self) -> int:
        """Number of targets that are counted in the loss. On a GPU, this waits for pending kernels."""
        return int((self.targets != PAD).sum())

    @classmethod
    def collate(cls, documents: Sequence[Sequence[int]], index: Sequence[int] | None = None) -> Self:
        """Add BOS and EOS to lists of token ids and pad them to a batch.

        documents: the token ids of each document.
        index: the index of each document in its text; the default is 0, 1, ...
        """
        return cls.from_batch(Batch.collate(documents, documents, index))

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """Return the target sentences of a Batch as a TextBatch, to train a language model on them."""
        return cls(batch.inputs, batch.labels, batch.target_lengths, batch.index)

    def padded_to(self, rows: int, length: int) -> Self:
        """Return a copy that is padded to a given batch size and to a given length.

        rows: number of rows of the copy. All targets of an added row are PAD.
        length: number of tokens of each row, with padding.

        >>> TextBatch.collate([[7]]).padded_to(2, 3).targets
        tensor([[7, 3, 0],
                [0, 0, 0]])
        """
        return self.grown(rows, {"inputs": length, "targets": length}, {"lengths": 1})


NO_FACT = -1
"""Padding of `facts`: this hop has no supporting fact."""


@dataclass(frozen=True, eq=False)
class StoryBatch(BatchRows):
    """A batch of B stories, each with one question, as word ids padded with PAD.

    sentences: (B, S, W), the words of each sentence, oldest sentence first.
    lengths: (B,), number of sentences of each story.
    question: (B, W), the words of each question.
    answers: (B,), index of each answer; NO_LABEL if it is not known.
    facts: (B, F), indices of the supporting facts in the story, padded with NO_FACT.
    index: (B,), position of each question in its dataset.
    linear: whether the network computes attention without softmax, as in the first epochs of training
        (linear start).
    noise: (B, noise_size()), uniform random numbers; see models/memory_network.py. In training, an end-to-end
        network inserts empty sentences into each story (random noise). The numbers determine how many, and
        where. None: the network generates the numbers itself.

    >>> batch = StoryBatch.collate([[[5, 6], [7]], [[6]]], [[8, 5], [9]], answers=[0, 1], facts=[[1], []])
    >>> batch.sentences.shape, batch.lengths, batch.facts.tolist()
    (torch.Size([2, 2, 2]), tensor([2, 1]), [[1], [-1]])
    """

    sentences: Tensor
    lengths: Tensor
    question: Tensor
    answers: Tensor
    facts: Tensor
    index: Tensor
    linear: bool = False
    noise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def collate(
        cls,
        stories: Sequence[Sequence[Sequence[int]]],
        questions: Sequence[Sequence[int]],
        answers: Sequence[int] | None = None,
        facts: Sequence[Sequence[int]] | None = None,
    ) -> StoryBatch:
        """Build a batch from lists of word ids, which are padded to the same length.

        stories: for each story, the word ids of each sentence.
        questions: the word ids of each question.
        answers: the index of each answer. Default: NO_LABEL.
        facts: for each question, the indices of its supporting facts. Default: none.
        """
        for name, rows in (("questions", questions), ("answers", answers), ("facts", facts)):
            if rows is not None and len(rows) != len(stories):
                problem = f"there are {len(stories)} stories and {len(rows)} {name}"
                raise ArgumentError(message("StoryBatch.collate()", problem, expected="the same number"))
        facts = [()] * len(stories) if facts is None else facts
        size = max([1, *map(len, stories)])
        width = max([1, *map(len, questions), *(len(each) for story in stories for each in story)])
        sentences = torch.full((len(stories), size, width), PAD)
        for row, story in enumerate(stories):
            sentences[row, : len(story)] = padded(story, PAD, width)
        asked, chosen = padded(questions, PAD, width), padded(facts, NO_FACT, 1)
        known = torch.full((len(stories),), NO_LABEL) if answers is None else torch.tensor(list(answers))
        lengths = torch.tensor([len(story) for story in stories])
        return cls(sentences, lengths, asked, known, chosen, torch.arange(len(stories)))

    def padded_to(self, rows: int, sentences: int | None = None) -> StoryBatch:
        """Return the batch, padded to `rows` stories of `sentences` sentences each.

        An added story has no sentences, and the answer to its question is NO_LABEL.

        sentences: number of sentences of each story; None does not change this number.
        """
        size = self.sentences.shape[1] if sentences is None else sentences
        return self.grown(rows, {"sentences": size}, {"answers": NO_LABEL, "facts": NO_FACT})


@dataclass(frozen=True, eq=False)
class TapeBatch(BatchRows):
    """A batch of sequences of vectors.

    inputs: (B, T, X), the input vector of each step.
    targets: (B, T, Y), the bits (0 or 1) that the model must output at each step.
    scored: (B, T), bool: whether the output of each step is scored.

    >>> batch = TapeBatch(torch.zeros(2, 3, 5), torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    >>> len(batch), batch.scored_bits, batch.padded_to(3, 4).inputs.shape
    (2, 24, torch.Size([3, 4, 5]))
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return self.inputs.shape[1]

    @property
    def scored_bits(self) -> int:
        """Number of bits that are scored, in all sequences."""
        return int(self.scored.sum()) * self.targets.shape[-1]

    def padded_to(self, rows: int, steps: int) -> TapeBatch:
        """Append steps and rows of zeros, which are not scored."""
        rows, steps = max(rows, len(self)), max(steps, self.steps)
        if (rows, steps) == (len(self), self.steps):
            return self
        return self.grown(rows, {"inputs": steps, "targets": steps, "scored": steps}, {})

    @staticmethod
    def joined(batches: list[TapeBatch]) -> TapeBatch:
        """Return all sequences of several batches as one batch, padded to the same number of steps."""
        steps = max(each.steps for each in batches)
        padded = [each.padded_to(len(each), steps) for each in batches]
        fields = ([getattr(each, name) for each in padded] for name in ("inputs", "targets", "scored"))
        return TapeBatch(*(torch.cat(each) for each in fields))


def replace_words(inputs_BT: Tensor, vocabulary_size: int, probability: float) -> Tensor:
    """Return a copy of token ids, (B, T). Each word is replaced by a random word with this probability.

    Use the result as the input of a decoder in training. The targets remain the original words. So the
    decoder learns to rely less on the previous words, and more on its memory (Xie et al. 2017, "Data Noising
    as Smoothing in Neural Network Language Models").

    PAD, UNK, BOS and EOS are kept. All words have the same probability of being drawn.

    >>> inputs = torch.tensor([[2, 7, 8, 0]])
    >>> replace_words(inputs, vocabulary_size=9, probability=0.0)
    tensor([[2, 7, 8, 0]])
    >>> replaced = replace_words(inputs, vocabulary_size=5, probability=1.0)  # token 4 is the only word
    >>> replaced
    tensor([[2, 4, 4, 0]])
    """
    specials = EOS + 1
    random_BT = torch.randint_like(inputs_BT, specials, max(vocabulary_size, specials + 1))
    chosen_BT = torch.rand(inputs_BT.shape, device=inputs_BT.device) < probability
    return torch.where(chosen_BT & (inputs_BT >= specials), random_BT, inputs_BT)
