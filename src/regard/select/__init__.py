"""Select: turn scores into weights by softmax, entmax, sigmoid, sampling or argmax.

A selection gets the scores of each query for all keys, and a bool tensor of the visible keys. It returns
weights. The weight of a key that is not visible is exactly 0. If a query has no visible keys, all its weights
are 0. Soft is the only selection that kernels implement, because it can be computed block by block from the
log-sum-exp of each query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.select.hard import Best, Hard, StraightThrough
from regard.select.soft import LOOKS, Gate, Given, Linear, LocalP, Select, Selection, Soft, softmax
from regard.select.sparse import Sparse

__all__ = [
    "Best",
    "Gate",
    "Given",
    "Hard",
    "LOOKS",
    "Linear",
    "LocalP",
    "SELECTIONS",
    "Select",
    "Selection",
    "Soft",
    "Sparse",
    "StraightThrough",
    "build_select",
    "softmax",
]

SELECTIONS: dict[str, tuple[Select, tuple[str, ...]]] = {
    "softmax": (Soft(), ("temperature",)),
    "sparsemax": (Sparse(2.0), ()),
    "entmax": (Sparse(1.5), ("alpha",)),
    "gate": (Gate(), ()),
    "linear": (Linear(), ()),
    "hard": (Hard(), ()),
    "best": (Best(), ()),
    "straight-through": (StraightThrough(), ()),
}
"""The selections by name, each with the names of its options."""


def build_select(select: str | Mapping[str, Any] | Select) -> Select:
    """Create a selection from its name, or from a mapping with its name and options, as in config.toml.

    select: a key of SELECTIONS, a mapping, or a Select, which is returned unchanged.

    >>> build_select("sparsemax"), build_select({"name": "softmax", "temperature": 0.5})
    (Sparse(alpha=2.0), Soft(temperature=0.5))
    """
    if isinstance(select, Select):
        return select
    if not isinstance(select, str | Mapping):
        expected = 'a name, {"name": "softmax", "temperature": 0.5}, or a Select'
        raise ArgumentError(message("build_select()", f"select is {select!r}", expected=expected))
    options = {"name": select} if isinstance(select, str) else dict(select)
    name = options.pop("name", None)
    if name not in SELECTIONS:
        hint = 'for local-p, set view="local-p" of the model luong' if name == "local-p" else ""
        raise UnknownName("selection", name, SELECTIONS, hint=hint)
    default, known = SELECTIONS[name]
    for option, value in options.items():
        if option not in known:
            raise UnknownName(f"option of the selection {name}", option, known)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{option} is {value!r}"
            raise ArgumentError(message(f"selection {name}", problem, expected="a number"))
    return replace(default, **options) if options else default  # type: ignore[type-var]
