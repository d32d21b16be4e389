"""Select, the base class of selections; Selection, its result; and softmax over the visible keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

__all__ = ["LOOKS", "Select", "Selection", "softmax"]

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
