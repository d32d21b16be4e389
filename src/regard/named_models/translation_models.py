"""The encoder-decoder models by name, and build_model(), which builds one from plain options.

To add an encoder-decoder model: write its file, and add one line to MODELS.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from regard.errors import ArgumentError, Setting, UnknownName, message
from regard.layers.recurrent import Recurrence
from regard.models.bahdanau import Bahdanau
from regard.models.base import Model
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.options.attention_options import check_flags, model_arguments
from regard.options.transformer_options import SIZES, find_size

__all__ = ["MODELS", "build_model", "direct_options"]

MODELS: dict[str, type[Model]] = {
    "seq2seq": Seq2Seq,
    "bahdanau": Bahdanau,
    "luong": Luong,
    "lstmn": LSTMNTranslationModel,
    "transformer": Transformer,
}


PARTS: dict[str, tuple[str, Any]] = {
    "seq2seq": ("recurrence", Recurrence()),
    "luong": ("recurrence", Recurrence(cell="lstm")),
    "transformer": ("size", SIZES["base"]),
}
"""Models with an argument that is a dataclass: the name and the default value of this argument. build_model()
also accepts the fields of the dataclass as options. For example, the option width=8 of a transformer sets the
field `width` of its argument `size`."""

NESTED = {("luong", "reach"): Setting("build_model", "view", {"name": "local-m", "reach": 4})}
"""Options that can only be set inside another option. The keys are (model, option). The values are what the
hint of the error message recommends."""

NO_POSITIONS = "recurrent layers read the words in order; remove this option, or use transformer"
NO_ATTENTION = "seq2seq has no attention; remove this option, or use bahdanau, luong, lstmn or transformer"
NO_VIEW = "local attention is an option of the model luong; use this model, or remove the option"
ABSENT = {
    ("seq2seq", "position"): NO_POSITIONS,
    ("bahdanau", "position"): NO_POSITIONS,
    ("luong", "position"): NO_POSITIONS,
    ("lstmn", "position"): NO_POSITIONS,
    ("bahdanau", "view"): NO_VIEW,
    ("lstmn", "view"): NO_VIEW,
    ("transformer", "view"): NO_VIEW,
    ("seq2seq", "view"): NO_ATTENTION,
    ("seq2seq", "score"): NO_ATTENTION,
    ("seq2seq", "select"): NO_ATTENTION,
}
"""Options that some models have, but this model does not. The keys are (model, option). The values are the
hints of the error message."""


def build_model(name: str, source_size: int, target_size: int, **options: Any) -> Model:
    """Build an encoder-decoder model from its name and plain options, for example from a configuration file.

    name: a name in MODELS.
    source_size, target_size: vocabulary sizes.
    options: the arguments of the model's class. For seq2seq and luong, also the fields of Recurrence (width,
        embedding, cell, depth, dropout). For transformer, also the fields of Size (width, heads, inner,
        layers), which override the values of the named size. The options score, select and position are
        names, or dicts with a name and its options, such as select={"name": "entmax", "alpha": 1.5}.

    >>> model = build_model("luong", source_size=9, target_size=7, width=8, cell="gru", score="dot")
    >>> model.decoder.layers
    GRU(16, 8, batch_first=True)
    """
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    part, default = PARTS.get(name, ("", None))
    inside = {field.name for field in fields(default)} if default is not None else set()
    defaults = direct_options(name)
    check_flags(f"build_model({name!r})", options, defaults)
    direct = set(defaults)
    for option in options:
        if (name, option) in ABSENT:
            problem = f"{option} is not an option of {name}"
            raise ArgumentError(message(f"build_model({name!r})", problem, hint=ABSENT[name, option]))
        if (name, option) in NESTED:
            problem = f"{option} can only be set inside another option"
            hint = "use ", NESTED[name, option]
            raise ArgumentError(message(f"build_model({name!r})", problem, hint=hint))
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


def direct_options(name: str) -> dict[str, Any]:
    """Return the default values of the arguments of a model's class, by the name of the argument.

    The vocabulary sizes are left out. The value is None if the argument has no default.

    name: a name in MODELS.
    """
    return model_arguments(MODELS[name], 2)
