"""The text classifiers by name, and build_classifier(), which builds one from plain options.

To add a classifier: write its file, and add one line to CLASSIFIERS.
"""

from __future__ import annotations

from typing import Any

from regard.errors import UnknownName
from regard.models.classifier import Classifier
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.recurrent_classifier import GRUClassifier, LSTMClassifier
from regard.models.transformer_classifier import TransformerClassifier
from regard.named_models.plain_options import plain_arguments

__all__ = ["CLASSIFIERS", "build_classifier"]

CLASSIFIERS: dict[str, type[Classifier]] = {
    "lstm": LSTMClassifier,
    "gru": GRUClassifier,
    "lstmn": LSTMNClassifier,
    "transformer": TransformerClassifier,
}

ABSENT = {"position": "recurrent layers read the words in order"}
"""Options that recurrent classifiers do not have, and why, for the error message."""


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
    kind = CLASSIFIERS[name]
    arguments = plain_arguments(f"build_classifier({name!r})", name, kind, 2, options, ABSENT)
    return kind(vocabulary_size, classes, **arguments)
