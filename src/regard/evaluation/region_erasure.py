"""Erasure for captions: does each word depend on the region of the image that it attends to?

The attention of a word is a map of weights, one for each cell of the image. For each word, the k cells with
the largest weights are hidden: before the encoder reads the image, their pixels get the mean colour of the
image. For comparison, k other cells, chosen at random, are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.evaluation.erasure import (
    Effect,
    ErasureMeans,
    Output,
    Plan,
    Sampling,
    Trial,
    counted,
    run_trials,
)
from regard.viewing.image_attention import ImageAttention

FILL = "the mean colour of the image"
"""The colour of hidden cells, in words, for reports."""

RESAMPLES, LEVEL = 1000, 0.95
"""The number of bootstrap samples, and the confidence level of the intervals."""

LogProbabilities = Callable[[NDArray[numpy.uint8], int], Any]
"""A function that runs a model. It takes images, uint8 (B, H, W, 3), and the index of a caption. It returns
the log-probability of each word of this caption for each image, (B, T), as an array or a tensor."""


@dataclass(frozen=True)
class RegionErasure(ErasureMeans):
    """The result of erase_regions(): how much the words of captions depend on the regions they attend to.

    measured: one measurement for each word. Its item is a caption, its place a word, and it looks at cells of
        the image, which are numbered from 0, row by row.
    k: number of cells that were hidden for a word.
    captions: number of captions.
    skipped: number of words that were not measured, because all weights of the word are 0 or its map has at
        most k cells.

    >>> word = Effect(0, 1, "cat", (5,), 0.7, hidden=0.81, hidden_random=0.02)
    >>> print(RegionErasure((word,), k=1, captions=1))
    hiding the most attended region lowers the log-probability by 0.81 nats on average; a random region by
    0.02 (1 word)
    """

    measured: tuple[Effect, ...] = field(repr=False)
    k: int = 1
    captions: int = 1
    skipped: int = 0

    nouns = ("region", "cells")

    @property
    def words(self) -> tuple[Effect, ...]:
        """One measurement for each word."""
        return self.measured

    def interval(self, name: str, seed: int = 0) -> tuple[float, float]:
        """Return the ends of the 95 % confidence interval of a mean over words (percentile bootstrap).

        There are 1000 bootstrap samples. Captions are sampled with replacement, each with all its words,
        because words of one caption depend on each other. If there is only one caption, words are sampled.

        name: the field of Effect to average, or "difference".
        seed: random seed.

        >>> words = [Effect(0, at, "cat", (5,), 0.7, float(at), 0.0) for at in range(20)]
        >>> low, high = RegionErasure(tuple(words)).interval("difference")
        >>> low < 9.5 < high
        True
        """
        if not self.words:
            return math.nan, math.nan
        values = [getattr(each, name) for each in self.words]
        _, groups = numpy.unique([each.item for each in self.words], return_inverse=True)
        groups = groups if groups.max() else numpy.arange(len(values))
        sums, counts = numpy.bincount(groups, weights=values), numpy.bincount(groups)
        drawn = numpy.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
        means = sums[drawn].sum(1) / counts[drawn].sum(1)
        low, high = numpy.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return float(low), float(high)

    @property
    def nothing(self) -> str:  # type: ignore[override]
        reason = "the attention maps have too few cells, or all their weights are 0"
        reason = reason if self.captions else "no caption has words"
        return f"the effect of hiding regions was not measured: {reason}"

    @property
    def counts(self) -> str:
        captions = f" of {self.captions:,} captions" if self.captions > 1 else ""
        return f"{counted(len(self.words), 'word')}{captions}"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, such as "k", the means and their confidence intervals as a dict for JSON.

        A number that is undefined is None.
        """
        means = self.numbers("weight", "hidden", "hidden_random", "difference")
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
    sampling = Sampling(k, samples, seed).check("erase_regions()")
    if batch_size < 1:
        raise ArgumentError(message("erase_regions()", f"batch_size is {batch_size}", expected="at least 1"))
    captions = [seen] if isinstance(seen, ImageAttention) else list(seen)
    words, count = list[Effect](), 0
    for item, each in enumerate(captions):
        plans = list[Plan]()
        for word, weights_hw in enumerate(each.weights):
            if weights_hw.size > k and weights_hw.any():
                cells = [(cell,) for cell in range(weights_hw.size)]
                output = Output(Trial(item, (word,)), word, each.words[word], weights_hw.ravel(), cells)
                plans.append(Plan(output, sampling, ("hidden",)))
        scores = run_trials(plans, partial(_scores, log_probabilities, each, batch_size))
        words += [plan.effect(scores) for plan in plans]
        count += len(each.words)
    return RegionErasure(tuple(words), k, len(captions), count - len(words))


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


def _scores(
    log_probabilities: LogProbabilities, seen: ImageAttention, batch_size: int, trials: Sequence[Trial]
) -> NDArray[numpy.float64]:
    """Return the log-probability of the word of each trial if cells of the image are hidden, (trials,).

    Each image is computed once, for all words of its caption.
    """
    images = list(dict.fromkeys(trial.hidden for trial in trials))
    parts = []
    for first in range(0, len(images), batch_size):
        pixels = numpy.stack([hide_cells(seen, cells) for cells in images[first : first + batch_size]])
        part = log_probabilities(pixels, trials[0].item)
        part = part.detach().cpu().double().numpy() if hasattr(part, "detach") else part
        scores_BT = numpy.asarray(part, numpy.float64)
        expected = (len(pixels), len(seen.words))
        if scores_BT.shape != expected or not numpy.isfinite(scores_BT).all():
            problem = f"log_probabilities() returned shape {scores_BT.shape}, or numbers that are not finite"
            hint = "let it return the log-probability of each word of the caption for each image"
            raise ArgumentError(
                message("erase_regions()", problem, expected=f"finite numbers, {expected}", hint=hint)
            )
        parts.append(scores_BT)
    scores = dict(zip(images, numpy.concatenate(parts), strict=True))
    return numpy.array([scores[trial.hidden][trial.rows[0]] for trial in trials])
