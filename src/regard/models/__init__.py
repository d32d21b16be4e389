"""Models built on attention(): one file for each paper, with its equations in their order.

base.py defines the interface of encoder-decoder models. To add a model, write its file here, and add one line
to the table of its kind in regard/named_models/: MODELS, LANGUAGE_MODELS, CLASSIFIERS, MEMORY_NETWORKS or
SEQUENCE_MODELS. These tables and their functions, such as build_model(), can be imported from here too.
"""

import importlib
import typing

from regard.layers.recurrent import Recurrence
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State
from regard.models.classifier import Classifier
from regard.models.language_base import LanguageModel
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Size, Transformer

if typing.TYPE_CHECKING:
    from regard.named_models import (
        CLASSIFIERS,
        LANGUAGE_MODELS,
        MODELS,
        build_classifier,
        build_language_model,
        build_model,
    )

__all__ = [
    "CLASSIFIERS",
    "LANGUAGE_MODELS",
    "MODELS",
    "Bahdanau",
    "Classifier",
    "Encoded",
    "LSTMNTranslationModel",
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

if not typing.TYPE_CHECKING:  # a type checker that sees __getattr__ would accept any name

    def __getattr__(name: str) -> typing.Any:
        """Import the tables of models on first use: they import every model."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module("regard.named_models"), name)
