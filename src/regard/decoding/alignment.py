"""Alignment: from the attention of tokens to links between words, in Pharaoh format."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["Alignment", "Block", "align", "averaged"]


class Block(NamedTuple):
    """The weights of some target words on some source words, and the numbers of the first of each."""

    weights: Tensor
    source: int = 0
    target: int = 0


@dataclass(frozen=True, eq=False)
class Alignment:
    """Which source word each target word looked at most: str() is the line in Pharaoh format.

    blocks: one, or one for each part of a line that was translated in parts; words of different parts did
    not see each other.

    >>> import torch
    >>> from regard.decoding import align
    >>> weights = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9], [0.4, 0.3, 0.3]])
    >>> alignment = align(weights, source_words=[0, 0, 1], target_words=[0, 0, 1, -1])
    >>> print(alignment)
    0-0 1-1
    >>> alignment.matrix
    tensor([[0.8500, 0.1500],
            [0.1000, 0.9000]])
    """

    blocks: tuple[Block, ...]

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs (source word, target word), counted from 0, for each target word that looked at any."""
        found = []
        for weights, first_source, first_target in self.blocks:
            if weights.shape[1]:
                most, sources = weights.max(1)
                pairs = enumerate(zip(sources.tolist(), most.tolist(), strict=True), first_target)
                found += [(first_source + source, target) for target, (source, most) in pairs if most > 0]
        return tuple(found)

    @property
    def matrix(self) -> Tensor:
        """The weights (target words, source words), 0 between words that did not see each other."""
        rows = max((block.target + block.weights.shape[0] for block in self.blocks), default=0)
        columns = max((block.source + block.weights.shape[1] for block in self.blocks), default=0)
        whole = torch.zeros(rows, columns)
        for weights, source, target in self.blocks:
            whole[target : target + weights.shape[0], source : source + weights.shape[1]] = weights
        return whole

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.links)

    @classmethod
    def joined(cls, parts: Iterable[Alignment]) -> Alignment:
        """The alignments of parts of one line, whose words are numbered through, as one."""
        return cls(tuple(block for part in parts for block in part.blocks))


def align(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Alignment:
    """Join the attention of tokens, (T, S), to that of words: a sum over source tokens, a mean over target's.

    source_words, target_words: the number of the word that each token belongs to; -1 for a token that belongs
    to none, such as EOS, whose row or column is dropped. The rows are not made to sum to 1 again: what EOS
    received is not spread over words that did not receive it.
    """
    source_SW, first_source = _membership(source_words)
    target_TW, first_target = _membership(target_words)
    mean_TW = target_TW / target_TW.sum(0).clamp(min=1)
    return Alignment((Block(mean_TW.T @ weights.float() @ source_SW, first_source, first_target),))


def averaged(attention: Mapping[str, Tensor], site: str = "*cross", head: int | None = None) -> Tensor:
    """One matrix (T, S) from the attention of a hypothesis: the mean over sites and heads.

    site: which sites, with * as wildcard. head: only this one of each site; None is all.

    >>> import torch
    >>> from regard.decoding import averaged
    >>> seen = {"decoder.0.cross": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])}
    >>> averaged(seen), averaged(seen, "decoder.0.*", head=1)
    (tensor([[0.5000, 0.5000]]), tensor([[0., 1.]]))
    """
    chosen = [weights for name, weights in attention.items() if fnmatch.fnmatchcase(name, site)]
    if not attention:
        problem = "there is no attention to average"
        hint = "seq2seq has none; other models show it where look is not None"
        raise ArgumentError(message("averaged()", problem, hint=hint))
    if not chosen:
        raise UnknownName("site", site, attention)
    means = []
    for weights_HTS in (weights if weights.dim() == 3 else weights[None] for weights in chosen):
        heads = len(weights_HTS)
        if head is not None and not -heads <= head < heads:
            raise UnknownName("head", head, map(str, range(heads)))
        means.append(weights_HTS.mean(0) if head is None else weights_HTS[head])
    return torch.stack(means).mean(0)


def _membership(words: Sequence[int]) -> tuple[Tensor, int]:
    """A 1 where a token belongs to a word, (tokens, words), and the number of the first word."""
    there = [word for word in words if word >= 0]
    first, last = min(there, default=0), max(there, default=-1)
    numbers = torch.tensor(list(words), dtype=torch.long).reshape(-1, 1)
    return (numbers == torch.arange(first, last + 1)).float(), first
