"""Regard: attention you can see.

One function computes every attention mechanism since 2014:

    regard.attention(query, key, value, score=..., mask=..., select=..., look=...)

To read the code, start with attention.py.

Public names are imported lazily, on first use: `import regard` is fast, and the command line can print its
help and draw pictures without importing torch.
"""

import typing

from regard import lazy_package

if typing.TYPE_CHECKING:
    from regard.aligner import align
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
else:
    lazy_package.import_lazily(__name__)

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
    "align",
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
