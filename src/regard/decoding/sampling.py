"""Sampling: choose each token at random, with temperature, top-k and top-p (nucleus) truncation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.decoding.active_rows import Ends
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.greedy import generate
from regard.decoding.hypothesis import SearchResult
from regard.decoding.prompts import Prompts
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules, check_integers
from regard.errors import ArgumentError, message
from regard.models.base import Model

__all__ = ["Sample", "sample_search"]

BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 number below 1. Random numbers must be below 1, but rounding to float32 can give 1."""

DRAWN = 64
"""Random numbers are generated for this many steps at a time, because copying them to the GPU at every step
would be slow."""

MAX_TOP_K, MAX_SEED = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Sample:
    """Settings of sampling: each token is sampled from the model's distribution over permitted tokens.

    temperature: the log-probabilities are divided by it. Below 1, the distribution becomes sharper.
    top_k: sample only from the k most probable tokens. 0 disables it.
    top_p: sample from the smallest set of most probable tokens whose probabilities sum to at least top_p
        (nucleus sampling, Holtzman et al. 2020). 1 disables it.
    count: the number of sentences to sample for each source.
    seed: random seed. The samples of a source depend on the seed and on the index of the source in the data,
        but not on the other sentences of the batch.
    rules: constraints on the output, such as its maximum length; they determine the permitted tokens.

    Token scores are the log-probabilities of the model, without temperature, top-k and top-p.

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
        check_integers(
            "Sample()",
            top_k=(self.top_k, 0, MAX_TOP_K),
            count=(self.count, 1, MOST_BEAMS),
            seed=(self.seed, 0, MAX_SEED),
        )
        problem, expected, hint = "", "", ""
        if not isinstance(self.temperature, int | float) or not 0 < self.temperature < math.inf:
            problem, expected = f"temperature is {self.temperature!r}", "a number above 0"
            hint = "use Greedy() for temperature 0"
        elif not isinstance(self.top_p, int | float) or not 0 < self.top_p <= 1:
            problem, expected = f"top_p is {self.top_p!r}", "a number above 0 and at most 1"
            hint = "use top_p=1 to disable nucleus sampling"
        if problem:
            raise ArgumentError(message("Sample()", problem, expected=expected, hint=hint))

    def draw(self, left: Tensor, chance: Tensor) -> Tensor:
        """Sample one token for each hypothesis (row).

        left: (rows, V), the model's log-probabilities, -inf for tokens that the rules forbid.
        chance: (rows,), uniform random numbers in [0, 1).

        Return: (rows,), the token ids.
        """
        sorted_RV, token_RV = (left / self.temperature).sort(dim=-1, descending=True, stable=True)
        probability_RV = sorted_RV.softmax(-1)
        before_RV = probability_RV.cumsum(-1) - probability_RV
        kept_RV = before_RV < self.top_p
        kept_RV[:, 0] = True
        if self.top_k:
            kept_RV[:, self.top_k :] = False
        kept_RV &= probability_RV > 0
        cumulative_RV = torch.where(kept_RV, probability_RV, 0.0).cumsum(-1)
        threshold_R1 = chance[:, None] * cumulative_RV[:, -1:]
        # By rounding, the threshold can be equal to the total of the probabilities. Without clamp, the index
        # would be out of range.
        drawn_R1 = torch.searchsorted(cumulative_RV, threshold_R1, right=True).clamp(
            max=kept_RV.sum(-1, keepdim=True) - 1
        )
        return token_RV.gather(1, drawn_R1)[:, 0]


def sample_search(
    model: Model,
    batch: Batch | Prompts,
    how: Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    limit: LengthLimit = TRANSLATION_LIMIT,
    ends: Ends | None = None,
) -> SearchResult:
    """Sample K = how.count sentences for each source of a batch. They are not sorted by score.

    prefixes: for each source, the tokens that its output must begin with.
    limit: the maximum number of output tokens, used if how.rules.maximum is None.
    ends: a function that ends hypotheses before EOS (see Ends).
    """
    blocks = _random_numbers(how, batch.index.tolist(), batch.index.device)
    random_BLK = next(blocks)

    def choose(permitted_RV: Tensor, index_b: Tensor, step: int) -> Tensor:
        nonlocal random_BLK
        if step and step % DRAWN == 0:
            random_BLK = next(blocks)
        return how.draw(permitted_RV, random_BLK[index_b, step % DRAWN].flatten())

    return generate(model, batch, how.rules, prefixes, how.count, choose, limit=limit, ends=ends)


def _random_numbers(how: Sample, index: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """Yield uniform random numbers in [0, 1), (B, DRAWN, K), each time for the next DRAWN decoding steps.

    index: the index of each sentence in the data.

    Each sentence has its own random generator, which is seeded with how.seed and the index of the sentence in
    the data. So the samples do not depend on the other sentences of the batch. The generator returns the K
    numbers of step 0, then those of step 1, and so on: a search with more steps begins with the same numbers.
    """
    streams = [np.random.default_rng([how.seed, number]) for number in index]
    while True:
        blocks = [stream.random((DRAWN, how.count)) for stream in streams]
        random_BLK = np.stack(blocks) if blocks else np.zeros((0, DRAWN, how.count))
        yield torch.from_numpy(random_BLK).to(torch.float32).clamp(max=BELOW_ONE).to(device)
