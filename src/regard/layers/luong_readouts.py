"""The output layers of Luong (Luong et al. 2015), and Bridge, from a bidirectional encoder to the decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.recurrent import Hidden
from regard.look import Look
from regard.options.model_checks import at_least_one

__all__ = ["READOUTS", "Affine", "Attentional", "Bridge", "Mixture", "ReadoutSteps"]


class Attentional(nn.Module):
    """Output layer with an attentional state: h~ = tanh(W_c [c; h]), logits W_s h~.

    c is the context from attention, and h is the decoder state (Luong et al. 2015, eq. 5 and 6).
    """

    def __init__(self, read: int, width: int, outputs: int):
        super().__init__()
        self.joined_size = width
        self.both = nn.Linear(read + width, width, bias=False)
        self.output = nn.Linear(width, outputs)

    def forward(self, context: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(self.both(torch.cat((context, state), -1)))


class Affine(nn.Module):
    """Output layer with one linear layer: logits W [c; h], with context c and decoder state h."""

    def __init__(self, read: int, width: int, outputs: int):
        super().__init__()
        self.joined_size = read + width
        self.output = nn.Linear(read + width, outputs)

    def forward(self, context: Tensor, state: Tensor) -> Tensor:
        return torch.cat((context, state), -1)


class Mixture(Attentional):
    """The output layer of Attentional, for each source word instead of a weighted mean of them.

    The attended word is a latent variable, which is summed out exactly (Deng et al. 2018, "Latent alignment
    and variational attention", eq. 1 and 2).
    """

    def log_mixture(self, weights: Tensor, values: Tensor, states: Tensor, dropout: nn.Dropout) -> Tensor:
        """Return log p(y_t), (R, T, V), p(y_t) = sum_s a_ts softmax(W_s tanh(W_c [h_s; h_t])).

        weights: the attention weights a_ts of R target sequences, in any shape with R T S elements.
        values: (B, S, E), the source states h_s. R is a multiple of B.
        states: (R, T, M), the decoder states h_t.
        """
        rows, steps, _ = states.shape
        values_RSE = values.repeat_interleave(rows // max(len(values), 1), 0)
        each_RTSE = values_RSE[:, None].expand(-1, steps, -1, -1)
        state_RTSM = states[:, :, None].expand(-1, -1, each_RTSE.shape[2], -1)
        log_RTSV = self.output(dropout(self(each_RTSE, state_RTSM))).log_softmax(-1)
        smallest = torch.finfo(log_RTSV.dtype).tiny
        log_weights_RTS = weights.reshape(rows, steps, -1).clamp(min=smallest).log()
        return (log_weights_RTS[..., None] + log_RTSV).logsumexp(2)


class ReadoutSteps(nn.Module):
    """step() of a model whose `readout` is one of READOUTS."""

    def step(self, state: Any, tokens: Tensor, encoded: Any) -> tuple[Any, Tensor]:
        """See Model.step(). With Mixture, the logits are log p(y_t), summed over the attended word."""
        model: Any = self
        if not isinstance(model.readout, Mixture):
            result: tuple[Any, Tensor] = super().step(state, tokens, encoded)  # type: ignore[misc]
            return result
        embedded_RTM = model.dropout(model.target(at_least_one(tokens)))
        states_RTM, hidden = model.decoder.run(embedded_RTM, state.hidden)
        look = Look(weights=True, gradient=True)
        weights = model.attend_near(states_RTM, encoded, state.position, look=look).weights
        log_RTV = model.readout.log_mixture(weights, encoded.memories[0].value, states_RTM, model.dropout)
        return replace(state, position=state.position + tokens.shape[1], hidden=hidden), log_RTV

    def output_layer(self) -> Any:
        """Return the layer that computes the logits from features(); None for Mixture."""
        readout: Any = self.readout
        return None if isinstance(readout, Mixture) else readout.output


LATENT = ("latent", "mixture")
"""The names of Mixture; "mixture" is the name in older runs."""

READOUTS: dict[str, type[Attentional] | type[Affine]] = {
    "attentional": Attentional,
    "affine": Affine,
    **dict.fromkeys(LATENT, Mixture),
}


class Bridge(nn.Module):
    """Compute the initial state of each decoder layer from the last states of a bidirectional encoder.

    s = tanh(W [forward; backward]), where forward and backward are the last states of the two directions
    """

    def __init__(self, width: int):
        super().__init__()
        self.both = nn.Linear(2 * width, width)

    def forward(self, last: Hidden) -> Hidden:
        return tuple(torch.tanh(self.both(each.unflatten(1, (-1, 2)).flatten(2))) for each in last)
