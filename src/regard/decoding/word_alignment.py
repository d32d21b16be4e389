"""Alignment: from the attention of tokens to links between words, in Pharaoh format."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["Alignment", "Block", "Choice", "align", "averaged", "choices", "pharaoh"]


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
        return tuple((source, target) for source, target, _ in self.weighted())

    def weighted(self, threshold: float | None = None) -> list[tuple[int, int, float]]:
        """Links with their weights: (source word, target word, weight), in the order of the target.

        threshold: every link of at least this weight, many to a target word or none; without it, the source
        word that each target word looked at most.

        >>> import torch
        >>> from regard.decoding import align
        >>> align(torch.tensor([[0.5, 0.25, 0.25]]), [0, 1, -1], [0]).weighted(threshold=0.2)
        [(0, 0, 0.5), (1, 0, 0.25)]
        """
        if threshold is not None and not 0 < threshold <= 1:
            expected = "above 0, and at most 1: the least weight of a link"
            raise ArgumentError(message("weighted()", f"threshold is {threshold}", expected=expected))
        found = []
        for weights, first_source, first_target in self.blocks:
            if not weights.shape[1]:
                continue
            most, best = weights.max(1)
            if threshold is None:
                rows = most.gt(0).nonzero()[:, 0]
                columns = best[rows]
            else:
                rows, columns = (weights >= threshold).nonzero(as_tuple=True)
            values = weights[rows, columns].tolist()
            for target, source, weight in zip(rows.tolist(), columns.tolist(), values, strict=True):
                found.append((first_source + source, first_target + target, weight))
        return found

    def written(self, threshold: float | None = None, probabilities: bool = False) -> str:
        """The line in Pharaoh format, 0-0 2-1; with probabilities, 0-0:0.830 2-1:0.512.

        They are the weights: of a target word, those of all links and what EOS received sum to 1.
        """
        return pharaoh(self.weighted(threshold), probabilities)

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
        return self.written()

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


def pharaoh(weighted: Iterable[tuple[int, int, float]], probabilities: bool = False) -> str:
    """Links with their weights as a line in Pharaoh format.

    >>> pharaoh([(0, 0, 0.83), (2, 1, 0.512)]), pharaoh([(0, 0, 0.83)], probabilities=True)
    ('0-0 2-1', '0-0:0.830')
    """
    return " ".join(
        f"{source}-{target}" + (f":{weight:.3f}" if probabilities else "")
        for source, target, weight in weighted
    )


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


@dataclass(frozen=True)
class Choice:
    """Where alignments are read: at which sites, of which head, and at which step.

    site: with * as wildcard; several are averaged. head: from 0 on; None is the mean of all. shifted: read
    one step later. The step that says a word looks for what to say; the step after it takes that word as its
    input, and in a Transformer often looks at the source of just that word (Chen et al. 2020).

    >>> import torch
    >>> from regard.decoding import Choice
    >>> seen = {"decoder.0.cross": torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.2, 0.8]])}
    >>> Choice(shifted=True).read(seen)
    tensor([[0.7000, 0.3000],
            [0.2000, 0.8000],
            [0.0000, 0.0000]])
    >>> print(Choice("decoder.0.cross", head=2, shifted=True))
    decoder.0.cross, head 2, one step later
    """

    site: str = "*cross"
    head: int | None = None
    shifted: bool = False

    @classmethod
    def of(cls, given: Choice | str) -> Choice:
        """The choice itself, or that of the sites that a text names."""
        return given if isinstance(given, Choice) else cls(given)

    def instead(
        self, site: str | None = None, head: int | None = None, shifted: bool | None = None
    ) -> Choice:
        """This choice with what is given in its place; at other sites nothing of it is kept."""
        kept = self if site is None else Choice(site)
        return Choice(
            kept.site, kept.head if head is None else head, kept.shifted if shifted is None else shifted
        )

    def read(self, attention: Mapping[str, Tensor]) -> Tensor:
        """One matrix (T, S) from the attention of a hypothesis, a row for each token that it said.

        Read one step later, the last token has a row of zeros: no step took it as input. It is EOS, unless
        the hypothesis was cut.
        """
        weights_TS = averaged(attention, self.site, self.head)
        if not self.shifted:
            return weights_TS
        return torch.cat((weights_TS[1:], torch.zeros_like(weights_TS[:1])))

    def __str__(self) -> str:
        head = "all heads" if self.head is None else f"head {self.head}"
        return f"{self.site}, {head}{', one step later' if self.shifted else ''}"


def choices(attention: Mapping[str, Tensor], site: str = "*cross") -> list[Choice]:
    """All that can be chosen of what was seen, each at both steps: all sites together, each site, each head.

    >>> import torch
    >>> from regard.decoding import choices
    >>> for choice in choices({"decoder.0.cross": torch.ones(2, 1, 1)}):
    ...     print(choice)
    decoder.0.cross, all heads
    decoder.0.cross, all heads, one step later
    decoder.0.cross, head 0
    decoder.0.cross, head 0, one step later
    decoder.0.cross, head 1
    decoder.0.cross, head 1, one step later
    """
    matching = {name: weights for name, weights in attention.items() if fnmatch.fnmatchcase(name, site)}
    places: list[tuple[str, int | None]] = [(site, None)] if len(matching) > 1 else []
    for name, weights in matching.items():
        heads = range(len(weights)) if weights.dim() == 3 and len(weights) > 1 else ()
        places += [(name, None), *((name, head) for head in heads)]
    return [Choice(name, head, shifted) for name, head in places for shifted in (False, True)]


def _membership(words: Sequence[int]) -> tuple[Tensor, int]:
    """A 1 where a token belongs to a word, (tokens, words), and the number of the first word."""
    there = [word for word in words if word >= 0]
    first, last = min(there, default=0), max(there, default=-1)
    numbers = torch.tensor(list(words), dtype=torch.long).reshape(-1, 1)
    return (numbers == torch.arange(first, last + 1)).float(), first
