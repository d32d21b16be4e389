"""Seen: the result of a looking pass, with fields as in Attended."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attended import Top

__all__ = ["Seen"]


class Seen(NamedTuple):
    """The fields that a look requests, as in Attended; lse only for a look with gradients."""

    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top: Top | None = None
    alignment: Tensor | None = None
    entropy: Tensor | None = None
    mass: Tensor | None = None
