"""Select, the base class of selections, and those that weight every visible key, such as Soft (softmax)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError, message

__all__ = ["LOOKS", "Gate", "Given", "Linear", "LocalP", "Select", "Selection", "Soft", "softmax"]

LOOKS = ("alignment", "entropy", "mass", "pooled", "rows", "top", "weights")


class Selection(NamedTuple):
    """The result of Select.choose(): weights (B, H, T, S), and values per query, each (B, H, T) or None.

    lse: log-sum-exp of the scores.
    chosen: index of the selected key.
    log_probability: log-probability of the selected key.
    entropy: entropy of the softmax.

    >>> import regard, torch
    >>> scores, visible = torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4, dtype=torch.bool)
    >>> regard.Soft().choose(scores, visible).lse.exp()  # the sum of exp(0) over 4 keys
    tensor([[[4.]]])
    """

    weights: Tensor
    lse: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None
    entropy: Tensor | None = None


class Select:
    """Base class of selections, which turn scores into weights.

    A subclass implements choose().

    >>> import regard, torch
    >>> class Even(regard.Select):
    ...     def choose(self, scores, visible):
    ...         return regard.Selection(visible / visible.sum(-1, keepdim=True).clamp_min(1))
    >>> regard.attention(torch.eye(2), torch.eye(2), select=Even()).output
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """

    looks: ClassVar[tuple[str, ...]] = LOOKS
    why_not: ClassVar[str] = ""

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        """Return a Selection with the weights for the scores. Hidden keys must have the weight 0."""
        raise TypeError(f"{type(self).__name__} does not implement choose()")

    def visible(self, visible_BHTS: Tensor) -> Tensor:
        """Return which keys each query can select, (B, H, T, S). LocalP, for example, hides more keys.

        visible_BHTS: True for the keys that the mask and the bias leave visible.
        """
        return visible_BHTS

    def problem(self, rows: tuple[int, ...]) -> str | None:
        """Return an error text if a tensor, such as LocalP.centre, does not match the query. Otherwise None.

        rows: shape of the query without its last dimension, (..., T).
        """
        return None

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> Select:
        """Return a copy with all tensors changed by `lift`, which adds missing batch and head dimensions."""
        return self

    def deterministic(self) -> Select:
        """Return a selection without sampling, to use in eval mode: Best for Hard, otherwise `self`."""
        return self


@dataclass(frozen=True)
class Soft(Select):
    """Softmax over the visible keys.

    weight_s = exp(score_s / temperature) / sum_s' exp(score_s' / temperature)

    >>> import regard, torch
    >>> look = regard.Look(weights=True)
    >>> regard.attention(torch.eye(2), torch.eye(2), select=regard.Soft(temperature=0.1), look=look).weights
    tensor([[9.9915e-01, 8.4860e-04],
            [8.4860e-04, 9.9915e-01]])
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ArgumentError(
                message(
                    "Soft()",
                    f"temperature is {self.temperature}",
                    expected="a number greater than 0",
                    hint="use Best() for the limit of temperature 0",
                )
            )

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(*softmax(scores_BHTS / self.temperature, visible_BHTS))


@dataclass(frozen=True)
class Gate(Select):
    """Sigmoid of each score: weights between 0 and 1 that do not sum to 1, like the gates of an LSTM.

    weight_s = sigmoid(score_s)

    >>> import regard, torch
    >>> x = torch.tensor([[0.0], [5.0]])
    >>> regard.attention(x, x, select=regard.Gate(), look=regard.Look(weights=True)).weights
    tensor([[0.5000, 0.5000],
            [0.5000, 1.0000]])
    """

    looks: ClassVar[tuple[str, ...]] = tuple(look for look in LOOKS if look != "entropy")
    why_not: ClassVar[str] = "request another field: the weights do not sum to 1, so they have no entropy"

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(
            torch.where(visible_BHTS, torch.sigmoid(torch.where(visible_BHTS, scores_BHTS, 0.0)), 0.0)
        )


