"""GatedCell: the gated unit as Cho and Bahdanau wrote it in 2014, with a context beside the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GatedCell"]


class GatedCell(nn.Module):
    """One gated recurrent unit with a context, the reset gate before U (Bahdanau et al. 2014, A.1.1).

    z_i  = sigma(W_z e + U_z s_{i-1} + C_z c_i)
    r_i  = sigma(W_r e + U_r s_{i-1} + C_r c_i)
    s~_i = tanh(W e + U [r_i * s_{i-1}] + C c_i)
    s_i  = (1 - z_i) * s_{i-1} + z_i * s~_i

    torch.nn.GRU resets after U instead, r * (U s), and keeps where this one takes: its z is 1 - z here.
    input_size: of e; context_size: of c, 0 for a cell without one, as in the paper's encoder.

    >>> import torch
    >>> cell, e = GatedCell(input_size=3, width=4, context_size=5), torch.randn(2, 7, 3)
    >>> from_words = cell.gates(e)                                       # of all steps at once
    >>> cell(from_words[:, 0], torch.zeros(2, 4), torch.randn(2, 5)).shape
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
        """What the gates take from the inputs (..., I), for all steps at once: (..., 3 width)."""
        return self.input(inputs)

    def forward(self, gates: Tensor, state: Tensor, context: Tensor | None = None) -> Tensor:
        """The next state (B, width) from gates (B, 3 width), the state before, and a context (B, C)."""
        if self.context is not None and context is not None:
            gates = torch.addmm(gates, context, self.context.weight.T)
        of_gates, of_new = gates.tensor_split((2 * self.width,), -1)
        take, reset = torch.addmm(of_gates, state, self.gate.weight.T).sigmoid().chunk(2, -1)
        return torch.lerp(state, torch.addmm(of_new, reset * state, self.state.weight.T).tanh(), take)
