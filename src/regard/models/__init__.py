"""Models: encoder and decoder built from the one attention call; base.py is the protocol they share.

To add one: its file, and one line in MODELS.
"""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.layers.recurrent import Recurrence
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State
from regard.models.luong import Luong
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import SIZES, Size, Transformer, find_size

__all__ = [
    "MODELS",
    "Bahdanau",
    "Encoded",
    "Luong",
    "Model",
    "Recurrence",
    "Seq2Seq",
    "Size",
    "State",
    "Transformer",
    "build_model",
]

MODELS: dict[str, type[Model]] = {
    "seq2seq": Seq2Seq,
    "bahdanau": Bahdanau,
    "luong": Luong,
    "transformer": Transformer,
}


PARTS: dict[str, tuple[str, Any]] = {
    "seq2seq": ("recurrence", Recurrence()),
    "luong": ("recurrence", Recurrence(cell="lstm")),
    "transformer": ("size", SIZES["base"]),
}
"""Options that a model takes together as one, with what they are unless given."""

WITHIN = {("luong", "reach"): 'view={"name": "local-m", "reach": 4}, or the same with local-p'}
"""Options that stand inside another, since that decides whether they mean anything, and how to give them."""


def build_model(name: str, source_size: int, target_size: int, **options: Any) -> Model:
    """Make a model from its name and plain options, as a configuration file holds them.

    options: those of the model's class; for seq2seq and luong also those of Recurrence (width, embedding,
    cell, depth, dropout), and for the Transformer those of Size (width, heads, inner, layers), which change
    the size that is named.

    >>> model = build_model("luong", source_size=9, target_size=7, width=8, cell="gru", score="dot")
    >>> model.decoder.layers
    GRU(16, 8, batch_first=True)
    """
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    part, usual = PARTS.get(name, ("", None))
    inside = {field.name for field in fields(usual)} if usual is not None else set()
    alone = set(list(signature(MODELS[name]).parameters)[2:])
    for option in options:
        if (name, option) in WITHIN:
            problem = f"{option} is part of another option"
            raise ArgumentError(message(f"build_model({name!r})", problem, hint=WITHIN[name, option]))
        if option not in inside | alone:
            raise UnknownName(f"option of {name}", option, inside | alone)
    made = {option: value for option, value in options.items() if option not in inside - alone}
    if usual is not None:
        whole = made.get(part, usual)
        if isinstance(whole, str):
            whole = find_size(whole)
        if not isinstance(whole, type(usual)):
            problem = f"{part} is {whole!r}"
            raise ArgumentError(message(f"build_model({name!r})", problem, expected=repr(usual)))
        made[part] = replace(whole, **{name: options[name] for name in inside - alone if name in options})
    return MODELS[name](source_size, target_size, **made)
