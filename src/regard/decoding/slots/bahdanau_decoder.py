"""BahdanauDecoder: the decoder of Bahdanau et al. (2014) on preallocated tensors, with few operations.

The context c_i = sum_j alpha_ij h_j is only used in linear layers: C c_i in the cell, and C_o c_i in the
output layer. So [C; C_o] h_j is computed once for each source word, and its weighted sum at each step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.slots.decoder import SlotDecoder, resized_rows, write_rows
from regard.decoding.slots.packed_linear import packed_linear
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State
from regard.roles import Role
from regard.scores import Additive
from regard.select import Soft

__all__ = ["BahdanauDecoder"]


class BahdanauDecoder(SlotDecoder):
    """The decoder of a Bahdanau model with additive attention and softmax.

    keys: (B, 1, S, A), U_a h_j.
    values: (B, S, G), [C; C_o] h_j: the parts of the gates and of the output layer that depend on the source.
    mask: (B, 1, S), added to the scores: 0, or -inf for padding.
    states: (B, K, M), the decoder states s_{i-1}.
    """

    stops_at_position = True  # a recurrent decoder has no cache of earlier positions

    def __init__(self, model: Bahdanau, slots: int, beams: int, length: int, source_length: int):
        self.slots, self.beams, self.length, self.source_length = slots, beams, length, source_length
        self.embedding, self.cell, self.readout = model.target, model.cell, model.readout
        assert isinstance(model.score, Additive)
        self.score, self.width = model.score, model.width
        self.weights = self._joined()
        self._pack()
        like = model.first.weight
        hidden, both = model.score.key_weight.shape[-1], self.weights[1].shape[0]
        self.keys = like.new_zeros(slots, 1, source_length, hidden)
        self.values = like.new_zeros(slots, source_length, both)
        self.mask = like.new_zeros(slots, 1, source_length)
        self.states = like.new_zeros(slots, beams, model.width)
        self.rows = torch.arange(slots, device=like.device)[:, None]

    @classmethod
    def supports(cls, model: Model) -> bool:
        return (
            type(model) is Bahdanau
            and type(model.score) is Additive
            and not model.score.heads
            and model.select == Soft()
        )

    @classmethod
    def build(cls, model: Model, slots: int, beams: int, length: int, source_length: int) -> BahdanauDecoder:
        assert isinstance(model, Bahdanau)
        return cls(model, slots, beams, length, source_length)

    @classmethod
    def recordable(cls, model: Model) -> dict[str, Role]:
        assert isinstance(model, Bahdanau)
        return {model.site: model.role}

    def refresh(self) -> None:
        for own, new in zip(self.weights, self._joined(), strict=True):
            own.copy_(new)
        if self.weights[0].device.type == "cpu":
            self._pack()

    def _pack(self) -> None:
        """Prepare the matrix products; see packed_linear()."""
        from_word, _, from_state, from_new, bias = self.weights
        output, rows = self.readout.output, self.slots * self.beams
        weights = from_word, from_state, self.cell.state.weight, from_new, output.weight
        biases = bias, None, None, None, output.bias
        self.products = [packed_linear(*each, rows) for each in zip(weights, biases, strict=True)]

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        (memory,) = encoded.memories
        write_rows(self.keys[:, 0], slots, memory.key)
        write_rows(self.values, slots, functional.linear(memory.value, self.weights[1]))
        inside = torch.arange(self.source_length, device=slots.device) < encoded.lengths[:, None]
        self.mask.index_copy_(0, slots, torch.where(inside, 0.0, -torch.inf).to(self.mask.dtype)[:, None])
        self.states[slots] = state.hidden[0][:, None]

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        from_word, from_state, from_reset, from_new, to_output = self.products
        size, hidden = self.width, self.keys.shape[-1]
        state = self.states[self.rows, parents] if self.beams > 1 else self.states
        word_BKG = from_word(self.embedding(tokens))
        own_BKN = from_state(state)
        added_BKSA = (own_BKN[:, :, None, :hidden] + self.keys).tanh_()
        weights_BKS = (torch.matmul(added_BKSA, self.score.vector) + self.mask).softmax(-1)
        if self.looks is not None:
            self.looks[self.rows[:, 0], position] = weights_BKS[:, :, None, None].float()
        both_BKG = torch.baddbmm(word_BKG, weights_BKS, self.values)
        gates = (both_BKG[..., : 2 * size] + own_BKN[..., hidden:]).sigmoid_()
        take, reset = gates[..., :size], gates[..., size:]
        new = both_BKG[..., 2 * size : 3 * size] + from_reset(reset * state)
        after = torch.lerp(state, new.tanh_(), take)
        self.states.copy_(after)
        pairs = both_BKG[..., 3 * size :] + from_new(after)
        return to_output(pairs.unflatten(-1, (-1, 2)).amax(-1))

    def resized(self, slots: Tensor | None, length: int) -> BahdanauDecoder:
        other = object.__new__(BahdanauDecoder)
        other.__dict__.update(self.__dict__)
        other.length = length
        if slots is not None:
            other.slots = len(slots)
            for name in ("keys", "values", "mask", "states"):
                buffer = getattr(self, name)
                setattr(other, name, resized_rows(buffer, slots, buffer.shape[1], 1))
            other.rows = self.rows[: len(slots)]
        if self.looks is not None:
            other.looks = resized_rows(self.looks, slots, length, 1)
        return other

    def _joined(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the weights for word, context, previous state and new state, and the bias of the first.

        word and context: for the gates and the output layer. Previous state: for the query and the gates.
        """
        cell, pairs, size = self.cell, self.readout.pairs, self.width
        assert cell.context is not None
        of_state, of_context, of_word = pairs.weight.detach().tensor_split((size, 3 * size), 1)
        from_word = torch.cat((cell.input.weight.detach(), of_word))
        from_context = torch.cat((cell.context.weight.detach(), of_context))
        from_state = torch.cat((self.score.query_weight.detach().T, cell.gate.weight.detach()))
        bias = torch.cat((cell.input.bias.detach(), pairs.bias.detach()))
        return from_word, from_context, from_state, of_state.contiguous(), bias
