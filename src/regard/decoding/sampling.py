"""Sample: draw each token by its probability, tempered and truncated as asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.greedy import walk
from regard.decoding.hypothesis import Found
from regard.decoding.rules import Rules, whole
from regard.errors import ArgumentError, message
from regard.models.base import Model

__all__ = ["Sample", "sample_search"]

BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1."""

DRAWN = 64
"""Steps whose random numbers are drawn at a time."""

MOST, MOST_SEED = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Sample:
    """Draw each token by its probability among those that the rules permit.

    temperature: log-probabilities are divided by it; below 1 the probable becomes more so. top_k: draw among
    so many of the most probable; 0 is all. top_p: draw among the fewest that have this much probability
    together (Holtzman et al. 2020, the nucleus). count: how many sentences to draw for each source. seed: a
    sentence draws the same for the same seed and place in the data, whatever shares its batch.

    Scores are those of the model, neither tempered nor truncated.

    >>> from regard.decoding import Sample
    >>> Sample(temperature=0.7, top_p=0.9, seed=4).count
    1
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    count: int = 1
    seed: int = 0
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        whole(
            "Sample()",
            top_k=(self.top_k, 0, MOST),
            count=(self.count, 1, MOST_BEAMS),
            seed=(self.seed, 0, MOST_SEED),
        )
        problem, expected, hint = "", "", ""
        if not isinstance(self.temperature, int | float) or not 0 < self.temperature < math.inf:
            problem, expected = f"temperature is {self.temperature!r}", "a number above 0"
            hint = "Greedy() is what ever lower temperatures come to"
        elif not isinstance(self.top_p, int | float) or not 0 < self.top_p <= 1:
            problem, expected = f"top_p is {self.top_p!r}", "a number above 0 and at most 1"
            hint = "1 draws among all"
        if problem:
            raise ArgumentError(message("Sample()", problem, expected=expected, hint=hint))

    def draw(self, left: Tensor, chance: Tensor) -> Tensor:
        """Tokens (rows,) from what the rules left, (rows, V), and one number from 0 to 1 for each row."""
        sorted_RV, token_RV = (left / self.temperature).sort(dim=-1, descending=True, stable=True)
        share_RV = sorted_RV.softmax(-1)
        before_RV = share_RV.cumsum(-1) - share_RV
        kept_RV = before_RV < self.top_p
        kept_RV[:, 0] = True
        if self.top_k:
            kept_RV[:, self.top_k :] = False
        kept_RV &= share_RV > 0
        heap_RV = torch.where(kept_RV, share_RV, 0.0).cumsum(-1)
        height_R1 = chance[:, None] * heap_RV[:, -1:]
        # Rounding may bring the height up to the top of the heap, past the last token that may be drawn.
        drawn_R1 = torch.searchsorted(heap_RV, height_R1, right=True).clamp(
            max=kept_RV.sum(-1, keepdim=True) - 1
        )
        return token_RV.gather(1, drawn_R1)[:, 0]


def sample_search(
    model: Model, batch: Batch, how: Sample, prefixes: Sequence[Sequence[int]] | None = None
) -> Found:
    """Sentences drawn token by token, in the order in which they were drawn."""
    chances = _chances(how, batch.index.tolist(), batch.source.device)
    chance_BLK = next(chances)

    def choose(left_RV: Tensor, number_b: Tensor, step: int) -> Tensor:
        nonlocal chance_BLK
        if step and step % DRAWN == 0:
            chance_BLK = next(chances)
        return how.draw(left_RV, chance_BLK[number_b, step % DRAWN].flatten())

    return walk(model, batch, how.rules, prefixes, how.count, choose)


def _chances(how: Sample, index: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """Numbers from 0 to 1, (B, DRAWN, K), for the next DRAWN steps each time.

    They depend on the seed and the number of each sentence in its data. Each sentence has a stream of its
    own, so that what it draws does not depend on what shares its batch; K comes last, so that it does not
    depend on how long others may be.
    """
    streams = [np.random.default_rng([how.seed, number]) for number in index]
    while True:
        drawn = [stream.random((DRAWN, how.count)) for stream in streams]
        flat = np.stack(drawn) if drawn else np.zeros((0, DRAWN, how.count))
        yield torch.from_numpy(flat).to(torch.float32).clamp(max=BELOW_ONE).to(device)
