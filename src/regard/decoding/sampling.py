"""Sampling: choose each token at random, with temperature, top-k and top-p (nucleus) truncation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.decoding.active_rows import Ends, Prompts
from regard.decoding.beam import MOST_BEAMS, highest
from regard.decoding.greedy import generate
from regard.decoding.hypothesis import SearchResult
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules, check_integers
from regard.errors import ArgumentError, message
from regard.models.base import Model

Seed = tuple[int, int, int]
"""The random seed of a sample: the seed of the search, the index of the sentence in the data, and the number
of the sample."""

BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 number below 1. Random numbers must be below 1, but rounding to float32 can give 1."""

DRAWN = 64
"""Random numbers are generated for this many steps at a time, because copying them to the GPU at every step
would be slow."""

NUCLEUS = 256
"""On a CPU, the nucleus (top-p) is first computed from only this many of the most probable tokens."""

MAX_TOP_K, MAX_SEED = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Sample:
    """Settings of sampling: each token is sampled from the model's distribution over permitted tokens.

    temperature: the log-probabilities are divided by it. Below 1, the distribution becomes sharper.
    top_k: sample only from the k most probable tokens. 0 disables it.
    top_p: sample from the smallest set of most probable tokens whose probabilities sum to at least top_p
        (nucleus sampling, Holtzman et al. 2020). 1 disables it. With top_k, the probabilities of the k tokens
        are first divided by their sum, as in Hugging Face transformers.
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
        # The highest log-probability becomes 0. Otherwise, a low temperature could turn a whole row to -inf.
        scaled_RV = (left - left.amax(-1, keepdim=True)) / self.temperature
        if not self.top_k and self.top_p == 1:
            return _first_above(chance, scaled_RV.softmax(-1).cumsum(-1))
        lse_R1, size = scaled_RV.logsumexp(-1, keepdim=True), scaled_RV.shape[-1]
        for count in self._counts(scaled_RV):
            if count == size:
                sorted_RC, token_RC = scaled_RV.sort(dim=-1, descending=True, stable=True)
            else:
                token_RC = highest(
                    scaled_RV, count
                )  # of equal scores, that of the lower token id comes first
                sorted_RC = scaled_RV.gather(1, token_RC)
            if self.top_k:
                lse_R1 = sorted_RC.logsumexp(-1, keepdim=True)
            probability_RC = (sorted_RC - lse_R1).exp()
            cumulative_RC = probability_RC.cumsum(-1)
            if self.top_k or count == size or bool((cumulative_RC[:, -1] >= self.top_p).all()):
                break
        kept_RC = cumulative_RC - probability_RC < self.top_p
        kept_RC[:, 0] = True
        drawn_R = _first_above(chance, torch.where(kept_RC, probability_RC, 0.0).cumsum(-1))
        return token_RC.gather(1, drawn_R[:, None])[:, 0]

    def seeds(self, index: Sequence[int]) -> list[Seed]:
        """Return the random seeds of all samples: the K samples of the first sentence, then the next ones.

        index: the index of each sentence in the data.

        Each sample has its own seed, so it does not depend on the number of samples, nor on the other
        sentences of the batch.
        """
        return [(self.seed, number, sample) for number in index for sample in range(self.count)]

    def _counts(self, scores: Tensor) -> tuple[int, ...]:
        """Return how many of the most probable tokens draw() sorts, for scores (rows, V).

        With two numbers, draw() uses the second only if the nucleus (top_p) has more tokens than the first.

        On a CPU, sorting the whole vocabulary can take longer than a step of the model, and the nucleus is
        usually small. On a GPU, the host would have to wait for the device to know its size.
        """
        size = scores.shape[-1]
        if self.top_k:
            return (min(self.top_k, size),)
        return (NUCLEUS, size) if scores.device.type == "cpu" and size > NUCLEUS else (size,)


def _first_above(chance: Tensor, cumulative: Tensor) -> Tensor:
    """Return the first index at which the cumulative sum exceeds chance * total, (rows,).

    chance: (rows,), uniform random numbers in [0, 1).
    cumulative: (rows, C), the cumulative sums of weights. An index with weight 0 is never returned.
    """
    total_R1 = cumulative[:, -1:]
    # By rounding, the product can be equal to the total, which no cumulative sum exceeds.
    share_R1 = torch.minimum(
        chance[:, None] * total_R1, torch.nextafter(total_R1, torch.zeros_like(total_R1))
    )
    index_R1 = torch.searchsorted(cumulative, share_R1, right=True)
    return index_R1[:, 0].clamp(max=cumulative.shape[1] - 1)  # out of range only if sums are NaN


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
    streams = [np.random.default_rng(seed) for seed in how.seeds(batch.index.tolist())]

    def draw_numbers() -> Tensor:
        numbers = random_numbers(streams, DRAWN).to(batch.index.device)
        return numbers.view(len(batch), how.count, DRAWN)

    random_BKL = draw_numbers()

    def choose(permitted_RV: Tensor, index_b: Tensor, step: int) -> Tensor:
        nonlocal random_BKL
        if step and step % DRAWN == 0:
            random_BKL = draw_numbers()
        return how.draw(permitted_RV, random_BKL[index_b, :, step % DRAWN].flatten())

    return generate(model, batch, how.rules, prefixes, how.count, choose, limit=limit, ends=ends)


def random_numbers(streams: Sequence[np.random.Generator], count: int) -> Tensor:
    """Return the next `count` uniform random numbers in [0, 1) of each generator, (len(streams), count).

    A generator returns the number of step 0, then that of step 1, and so on: a search with more steps begins
    with the same numbers.
    """
    rows = np.zeros((len(streams), count))
    for row, stream in zip(rows, streams, strict=True):
        stream.random(out=row)
    return torch.from_numpy(rows).to(torch.float32).clamp(max=BELOW_ONE)
