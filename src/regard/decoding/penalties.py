"""Penalties: what beams that have ended are ranked by, beside their log-probability.

    ranking(Y) = log P(Y | X) / length(|Y|) + coverage(X, Y)        (Wu et al. 2016, equation 14)

A sum of log-probabilities favours short sentences, so it is divided by a measure of length; and what says
only half of its source is marked down by what its attention left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ArgumentError, message

__all__ = ["GNMT", "LENGTHS", "Average", "Length", "coverage"]

MOST_ALPHA = 20
"""The largest exponent."""


@dataclass(frozen=True)
class Length:
    """A measure of length by which log-probabilities are divided; a subclass gives its base."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not abs(self.alpha) <= MOST_ALPHA:
            hint = "0 disables the penalty; larger favours longer sentences"
            expected, call = f"a number, -{MOST_ALPHA} to {MOST_ALPHA}", f"{type(self).__name__}()"
            raise ArgumentError(message(call, f"alpha is {self.alpha!r}", expected=expected, hint=hint))

    def base(self, length: int) -> float:
        """What is raised to the power of alpha, for so many tokens, EOS counted."""
        raise TypeError(f"{type(self).__name__} does not say what it measures")

    def table(self, longest: int, device: torch.device) -> Tensor:
        """The divisor for each length from 0 to the longest, (longest + 1,). That of 0 is never used: 1."""
        powers = [self.base(length) ** self.alpha for length in range(1, longest + 1)]
        largest = torch.finfo(torch.float32).max  # longer sentences all have this divisor
        return torch.tensor([1.0, *powers], dtype=torch.float64).clamp(max=largest).to(device, torch.float32)


@dataclass(frozen=True)
class GNMT(Length):
    """Divide by ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, equation 14).

    >>> from regard.decoding import GNMT
    >>> GNMT(alpha=1.0).base(7)
    2.0
    """

    alpha: float = 0.6

    def base(self, length: int) -> float:
        """(5 + |Y|) / 6."""
        return (5 + length) / 6


@dataclass(frozen=True)
class Average(Length):
    """Divide by |Y| ** alpha: at alpha 1, the average log-probability of a token.

    >>> from regard.decoding import Average
    >>> Average().base(7)
    7.0
    """

    def base(self, length: int) -> float:
        """|Y|."""
        return float(length)


LENGTHS: dict[str, type[Length]] = {"average": Average, "gnmt": GNMT}
"""The length penalties by name."""

NOTHING = 1e-6
"""What a source token counts for at least: a selection may give it exactly 0, which has no logarithm."""


def coverage(attended: Tensor, lengths: Tensor) -> Tensor:
    """What the source is left uncovered by, 0 or less: the sum over s of log min(attended_s, 1).

    (Wu et al. 2016, equation 14.) attended: (..., S), the weights that each source token received in all;
    lengths: (...), how many source tokens there are. Differs from the paper: a token that received less than
    a millionth counts as a millionth, so that one of them does not decide everything.

    >>> import torch
    >>> from regard.decoding import coverage
    >>> coverage(torch.tensor([[1.5, 0.5, 0.0]]), torch.tensor([2])).exp()
    tensor([0.5000])
    """
    position = torch.arange(attended.shape[-1], device=attended.device)
    logs = attended.clamp(NOTHING, 1.0).log()
    return torch.where(position < lengths[..., None], logs, 0.0).sum(-1)
