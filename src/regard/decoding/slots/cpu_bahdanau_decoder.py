"""CpuBahdanauDecoder: BahdanauDecoder with fewer and faster operations on a CPU.

- W e(y) + b, the part of the gates and of the output layer that depends on the last word, is computed once
  for all words of the vocabulary, if the table is small. A step only reads its rows.
- One product with the new state s_i computes its part of the output layer, and its part of the query and the
  gates of the next step. The next step selects the rows of the parents.
- tanh(q + k) is computed as 1 - 2 / (1 + exp(2 q) exp(2 k)), because exp(2 k) is the same in all steps. The
  score v . tanh(q + k) is then -2 v . (1 / (1 + exp(2 q) exp(2 k))) + sum(v). The softmax does not depend on
  the constant sum(v). With few slots or very large keys, tanh(x) is computed as 2 sigmoid(2 x) - 1, because
  torch.sigmoid() is several times as fast as torch.tanh() on a CPU.
- The elements of the maxout pairs are stored in two blocks, so that their maximum reads adjacent elements.
- Operations on a few thousand numbers run in NumPy: each takes less time to start than in PyTorch. The tanh
  of NumPy is several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.slots.bahdanau_decoder import BahdanauDecoder
from regard.decoding.slots.small_products import MOST_PRODUCTS, small_matmul
from regard.kernels.choice import by_kernel
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model, State

__all__ = ["CpuBahdanauDecoder"]

Array = np.ndarray[Any, Any]

MOST_TABLE_BYTES = 2**26
"""The largest size of the table of W e(y) + b for all words y."""

FEW_WEIGHTS = 2**17
"""With at most this many weights, NumPy multiplies a few rows as fast as oneDNN with packed weights."""

SOURCE_ROWS = 32
"""The expected number of rows of a product with encoder states, for packed_linear()."""


FEW_SLOTS = 4
"""With fewer slots than this, the attention uses sigmoid(2 q + 2 k), which takes fewer operations than
exp(2 q) exp(2 k), and NumPy computes the weighted sums of the values."""

MOST_KEY = 40.0
"""The largest absolute value of 2 k for which exp(2 k) is used."""


class StepArrays:
    """Buffers of one step for R = B K rows, and views of them: creating views in every step takes time.

    tokens, parents: (R,) and (B, K), views of the arguments of step().
    of_parents: (R, P + A + 2 M), the products with the states of the parents; see state_products.
    query_t, state_gates: parts of `of_parents`: 2 q, (B, K, 1, A), and the part of z and r, (R, 2 M).
    query_factors_t: (B, K, 1, A), exp(2 q).
    keys_t: (B, 1, S, A), 2 k.
    added_t: (B, K, S, A), sigmoid(2 q + 2 k) or 1 / (1 + exp(2 q) exp(2 k)).
    scores_t, weights: (R S,) and (B, K, S), scores and weights of the attention.
    context: (B, K, 3 M + P), the weighted sum of the values.
    gates: (R, 3 M + P), the gates z and r, the candidate state, and the P elements of the maxout pairs.
    both, new, pairs: the three parts of `gates`: z and r, the candidate state, and the maxout pairs.
    take_t, reset: the two halves of `both`: z and r.
    even, odd: the two halves of `pairs`: the first and the second element of each pair.
    state: (R, M), the state s_{i-1} of the parents.
    reset_state, product: (R, M), r * s_{i-1}, and its product with U.
    products: the two halves of `product`.
    units: (R, P / 2), the maxout units.
    states: (R, M), the new states: a view of `states` of the decoder.
    first_row: (B, 1), the row of the first beam of each slot.

    Attributes that end with _t are tensors, which share memory with the arrays of the same name.
    """

    def __init__(self, decoder: CpuBahdanauDecoder, tokens: Tensor, parents: Tensor):
        slots, beams, size = decoder.states.shape
        rows, pairs, source, hidden = slots * beams, decoder.pairs, *decoder.keys.shape[1:]
        self.tokens_t, self.parents_t = tokens, parents
        self.tokens: Array = tokens.numpy().reshape(-1)
        self.parents: Array = parents.numpy()
        new = decoder.states.new_zeros
        self.of_parents: Array = new(rows, pairs + hidden + 2 * size).numpy()
        query = self.of_parents[:, pairs : pairs + hidden].reshape(slots, beams, 1, hidden)
        self.query_t, self.query_factors_t = torch.from_numpy(query), new(slots, beams, 1, hidden)
        self.keys_t = decoder.keys[:, None]
        self.state_gates = self.of_parents[:, pairs + hidden :]
        self.added_t, self.scores_t = new(slots, beams, source, hidden), new(rows * source)
        self.added_rows_t = self.added_t.view(-1, hidden)
        self.scores_BKS_t = self.scores_t.view(slots, beams, source)
        self.weights_t = new(slots, beams, source)
        self.gates_t = new(rows, 3 * size + pairs)
        self.state_t, self.reset_state_t = new(rows, size), new(rows, size)
        self.units_t, self.states_t = new(rows, pairs // 2), decoder.states.view(rows, size)
        self.both_t, self.new_t, _ = self.gates_t.tensor_split((2 * size, 3 * size), 1)
        self.take_t = self.both_t[:, :size]
        self.gates: Array = self.gates_t.numpy()
        self.gates_BKG_t = self.gates_t.view(slots, beams, -1)
        self.gates_BKG: Array = self.gates_BKG_t.numpy()
        self.weights: Array = self.weights_t.numpy()
        self.values: Array = decoder.values.numpy()
        self.context = np.zeros_like(self.gates_BKG)
        self.state: Array = self.state_t.numpy()
        self.reset_state: Array = self.reset_state_t.numpy()
        self.units: Array = self.units_t.numpy()
        self.states: Array = self.states_t.numpy()
        self.both, self.new, self.pairs = np.split(self.gates, (2 * size, 3 * size), 1)
        self.reset = self.both[:, size:]
        self.product: Array = np.zeros_like(self.state)
        self.products = np.array_split(self.product, 2, 1)
        self.even, self.odd = np.split(self.pairs, 2, 1)
        self.first_row = np.arange(slots)[:, None] * beams


class CpuBahdanauDecoder(BahdanauDecoder):
    """The decoder of a Bahdanau model with additive attention and softmax, on a CPU.

    keys: (B, S, A), 2 U_a h_j = 2 k.
    key_factors: (B, 1, S, A), exp(2 k). None with few slots, or if a key is so large that exp(2 k) could
        overflow; then sigmoid() is used.
    values, lengths, mask, states: see BahdanauDecoder.
    padded: whether a source has padding. If not, the mask is not added.
    state_products: (B K, P + A + 2 M), products of weights with the states. The first P columns are the part
        of the maxout pairs, used in the step that computed the states. The others are the query and the part
        of the gates z and r, for the next step.
    """

    in_inference_mode = True
    padded = True
    key_factors: Tensor | None = None
    _arrays: StepArrays | None = None

    def __init__(self, model: Bahdanau, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        hidden, self.pairs = self.keys.shape[-1], self.values.shape[-1] - 3 * self.width
        columns = self.pairs + hidden + 2 * self.width
        self.ones = self.keys.new_ones(hidden)
        self.state_products: Array = self.keys.new_zeros(slots * beams, columns).numpy()

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

        The weights: those of the word and of the context, for the gates and the output layer, 2 v and -2 v.

        The functions: the first writes W e(y) + b for token ids y to an array. Two return a product with the
        new state, and with the maxout units. The next one adds U (r * s) to the candidate state. The last one
        returns the product of the context weights with encoder states.
        """
        self.packed.start()
        from_word, from_context, from_state, from_new, to_output, bias = self._joined()
        size, hidden = self.width, self.score.key_weight.shape[-1]
        blocks = (
            torch.arange(len(from_new)).view(-1, 2).T.flatten()
        )  # first the even units, then the odd ones
        order = torch.cat((torch.arange(3 * size), 3 * size + blocks))
        from_word, from_context, bias = (each[order] for each in (from_word, from_context, bias))
        of_state = torch.cat((from_new[blocks], 2 * from_state[:hidden], from_state[hidden:]))
        vector = 2 * self.score.vector.detach().flatten()
        weights = from_word, from_context, vector, -vector
        functions = [
            self._words(from_word, bias),
            self.packed.linear(of_state, None),
            self.packed.linear(to_output, self.readout.output.bias),
            self._adding(self.cell.state.weight.detach()),
            self.packed.linear(from_context, None, rows=SOURCE_ROWS, int8=False),
        ]
        return weights, functions

    def _words(self, weight: Tensor, bias: Tensor) -> Callable[[Array, Array], None]:
        """Return a function of token ids y (R,) and an array, to which it writes W e(y) + b."""
        embedded = self.embedding.weight.detach()
        if len(embedded) * weight.shape[0] * weight.itemsize <= MOST_TABLE_BYTES:
            table: Array = self.packed.keep((embedded, weight, bias), functional.linear).numpy()

            def read(tokens: Array, out: Array) -> None:
                # Without mode="clip", NumPy writes to a temporary array. Token ids are always valid.
                table.take(tokens, 0, out, "clip")

            return read
        product = self.packed.linear(weight, bias)

        def compute(tokens: Array, out: Array) -> None:
            out[:] = product(embedded.index_select(0, torch.from_numpy(tokens))).numpy()

        return compute

    def _adding(self, weight: Tensor) -> Callable[[StepArrays], None]:
        """Return a function that adds U (r * s) to the candidate state. weight: U, (M, M)."""
        product = self.packed.linear(weight, None)
        # Two products of half the size, so that NumPy can compute them without threads of its own.
        halves: list[Array] = [each.contiguous().numpy() for each in weight.T.tensor_split(2, 1)]
        most_rows = MOST_PRODUCTS // halves[0].size if weight.numel() <= FEW_WEIGHTS else 0

        def add(at: StepArrays) -> None:
            if len(at.state) > most_rows:
                at.new_t.add_(product(at.reset_state_t))
                return
            for half, result in zip(halves, at.products, strict=True):
                np.matmul(at.reset_state, half, out=result)
            np.add(at.new, at.product, at.new)

        return add

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        super().load(slots, encoded, state)
        self.keys[slots] *= 2
        self.key_factors = self._key_factors()
        self.padded = bool((self.lengths < self.source_length).any())
        products = self.products[1](state.hidden[0]).numpy()
        self.state_products.reshape(self.slots, self.beams, -1)[slots.numpy()] = products[:, None]

    def _key_factors(self) -> Tensor | None:
        """Return exp(2 k); None with few slots, or if a key is above the limit.

        If no |2 k| exceeds MOST_KEY, exp(2 q) may underflow to 0 or overflow to infinity: the exact value of
        1 / (1 + exp(2 q) exp(2 k)) also rounds to 1 or 0 then.
        """
        uses_sigmoid = self.slots < FEW_SLOTS or bool(self.keys.abs().amax() > MOST_KEY)
        return None if uses_sigmoid else self.keys[:, None].exp()

    def _source_values(self, states: Tensor) -> Tensor:
        values: Tensor = self.products[4](states)
        return values

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        words, of_state, to_output, add_reset, _ = self.products
        at = self._arrays
        if at is None or at.tokens_t is not tokens or at.parents_t is not parents:
            at = self._arrays = StepArrays(self, tokens, parents)
        rows_R = (at.parents + at.first_row).reshape(-1)
        # Without mode="clip", NumPy writes to a temporary array. The rows are always valid.
        self.state_products.take(rows_R, 0, at.of_parents, "clip")
        at.states.take(rows_R, 0, at.state, "clip")
        words(at.tokens, at.gates)
        self._weigh(at, position)
        self._add_context(at)
        np.add(at.both, at.state_gates, at.both)
        at.both_t.sigmoid_()
        np.multiply(at.reset, at.state, at.reset_state)
        add_reset(at)
        np.tanh(at.new, at.new)
        torch.lerp(at.state_t, at.new_t, at.take_t, out=at.states_t)
        self.state_products = of_state(at.states_t).numpy()
        np.add(at.pairs, self.state_products[:, : self.pairs], at.pairs)
        np.maximum(at.even, at.odd, out=at.units)
        logits: Tensor = to_output(at.units_t)
        return logits.view(*tokens.shape, -1)

    def _add_context(self, at: StepArrays) -> None:
        """Add the weighted sums of the values to the gates and the maxout pairs."""
        if self.slots >= FEW_SLOTS:
            at.gates_BKG_t.baddbmm_(at.weights_t, self.values)
            return
        small_matmul(at.weights[None], at.values[None], at.context[None])
        np.add(at.gates_BKG, at.context, at.gates_BKG)

    def _weigh(self, at: StepArrays, position: Tensor) -> None:
        """Write the attention weights of every beam to the buffers, and record them if `looks` exists."""
        if self.key_factors is None:
            torch.add(at.query_t, at.keys_t, out=at.added_t).sigmoid_()
            torch.mv(at.added_rows_t, self.weights[2], out=at.scores_t)
        else:
            torch.exp(at.query_t, out=at.query_factors_t)
            torch.addcmul(self.ones, at.query_factors_t, self.key_factors, out=at.added_t).reciprocal_()
            torch.mv(at.added_rows_t, self.weights[3], out=at.scores_t)
        if self.padded:
            at.scores_BKS_t.add_(self.mask)
        torch.softmax(at.scores_BKS_t, -1, out=at.weights_t)
        if self.looks is not None:
            self.looks[self.rows[:, 0], position] = at.weights_t[:, :, None, None].to(self.looks.dtype)

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other = super().resized(slots, length)
        other._arrays = None  # these are views of the old tensors
        if slots is not None:
            products = self.state_products.reshape(self.slots, self.beams, -1)[slots.numpy()]
            other.key_factors = other._key_factors()
            other.state_products = products.reshape(-1, products.shape[-1])
        return other
