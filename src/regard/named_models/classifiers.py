"""The text classifiers by name, and build_classifier(), which builds one from plain options.

To add a classifier: write its file, and add one line to CLASSIFIERS.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.models.classifier import Classifier
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.recurrent_classifier import GRUClassifier, LSTMClassifier
from regard.models.transformer import Size, find_size
from regard.models.transformer_classifier import TransformerClassifier
from regard.options.attention_options import check_flags, model_arguments

__all__ = ["CLASSIFIERS", "build_classifier"]

CLASSIFIERS: dict[str, type[Classifier]] = {
    "lstm": LSTMClassifier,
    "gru": GRUClassifier,
    "lstmn": LSTMNClassifier,
    "transformer": TransformerClassifier,
}

SIZE_OPTIONS = tuple(field.name for field in fields(Size) if field.name != "decoder_layers")
"""The options width, heads, inner and layers of "transformer". They override values of its argument
`size`."""


def build_classifier(name: str, vocabulary_size: int, classes: int, **options: Any) -> Classifier:
    """Build a text classifier from its name and plain options, for example from a configuration file.

    name: a name in CLASSIFIERS.
    vocabulary_size: number of tokens.
    classes: number of classes.
    options: the arguments of the classifier's class. For transformer also the fields width, heads,
        inner and layers of Size, which override the values of the named size. The options score, select and
        position are names, or dicts with a name and its options: select={"name": "entmax", "alpha": 1.5}.

    >>> build_classifier("lstm", vocabulary_size=9, classes=2, width=8, pooling="mean").encoder.layers
    LSTM(8, 8, batch_first=True, bidirectional=True)
    """
    if name not in CLASSIFIERS:
        raise UnknownName("classifier", name, CLASSIFIERS)
    direct = model_arguments(CLASSIFIERS[name], 2)
    check_flags(f"build_classifier({name!r})", options, direct)
    inside = set(SIZE_OPTIONS) if "size" in direct else set()
    for option in options:
        if option == "position" and option not in direct:
            problem = f"position is not an option of {name}"
            hint = "recurrent layers read the words in order; remove this option, or use transformer"
            raise ArgumentError(message(f"build_classifier({name!r})", problem, hint=hint))
        if option not in {*direct, *inside}:
            raise UnknownName(f"option of {name}", option, {*direct, *inside})
    arguments = {option: value for option, value in options.items() if option in direct}
    changes = {option: value for option, value in options.items() if option in inside}
    if changes:
        size = arguments.get("size", direct["size"])
        size = find_size(size) if isinstance(size, str) else size
        if not isinstance(size, Size):
            problem = f"size is {size!r}"
            raise ArgumentError(
                message(f"build_classifier({name!r})", problem, expected="the name of a size, or a Size")
            )
        arguments["size"] = replace(size, **changes)
    return CLASSIFIERS[name](vocabulary_size, classes, **arguments)
