"""The language models by name, and build_language_model(), which builds one from plain options.

To add a language model: write its file, and add one line to LANGUAGE_MODELS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.models.language_base import LanguageModel
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.recurrent_language import GRULanguageModel, LSTMLanguageModel
from regard.models.transformer import Size, find_size
from regard.models.transformer_language import TransformerLanguageModel
from regard.options.attention_options import check_flags, model_arguments

__all__ = ["LANGUAGE_MODELS", "build_language_model"]

LANGUAGE_MODELS: dict[str, type[LanguageModel]] = {
    "lstm": LSTMLanguageModel,
    "gru": GRULanguageModel,
    "lstmn": LSTMNLanguageModel,
    "transformer": TransformerLanguageModel,
}

SIZE_OPTIONS = ("width", "heads", "inner", "layers")
"""Fields of Size that are also options of the transformer. These options override the fields of its argument
`size`."""


ABSENT = {
    "position": "recurrent layers read the words in order and need no position scheme",
    "score": "lstm and gru have no attention, and the score of lstmn is always additive",
    "select": "lstm and gru have no attention, and the selection of lstmn is always softmax",
}
"""Options of attention that recurrent models do not have. The values are the reasons, for the error
message."""


def build_language_model(name: str, vocabulary_size: int, **options: Any) -> LanguageModel:
    """Build a language model from its name and plain options, for example from a configuration file.

    name: a name in LANGUAGE_MODELS.
    vocabulary_size: number of tokens, including the four special tokens.
    options: the arguments of the model's class. For transformer also the fields width, heads, inner
        and layers of Size, which override the values of the named size. The options score, select and
        position are names, or dicts with a name and its options: select={"name": "entmax", "alpha": 1.5}.

    >>> build_language_model("transformer", 9, size="tiny", layers=2, position="alibi").decoder[1].itself.site
    'decoder.1.self'
    """
    if name not in LANGUAGE_MODELS:
        raise UnknownName("language model", name, LANGUAGE_MODELS)
    direct = model_arguments(LANGUAGE_MODELS[name], 1)
    check_flags(f"build_language_model({name!r})", options, direct)
    of_size = set(SIZE_OPTIONS) if "size" in direct else set()
    for option in options:
        if option in ABSENT and option not in direct:
            problem = f"{option} is not an option of {name}"
            hint = f"{ABSENT[option]}; remove this option, or use transformer (only transformer has it)"
            raise ArgumentError(message(f"build_language_model({name!r})", problem, hint=hint))
        if option not in {*direct, *of_size}:
            raise UnknownName(f"option of {name}", option, {*direct, *of_size})
    changes = {option: options.pop(option) for option in of_size & set(options)}
    if changes:
        size = options.get("size", direct["size"])
        if not isinstance(size, str | Size):
            call = f"build_language_model({name!r})"
            raise ArgumentError(message(call, f"size is {size!r}", expected="a name or a Size"))
        options["size"] = replace(find_size(size) if isinstance(size, str) else size, **changes)
    return LANGUAGE_MODELS[name](vocabulary_size, **options)
