"""The baselines of algorithmic tasks: an LSTM and a GRU, without the tape of a neural Turing machine."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from regard.layers.recurrent import Hidden, Recurrence, Recurrent
from regard.models.turing_machine import NeuralTuringMachine
from regard.options.model_checks import check_recurrent_sequence, checked
from regard.options.widths import width_for

__all__ = [
    "GRUSequenceModel",
    "LSTMSequenceModel",
    "RecurrentSequenceModel",
]


class RecurrentSequenceModel(nn.Module):
    """Base class of the LSTM and the GRU. A subclass sets `cell` to "lstm" or "gru".

    Unlike the neural Turing machine, these models have no external memory (tape).

    h_t = cell(x_t, h_{t-1}), for each layer,  y_t = W h_t + b

    input_size, target_size: size of x_t and of y_t.
    width: number of hidden units of a layer. By default, the width is chosen so that the model has about
        `parameters` parameters.
    depth: number of layers.
    parameters: the number of parameters that the model should have. Default: the number of parameters of a
        NeuralTuringMachine with its default options, so that the two models can be compared.

    >>> lstm, machine = LSTMSequenceModel(9, 8), NeuralTuringMachine(9, 8)
    >>> [sum(each.numel() for each in model.parameters()) for model in (lstm, machine)]
    [62840, 62480]
    """

    cell: ClassVar[str]

    @checked(check_recurrent_sequence)
    def __init__(
        self,
        input_size: int,
        target_size: int,
        *,
        width: int | None = None,
        depth: int = 1,
        parameters: int | None = None,
    ):
        super().__init__()
        if width is None:
            width = width_for(self.cell, (input_size, target_size), depth, parameters, NeuralTuringMachine)
        self.layers = Recurrent(Recurrence(width, cell=self.cell, depth=depth), input_size)
        self.output = nn.Linear(width, target_size)

    def forward(self, x: Tensor, state: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """Run the model on sequences; return the logits (B, T, Y) and the state after the last step.

        x: (B, T, X), the input vectors.
        state: the state after earlier steps of the same sequences. Default: zeros.
        """
        hidden_BTM, state = self.layers.run(x, self.layers.zeros(x) if state is None else state)
        return self.output(hidden_BTM), state


class LSTMSequenceModel(RecurrentSequenceModel):
    """An LSTM that reads a vector and outputs logits at each step; see RecurrentSequenceModel."""

    cell = "lstm"


class GRUSequenceModel(RecurrentSequenceModel):
    """A GRU that reads a vector and outputs logits at each step; see RecurrentSequenceModel."""

    cell = "gru"
