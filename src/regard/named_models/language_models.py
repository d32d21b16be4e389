"""The language models by name, and build_language_model(), which builds one from plain options.

To add a language model: write its file, and add one line to LANGUAGE_MODELS.
"""

from __future__ import annotations

from typing import Any

from regard.errors import UnknownName
from regard.models.language_base import LanguageModel
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.recurrent_language import GRULanguageModel, LSTMLanguageModel
from regard.models.transformer_language import TransformerLanguageModel
from regard.named_models.plain_options import plain_arguments

__all__ = ["LANGUAGE_MODELS", "build_language_model"]

LANGUAGE_MODELS: dict[str, type[LanguageModel]] = {
    "lstm": LSTMLanguageModel,
    "gru": GRULanguageModel,
    "lstmn": LSTMNLanguageModel,
    "transformer": TransformerLanguageModel,
}

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
    kind = LANGUAGE_MODELS[name]
    arguments = plain_arguments(f"build_language_model({name!r})", name, kind, 1, options, ABSENT)
    return kind(vocabulary_size, **arguments)
