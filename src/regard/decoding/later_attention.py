"""LaterAttention: base class of results some of whose fields are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from regard.roles import BySite

__all__ = ["Compute", "LaterAttention"]

Compute = Callable[[], tuple[BySite[Tensor], dict[str, Tensor]]]
"""A function that returns the attention weights and the norms of the value vectors of each site."""


class LaterAttention:
    """Base class of dataclasses with the fields `attention` and `values`, which may be computed later.

    Reading attention from a GPU takes longer than a search, and many users read only the text.
    """

    @classmethod
    def with_later_attention(
        cls, compute: Compute, others: Callable[[], dict[str, Any]] | None = None, **values: Any
    ) -> Any:
        """Return an object whose attention and values are computed when one of them is first read.

        compute: a function that returns both.
        others: a function that returns further fields, which are computed when one of them is first read.
        values: all other fields of the dataclass, and further attributes.
        """
        result = object.__new__(cls)
        result.__dict__.update(values)
        result.__dict__["_compute"] = compute
        if others is not None:
            result.__dict__["_others"] = others
        return result

    def __getattr__(self, name: str) -> Any:
        """Compute a field; Python calls this method only for attributes that do not exist yet."""
        others = self.__dict__.get("_others")
        if others is not None and name not in ("attention", "values") and not name.startswith("_"):
            self.__dict__.update(others())
            self.__dict__.pop("_others", None)
        both = self._compute_attention() if name in ("attention", "values") else None
        if both is not None:
            self.__dict__.update(attention=both[0], values=both[1])
            # These attributes keep the memory of other hypotheses.
            for private in ("_compute", "_recorded", "_alignment"):
                self.__dict__.pop(private, None)
        if name not in self.__dict__:  # it exists if another thread has computed it in the meantime
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__[name]

    def _compute_attention(self) -> tuple[BySite[Tensor], dict[str, Tensor]] | None:
        """Return attention and values; None if they were computed already."""
        compute: Compute | None = self.__dict__.get("_compute")
        return None if compute is None else compute()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copy.copy() and copy.deepcopy(), with the attention."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
