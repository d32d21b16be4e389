"""Erasure for captions: does each word depend on the region of the image that it attends to?

The attention of a word is a map of weights, one for each cell of the image. For each word, the k cells with
the largest weights are hidden: before the encoder reads the image, their pixels get the mean colour of the
image. For comparison, k other cells, chosen at random, are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.evaluation.erasure import ErasureMeans, Planned, Sampling, Trials, check_counts, counted
from regard.viewing.image_attention import ImageAttention

__all__ = ["RegionErasure", "WordRegion", "erase_regions", "hide_cells"]

FILL = "the mean colour of the image"
"""The colour of hidden cells, in words, for reports."""

RESAMPLES, LEVEL = 1000, 0.95
"""The number of bootstrap samples, and the confidence level of the intervals."""

LogProbabilities = Callable[[NDArray[numpy.uint8], int], Any]
"""A function that runs a model. It takes images, uint8 (B, H, W, 3), and the index of a caption. It returns
the log-probability of each word of this caption for each image, (B, T), as an array or a tensor."""


@dataclass(frozen=True)
class WordRegion:
    """How much the prediction of one word of a caption depends on the image cells that the word attends to.

    caption: index of the caption, from 0.
    word: index of the word in the caption, from 0.
    text: the word, for example "cat".
    cells: the k cells with the largest attention weights, largest first. Cells are numbered from 0, row by
        row.
    weight: the sum of the attention weights of these cells.
    hidden: the decrease of the log-probability of the word, in nats, if these cells are hidden.
    hidden_random: the mean decrease if k other cells, chosen at random, are hidden.
    """

    caption: int
    word: int
    text: str
    cells: tuple[int, ...]
    weight: float
    hidden: float
    hidden_random: float


@dataclass(frozen=True)
class RegionErasure(ErasureMeans):
    """The result of erase_regions(): how much the words of captions depend on the regions they attend to.

    words: one measurement for each word.
    k: number of cells that were hidden for a word.
    captions: number of captions.
    skipped: number of words that were not measured, because all weights of the word are 0 or its map has at
        most k cells.

    >>> word = WordRegion(0, 1, "cat", (5,), 0.7, hidden=0.81, hidden_random=0.02)
    >>> print(RegionErasure((word,), k=1, captions=1))
    hiding the most attended region lowers the log-probability by 0.81 nats on average; a random region by
    0.02 (1 word)
    """

    words: tuple[WordRegion, ...] = field(repr=False)
    k: int = 1
    captions: int = 1
    skipped: int = 0

    @property
    def measured(self) -> tuple[WordRegion, ...]:
        return self.words

    def interval(self, name: str, seed: int = 0) -> tuple[float, float]:
        """Return the ends of the 95 % confidence interval of a mean over words (percentile bootstrap).

        There are 1000 bootstrap samples. Captions are sampled with replacement, each with all its words,
        because words of one caption depend on each other. If there is only one caption, words are sampled.

        name: the field of WordRegion to average, or "difference": `hidden` minus `hidden_random`.
        seed: random seed.

        >>> words = [WordRegion(0, at, "cat", (5,), 0.7, float(at), 0.0) for at in range(20)]
        >>> low, high = RegionErasure(tuple(words)).interval("difference")
        >>> low < 9.5 < high
        True
        """
        if not self.words:
            return math.nan, math.nan
        values = numpy.array([_value(each, name) for each in self.words])
        captions = numpy.array([each.caption for each in self.words])
        _, groups = numpy.unique(captions, return_inverse=True)
        groups = groups if groups.max() else numpy.arange(len(values))
        sums, counts = numpy.bincount(groups, weights=values), numpy.bincount(groups)
        drawn = numpy.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
        means = sums[drawn].sum(1) / counts[drawn].sum(1)
        low, high = numpy.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return float(low), float(high)

    def summary(self) -> str:
        """Return one sentence about the mean effect of hiding cells of the image, to print below a picture.

        For example: "hiding the most attended region lowers the log-probability by 0.81 nats on average; a
        random region by 0.02".
        """
        if not self.words:
            reason = "the attention maps have too few cells, or all their weights are 0"
            reason = reason if self.captions else "no caption has words"
            return f"the effect of hiding regions was not measured: {reason}"
        return self.sentence("region", "cells")

    def __str__(self) -> str:
        if not self.words:
            return self.summary()
        captions = f" of {self.captions:,} captions" if self.captions > 1 else ""
        return f"{self.summary()} ({counted(len(self.words), 'word')}{captions})"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, such as "k", the means and their confidence intervals as a dict for JSON.

        A number that is undefined is None.
        """
        means = self.numbers("weight", "hidden", "hidden_random")
        hidden, random = means["hidden"], means["hidden_random"]
        means["difference"] = None if hidden is None or random is None else hidden - random
        intervals = {
            f"{name}_interval": list(self.interval(name)) if self.words else None
            for name in ("hidden", "hidden_random", "difference")
        }
        settings = {"k": self.k, "fill": FILL, "captions": self.captions, "words": len(self.words)}
        return {**settings, "skipped": self.skipped, **means, **intervals}


