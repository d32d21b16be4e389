"""Length and coverage penalties, for the ranking of finished hypotheses in beam search.

    ranking(Y) = log P(Y | X) / length(|Y|) + coverage(X, Y)        (Wu et al. 2016, equation 14)

X is the source, Y the hypothesis, and |Y| its number of tokens.

The sum of log-probabilities is higher for short sentences, so it is divided by a length penalty. The coverage
penalty lowers the ranking of a hypothesis that attends little to some source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ArgumentError, message

__all__ = ["GNMT", "LENGTHS", "Average", "Length", "coverage"]

MOST_ALPHA = 20
"""The maximum absolute value of alpha, the exponent of a length penalty."""


@dataclass(frozen=True)
class Length:
    """A length penalty: the log-probability is divided by base(length) ** alpha. Subclasses define base().

    alpha: the exponent. 0 disables the penalty; a larger alpha favours longer sentences.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not abs(self.alpha) <= MOST_ALPHA:
            hint = "use 0 to disable the penalty, or a larger alpha to favour longer sentences"
            expected, call = f"a number, -{MOST_ALPHA} to {MOST_ALPHA}", f"{type(self).__name__}()"
            raise ArgumentError(message(call, f"alpha is {self.alpha!r}", expected=expected, hint=hint))

    def base(self, length: int) -> float:
        """Return the number that is raised to the power alpha, for a sentence of `length` tokens with EOS."""
        raise TypeError(f"{type(self).__name__} must define base()")

    def table(self, longest: int, device: torch.device) -> Tensor:
        """Return the divisor of the log-probability, base(length) ** alpha, for each length, (longest + 1,).

        The lengths are 0 to `longest`. The entry for length 0 is 1; it is not used.
        """
        powers = [self.base(length) ** self.alpha for length in range(1, longest + 1)]
        largest = torch.finfo(torch.float32).max  # avoid inf for long sentences
        return torch.tensor([1.0, *powers], dtype=torch.float64).clamp(max=largest).to(device, torch.float32)


@dataclass(frozen=True)
class GNMT(Length):
    """Length penalty: divide the log-probability of a sentence Y by ((5 + |Y|) / 6) ** alpha.

    |Y| is the number of tokens, EOS included (Wu et al. 2016, equation 14).

    >>> from regard.decoding import GNMT
    >>> GNMT(alpha=1.0).base(7)
    2.0
    """

    alpha: float = 0.6

    def base(self, length: int) -> float:
        """Return (5 + length) / 6. `length` is the number of tokens with EOS."""
        return (5 + length) / 6


@dataclass(frozen=True)
class Average(Length):
    """Length penalty: divide the log-probability of a sentence Y by |Y| ** alpha.

    |Y| is the number of tokens, EOS included. With alpha = 1, the ranking is the average log-probability per
    token.

    >>> from regard.decoding import Average
    >>> Average().base(7)
    7.0
    """

    def base(self, length: int) -> float:
        """Return `length`, the number of tokens with EOS, as a float."""
        return float(length)


LENGTHS: dict[str, type[Length]] = {"average": Average, "gnmt": GNMT}
"""The length penalties by their names on the command line, as in --length-penalty average:1."""

MIN_COVERED = 1e-6
"""Lower bound of the summed attention weights on a source token, for the coverage penalty.

Sparse attention can be 0, and log 0 would be -inf.
"""


def coverage(attended: Tensor, lengths: Tensor) -> Tensor:
    """Compute the coverage penalty: sum over s of log min(attended_s, 1), at most 0 (Wu et al. 2016, eq. 14).

    attended: (..., S), for each source token, the sum of the attention weights of all target tokens on it.
    lengths: (...), the number of source tokens.

    Return: (...).

    Differs from the paper: attended_s is at least 1e-6, so that a token without attention does not give -inf.

    >>> import torch
    >>> from regard.decoding import coverage
    >>> coverage(torch.tensor([[1.5, 0.5, 0.0]]), torch.tensor([2])).exp()  # the third is padding
    tensor([0.5000])
    """
    position = torch.arange(attended.shape[-1], device=attended.device)
    logs = attended.clamp(MIN_COVERED, 1.0).log()
    return torch.where(position < lengths[..., None], logs, 0.0).sum(-1)
