"""Regard: attention you can see.

    regard.attention(query, key, value, score=..., mask=..., select=..., look=...)

is every attention mechanism since 2014. Read attention.py first. Importing this imports torch alone.
"""

from regard.attended import Attended, Top
from regard.attention import attention, read
from regard.errors import (
    ArgumentError,
    BackendError,
    DataError,
    LookError,
    RegardError,
    RegardWarning,
    UnknownName,
)
from regard.explaining import Explanation, explain
from regard.interventions import intervene
from regard.layers import AttentionLayer, MultiHead
from regard.loading import load
from regard.look import Look
from regard.mask import Mask
from regard.masks import causal, dense, documents, padding, where, window
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
    "dense",
    "documents",
    "explain",
    "intervene",
    "load",
    "name_sites",
    "padding",
    "prepare",
    "read",
    "record",
    "where",
    "window",
]
