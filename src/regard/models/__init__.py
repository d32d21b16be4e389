"""Encoder-decoder models built on attention(); base.py defines the interface they share.

To add a model: write its file, and add one line to MODELS.
"""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.layers.recurrent import Recurrence
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State
from regard.models.classifier import Classifier
from regard.models.classifiers import CLASSIFIERS, build_classifier
from regard.models.language_base import LanguageModel
from regard.models.language_models import LANGUAGE_MODELS, build_language_model
from regard.models.luong import Luong
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import SIZES, Size, Transformer, find_size

__all__ = [
    "CLASSIFIERS",
    "LANGUAGE_MODELS",
    "MODELS",
    "Bahdanau",
    "Classifier",
    "Encoded",
    "LanguageModel",
    "Luong",
    "Model",
    "Recurrence",
    "Seq2Seq",
    "Size",
    "State",
    "Transformer",
    "build_classifier",
    "build_language_model",
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
"""For each model, the argument that groups several options, and its default."""

NESTED = {("luong", "reach"): 'view={"name": "local-m", "reach": 4}, or the same with local-p'}
"""Options that are set inside another option, and the way to set them."""


def build_model(name: str, source_size: int, target_size: int, **options: Any) -> Model:
    """Build a model from its name and plain options, such as those of a configuration file.

    options: the arguments of the model's class; for seq2seq and luong also the fields of Recurrence (width,
    embedding, cell, depth, dropout), and for transformer those of Size (width, heads, inner, layers), which
    override the values of the named size.

    >>> model = build_model("luong", source_size=9, target_size=7, width=8, cell="gru", score="dot")
    >>> model.decoder.layers
    GRU(16, 8, batch_first=True)
    """
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    part, default = PARTS.get(name, ("", None))
    inside = {field.name for field in fields(default)} if default is not None else set()
    direct = set(list(signature(MODELS[name]).parameters)[2:])
    for option in options:
        if (name, option) in NESTED:
            problem = f"{option} is set inside another option"
            raise ArgumentError(message(f"build_model({name!r})", problem, hint=NESTED[name, option]))
        if option not in inside | direct:
            raise UnknownName(f"option of {name}", option, inside | direct)
    arguments = {option: value for option, value in options.items() if option not in inside - direct}
    if default is not None:
        whole = arguments.get(part, default)
        if isinstance(whole, str):
            whole = find_size(whole)
        if not isinstance(whole, type(default)):
            problem = f"{part} is {whole!r}"
            raise ArgumentError(message(f"build_model({name!r})", problem, expected=repr(default)))
        changes = {name: options[name] for name in inside - direct if name in options}
        arguments[part] = replace(whole, **changes)
    return MODELS[name](source_size, target_size, **arguments)
