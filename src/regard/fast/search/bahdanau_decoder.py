"""BahdanauDecoder: the decoder of Bahdanau et al. (2014) on preallocated tensors, with few operations.

The context c_i = sum_j alpha_ij h_j is only used in linear layers: C c_i in the cell, and C_o c_i in the
output layer. So [C; C_o] h_j is computed once for each source word, and its weighted sum at each step.

For many beams on a CPU, the part of the gates and of the output layer that depends on the last word,
W e(y) + b, is computed once for each word that some beam reads, and kept for later searches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

from regard.fast.search.decoder import SlotDecoder, write_rows
from regard.fast.search.linear import kept, linear
from regard.kernels import by_kernel
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State
from regard.roles import Role
from regard.scores import Additive
from regard.select import Soft

__all__ = ["BahdanauDecoder"]

FEWEST_ROWS, MOST_TABLE_BYTES = 16, 2**26
"""W e(y) + b is stored for at least so many beams, if the table for all words is not larger than this."""

LARGEST_KEY, LARGEST_QUERY = 40.0, 60.0
"""exp(-2 q) exp(-2 k) is used if no 2 k is larger than LARGEST_KEY. Then it is never 0 times infinity, and
where 2 q is larger than LARGEST_QUERY, the sigmoid is 0 or 1 within 1e-8 in any case."""

NEW_WORDS = 1 / 8
"""The expected part of the words of a step that no beam has read before."""


class BahdanauDecoder(SlotDecoder):
    """The decoder of a Bahdanau model with additive attention and softmax.

    keys: (B, S, A), U_a h_j; on a CPU, 2 U_a h_j, or exp(-2 U_a h_j) if `exponential`. The weights of the
        query have the same factor.
    values: (B, S, G), [C; C_o] h_j: the parts of the gates and of the output layer that depend on the source.
    lengths, mask: (B,) and (B, 1, S), the number of source tokens; 0 for them, and -inf for padding.
    states: (B, K, M), the decoder states s_{i-1}.
    weights: the joined weights and the first bias, see _joined().
    table, known: (V, G) and (V,), W e(y) + b of the words y that were read, and whether a word was read.
        They are None for few beams, on a GPU and for large vocabularies.
    """

    stops_at_position = True  # a recurrent decoder has no cache of earlier positions
    in_inference_mode = True
    int8 = True

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        assert isinstance(model, Bahdanau)
        super().__init__(model, slots, beams, length, source_length)
        self.embedding, self.cell, self.readout = model.target, model.cell, model.readout
        assert isinstance(model.score, Additive)
        self.score, self.width, self.int8_steps = model.score, model.width, model.int8_steps
        self.factor = 1.0 if by_kernel(model.first.weight) else 2.0
        self.weights = self._joined()
        self._read_weights()
        like = model.first.weight
        hidden, both = model.score.key_weight.shape[-1], self.weights[1].shape[0]
        self.keys = like.new_zeros(slots, source_length, hidden)
        self.values = like.new_zeros(slots, source_length, both)
        self.mask = like.new_zeros(slots, 1, source_length)
        self.one = like.new_ones(())
        self.states = like.new_zeros(slots, beams, model.width)
        self.exponential = not by_kernel(like) and like.dtype in (torch.float32, torch.float64)
        self.rows = torch.arange(slots, device=like.device)[:, None]
        self.lengths = torch.zeros_like(self.rows[:, 0])

    @classmethod
    def reasons(cls, model: Model) -> list[str]:
        assert isinstance(model, Bahdanau)
        reasons = []
        if type(model.score) is not Additive or model.score.heads:
            reasons.append("the attention is not additive with one head")
        if model.select != Soft():
            reasons.append("the attention weights are not computed with softmax")
        return reasons

    @classmethod
    def recordable(cls, model: Model) -> dict[str, Role]:
        assert isinstance(model, Bahdanau)
        return {model.site: model.role}

    def refresh(self) -> None:
        for own, new in zip(self.weights, self._joined(), strict=True):
            if own.data_ptr() != new.data_ptr():  # a weight that is not a copy
                own.copy_(new)
        if not self.states.is_cuda:
            self._read_weights()

    def _read_weights(self) -> None:
        """Create the functions of the linear layers."""
        from_word, _, from_state, from_new, to_output, bias = self.weights
        rows, int8 = self.slots * self.beams, self.int8_steps
        self.from_state = linear(from_state, None, rows, int8, owner=self.cell.gate.weight)
        self.from_reset = linear(self.cell.state.weight, None, rows, int8)
        self.from_new = linear(from_new, None, rows, int8, owner=self.readout.pairs.weight)
        self.to_output = linear(to_output, self.readout.output.bias, rows, int8)
        self.vector = 2 * self.score.vector.detach().flatten()
        self.table = self.known = None
        words = len(self.embedding.weight)
        small = bias.itemsize * math.prod((words, len(bias))) <= MOST_TABLE_BYTES
        if small and rows >= FEWEST_ROWS and not bias.is_cuda:
            sources = self.embedding.weight, from_word, bias
            self.table, self.known = kept(self.embedding.weight, ("words", int8), sources, _empty_table)
        new = rows if self.table is None else max(1, int(rows * NEW_WORDS))
        self.from_word = linear(from_word, bias, new, int8, owner=self.cell.input.weight)

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        (memory,) = encoded.memories
        keys = memory.key * self.factor
        if self.exponential and float(keys.abs().amax()) > LARGEST_KEY:
            self.exponential = False
            self.keys = self.keys.log().neg_()
        write_rows(self.keys, slots, keys.neg().exp() if self.exponential else keys)
        self.lengths.index_copy_(0, slots, encoded.lengths)
        write_rows(self.values, slots, functional.linear(memory.value, self.weights[1]))
        inside = torch.arange(self.source_length, device=slots.device) < encoded.lengths[:, None]
        self.mask.index_copy_(0, slots, torch.where(inside, 0.0, -torch.inf).to(self.mask.dtype)[:, None])
        self.states[slots] = state.hidden[0][:, None]

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        size, hidden, states_RM = self.width, self.keys.shape[-1], self.states.flatten(0, 1)
        state_RM = states_RM
        if self.beams > 1:
            state_RM = states_RM.index_select(0, (parents + self.rows * self.beams).flatten())
        gates_RG = self._of_words(tokens.flatten())
        own_RN = self.from_state(state_RM)
        weights_BKS = self._attend(own_RN[:, :hidden], position)
        gates_RG.view(self.slots, self.beams, -1).baddbmm_(weights_BKS, self.values)
        own_RG, pairs_RP = gates_RG[:, : 3 * size], gates_RG[:, 3 * size :]
        if by_kernel(state_RM):
            self._advance_by_kernel(own_RG, own_RN[:, hidden:], state_RM, states_RM)
        else:
            both_RG, new_RM = own_RG.tensor_split((2 * size,), 1)
            update_RM, reset_RM = both_RG.add_(own_RN[:, hidden:]).sigmoid_().chunk(2, 1)
            new_RM.add_(self.from_reset(reset_RM * state_RM))
            if self.table is None:
                new_RM.tanh_()
            else:  # many numbers, for which sigmoid takes less time, see _attend()
                new_RM.mul_(2).sigmoid_().mul_(2).sub_(1)
            torch.lerp(state_RM, new_RM, update_RM, out=states_RM)
        if self.states.is_cuda:  # one kernel for product and sum
            pairs_RP.addmm_(states_RM, self.weights[3].T)
        else:
            pairs_RP.add_(self.from_new(states_RM))
        units_RU = torch.maximum(pairs_RP[:, ::2], pairs_RP[:, 1::2])
        return self.to_output(units_RU).view(*tokens.shape, -1)

    def _of_words(self, tokens_R: Tensor) -> Tensor:
        """Return W e(y) + b of the words y that the beams read, (R, G)."""
        if self.table is None or self.known is None:
            word_RE = functional.embedding(tokens_R, self.embedding.weight)
            missing = self.weights[0].shape[1] - word_RE.shape[1]
            return self.from_word(pad(word_RE, (0, missing)) if missing else word_RE)
        new_N = tokens_R[~self.known[tokens_R]].unique()
        if len(new_N):
            self.table.index_copy_(0, new_N, self.from_word(self.embedding.weight.index_select(0, new_N)))
            self.known.index_fill_(0, new_N, True)
        return self.table.index_select(0, tokens_R)

    def _advance_by_kernel(
        self, gates_RG: Tensor, more_RN: Tensor, state_RM: Tensor, states_RM: Tensor
    ) -> None:
        """Write the new states to states_RM, with one kernel before and one after the product U (r * s)."""
        # Imported here, because it imports Triton.
        from regard.kernels.recurrent.cells import gated, mixed

        reset_RM = torch.empty_like(state_RM)
        gated(gates_RG, more_RN, state_RM, reset_RM)
        gates_RG[:, 2 * self.width :].addmm_(reset_RM, self.cell.state.weight.T)
        mixed(gates_RG, state_RM, states_RM, None)

    def _attend(self, query_RA: Tensor, position: Tensor) -> Tensor:
        """Return the attention weights of every beam, (B, K, S), and record them if `looks` exists."""
        if by_kernel(query_RA):
            # Imported here, because it imports Triton.
            from regard.kernels.search.decoder_step import additive_step_weights

            vector = self.score.vector.flatten()
            return additive_step_weights(query_RA, self.keys, vector, self.lengths, position, self.looks)
        # v . tanh(x) = 2 v . sigmoid(2 x) - sum(v). On a CPU, sigmoid is several times as fast as tanh, and
        # 1 / (1 + exp(-2 q) exp(-2 k)) is faster than sigmoid(2 q + 2 k). The softmax does not depend on the
        # constant sum(v).
        query_BK1A = query_RA.view(self.slots, self.beams, 1, -1)
        if self.exponential:
            exp_BK1A = query_BK1A.neg().clamp_(-LARGEST_QUERY, LARGEST_QUERY).exp_()
            part_BKSA = torch.addcmul(self.one, exp_BK1A, self.keys[:, None]).reciprocal_()
        else:
            part_BKSA = (query_BK1A + self.keys[:, None]).sigmoid_()
        scores_BKS = part_BKSA @ self.vector
        weights_BKS = scores_BKS.add_(self.mask).softmax(-1)
        if self.looks is not None:
            self.looks[self.rows[:, 0], position] = weights_BKS[:, :, None, None].to(self.looks.dtype)
        return weights_BKS

    def resize(self, slots: Tensor | None, before: int) -> None:
        if slots is not None:
            for name in ("keys", "values", "mask", "states", "lengths"):
                setattr(self, name, getattr(self, name).index_select(0, slots))
            self.rows = self.rows[: len(slots)]

    def _joined(self) -> tuple[Tensor, ...]:
        """Return the weights for word, context, previous state, new state and output, and the first bias.

        word and context: for the gates and the output layer. Previous state: for the query and the gates.

        On a GPU, sizes are padded with zeros to a multiple of 8, because cuBLAS is much slower for others.
        """
        cell, pairs, size, output = self.cell, self.readout.pairs, self.width, self.readout.output
        assert cell.context is not None
        of_state, of_context, of_word = pairs.weight.detach().tensor_split((size, 3 * size), 1)
        step = 8 if output.weight.is_cuda else 1
        units, words = (-each % step for each in (output.in_features, of_word.shape[1]))
        of_state, of_context, of_word = (
            pad(each, (0, 0, 0, 2 * units)) for each in (of_state, of_context, of_word)
        )
        from_word = pad(torch.cat((cell.input.weight.detach(), of_word)), (0, words))
        from_context = torch.cat((cell.context.weight.detach(), of_context))
        from_state = torch.cat((self.score.query_weight.detach().T * self.factor, cell.gate.weight.detach()))
        bias = torch.cat((cell.input.bias.detach(), pad(pairs.bias.detach(), (0, 2 * units))))
        to_output = pad(output.weight.detach(), (0, units)) if units else output.weight
        return from_word, from_context, from_state, of_state.contiguous(), to_output, bias


def _empty_table(embedding: Tensor, from_word: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return a table (V, G) for W e(y) + b of all words y, and for each word whether it is stored: (V,)."""
    return bias.new_empty(len(embedding), len(bias)), torch.zeros(len(embedding), dtype=torch.bool)
