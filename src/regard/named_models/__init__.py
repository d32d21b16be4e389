"""The models by name, and functions that build one from plain options, for example from a configuration file.

To add a model, write its file in regard/models/, and add one line to the table of its kind:

    MODELS              translation_models.py    encoder-decoder models
    LANGUAGE_MODELS     language_models.py       language models
    CLASSIFIERS         classifiers.py           text classifiers
    MEMORY_NETWORKS     memory_networks.py       models that answer questions about stories
    SEQUENCE_MODELS     sequence_models.py       models of algorithmic tasks
"""

from regard.named_models.classifiers import CLASSIFIERS, build_classifier
from regard.named_models.language_models import LANGUAGE_MODELS, build_language_model
from regard.named_models.memory_networks import MEMORY_NETWORKS, build_memory_network
from regard.named_models.sequence_models import SEQUENCE_MODELS, build_sequence_model
from regard.named_models.translation_models import MODELS, PARTS, build_model, direct_options

__all__ = [
    "CLASSIFIERS",
    "LANGUAGE_MODELS",
    "MEMORY_NETWORKS",
    "MODELS",
    "PARTS",
    "SEQUENCE_MODELS",
    "build_classifier",
    "build_language_model",
    "build_memory_network",
    "build_model",
    "build_sequence_model",
    "direct_options",
]
