"""Sentences: the sentences of a search, encoded or not, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.data.batch_rows import BatchRows
from regard.decoding.active_rows import ActiveRows, start_decoding, without_encoding
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.prompts import Prompts
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit
from regard.decoding.sampling import Sample, Seed
from regard.models.base import Model, State

__all__ = ["Sentences", "Sizes", "not_encoded", "sentences_of", "sizes_without_prefixes"]


class Sizes(NamedTuple):
    """The sizes of a search, which determine the sizes of its slots.

    outputs: the number of sentences times the number of samples of each.
    source_length, longest: see Sentences.
    prefix: the number of tokens of the longest prefix.
    position: the number of tokens that the decoder has already read, for example of a prompt.
    """

    outputs: int
    source_length: int
    longest: int
    prefix: int
    position: int
    device: torch.device


@dataclass(frozen=True, eq=False)
class Sentences(BatchRows):
    """The sentences of a search: their encoder output and the decoder state before the first output token.

    active: the encoder output, limits and prefixes.
    state: the decoder state, with one row for each sentence.
    first: (B,), the first input of the search: BOS, or the last token of a prompt.
    longest: the maximum number of tokens of all outputs.
    source_length: the number of source tokens, padding included; 0 if the model has no source.
    seeds: the random seeds of all samples, those of one sentence after the other. None without sampling.
    """

    active: ActiveRows
    state: State
    first: Tensor
    longest: int
    source_length: int
    seeds: list[Seed] | None = None

    @property
    def samples(self) -> int:
        """The number of outputs of each sentence."""
        return 1 if self.seeds is None else len(self.seeds) // len(self.first)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the search."""
        first, prefix = self.first, self.active.prefix.shape[1]
        sizes = len(first) * self.samples, self.source_length, self.longest, prefix
        return Sizes(*sizes, self.state.position, first.device)


def sentences_of(
    model: Model,
    batch: Batch | Prompts,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> Sentences:
    """Encode the sources of a batch, or read prompts. The arguments are those of search()."""
    active, state, last_B1 = start_decoding(model, batch, how.rules, prefixes, 1, limit)
    source_length = max((memory.length for memory in active.encoded.memories), default=0)
    seeds = how.seeds(batch.index.tolist()) if isinstance(how, Sample) else None
    return Sentences(active, state, last_B1[:, 0], int(active.limits.max()), source_length, seeds)


def not_encoded(
    model: Model,
    batch: Batch,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> Sentences:
    """Return the sentences of a batch before they are encoded. The arguments are those of search()."""
    active, _, last_B1 = without_encoding(model, batch, how.rules, prefixes, limit)
    source_length = batch.source.shape[1]
    if active.prefix.shape[1]:
        longest = int(active.limits.max())
    else:
        longest = how.rules.longest(model, source_length, limit)
    return Sentences(active, State(), last_B1[:, 0], longest, source_length)


def sizes_without_prefixes(
    model: Model, batch: Batch, how: Beam | Greedy, limit: LengthLimit = TRANSLATION_LIMIT
) -> Sizes:
    """Return not_encoded(...).sizes of a search without prefixes, computed on the host."""
    count, source_length = batch.source.shape
    longest = how.rules.longest(model, source_length, limit)
    return Sizes(count, source_length, longest, 0, 0, batch.index.device)
