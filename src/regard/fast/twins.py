"""Twins: the faster classes of the modules of a model, used inside a `with` block.

To add a twin of a model or layer, write its class in a file of this folder (recurrent/bahdanau.py is an
example), and add one line to TWINS. For decoding, write search/NAME_decoder.py, and add one line to DECODERS
in search/choice.py.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from torch import nn

from regard.fast import enabled
from regard.fast.aligned_linear import AlignedLinear
from regard.fast.dropout import FastDropout
from regard.fast.embedding import FastEmbedding
from regard.fast.recurrent.bahdanau import FastBahdanau
from regard.fast.recurrent.lstmn import FastLSTMNLayer
from regard.fast.recurrent.recurrent import FastRecurrent
from regard.fast.recurrent.turing_machine import FastTuringMachine
from regard.fast.transformer import FastTransformer, FastTransformerLayers
from regard.fast.twin import Twin, plain_class
from regard.layers.lstmn import LSTMNLayer
from regard.layers.multihead import TransformerLayers
from regard.layers.recurrent import Recurrent
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import Transformer
from regard.models.turing_machine import NeuralTuringMachine

__all__ = ["TWINS", "Twin", "Twins"]

TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: FastDropout,
    nn.Embedding: FastEmbedding,
    nn.Linear: AlignedLinear,
    Bahdanau: FastBahdanau,
    LSTMNLayer: FastLSTMNLayer,
    NeuralTuringMachine: FastTuringMachine,
    Recurrent: FastRecurrent,
    Transformer: FastTransformer,
    TransformerLayers: FastTransformerLayers,
}
"""The twin of each plain class. Subclasses by users have no twin, because they may change a method."""

_LOCK = threading.Lock()
_USERS: dict[int, int] = {}
"""The modules that have the class of their twin now, by id(), and the number of `with` blocks that use it."""


class Twins:
    """Use the twins of a model inside the `with` block. Outside, the model has its plain classes.

    Several threads can use the twins of one model; it gets its plain classes back at the end of the last
    block. The results of other threads that use the model do not change.

    model: the model. A module that you replace later keeps its own class.

    chosen: the modules with a twin, and this twin.
    reasons: the names of the modules whose class has a twin that does not apply, and why.

    >>> from torch import nn
    >>> with Twins(nn.Linear(2, 2)) as twins:  # has no twin
    ...     twins.chosen
    []
    """

    def __init__(self, model: nn.Module):
        self.chosen: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
        self.reasons: dict[str, list[str]] = {}
        for name, module in model.named_modules():
            plain = plain_class(module)
            twin: Any = TWINS.get(plain)
            if twin is None:
                continue
            why = twin.reasons(module) if enabled() else ["REGARD_FAST=0 is set"]
            if why:
                self.reasons[name] = why
            else:
                self.chosen.append((module, plain, twin))

    def __enter__(self) -> Twins:
        with _LOCK:
            for module, _, twin in self.chosen:
                _USERS[id(module)] = _USERS.get(id(module), 0) + 1
                module.__class__ = twin
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _LOCK:
            for module, plain, _ in self.chosen:
                _USERS[id(module)] -= 1
                if not _USERS[id(module)]:
                    del _USERS[id(module)]
                    module.__class__ = plain
