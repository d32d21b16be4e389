"""The models of algorithmic tasks by name, and build_sequence_model(), which builds one of them.

To add a model, write its class and add one line to SEQUENCE_MODELS. The method forward(x, state=None) of a
model reads vectors (B, T, X). It returns logits (B, T, Y) and the state after the last step.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.errors import UnknownName
from regard.models.recurrent_sequence import GRUSequenceModel, LSTMSequenceModel
from regard.models.turing_machine import NeuralTuringMachine
from regard.options.attention_options import check_options, model_arguments

__all__ = ["SEQUENCE_MODELS", "build_sequence_model"]

SEQUENCE_MODELS: dict[str, type[nn.Module]] = {
    "ntm": NeuralTuringMachine,
    "lstm": LSTMSequenceModel,
    "gru": GRUSequenceModel,
}
"""The classes of the models of algorithmic tasks, by name."""


def build_sequence_model(name: str, input_size: int, target_size: int, **options: Any) -> nn.Module:
    """Build a model of an algorithmic task from its name and options, for example from a configuration file.

    name: a name in SEQUENCE_MODELS.
    input_size, target_size: size of the input and of the output at each step.
    options: further arguments of the class, such as width.

    >>> build_sequence_model("gru", 9, 8, width=16).layers.layers
    GRU(9, 16, batch_first=True)
    """
    if name not in SEQUENCE_MODELS:
        raise UnknownName("model", name, SEQUENCE_MODELS)
    known = model_arguments(SEQUENCE_MODELS[name], 2)
    check_options(f"build_sequence_model({name!r})", name, options, known)
    return SEQUENCE_MODELS[name](input_size, target_size, **options)
