"""CpuBahdanauDecoder: BahdanauDecoder with fewer and faster operations on a CPU.

- W e(y) + b, the part of the gates and of the output layer that depends on the last word, is computed once
  for all words of the vocabulary, if the table is small. A step only reads its rows.
- tanh(x) = 2 sigmoid(2 x) - 1, because torch.sigmoid() is several times as fast as torch.tanh() on a CPU. The
  score v . tanh(x) is then 2 v . sigmoid(2 x) - sum(v). The softmax does not depend on the constant sum(v).
- The elements of the maxout pairs are stored in two blocks, so that their maximum reads adjacent elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.slots.bahdanau_decoder import BahdanauDecoder
from regard.decoding.slots.packed_linear import Linear, packed_linear
from regard.kernels.kernel_choice import by_kernel
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State

__all__ = ["CpuBahdanauDecoder"]

MOST_TABLE_BYTES = 2**26
"""The largest size of the table of W e(y) + b for all words y."""

FEW_WEIGHTS = 2**17
"""With at most this many weights, addmm_() of a few rows is as fast as a product with packed weights."""


class CpuBahdanauDecoder(BahdanauDecoder):
    """The decoder of a Bahdanau model with additive attention and softmax, on a CPU.

    keys: (B, S, A), 2 U_a h_j.
    values, lengths, mask, states: see BahdanauDecoder.
    padded: whether a source has padding. If not, the mask is not added.
    """

    in_inference_mode = True
    padded = True

    @classmethod
    def supports(cls, model: Model) -> bool:
        if not super().supports(model):
            return False
        assert isinstance(model, Bahdanau)
        weight = model.first.weight
        suits = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
        return suits and not by_kernel(weight)

    @classmethod
    def build(cls, model: Model, slots: int, beams: int, length: int, source_length: int) -> BahdanauDecoder:
        assert isinstance(model, Bahdanau)
        return cls(model, slots, beams, length, source_length)

    def refresh(self) -> None:
        self.weights, self.products = self._products()

    def _products(self) -> tuple[tuple[Tensor, ...], list[Any]]:
        """Return weights and functions.

        The weights: those of the word and of the context, for the gates and the output layer, and 2 v.

        The functions: three return a product with the embeddings of token ids, with the previous state, and
        with the maxout units. Two add a product with r * s and with the new state to their first argument.
        """
        from_word, from_context, from_state, from_new, to_output, bias = self._joined()
        size, hidden, rows = self.width, self.score.key_weight.shape[-1], self.slots * self.beams
        blocks = (
            torch.arange(len(from_new)).view(-1, 2).T.flatten()
        )  # first the even units, then the odd ones
        order = torch.cat((torch.arange(3 * size), 3 * size + blocks))
        from_word, from_context, bias = (each[order] for each in (from_word, from_context, bias))
        from_state = torch.cat((2 * from_state[:hidden], from_state[hidden:]))
        weights = from_word, from_context, 2 * self.score.vector.detach().flatten()
        functions = [
            self._words(from_word, bias),
            packed_linear(from_state, None, rows, self.int8),
            packed_linear(to_output, self.readout.output.bias, rows, self.int8),
            self._adding(self.cell.state.weight.detach()),
            self._adding(from_new[blocks]),
        ]
        return weights, functions

    def _words(self, weight: Tensor, bias: Tensor) -> Linear:
        """Return a function that computes W e(y) + b for token ids y (R,)."""
        embedded = self.embedding.weight.detach()
        if len(embedded) * weight.shape[0] * weight.itemsize <= MOST_TABLE_BYTES:
            table = functional.linear(embedded, weight, bias)
            return lambda tokens: table.index_select(0, tokens)
        product = packed_linear(weight, bias, self.slots * self.beams, self.int8)
        return lambda tokens: product(embedded.index_select(0, tokens))

    def _adding(self, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of y and x that adds W x to y in place."""
        if weight.numel() <= FEW_WEIGHTS:
            turned = weight.T.contiguous()
            return lambda y, x: y.addmm_(x, turned)
        product = packed_linear(weight, None, self.slots * self.beams, self.int8)
        return lambda y, x: y.add_(product(x))

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        super().load(slots, encoded, state)
        self.keys[slots] *= 2
        self.padded = bool((self.lengths < self.source_length).any())

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        words, from_state, to_output, add_reset, add_new = self.products
        size, hidden, states_RM = self.width, self.keys.shape[-1], self.states.view(-1, self.width)
        state_RM = states_RM
        if self.beams > 1:
            state_RM = states_RM.index_select(0, (parents + self.rows * self.beams).view(-1))
        gates_RG = words(tokens.view(-1))
        own_RN = from_state(state_RM)
        weights_BKS = self._attend(own_RN[:, :hidden], position)
        gates_RG.view(self.slots, self.beams, -1).baddbmm_(weights_BKS, self.values)
        both_RM, new_RM, pairs_RP = gates_RG.tensor_split((2 * size, 3 * size), 1)
        take_RM, reset_RM = both_RM.add_(own_RN[:, hidden:]).sigmoid_().chunk(2, 1)
        add_reset(new_RM, reset_RM * state_RM).tanh_()
        states_RM.copy_(torch.lerp(state_RM, new_RM, take_RM))
        even, odd = add_new(pairs_RP, states_RM).chunk(2, 1)
        logits: Tensor = to_output(torch.maximum(even, odd))
        return logits.view(*tokens.shape, -1)

    def _attend(self, query_RA: Tensor, position: Tensor) -> Tensor:
        sizes = self.slots, self.beams, self.source_length
        added_BKSA = (query_RA.view(*sizes[:2], 1, -1) + self.keys[:, None]).sigmoid_()
        scores_BKS = torch.mv(added_BKSA.view(-1, self.keys.shape[-1]), self.weights[2]).view(sizes)
        weights_BKS = (scores_BKS.add_(self.mask) if self.padded else scores_BKS).softmax(-1)
        if self.looks is not None:
            self.looks[self.rows[:, 0], position] = weights_BKS[:, :, None, None].to(self.looks.dtype)
        return weights_BKS
