"""Seen: what a looking pass gives back, each field as in Attended."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attended import Top

__all__ = ["Seen"]


class Seen(NamedTuple):
    """The looks that were asked for; lse only where the look carries gradients."""

    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top: Top | None = None
    alignment: Tensor | None = None
    entropy: Tensor | None = None
    mass: Tensor | None = None
