"""Models built on attention(): one file for each paper, with its equations in their order.

base.py defines the interface of encoder-decoder models. To add a model, write its file here, and add one line
to the table of its kind in regard/named_models/: MODELS, LANGUAGE_MODELS, CLASSIFIERS, MEMORY_NETWORKS or
SEQUENCE_MODELS. These tables and their functions, such as build_model(), can be imported from here too.
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.layers.recurrent import Recurrence
    from regard.models.bahdanau import Bahdanau
    from regard.models.base import Encoded, Model, State
    from regard.models.classifier import Classifier
    from regard.models.language_base import LanguageModel
    from regard.models.lstmn_translation import LSTMNTranslationModel
    from regard.models.luong import Luong
    from regard.models.seq2seq import Seq2Seq
    from regard.models.transformer import Transformer
    from regard.named_models.classifiers import CLASSIFIERS, build_classifier
    from regard.named_models.language_models import LANGUAGE_MODELS, build_language_model
    from regard.named_models.translation_models import MODELS, build_model
    from regard.options.transformer_options import SIZES, Size
else:
    import_lazily(__name__)

__all__ = [
    "CLASSIFIERS",
    "LANGUAGE_MODELS",
    "MODELS",
    "SIZES",
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
