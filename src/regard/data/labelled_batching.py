"""Encode labelled texts, and group texts of similar length into batches with a limited number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from regard.data.batching import SimilarLengths, padded_rows
from regard.data.class_labels import Labels
from regard.data.encoded_pairs import EncodedPairs, Side
from regard.data.labelled_batch import LabelledBatch
from regard.data.labelled_text import LabelledTexts
from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, DataError, UnknownName, message

__all__ = ["EncodedTexts", "LabelledBatches", "encode_texts"]

OVER = ("truncate", "skip")


class EncodedTexts:
    """Labelled texts as token ids, without EOS, in flat arrays.

    firsts: the tokens of the texts, or of the first text of each pair, as a Side (a flat array).
    seconds: the tokens of the second text of each pair, as a Side; None if the data are not pairs.
    labels: (N,), class indices.
    numbers: (N,), index of each text in the LabelledTexts from which it was encoded. Skipped texts are not
        included.
    skipped: number of texts (or pairs) that were dropped because they were too long.
    truncated: number of texts (or pairs) that were cut because they were too long.

    >>> data = EncodedTexts.in_memory([[7, 8], [9]], labels=[1, 0])
    >>> len(data), data.labels, data.firsts.at(0)
    (2, array([1, 0]), array([7, 8], dtype=uint32))
    """

    def __init__(
        self,
        firsts: Side,
        seconds: Side | None,
        labels: NDArray[numpy.int64],
        numbers: NDArray[numpy.int64],
        skipped: int = 0,
        truncated: int = 0,
    ):
        self.firsts, self.seconds, self.labels, self.numbers = firsts, seconds, labels, numbers
        self.skipped, self.truncated = skipped, truncated

    @classmethod
    def in_memory(
        cls,
        firsts: Sequence[Sequence[int]],
        labels: Sequence[int],
        seconds: Sequence[Sequence[int]] | None = None,
    ) -> EncodedTexts:
        """Create encoded texts from lists of token ids.

        firsts: the token ids of each text, or of the first text of each pair.
        labels: the class index of each text (or pair).
        seconds: the token ids of the second text of each pair; None if the data are not pairs.
        """
        for name, values in (("labels", labels), ("seconds", seconds)):
            if values is not None and len(values) != len(firsts):
                problem = f"there are {len(firsts)} firsts and {len(values)} {name}"
                raise ArgumentError(message("EncodedTexts.in_memory()", problem, expected="the same number"))
        return cls(
            Side.of(firsts),
            None if seconds is None else Side.of(seconds),
            numpy.array(labels, numpy.int64),
            numpy.arange(len(firsts)),
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pairs(self) -> bool:
        """Whether each example is a pair of texts, not a single text."""
        return self.seconds is not None

    def __repr__(self) -> str:
        unit = "pairs" if self.pairs else "texts"
        return f"EncodedTexts({len(self)} {unit}, {self.skipped} skipped, {self.truncated} truncated)"


def encode_texts(
    texts: LabelledTexts,
    labels: Labels,
    tokenizer: Tokenizer,
    *,
    longest: int | None = 256,
    over: str = "truncate",
) -> EncodedTexts:
    """Encode labelled texts. Both texts of a pair are encoded with the same tokenizer.

    labels: the classes of the training data. A text with another label raises DataError, which names its file
        and line.
    longest: maximum number of tokens of a text, without EOS, or None for no limit.
    over: what to do with longer texts: "truncate" cuts them, "skip" drops them. The result has the number of
        cut texts in `truncated`, and the number of dropped texts in `skipped`.

    >>> from regard.data.labelled_text import labelled_from_lists
    >>> from regard.data.tokenizers import train_tokenizer
    >>> texts = labelled_from_lists(["good film", "bad film"], ["pos", "neg"])
    >>> tokenizer = train_tokenizer("word", texts.texts)
    >>> data = encode_texts(texts, texts.label_set(), tokenizer, longest=1)
    >>> data, data.labels
    (EncodedTexts(2 texts, 0 skipped, 2 truncated), array([1, 0]))
    """
    call = "encode_texts()"
    if over not in OVER:
        raise UnknownName("value of over", over, OVER)
    if longest is not None and longest < 1:
        expected = "1 or more, or None for no limit"
        raise ArgumentError(message(call, f"longest is {longest}", expected=expected))
    indices = texts.label_indices(labels)
    sides = [tokenizer.encode_lines(side) for side in (texts.firsts, texts.seconds) if side is not None]
    longer = numpy.zeros(len(texts), bool)
    for rows in sides:
        longer |= numpy.fromiter(map(len, rows), numpy.int64, len(rows)) > (longest or numpy.inf)
    kept = numpy.flatnonzero(~longer) if over == "skip" else numpy.arange(len(texts))
    if not len(kept):
        problem = f"all {len(texts)} texts have over {longest} tokens"
        raise DataError(message(call, problem, hint="increase longest, or use over='truncate'"))
    cut = [Side.of([rows[row][:longest] for row in kept]) for rows in sides]
    return EncodedTexts(
        cut[0],
        cut[1] if len(cut) > 1 else None,
        indices[kept],
        kept.astype(numpy.int64),
        skipped=len(texts) - len(kept),
        truncated=int(longer.sum()) if over == "truncate" else 0,
    )


class LabelledBatches(SimilarLengths[LabelledBatch]):
    """Batches of labelled texts with about the same number of tokens each.

    The texts of a batch have similar lengths.

    data: the encoded texts.
    tokens: token budget, the maximum number of tokens in a batch, including padding, per process.
    options: the other arguments of Batches: sentences, longest, rounded, shuffle, seed, rank and world.

    The order depends only on the data, these arguments and (seed, epoch). The field `index` of a batch has
    the index of each text in the LabelledTexts from which `data` was encoded.

    >>> data = EncodedTexts.in_memory([[7, 8], [9], [5], [6, 6]], labels=[1, 0, 0, 1])
    >>> [(batch.index.tolist(), batch.labels.tolist()) for batch in LabelledBatches(data, tokens=6).epoch(0)]
    [([2, 1], [0, 0]), ([3, 0], [1, 1])]
    """

    def __init__(self, data: EncodedTexts, tokens: int = 4096, **options: Any):
        self.texts = data
        second = data.seconds
        # Two sides are needed. Empty second texts are added; they do not count in the token budget.
        if second is None:
            second = Side(numpy.zeros(0, numpy.uint32), numpy.zeros(len(data) + 1, numpy.int64))
        super().__init__(EncodedPairs(data.firsts, second, data.numbers), tokens, **options)

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> LabelledBatch:
        first = padded_rows(data.sources, rows, begin=False)
        second = padded_rows(data.targets, rows, begin=False) if self.texts.pairs else (None, None)
        labels, index = self.texts.labels[rows], data.numbers[rows]
        numbers = torch.from_numpy(labels), torch.from_numpy(index)
        return LabelledBatch(first[0], first[1], numbers[0], numbers[1], second[0], second[1])
