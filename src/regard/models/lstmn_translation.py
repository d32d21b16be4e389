"""LSTMN encoder-decoder with shallow or deep fusion (Cheng et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UnknownName, positive
from regard.layers.attention_options import (
    ScoreOption,
    SelectOption,
    build_layer_score,
    select_argument,
)
from regard.layers.lstmn import LSTMN
from regard.masks.constructors import padding
from regard.memory import Memory, prepare
from regard.models.bahdanau import Maxout, near_uniform
from regard.models.base import Encoded, Model, State, at_least_one, attend, words
from regard.roles import CROSS_ATTENTION, DECODER_SELF
from regard.scores import Location, Score, learned_in
from regard.select import build_select

__all__ = ["FUSIONS", "LSTMNTranslationModel"]

FUSIONS = {
    "shallow": "the source words that a step reads are an input of the decoder, as in Bahdanau's model",
    "deep": "a gate adds the source memory that a step reads to the memory of the decoder (eq. 14 and 15)",
}
"""For each value of the option `fusion`, how the decoder uses the source."""


class LSTMNTranslationModel(Model):
    """Encoder-decoder of two LSTMNs, whose decoder also attends to the source (Cheng et al. 2016, section 4).

    The encoder writes the tapes of the source: hidden states g_j and cells alpha_j. x_t is the embedding of
    the word that the decoder reads.

    Deep fusion: the decoder reads both tapes of the source, and a gate adds the result to its own memory.
    b_j = u . tanh(W_g g_j + W_x x_t + W_g~ g~_t-1),  p = softmax(b)                    (eq. 11 and 12)
    [g~_t; alpha~_t] = sum_j p_j [g_j; alpha_j]                                          (eq. 13)
    r_t = sigma(W_r [g~_t, x_t] + b_r)                                                   (eq. 14)
    c_t = r_t * alpha~_t + f_t * c~_t + i_t * c^_t,  h_t = o_t * tanh(c_t)               (eq. 15 and 16)

    Shallow fusion: the decoder is an LSTMN whose input is [x_t; g~_t], with g~_t = sum_j p_j g_j.
    b_j = u . tanh(W_g g_j + W_x x_t + W_h h_t-1),  p = softmax(b)

    Both: p(y_t) = softmax(W_o maxout(W [h_t; g~_t; x_t] + b) + b_o)

    fusion: "shallow" or "deep", see FUSIONS.
    width: size of the states and cells of both networks.
    embedding: size of the word embeddings. Default: width.
    depth: number of layers of the encoder and of the decoder. The first layer of the decoder reads the tapes
        of the last layer of the encoder.
    connections: how the layers are connected: "plain", "skip" or "gated", see LSTMN.
    score: score function of the attention to the source: a name, {"name": "cosine", "sharpness": 9.0}, or a
        Score. If it needs queries and keys of the same size, as dot does, the keys are projected.
    select: how its scores become weights: a name, {"name": "softmax", "temperature": 0.5}, or a Select. In
        eval mode, "hard" reads the key with the highest score.

    The sites are "encoder.{k}.self" and "decoder.{k}.self", the tapes of layer k, and "decoder.cross". The
    tapes of the decoder are empty before the first word, and the initial g~ and h are 0.

    Differs from the paper: it gives no equations for shallow fusion, the output layer and several layers with
    fusion. All gates have biases.

    >>> from regard.data.batch import Batch
    >>> model = LSTMNTranslationModel(source_size=9, target_size=7, width=8, fusion="shallow")
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    small_steps = True

    def __init__(
        self,
        source_size: int,
        target_size: int,
        width: int = 256,
        *,
        fusion: str = "deep",
        embedding: int | None = None,
        depth: int = 1,
        connections: str = "skip",
        dropout: float = 0.0,
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
    ):
        super().__init__()
        if fusion not in FUSIONS:
            raise UnknownName("fusion", fusion, FUSIONS)
        inputs = width if embedding is None else embedding
        sizes = {"source_size": source_size, "target_size": target_size, "embedding": inputs}
        positive("LSTMNTranslationModel()", dropout, **sizes, width=width, depth=depth)
        self.source_size, self.target_size, self.width, self.fusion = source_size, target_size, width, fusion
        self.source, self.target = words(source_size, inputs), words(target_size, inputs)
        shared: dict[str, Any] = {"depth": depth, "connections": connections, "dropout": dropout}
        read = width if fusion == "shallow" else 0
        self.encoder = LSTMN(inputs, width, **shared, site="encoder")
        self.cross = SourceAttention(inputs + width, width, score, select)
        self.longest_source = self.cross.longest
        self.decoder = LSTMN(inputs + read, width, **shared, site="decoder", role=DECODER_SELF)
        self.gate = nn.Linear(width + inputs, width) if fusion == "deep" else None
        self.readout = Maxout(inputs + 2 * width, max(width // 2, 1), target_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        embedded_BSI = self.dropout(self.source(source))
        _, (tapes_BLSE, *_) = self.encoder.run(embedded_BSI, self.encoder.zeros(embedded_BSI))
        states_BSM, cells_BSM = tapes_BLSE[:, -1].chunk(2, -1)
        states_BSM = self.dropout(states_BSM)
        values_BSE = torch.cat((states_BSM, cells_BSM), -1) if self.fusion == "deep" else states_BSM
        return Encoded(lengths, (self.cross.prepare(states_BSM, values_BSE, lengths),))

    def start(self, encoded: Encoded) -> State:
        like = self.target.weight.new_empty(len(encoded), 0)
        return State(hidden=(*self.decoder.zeros(like), like.new_zeros(len(encoded), self.width)))

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Read the next n tokens of each row; see Model.step().

        The recurrent state has four tensors: the three of the decoder, see LSTMN, and (rows, width), which is
        g~ of the last step with deep fusion, and h of the last step with shallow fusion.
        """
        embedded_RTI = self.dropout(self.target(at_least_one(tokens)))
        *tapes, last_RM = state.hidden
        after = state.position + tokens.shape[1]
        fused = self._deep if self.fusion == "deep" else self._shallow
        states_RTM, read_RTM, hidden, last_RM = fused(
            embedded_RTI, tuple(tapes), last_RM, state.position, encoded
        )
        logits_RTV = self.readout(torch.cat((states_RTM, read_RTM, embedded_RTI), -1))
        return State(after, (*hidden, last_RM)), logits_RTV

    def _deep(
        self, x_RTI: Tensor, tapes: tuple[Tensor, ...], last_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Read the source at all steps, then run the decoder: its states do not change what is read.

        Returns the states h_t and the summaries g~_t, (R, T, M), the tapes, and the last g~.
        """
        assert self.gate is not None
        reads = []
        for at, x_RI in enumerate(x_RTI.unbind(1), position):
            read_RE = self.cross(x_RI, last_RM, at, encoded.memories[0])
            last_RM = read_RE[:, : self.width]
            reads.append(read_RE)
        summary_RTM, memory_RTM = torch.stack(reads, 1).chunk(2, -1)
        gate_RTM = torch.sigmoid(self.gate(torch.cat((summary_RTM, x_RTI), -1)))
        states_RTM, tapes = self.decoder.run(x_RTI, tapes, position, gate_RTM * memory_RTM)
        return states_RTM, summary_RTM, tapes, last_RM

    def _shallow(
        self, x_RTI: Tensor, tapes: tuple[Tensor, ...], last_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Read the source and run the decoder, one step after the other.

        Returns the states h_t and the contexts g~_t, (R, T, M), the tapes, and the last state.
        """
        states, reads = [], []
        for at, x_RI in enumerate(x_RTI.unbind(1), position):
            read_RM = self.cross(x_RI, last_RM, at, encoded.memories[0])
            state_R1M, tapes = self.decoder.run(torch.cat((x_RI, read_RM), -1)[:, None], tapes, at)
            last_RM = state_R1M[:, 0]
            states.append(last_RM)
            reads.append(read_RM)
        return torch.stack(states, 1), torch.stack(reads, 1), tapes, last_RM


class SourceAttention(nn.Module):
    """Attention of the decoder to the source (inter-attention), one call per step.

    query_size, key_size: sizes of the query [x_t; g~_t-1] or [x_t; h_t-1], and of the states of the encoder.
    score, select: see LSTMNTranslationModel. The tanh layer of "additive" and "concat" has the size key_size,
        unless `score` is a table that sets `hidden`.
    """

    site, role = "decoder.cross", CROSS_ATTENTION

    def __init__(self, query_size: int, key_size: int, score: ScoreOption, select: SelectOption):
        super().__init__()
        if isinstance(score, str | Mapping):
            table = {"name": score} if isinstance(score, str) else dict(score)
            score = {"hidden": key_size, **table} if table.get("name") in ("additive", "concat") else table
        built = build_layer_score(score, query_size, key_size)
        # Some score functions, such as dot, need queries and keys of the same size. Then project the keys.
        narrows = built.mismatch(query_size, key_size, 1) is not None
        built = build_layer_score(score, query_size, query_size) if narrows else built
        self.score = built if isinstance(score, Score) else near_uniform(built)
        self.narrow = nn.Linear(key_size, query_size, bias=False) if narrows else None
        self.sharpness, self.select = learned_in(self.score), build_select(select)
        self.longest = self.score.max_length if isinstance(self.score, Location) else None

    def prepare(self, states_BSM: Tensor, values_BSE: Tensor, lengths: Tensor) -> Memory:
        """Project the keys of a batch of sources, once."""
        keys_BSD = states_BSM if self.narrow is None else self.narrow(states_BSM)
        return prepare(keys_BSD, values_BSE, score=self.score, mask=padding(lengths))

    def forward(self, x_RI: Tensor, last_RM: Tensor, position: int, memory: Memory) -> Tensor:
        """Return what the step at this position reads, (R, E). K rows may share one source, see attend()."""
        query_R1D = torch.cat((x_RI, last_RM.to(x_RI.dtype)), -1)[:, None]
        options = {**select_argument(self.select, self.training), "site": self.site, "role": self.role}
        return attend(query_R1D, memory, start=position, **options).output[:, 0]
