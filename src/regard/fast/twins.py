"""Twins: the faster classes of the modules of a model, used inside a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from regard.fast import enabled
from regard.fast.aligned_linear import AlignedLinear
from regard.fast.recurrent.bahdanau import FastBahdanau
from regard.fast.recurrent.lstmn import FastLSTMNLayer
from regard.fast.recurrent.recurrent import FastRecurrent
from regard.fast.recurrent.turing_machine import FastTuringMachine
from regard.fast.transformer import FastTransformerLayers
from regard.fast.twin import Twin
from regard.layers.lstmn import LSTMNLayer
from regard.layers.recurrent import Recurrent
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import TransformerLayers
from regard.models.turing_machine import NeuralTuringMachine

__all__ = ["TWINS", "Twin", "Twins"]

TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: AlignedLinear,
    Bahdanau: FastBahdanau,
    LSTMNLayer: FastLSTMNLayer,
    NeuralTuringMachine: FastTuringMachine,
    Recurrent: FastRecurrent,
    TransformerLayers: FastTransformerLayers,
}
"""The twin of each plain class. Subclasses by users have no twin, because they may change a method."""


class Twins:
    """Use the twins of a model inside the `with` block. Outside, the model has its plain classes.

    model: the model. Modules that replace others later are used as they are.

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
            plain = type(module)
            twin: Any = TWINS.get(plain)
            if twin is None:
                continue
            why = twin.reasons(module) if enabled() else ["REGARD_FAST=0 is set"]
            if why:
                self.reasons[name] = why
            else:
                self.chosen.append((module, plain, twin))

    def __enter__(self) -> Twins:
        for module, _, twin in self.chosen:
            module.__class__ = twin
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, plain, _ in self.chosen:
            module.__class__ = plain
