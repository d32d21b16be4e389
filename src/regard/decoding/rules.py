"""Rules: what may be said, whatever the model thinks of it; and how long.

A rule acts on log-probabilities (rows, V) and takes tokens away by setting them to -inf. What is left keeps
the log-probability that the model gave it: rules choose, they do not change scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.errors import ArgumentError, message
from regard.models.base import Model

__all__ = ["MOST_TOKENS", "Rules", "forced", "whole"]

MOST_TOKENS = 100_000
"""The largest number of tokens that a sentence may be allowed."""


@dataclass(frozen=True)
class Rules:
    """What may be said: how short and how long, no n-gram twice, some tokens never.

    minimum, maximum: how many tokens, EOS counted; without a maximum, twice as many as the source has and 10
    more. repeat: the size of the n-grams that may be said once only; 0 lets everything be said again.
    forbidden: tokens that are never said; PAD and BOS are not, in any case. A forced prefix is said whatever
    the rules are. A row that the rules leave nothing to say may end.

    >>> import torch
    >>> from regard.decoding import Rules
    >>> said, scores = torch.tensor([[5, 4, 5]]), torch.zeros(1, 7)
    >>> Rules(minimum=9, repeat=2).permitted(scores, said)
    tensor([[-inf, -inf, -inf, -inf, -inf, 0., 0.]])
    """

    minimum: int = 1
    maximum: int | None = None
    repeat: int = 0
    forbidden: tuple[int, ...] = (UNK,)

    def __post_init__(self) -> None:
        whole("Rules()", minimum=(self.minimum, 1, MOST_TOKENS), repeat=(self.repeat, 0, MOST_TOKENS))
        if self.maximum is not None:
            whole("Rules()", maximum=(self.maximum, 1, MOST_TOKENS))
            if self.maximum < self.minimum:
                problem = f"the minimum, {self.minimum}, is more than the maximum, {self.maximum}"
                raise ArgumentError(message("Rules()", problem))
        if not isinstance(self.forbidden, Iterable):
            problem = f"forbidden is {self.forbidden!r}"
            raise ArgumentError(message("Rules()", problem, expected="a tuple of tokens, such as (1,)"))
        object.__setattr__(self, "forbidden", tuple(self.forbidden))
        for token in self.forbidden:
            whole("Rules()", **{"a forbidden token": (token, 0)})
        if EOS in self.forbidden:
            hint = "minimum=... keeps it from ending early"
            raise ArgumentError(message("Rules()", "EOS is forbidden: nothing could end", hint=hint))

    def limits(self, model: Model, source_lengths: Tensor, prefix_lengths: Tensor) -> Tensor:
        """How many tokens each sentence may have, (B,), EOS counted; raises where its prefix leaves none."""
        if self.maximum is None:
            limits = (2 * source_lengths + 10 + prefix_lengths).clamp(min=self.minimum)
        else:
            limits = torch.full_like(source_lengths, self.maximum)
        if model.longest_target is not None:
            limits = limits.clamp(max=model.longest_target)
        if (prefix_lengths >= limits).any():
            worst = int((prefix_lengths - limits).argmax())
            raise ArgumentError(
                message(
                    "search()",
                    f"the prefix of sentence {worst} has {int(prefix_lengths[worst])} tokens",
                    expected=f"fewer than the {int(limits[worst])} tokens it may have in all",
                    hint="give a shorter prefix or Rules(maximum=...) that leaves it room",
                )
            )
        return limits

    def permitted(self, scores: Tensor, said: Tensor, must: Tensor | None = None) -> Tensor:
        """Log-probabilities (rows, V) with -inf for what may not follow the tokens said, (rows, t).

        must: (rows,), the token that a prefix forces on each row, PAD where it is free.
        """
        never = _never(self.forbidden, scores.shape[-1], scores.device)
        left_RV = scores.index_fill(-1, never, -torch.inf)
        short = said.shape[1] + 1 < self.minimum
        if short:
            left_RV[:, EOS] = -torch.inf
        if self.repeat:
            # A window that does not match forbids PAD, which is forbidden already: no row needs a branch.
            left_RV.scatter_(1, _again(said, self.repeat), -torch.inf)
        if short or self.repeat:
            stuck_R = left_RV.amax(-1) == -torch.inf
            left_RV[:, EOS] = torch.where(stuck_R, scores[:, EOS], left_RV[:, EOS])
        if must is not None:
            token = torch.arange(scores.shape[-1], device=scores.device)
            alone_RV = torch.where(token == must[:, None], scores, -torch.inf)
            left_RV = torch.where(must[:, None] == PAD, left_RV, alone_RV)
        return left_RV


def forced(prefixes: Sequence[Sequence[int]] | None, sentences: int, size: int) -> tuple[Tensor, Tensor]:
    """Prefixes as tokens (B, P), PAD where a sentence is free, and their lengths (B,)."""
    rows = [list(prefix) for prefix in prefixes] if prefixes is not None else [[]] * sentences
    if len(rows) != sentences:
        problem = f"{len(rows)} prefixes for {sentences} sentences"
        raise ArgumentError(message("search()", problem, hint="an empty prefix, [], leaves a sentence free"))
    for number, row in enumerate(rows):
        for token in row:
            if token in (PAD, BOS, EOS) or not 0 <= token < size:
                problem = f"the prefix of sentence {number} has token {token}"
                expected = f"tokens that can be said: 1, or 4 to {size - 1}"
                raise ArgumentError(message("search()", problem, expected=expected))
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(sentences, longest), lengths


def whole(call: str, **numbers: tuple[object, int] | tuple[object, int, int]) -> None:
    """Raise unless each is a whole number within the bounds given beside it: the least, and the largest."""
    for name, (number, least, *most) in numbers.items():
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not least <= number <= max(most, default=number)
        ):
            expected = f"a whole number, {least} {f'to {most[0]:,}' if most else 'or more'}"
            raise ArgumentError(message(call, f"{name} is {number!r}", expected=expected))


@lru_cache(maxsize=8)
def _never(forbidden: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """The tokens that are never said; kept, for to give a GPU a list is to wait for it, at every step."""
    return torch.tensor(sorted({PAD, BOS, *forbidden} & set(range(size))), device=device)


def _again(said: Tensor, size: int) -> Tensor:
    """The tokens that would say an n-gram again, (rows, windows); PAD for a window that does not."""
    rows, length = said.shape
    if length < size:
        return said.new_full((rows, 1), PAD)
    windows_RWN = said.unfold(1, size, 1)
    last_R1N = said[:, length - size + 1 :].unsqueeze(1)
    same_RW = (windows_RWN[..., :-1] == last_R1N).all(-1)
    return torch.where(same_RW, windows_RWN[..., -1], PAD)
