"""Regard: attention you can see.

One function computes every attention mechanism since 2014:

    regard.attention(query, key, value, score=..., mask=..., select=..., look=...)

To read the code, start with attention.py.

Public names are imported lazily, on first use: `import regard` is fast, and the command line can print its
help and draw pictures without importing torch.
"""

import importlib
import sys
import types
import typing

if typing.TYPE_CHECKING:
    from regard.attended import Attended, Top
    from regard.attention import attention, read
    from regard.compare import compare
    from regard.errors import (
        ArgumentError,
        BackendError,
        DataError,
        LookError,
        RegardError,
        RegardWarning,
        UnknownName,
    )
    from regard.explain import Explanation, explain
    from regard.interventions import intervene
    from regard.layers import AttentionLayer, MultiHead, watch
    from regard.look import Look
    from regard.masks.constructors import causal, dense, documents, padding, where, window
    from regard.masks.mask import Mask
    from regard.memory import Memory, prepare
    from regard.positions import (
        POSITIONS,
        ALiBi,
        Bias,
        Learned,
        Noise,
        Position,
        Relative,
        Rotary,
        Sinusoidal,
        T5Bias,
        build_position,
    )
    from regard.roles import Role
    from regard.scores import (
        SCORES,
        Additive,
        Concat,
        Cosine,
        Dot,
        General,
        Location,
        ScaledDot,
        Score,
        build_score,
    )
    from regard.select import Best, Gate, Hard, LocalP, Select, Selection, Soft, Sparse, StraightThrough
    from regard.sites import Record, name_sites, record
    from regard.tasks.task_table import load
    from regard.viewing import draw, explore, picture

__all__ = [
    "ALiBi",
    "Additive",
    "ArgumentError",
    "Attended",
    "AttentionLayer",
    "BackendError",
    "Best",
    "Bias",
    "Concat",
    "Cosine",
    "DataError",
    "Dot",
    "Explanation",
    "Gate",
    "General",
    "Hard",
    "Learned",
    "LocalP",
    "Location",
    "Look",
    "LookError",
    "Mask",
    "Memory",
    "MultiHead",
    "Noise",
    "POSITIONS",
    "Position",
    "Record",
    "RegardError",
    "RegardWarning",
    "Relative",
    "Role",
    "Rotary",
    "SCORES",
    "ScaledDot",
    "Score",
    "Select",
    "Selection",
    "Sinusoidal",
    "Soft",
    "Sparse",
    "StraightThrough",
    "T5Bias",
    "Top",
    "UnknownName",
    "attention",
    "build_position",
    "build_score",
    "causal",
    "compare",
    "dense",
    "documents",
    "draw",
    "explain",
    "explore",
    "intervene",
    "load",
    "name_sites",
    "padding",
    "picture",
    "prepare",
    "read",
    "record",
    "watch",
    "where",
    "window",
]

_MODULES = {
    "regard.attended": ("Attended", "Top"),
    "regard.attention": ("attention", "read"),
    "regard.compare": ("compare",),
    "regard.errors": (
        "ArgumentError",
        "BackendError",
        "DataError",
        "LookError",
        "RegardError",
        "RegardWarning",
        "UnknownName",
    ),
    "regard.explain": ("Explanation", "explain"),
    "regard.interventions": ("intervene",),
    "regard.layers": ("AttentionLayer", "MultiHead", "watch"),
    "regard.tasks.task_table": ("load",),
    "regard.look": ("Look",),
    "regard.masks.mask": ("Mask",),
    "regard.masks.constructors": ("causal", "dense", "documents", "padding", "where", "window"),
    "regard.memory": ("Memory", "prepare"),
    "regard.positions": (
        "ALiBi",
        "Bias",
        "Learned",
        "Noise",
        "POSITIONS",
        "Position",
        "Relative",
        "Rotary",
        "Sinusoidal",
        "T5Bias",
        "build_position",
    ),
    "regard.roles": ("Role",),
    "regard.scores": (
        "Additive",
        "Concat",
        "Cosine",
        "Dot",
        "General",
        "Location",
        "SCORES",
        "ScaledDot",
        "Score",
        "build_score",
    ),
    "regard.select": (
        "Best",
        "Gate",
        "Hard",
        "LocalP",
        "Select",
        "Selection",
        "Soft",
        "Sparse",
        "StraightThrough",
    ),
    "regard.sites": ("Record", "name_sites", "record"),
    "regard.viewing": ("draw", "explore", "picture"),
}
"""The public names of each module. tests/test_house.py checks that this table matches the imports above."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not typing.TYPE_CHECKING:  # a type checker that sees __getattr__ would accept any name

    def __getattr__(name: str) -> typing.Any:
        if name == "huggingface":
            return importlib.import_module("regard.huggingface")
        if name not in _HOMES:
            raise AttributeError(f"module 'regard' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    """The type of the package object. It makes `regard.attention` the function, not the module of that name.

    When the module regard.attention is imported, Python sets it as the attribute `attention` of the package.
    This class stores the function instead, and likewise for other modules that share a public name.
    """

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if isinstance(value, types.ModuleType) and name in _HOMES:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
