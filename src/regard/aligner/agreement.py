"""Agreement: both directions are trained at once, and count what they agree on.

Each direction makes errors of its own: one target word has one source word in one direction, and one source
word has one target word in the other. Liang, Taskar and Klein (2006) multiply the posteriors.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray
from torch import Tensor

from regard.evaluation.alignment_error_rate import SYMMETRISATIONS, symmetrise

__all__ = ["MEAN", "METHODS", "THRESHOLD", "agreed", "links_of"]

MEAN = "mean"
"""Name of the default method: links whose mean posterior of both directions reaches the threshold."""

METHODS = (MEAN, *SYMMETRISATIONS)
"""Names of the methods that combine both directions."""

THRESHOLD = 0.5


def agreed(forward: Tensor, backward: Tensor) -> Tensor:
    """Return the expected counts of links, (B, T, S): the product of the posteriors (Liang et al. 2006).

    forward: (B, T, S), posteriors of source-to-target.
    backward: (B, S, T), posteriors of target-to-source.

    >>> import torch
    >>> agreed(torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[0.5], [1.0]]]))
    tensor([[[0.2500, 0.5000]]])
    """
    return forward * backward.transpose(1, 2)


def links_of(
    forward: NDArray[numpy.float32],
    backward: NDArray[numpy.float32],
    how: str = MEAN,
    threshold: float = THRESHOLD,
) -> list[tuple[int, int, float]]:
    """Return the links of a pair as (source word, target word, mean posterior), sorted by target word.

    forward: (T, S), posteriors of source-to-target.
    backward: (S, T), posteriors of target-to-source.
    how: "mean": the links whose mean posterior is at least `threshold`. Otherwise, a method of symmetrise():
        each direction links each word to the most probable word, unless the null word is more probable.

    >>> forward, backward = numpy.array([[0.9, 0.1], [0.2, 0.3]]), numpy.array([[0.7, 0.2], [0.1, 0.8]])
    >>> [(source, target, round(p, 2)) for source, target, p in links_of(forward, backward)]
    [(0, 0, 0.8), (1, 1, 0.55)]
    """
    mean_TS = (forward + backward.T) / 2
    if how == MEAN:
        targets, sources = (mean_TS >= threshold).nonzero()
        places = list(zip(sources.tolist(), targets.tolist(), strict=True))
    else:
        there = [(source, target) for target, source in _best(forward)]
        places = sorted(symmetrise(there, _best(backward), how).sure, key=lambda link: link[::-1])
    return [(source, target, float(mean_TS[target, source])) for source, target in places]


def _best(posteriors: NDArray[numpy.float32]) -> list[tuple[int, int]]:
    """Return (row, best column) of each row whose best column is more probable than the null word."""
    if not posteriors.size:
        return []
    best = posteriors.argmax(1)
    rows = numpy.flatnonzero(posteriors.max(1) > 1 - posteriors.sum(1))
    return list(zip(rows.tolist(), best[rows].tolist(), strict=True))
