"""Twin: the base class of twins."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Twin"]


class Twin(nn.Module):
    """Base of a twin: a subclass of a plain module that computes the same from the same parameters, faster.

    A twin has no state of its own: inside Twins, the class of a module is replaced by its twin, and the
    attributes stay. Where a call does not suit the twin, such as inside record(), its methods call super().
    """

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """Why the twin cannot replace this module; an empty list if it can."""
        return []