@dataclass(frozen=True)
class Linear(Select):
    """Use the scores as weights, without softmax. Such attention is linear in the scores.

    weight_s = score_s

    Memory networks start their training in this way (linear start, Sukhbaatar et al. 2015, section 4.1).

    >>> import regard, torch
    >>> from regard.select import Linear
    >>> x = torch.tensor([[2.0], [-1.0]])
    >>> regard.attention(x, x, score=regard.Dot(), select=Linear(), look=regard.Look(weights=True)).weights
    tensor([[ 4., -2.],
            [-2.,  1.]])
    """

    looks: ClassVar[tuple[str, ...]] = Gate.looks
    why_not: ClassVar[str] = Gate.why_not

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(torch.where(visible_BHTS, scores_BHTS, 0.0))


@dataclass(frozen=True, eq=False)
class LocalP(Select):
    """Local-p attention of Luong et al.: softmax within a window around p, times a Gaussian centred at p.

    weight_s = softmax(score)_s * exp(-(s - p)^2 / (2 sigma^2)), sigma = width / 2, over |s - p| <= width
    (Luong et al. 2015, eq. 10). As in the paper, the weights are not normalised again and sum to less than 1.

    centre: p, the centre of the window of each query. It is a number, or a tensor (..., T) with the shape of
        the query without its last dimension.
    width: the half-width of the window, D in the paper.

    >>> import regard, torch
    >>> q, k = torch.ones(1, 2), torch.ones(5, 2)
    >>> select = regard.LocalP(centre=torch.tensor([2.0]), width=2)
    >>> regard.attention(q, k, select=select, look=regard.Look(weights=True)).weights
    tensor([[0.0271, 0.1213, 0.2000, 0.1213, 0.0271]])
    """

    centre: Tensor
    width: int
    looks: ClassVar[tuple[str, ...]] = Gate.looks
    why_not: ClassVar[str] = Gate.why_not

    def __post_init__(self) -> None:
        dtype = torch.float64 if isinstance(self.centre, float) else None
        object.__setattr__(self, "centre", torch.as_tensor(self.centre, dtype=dtype))
        if self.width < 1:
            raise ArgumentError(message("LocalP()", f"width is {self.width}", expected="1 or more"))

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        weights, lse = softmax(scores_BHTS, self.visible(visible_BHTS))
        offset_BHTS = self._offset(scores_BHTS).to(torch.promote_types(weights.dtype, torch.float32))
        gaussian = torch.exp(-offset_BHTS.square() / (2 * (self.width / 2) ** 2))
        return Selection(weights * gaussian.to(weights.dtype), lse)

    def visible(self, visible_BHTS: Tensor) -> Tensor:
        return visible_BHTS & (self._offset(visible_BHTS).detach().abs() <= self.width)

    def _offset(self, like_BHTS: Tensor) -> Tensor:
        """Return the signed distance of each key from the window centre of each query, (B, H, T, S)."""
        return torch.arange(like_BHTS.shape[-1], device=like_BHTS.device) - self.centre.unsqueeze(-1)

    def problem(self, rows: tuple[int, ...]) -> str | None:
        shape = tuple(self.centre.shape)
        return None if shape in (rows, ()) else f"the centre of LocalP has shape {shape}, not {rows}"

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> LocalP:
        return (
            self
            if not self.centre.dim()
            else replace(self, centre=lift(self.centre.unsqueeze(-1)).squeeze(-1))
        )


@dataclass(frozen=True, eq=False)
class Given(Select):
    """A selection that ignores the scores and returns `weights`, with 0 for hidden keys. read() uses it."""

    weights: Tensor

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(torch.where(visible_BHTS, self.weights, 0.0))

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> Given:
        return replace(self, weights=lift(self.weights))


def softmax(scores_BHTS: Tensor, visible_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax weights over the visible keys, and the log-sum-exp for each query.

    If a query has no visible keys, its weights are 0, and its log-sum-exp is -inf.
    """
    some = visible_BHTS.any(-1, keepdim=True)
    # A row that contains only -inf would give NaN in the result and the gradient. So fill it with 0, then set
    # its weights to 0.
    filled = torch.where(some, torch.where(visible_BHTS, scores_BHTS, -torch.inf), 0.0)
    weights = torch.where(visible_BHTS, torch.softmax(filled, -1), 0.0)
    if not scores_BHTS.shape[-1]:
        return weights, torch.full_like(scores_BHTS.sum(-1), -torch.inf)
    return weights, torch.where(some.squeeze(-1), torch.logsumexp(filled, -1), -torch.inf)
