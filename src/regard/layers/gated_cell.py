"""GatedCell: the gated recurrent unit of Cho et al. and Bahdanau et al. (2014), with a context input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GatedCell"]


class GatedCell(nn.Module):
    """A gated recurrent unit with a context input (Bahdanau et al. 2014, A.1.1 and A.2.2).

    z_i  = sigma(W_z e + U_z s_{i-1} + C_z c_i)
    r_i  = sigma(W_r e + U_r s_{i-1} + C_r c_i)
    s~_i = tanh(W e + U [r_i * s_{i-1}] + C c_i)
    s_i  = (1 - z_i) * s_{i-1} + z_i * s~_i

    z is the update gate, r the reset gate, and s~ the candidate state.

    torch.nn.GRU differs in two points. There, the reset gate is applied after U, as r * (U s). And z has the
    opposite meaning: with z = 1, the state does not change.

    input_size: size of the input e.
    width: size of the state s.
    context_size: size of the context c; 0 for a cell without context, as in the encoder of Bahdanau et al.

    >>> import torch
    >>> cell, e = GatedCell(input_size=3, width=4, context_size=5), torch.randn(2, 7, 3)
    >>> gates = cell.gates(e)                                            # all steps at once
    >>> cell(gates[:, 0], torch.zeros(2, 4), torch.randn(2, 5)).shape
    torch.Size([2, 4])
    """

    def __init__(self, input_size: int, width: int, context_size: int = 0):
        super().__init__()
        self.width = width
        self.input = nn.Linear(input_size, 3 * width)  # W_z, W_r, W and their biases
        self.context = nn.Linear(context_size, 3 * width, bias=False) if context_size else None
        self.gate = nn.Linear(width, 2 * width, bias=False)  # U_z, U_r
        self.state = nn.Linear(width, width, bias=False)  # U
        for square in (*self.gate.weight.data.split(width), self.state.weight.data):
            nn.init.orthogonal_(square)

    def gates(self, inputs: Tensor) -> Tensor:
        """Compute the input part of the gates, W e + b, for all steps at once.

        inputs: (..., input_size). The result has shape (..., 3 width).
        """
        return self.input(inputs)

    def forward(self, gates: Tensor, state: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the next state (B, width).

        gates: (B, 3 width), from gates().
        state: the previous state, (B, width).
        context: (B, context_size).
        """
        if self.context is not None and context is not None:
            gates = gates + self.context(context)
        of_gates, of_new = gates.split((2 * self.width, self.width), -1)
        update, reset = torch.sigmoid(of_gates + self.gate(state)).chunk(2, -1)
        new = torch.tanh(of_new + self.state(reset * state))
        return (1 - update) * state + update * new
