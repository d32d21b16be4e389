"""BatchAlignments: the word alignments of many translations, computed together.

The weights of a batch are averaged over layers and heads where the search recorded them, for example on a
GPU, and copied to the host at once. The steps of align() then run on arrays of a whole batch.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.decoding.word_alignment import Alignment, Block, Choice

if TYPE_CHECKING:
    from regard.fast.search import RecordedAttention

__all__ = ["BatchAlignments", "Place", "Words", "align_batch"]


Words = Callable[[], tuple[Sequence[int], Sequence[int]]]
"""A function that returns the index of the word of each source token, and of each target token."""


class Place(NamedTuple):
    """Where the attention weights of a hypothesis are recorded.

    recorded: the weights of all hypotheses of a search.
    row, rank: the index of the sentence, and of one of its hypotheses.
    length: the number of tokens of the hypothesis.
    """

    recorded: RecordedAttention
    row: int
    rank: int
    length: int


class BatchAlignments:
    """The word alignments of the translations of one call, computed when the first one is read.

    choice: which attention weights the alignments are computed from.
    """

    def __init__(self, choice: Choice):
        self.choice = choice
        self._waiting: list[tuple[Place, Words]] = []
        self._computed: list[Alignment | None] = []
        self._lock = threading.Lock()

    def add(self, place: Place, words: Words) -> Callable[[], Alignment | None]:
        """Add a hypothesis; return a function that returns its alignment.

        The alignment is None if the search has not recorded the weights that `choice` selects.

        words: a function that returns source_words and target_words, see align().
        """
        self._waiting.append((place, words))
        return functools.partial(self._alignment, len(self._waiting) - 1)

    def _alignment(self, number: int) -> Alignment | None:
        with self._lock:
            if self._waiting:
                self._computed = self._compute()
                self._waiting = []  # its entries keep the recorded weights in memory
        return self._computed[number]

    def _compute(self) -> list[Alignment | None]:
        """Return the alignments of all hypotheses that were added."""
        result: list[Alignment | None] = [None] * len(self._waiting)
        groups = dict[int, list[int]]()
        for number, (place, *_) in enumerate(self._waiting):
            groups.setdefault(id(place.recorded), []).append(number)
        for numbers in groups.values():
            places = [self._waiting[number][0] for number in numbers]
            words = [self._waiting[number][1]() for number in numbers]
            weights_nTS = places[0].recorded.averaged(places, self.choice.site, self.choice.head)
            if weights_nTS is None:
                continue
            if self.choice.shifted:
                weights_nTS = _shifted(weights_nTS, [place.length for place in places])
            sources, targets = zip(*words, strict=True)
            for number, alignment in zip(numbers, align_batch(weights_nTS, sources, targets), strict=True):
                result[number] = alignment
        return result


def align_batch(
    weights: NDArray[np.float32], source_words: Sequence[Sequence[int]], target_words: Sequence[Sequence[int]]
) -> list[Alignment]:
    """Return align() of n sentence pairs.

    weights: (n, T, S), the attention weights of tokens, at least 0. The values after the end of a target or
        of a source are not used.
    source_words, target_words: for each pair, the index of the word that each token belongs to; see align().
    """
    source_nS, first_source, source_sizes = _padded(source_words, weights.shape[2])
    target_nT, first_target, target_sizes = _padded(target_words, weights.shape[1])
    source_nSW = (source_nS[..., None] == np.arange(max(source_sizes))).astype(np.float32)
    target_nTW = (target_nT[..., None] == np.arange(max(target_sizes))).astype(np.float32)
    used_nTS = (target_nT >= 0)[:, :, None] & (source_nS >= 0)[:, None]
    target_nTW /= target_nTW.sum(1, keepdims=True).clip(min=1)
    words_nVW = target_nTW.transpose(0, 2, 1) @ np.where(used_nTS, weights, 0) @ source_nSW
    if not words_nVW.shape[2]:
        best_nV, value_nV = (np.zeros(words_nVW.shape[:2], dtype) for dtype in (np.int64, np.float32))
    else:
        best_nV = words_nVW.argmax(2)
        value_nV = np.take_along_axis(words_nVW, best_nV[..., None], 2)[..., 0]
    best_nV += np.array(first_source)[:, None]
    alignments = list[Alignment]()
    rows = zip(best_nV.tolist(), value_nV.tolist(), first_source, first_target, strict=True)
    for number, (best, values, source, target) in enumerate(rows):
        height, width = target_sizes[number], source_sizes[number]
        block = Block(torch.from_numpy(words_nVW[number, :height, :width]), source, target)
        alignments.append(Alignment((block,), (best[:height], values[:height])))
    return alignments


def _padded(words: Sequence[Sequence[int]], length: int) -> tuple[NDArray[Any], list[int], list[int]]:
    """Return word indices as an array (n, length), the index of the first word, and the number of words.

    In the array, indices count from the first word of each row. Padding and tokens without a word have -1.
    """
    sizes_n1 = np.array([len(own) for own in words])[:, None]
    result = np.full((len(words), length), -1, np.int64)
    result[np.arange(length) < sizes_n1] = np.fromiter(itertools.chain.from_iterable(words), np.int64)
    has_word = result >= 0
    first = np.where(has_word, result, np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    first = np.where(has_word.any(1), first, 0)
    result = np.where(has_word, result - first[:, None], -1)
    return result, first.tolist(), (result.max(1, initial=-1) + 1).tolist()


def _shifted(weights: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float32]:
    """Return weights (n, T, S) in which each row has the weights of the next step; see Choice.read().

    lengths: the number of tokens of each hypothesis. The row of its last token is 0.
    """
    result = np.concatenate((weights[:, 1:], np.zeros_like(weights[:, :1])), 1)
    result[np.arange(len(lengths)), np.array(lengths) - 1] = 0
    return result
