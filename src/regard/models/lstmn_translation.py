"""LSTMN encoder-decoder with shallow or deep fusion (Cheng et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.lstmn import LSTMN
from regard.layers.lstmn_source import SourceTapes
from regard.layers.source_attention import SourceAttention
from regard.models.bahdanau import Maxout
from regard.models.base import Encoded, Model, State, words
from regard.options.model_checks import at_least_one, check_lstmn_translation, checked
from regard.roles import DECODER_SELF

__all__ = ["LSTMNTranslationModel"]


class LSTMNTranslationModel(Model, SourceTapes):
    """Encoder-decoder of two LSTMNs. The decoder also attends to the source (Cheng et al. 2016, section 4).

    The encoder computes two tapes of the source: the hidden states g_j and the cell states alpha_j. x_t is
    the embedding of the word that the decoder reads.

    Deep fusion: the decoder reads both tapes of the source. A gate r_t adds the result to the cell state c_t.
    b_j = u . tanh(W_g g_j + W_x x_t + W_g~ g~_t-1),  p = softmax(b)                    (eq. 11 and 12)
    [g~_t; alpha~_t] = sum_j p_j [g_j; alpha_j]                                          (eq. 13)
    r_t = sigma(W_r [g~_t, x_t] + b_r)                                                   (eq. 14)
    c_t = r_t * alpha~_t + f_t * c~_t + i_t * c^_t,  h_t = o_t * tanh(c_t)               (eq. 15 and 16)

    Shallow fusion: the decoder is an LSTMN whose input is [x_t; g~_t], with g~_t = sum_j p_j g_j.
    b_j = u . tanh(W_g g_j + W_x x_t + W_h h_t-1),  p = softmax(b)

    The output layer, for deep and shallow fusion: p(y_t) = softmax(W_o maxout(W [h_t; g~_t; x_t] + b) + b_o)

    fusion: how the decoder uses the source. "shallow": the source words that a step reads are an input of the
        decoder, as in Bahdanau's model. "deep": a gate adds the source memory that a step reads to the memory
        of the decoder (eq. 14 and 15).
    width: size of the hidden and cell states of encoder and decoder.
    embedding: size of the word embeddings. Default: width.
    depth: number of layers of the encoder and of the decoder. The first layer of the decoder reads the tapes
        of the last layer of the encoder.
    connections: what layer k + 1 reads. "plain": the output of layer k. "skip": the output of layer k and the
        input of the first layer. "gated": the output of layer k; also, a gate adds the cell state of layer k
        to the cell state of layer k + 1.
    both_ways: whether a second encoder reads the source from the last word to the first. The hidden states of
        both encoders are concatenated and projected: g_j = W_both [forward_j; backward_j]. With deep fusion,
        their cell states are concatenated and projected in the same way.
    attention: the options `score` and `select` of the attention to the source, see SourceAttention. The
        defaults are score="additive" and select="softmax".

    The sites (names) of the attention layers are:

    - "encoder.{k}.self" and "decoder.{k}.self": layer k attends to its own tapes.
    - "decoder.cross": the decoder attends to the source.
    - "reversed.{k}.self", with both_ways: queries and keys are the source words in reverse order.

    The tapes of the decoder are empty before the first word, and the initial g~ and h are 0.

    Differs from the paper: all gates have biases, and both_ways is new. The paper gives no equations for
    shallow fusion, for the output layer, and for fusion with several layers.

    >>> from regard.data.batch import Batch
    >>> model = LSTMNTranslationModel(source_size=9, target_size=7, width=8, fusion="shallow")
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    @checked(check_lstmn_translation)
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
        both_ways: bool = False,
        dropout: float = 0.0,
        **attention: Any,
    ):
        super().__init__()
        inputs = width if embedding is None else embedding
        self.source_size, self.target_size, self.width, self.fusion = source_size, target_size, width, fusion
        self.source, self.target = words(source_size, inputs), words(target_size, inputs)
        shared: dict[str, Any] = {"depth": depth, "connections": connections, "dropout": dropout}
        read = width if fusion == "shallow" else 0
        self.set_up_tapes(inputs, width, both_ways, memory=fusion == "deep", **shared)
        self.cross = SourceAttention().set_up(inputs + width, width, hidden=width, **attention)
        self.longest_source = self.cross.longest_source
        self.decoder = LSTMN(inputs + read, width, **shared, site="decoder", role=DECODER_SELF)
        self.gate: Any = nn.Linear(width + inputs, width) if fusion == "deep" else None
        self.readout = Maxout(inputs + 2 * width, max(width // 2, 1), target_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        states_BSM, cells_BSM = self.read_tapes(self.dropout(self.source(source)), lengths)
        states_BSM = self.dropout(states_BSM)
        values_BSE = torch.cat((states_BSM, cells_BSM), -1) if self.fusion == "deep" else states_BSM
        return Encoded(lengths, (self.cross.remember(states_BSM, lengths, values_BSE),))

    def start(self, encoded: Encoded) -> State:
        like = self.target.weight.new_empty(len(encoded), 0)
        return State(hidden=(*self.decoder.zeros(like), like.new_zeros(len(encoded), self.width)))

    def output_layer(self) -> nn.Module:
        return self.readout.output

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """See Model.features().

        The hidden state has four tensors. Three are the state of the decoder, see LSTMN. The fourth, (rows,
        width), is g~ of the last step with deep fusion, and h of the last step with shallow fusion.
        """
        embedded_RTI = self.dropout(self.target(at_least_one(tokens)))
        *tapes, last_RM = state.hidden
        after = state.position + tokens.shape[1]
        fused = self._deep if self.fusion == "deep" else self._shallow
        states_RTM, read_RTM, hidden, last_RM = fused(
            embedded_RTI, tuple(tapes), last_RM, state.position, encoded
        )
        features_RTU = self.readout(torch.cat((states_RTM, read_RTM, embedded_RTI), -1))
        return State(after, (*hidden, last_RM)), features_RTU

    def _deep(
        self, x_RTI: Tensor, tapes: tuple[Tensor, ...], last_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Run T steps with deep fusion: first the attention to the source for all steps, then the decoder.

        This order is possible because the attention to the source does not depend on the states of the
        decoder. For R target sequences and states of size M, the method returns four values: the states h_t
        (R, T, M); the summaries g~_t of the source (R, T, M); the state of the decoder after step T; the last
        g~.
        """
        reads = []
        for at, x_RI in enumerate(x_RTI.unbind(1), position):
            query_R1D = torch.cat((x_RI, last_RM.to(x_RI.dtype)), -1)[:, None]
            read_RE = self.cross.attend(query_R1D, encoded.memories[0], at).output[:, 0]
            last_RM = read_RE[:, : self.width]
            reads.append(read_RE)
        summary_RTM, memory_RTM = torch.stack(reads, 1).chunk(2, -1)
        gate_RTM = torch.sigmoid(self.gate(torch.cat((summary_RTM, x_RTI), -1)))
        states_RTM, tapes = self.decoder.run(x_RTI, tapes, position, gate_RTM * memory_RTM)
        return states_RTM, summary_RTM, tapes, last_RM

    def _shallow(
        self, x_RTI: Tensor, tapes: tuple[Tensor, ...], last_RM: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Run T steps with shallow fusion: each step attends to the source and computes one decoder step.

        For R target sequences and states of size M, the method returns four values: the states h_t (R, T, M);
        the summaries g~_t of the source (R, T, M); the state of the decoder after step T; the last h_t.
        """
        states, reads = [], []
        for at, x_RI in enumerate(x_RTI.unbind(1), position):
            query_R1D = torch.cat((x_RI, last_RM.to(x_RI.dtype)), -1)[:, None]
            read_RM = self.cross.attend(query_R1D, encoded.memories[0], at).output[:, 0]
            state_R1M, tapes = self.decoder.run(torch.cat((x_RI, read_RM), -1)[:, None], tapes, at)
            last_RM = state_R1M[:, 0]
            states.append(last_RM)
            reads.append(read_RM)
        return torch.stack(states, 1), torch.stack(reads, 1), tapes, last_RM
