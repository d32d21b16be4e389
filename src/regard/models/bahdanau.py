"""Bahdanau: the RNN encoder-decoder with additive attention of Bahdanau et al. (2014)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.layers.gated_cell import GatedCell
from regard.layers.recurrent import Recurrence, Recurrent, flip
from regard.layers.source_attention import SourceAttention
from regard.models.base import Encoded, Model, State, words
from regard.options.attention_options import ScoreOption, SelectOption
from regard.options.model_checks import at_least_one, check_bahdanau, checked

__all__ = ["Bahdanau", "Maxout"]


class Bahdanau(Model, SourceAttention):
    """RNN encoder-decoder with additive attention from the previous decoder state (Bahdanau et al. 2014).

    h_j  = [forward_j; backward_j]                                   a bidirectional encoder
    s_0  = tanh(W_s backward_1)
    c_i  = sum_j alpha_ij h_j,  alpha_i = softmax_j(v . tanh(W_a s_{i-1} + U_a h_j))     (eq. 5 and 6)
    s_i  = GatedCell(e(y_{i-1}), s_{i-1}, c_i)                       (appendix A.2.2)
    t_i  = maxout(U_o s_i + V_o e(y_{i-1}) + C_o c_i),  p(y_i) = softmax(W_o t_i)

    attention() computes alpha_i and c_i: the score is Additive (scores.py). e(y) is the embedding of the word
    y. U_a h_j does not depend on i, so it is computed once for each source.

    width: size of the states (n in the paper).
    embedding: size of the word embeddings (m in the paper). Default: width.
    hidden: hidden size of the additive score function. Default: width.
    encoder: "gru" uses torch.nn.GRU, which is faster; "paper" uses the paper's cell, one step at a time.
    score: the score function: a name, a mapping such as {"name": "cosine", "sharpness": 9.0}, or a Score. If
        it needs queries and keys of the same size, as dot does, the encoder states are projected to keys of
        size `width`.
    select: how scores become weights: a name, a mapping such as {"name": "softmax", "temperature": 0.5}, or a
        Select. In eval mode, "hard" reads the value with the highest score.

    Differs from the appendix of the paper, where t_i is computed from s_{i-1}. This model computes t_i from
    s_i, as in eq. 4 of the paper.

    >>> from regard.data.batch import Batch
    >>> model = Bahdanau(source_size=9, target_size=7, width=8)
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    steps_use_position = False

    @checked(check_bahdanau)
    def __init__(
        self,
        source_size: int,
        target_size: int,
        width: int = 256,
        *,
        embedding: int | None = None,
        hidden: int | None = None,
        encoder: str = "gru",
        dropout: float = 0.0,
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
    ):
        super().__init__()
        inputs = width if embedding is None else embedding
        self.source_size, self.target_size, self.width = source_size, target_size, width
        self.source = words(source_size, inputs)
        self.target = words(target_size, inputs)
        self.encoder = GRUEncoder(inputs, width) if encoder == "gru" else PaperEncoder(inputs, width)
        self.first = nn.Linear(width, width)
        self.set_up(width, 2 * width, score, select, width if hidden is None else hidden)
        self.cell = GatedCell(inputs, width, context_size=2 * width)
        self.readout = Maxout(inputs + 3 * width, max(width // 2, 1), target_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        states_BSE, backward_1 = self.encoder(self.dropout(self.source(source)), lengths)
        memory = self.remember(self.dropout(states_BSE), lengths)
        return Encoded(lengths, (memory,), (torch.tanh(self.first(backward_1)),))

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        embedded_RTM = self.dropout(self.target(at_least_one(tokens)))
        states_RTM, contexts_RTE = self.decode(embedded_RTM, state.hidden[0], state.position, encoded)
        after = State(state.position + tokens.shape[1], (states_RTM[:, -1],))
        return after, self.readout(torch.cat((states_RTM, contexts_RTE, embedded_RTM), -1))

    def output_layer(self) -> nn.Module:
        return self.readout.output

    def decode(
        self, embedded_RTM: Tensor, state_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor]:
        """Run T decoder steps; return their states s_i (R, T, width) and contexts c_i (R, T, E).

        embedded_RTM: the embeddings e(y_{i-1}) of the words that the steps read.
        state_RM: the state before the first step.
        position: number of the first step, from 0.
        """
        states, contexts = [], []
        for at, gates_RG in enumerate(self.cell.gates(embedded_RTM).unbind(1), position):
            # Here, attention() computes alpha_i (eq. 6): Additive (scores.py), then softmax (select/soft.py).
            context_RE = self.attend(state_RM[:, None], encoded.memories[0], at).output[:, 0]
            state_RM = self.cell(gates_RG, state_RM, context_RE)
            states.append(state_RM)
            contexts.append(context_RE)
        return torch.stack(states, 1), torch.stack(contexts, 1)


class Maxout(nn.Module):
    """Maxout layer: t_l = max(t~_{2l-1}, t~_{2l}) (Bahdanau et al. 2014, A.2.2).

    t~ is the output of a linear layer, with two elements for each element of t. The layer `output` computes
    the logits W_o t.

    inputs: size of the input.
    width: size of t.
    outputs: number of logits.

    >>> import torch
    >>> readout = Maxout(inputs=6, width=4, outputs=9)
    >>> readout.output(readout(torch.randn(2, 6))).shape
    torch.Size([2, 9])
    """

    def __init__(self, inputs: int, width: int, outputs: int, dropout: float = 0.0):
        super().__init__()
        self.pairs = nn.Linear(inputs, 2 * width)
        self.output = nn.Linear(width, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return t, after dropout."""
        return self.dropout(self.pairs(inputs).unflatten(-1, (-1, 2)).amax(-1))


class GRUEncoder(nn.Module):
    """Bidirectional encoder with torch.nn.GRU, which is faster than PaperEncoder.

    Returns the states of both directions (B, S, 2 width), and the state of the backward direction at the
    first position. The states of the padding are 0.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.layers = Recurrent(Recurrence(width), inputs, both_ways=True)

    def forward(self, embedded_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        states_BSE, (last_B2M,) = self.layers.encode(embedded_BSM, lengths)
        return states_BSE, last_B2M[:, 1]


class PaperEncoder(nn.Module):
    """Bidirectional encoder with the cell of Bahdanau et al. 2014 (appendix A.1.1), one step at a time.

    Returns the same tensors as GRUEncoder.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.forwards, self.backwards = GatedCell(inputs, width), GatedCell(inputs, width)

    def forward(self, embedded_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        forwards = self._run(self.forwards, embedded_BSM)
        backwards = flip(self._run(self.backwards, flip(embedded_BSM, lengths)), lengths)
        return torch.cat((forwards, backwards), -1), backwards[:, 0]

    def _run(self, cell: GatedCell, embedded_BSM: Tensor) -> Tensor:
        gates_BSG, states = cell.gates(embedded_BSM), []
        # Use the dtype of the gates: under autocast, it differs from the dtype of the inputs.
        state = gates_BSG.new_zeros(len(gates_BSG), cell.width)
        for gates in gates_BSG.unbind(1):
            state = cell(gates, state)
            states.append(state)
        return torch.stack(states, 1)
