"""Seen: the result of a second pass (looking), with the same fields as Attended."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attended import Top

__all__ = ["Seen"]


class Seen(NamedTuple):
    """The result of a looking pass: the fields that a Look requests, with the same names as in Attended.

    lse: computed again by the looking pass, because the lse of the forward pass has no gradient. It is used
        only if look.gradient is True."""

    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top: Top | None = None
    alignment: Tensor | None = None
    entropy: Tensor | None = None
    mass: Tensor | None = None
    pooled: Tensor | None = None