def erase_regions(
    log_probabilities: LogProbabilities,
    seen: ImageAttention | Sequence[ImageAttention],
    *,
    k: int = 1,
    samples: int = 3,
    seed: int = 0,
    batch_size: int = 64,
) -> RegionErasure:
    """Measure how much each word of a caption depends on the region of the image that it attends to.

    For each word, the k cells of the image to which it attends most are hidden, and the decrease of the
    log-probability of the word is measured. For comparison, k other cells, chosen at random, are hidden.
    Hidden cells have the mean colour of the image.

    log_probabilities: a function that runs the model. It takes images, uint8 (B, H, W, 3), and the index of a
        caption. It returns the log-probability of each word of this caption for each image, (B, T).
    seen: an image with a caption and the attention of each word, or a list of such images.
    k: number of cells to hide.
    samples: number of random choices of k other cells; the mean of their effects is reported.
    seed: random seed.
    batch_size: maximum number of images in a call of log_probabilities.

    >>> image = numpy.zeros((4, 4, 3), numpy.uint8)
    >>> image[:2, :2] = 200
    >>> seen = ImageAttention(image, ["bright"], [[[0.7, 0.1], [0.1, 0.1]]])
    >>> def log_probabilities(images, caption):
    ...     return -0.01 * (200 - images[:, :2, :2].mean((1, 2, 3)))[:, None]
    >>> print(erase_regions(log_probabilities, seen))
    hiding the most attended region lowers the log-probability by 1.5 nats on average; a random region by 0.0
    (1 word)
    """
    check_counts("erase_regions()", k, samples)
    if batch_size < 1:
        raise ArgumentError(message("erase_regions()", f"batch_size is {batch_size}", expected="at least 1"))
    captions = [seen] if isinstance(seen, ImageAttention) else list(seen)
    words: list[WordRegion] = []
    skipped = 0
    for index, each in enumerate(captions):
        measured = _measured(log_probabilities, each, index, Sampling(k, samples, seed), batch_size)
        skipped += len(each.words) - len(measured)
        words += measured
    return RegionErasure(tuple(words), k, len(captions), skipped)


def hide_cells(seen: ImageAttention, cells: Sequence[int]) -> NDArray[numpy.uint8]:
    """Return a copy of an image in which the pixels of some cells have the mean colour of the image.

    seen: the image, with a map of the attention of each word, which defines the cells.
    cells: the cells to hide, numbered from 0, row by row.

    >>> image = numpy.array([[[0, 0, 0], [200, 100, 50]]], numpy.uint8)
    >>> hide_cells(ImageAttention(image, ["cat"], [[[0.5, 0.5]]]), [1]).tolist()
    [[[0, 0, 0], [100, 50, 25]]]
    """
    image = seen.image.copy()
    image[seen.grid.mask(cells)] = image.mean((0, 1)).round().astype(numpy.uint8)
    return image


def _measured(
    log_probabilities: LogProbabilities,
    seen: ImageAttention,
    caption: int,
    sampling: Sampling,
    batch_size: int,
) -> list[WordRegion]:
    """Return the measurements of the words of one caption; for the arguments, see erase_regions().

    seen: the image with the caption and the attention of each word.
    caption: the index of `seen` in the list given to erase_regions(). The random cells depend only on the
        seed, the caption and the word.
    sampling: how many cells are hidden, and how often other cells are sampled.
    batch_size: maximum number of images in a call of log_probabilities.
    """
    trials, planned = Trials[tuple[int, ...]](), dict[int, Planned]()
    for word, weights_hw in enumerate(seen.weights):
        if weights_hw.size > sampling.k and weights_hw.any():
            place = (caption, word)
            planned[word] = trials.plan(weights_hw.ravel(), (), _hiding, sampling, *place)
    if not planned:
        return []
    scores_NT = _scores(log_probabilities, seen, caption, trials.all, batch_size)
    return [
        WordRegion(
            caption=caption,
            word=word,
            text=seen.words[word],
            cells=tuple(each.looked),
            weight=float(seen.weights[word].ravel()[each.looked].sum()),
            **each.costs(scores_NT[:, word]),
        )
        for word, each in planned.items()
    ]


def _hiding(cells: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return {"hidden": tuple(sorted(cells))}


def _scores(
    log_probabilities: LogProbabilities,
    seen: ImageAttention,
    caption: int,
    trials: Sequence[tuple[int, ...]],
    batch_size: int,
) -> NDArray[numpy.float64]:
    """Return the log-probability of each of the T words of a caption if cells of the image are hidden.

    The result has the shape (number of trials, T).

    log_probabilities: the function that runs the model, as in erase_regions().
    seen: the image with the caption and the attention of each word.
    caption: the index of `seen` in the list given to erase_regions(); it is passed to log_probabilities.
    trials: each element gives the cells that are hidden in one copy of the image.
    batch_size: maximum number of images in a call of log_probabilities.
    """
    parts = []
    for first in range(0, len(trials), batch_size):
        images = numpy.stack([hide_cells(seen, cells) for cells in trials[first : first + batch_size]])
        part = log_probabilities(images, caption)
        part = part.detach().cpu().double().numpy() if hasattr(part, "detach") else part
        scores_BT = numpy.asarray(part, numpy.float64)
        expected = (len(images), len(seen.words))
        if scores_BT.shape != expected or not numpy.isfinite(scores_BT).all():
            problem = f"log_probabilities() returned shape {scores_BT.shape}, or numbers that are not finite"
            hint = "let it return the log-probability of each word of the caption for each image"
            raise ArgumentError(
                message("erase_regions()", problem, expected=f"finite numbers, {expected}", hint=hint)
            )
        parts.append(scores_BT)
    return numpy.concatenate(parts)


def _value(word: WordRegion, name: str) -> float:
    if name == "difference":
        return word.hidden - word.hidden_random
    return float(getattr(word, name))
