"""CpuTransformerDecoder: TransformerDecoder with fewer and faster operations in a step, on a CPU.

The query of the cross-attention is only used in products with the keys: (W_q y) . k_j = y . (W_q^T k_j). The
values are only used in the output layer: W_o sum_j a_j v_j = sum_j a_j (W_o v_j). So W_q^T k_j and W_o v_j
are computed once for each source token, layer and head. A step then needs two products instead of four: with
all W_q^T k_j of a sentence, and with all its W_o v_j.

The attention of a few beams, the mask and the sums run in NumPy, which starts an operation and a small matrix
product several times as fast as PyTorch. The layers with many weights are products with packed weights.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.decoding.slots.transformer_decoder import TransformerDecoder, normalisation
from regard.kernels.kernel_choice import by_kernel
from regard.models.base import Encoded, Model
from regard.models.transformer import Transformer
from regard.positions.embedded import Embedded

__all__ = ["CpuTransformerDecoder"]

Array = np.ndarray[Any, Any]

Place = tuple[Array | slice, Array | int]
"""The index of slots and of their positions, in an array."""

MOST_PRODUCTS = 2**18
"""The largest number of multiplications for which small_matmul() uses NumPy.

For larger products, OpenBLAS would start its own threads, which compete with those of PyTorch.
"""

MOST_PAIRS = 2.0
"""The largest number of pairs of a head and a source token, B H S, relative to the width M of the model.

W_q^T k_j has H times the size of k_j. With more pairs, a step reads more memory for the two products than for
the four. With 16 sentences of 20 tokens and 4 heads of size 64, it was slower.
"""


class CpuTransformerDecoder(TransformerDecoder):
    """The decoder of a Transformer with cross-attention on preallocated caches, on a CPU.

    sources: for each layer, (B, 2, H S, M): W_q^T k_j / sqrt(D), and W_o v_j + b_o / H.
    source_mask: (B, X, 1, H S), added to the scores of each of the X layers: b_q . k_j / sqrt(D), or -inf for
        padding.
    """

    _arrays: DecoderArrays | None = None

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        norm = self.decoded
        self.last_norm = normalisation(norm) if isinstance(norm, nn.LayerNorm) else norm

    @classmethod
    def supports(cls, model: Model) -> bool:
        if type(model) is not Transformer or not super().supports(model):
            return False
        weight = model.output.weight
        suits = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
        return suits and not by_kernel(weight)

    @classmethod
    def build(
        cls, model: Model, slots: int, beams: int, length: int, source_length: int
    ) -> TransformerDecoder:
        """Allocate the buffers of this class, or with many pairs those of TransformerDecoder."""
        chosen: Any = model
        few = slots * chosen.decoder[0].itself.heads * source_length <= MOST_PAIRS * chosen.width
        kind = cls if few else TransformerDecoder
        return kind(model, slots, beams, length, source_length)

    def _new_sources(self, like: Tensor) -> list[Tensor]:
        pairs = self.heads * self.source_length
        return [like.new_zeros(self.slots, 2, pairs, self.width) for _ in self.layers]

    def _allocate_history(self) -> None:
        super()._allocate_history()
        shape = self.slots, len(self.layers), 1, self.heads * self.source_length
        self.source_mask = self.output.weight.new_zeros(shape)

    def _load_sources(self, slots: Tensor, encoded: Encoded) -> None:
        scale = (self.width // self.heads) ** -0.5
        missing = self.source_length - encoded.memories[0].key.shape[2]
        inside_bS = torch.arange(self.source_length) < encoded.lengths[:, None]
        for number, (layer, memory) in enumerate(zip(self.layers, encoded.memories, strict=True)):
            cross = layer.cross
            assert cross is not None
            key_bHSD, value_bHSD = (pad(each, (0, 0, 0, missing)) for each in (memory.key, memory.value))
            query_HDM = cross.query.weight.view(self.heads, -1, self.width) * scale
            output_HDM = cross.output.weight.T.reshape(self.heads, -1, self.width)
            keys_bHSM, values_bHSM = key_bHSD @ query_HDM, value_bHSD @ output_HDM
            bias_bHS = torch.zeros_like(key_bHSD[..., 0])
            if cross.query.bias is not None:
                bias_bHS = key_bHSD @ (cross.query.bias.view(self.heads, -1, 1) * scale)
                bias_bHS = bias_bHS[..., 0]
            if cross.output.bias is not None:  # the weights of a head sum to 1
                values_bHSM += cross.output.bias / self.heads
            self.sources[number][slots] = torch.stack((keys_bHSM.flatten(1, 2), values_bHSM.flatten(1, 2)), 1)
            bias_bHS = bias_bHS.masked_fill(~inside_bS[:, None], -torch.inf)
            self.source_mask[slots, number] = bias_bHS.flatten(1)[:, None]

    def _load_source_mask(self, slots: Tensor, lengths: Tensor) -> None:
        """Do nothing, because _load_sources() has already written the mask."""

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other = super().resized(slots, length)
        other._arrays = None  # its views are of the tensors before the change
        return other

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        if self._arrays is None:
            self._arrays = DecoderArrays(self)
        arrays = self._arrays
        arrays.begin(parents.numpy(), position.numpy(), upto)
        x, x_t = arrays.x, arrays.x_t
        arrays.embedding.take(tokens.numpy().reshape(-1), 0, x, "clip")
        np.multiply(x, self.width**0.5, out=x)
        if isinstance(self.scheme, Embedded):
            place = arrays.place[1]
            places = arrays.positions[place]  # (M,) if all slots have the same position
            rows_BKM = x.reshape(*tokens.shape, -1)
            rows_BKM += places if isinstance(place, int) else places[:, None]
        turns = self._turns(position)
        for number, parts in enumerate(self.parts):
            norms, pre = parts.norms, self.pre
            new_BK3HD = self._projected(number, norms[0](x_t) if pre else x_t, turns)
            x += parts.output(arrays.attend(number, new_BK3HD.numpy())).numpy()
            if not pre:
                x_t.copy_(norms[0](x_t))
            self._add_source(number, norms[1](x_t) if pre else x_t)
            if not pre:
                x_t.copy_(norms[1](x_t))
            x += parts.feed_forward(norms[-1](x_t) if pre else x_t).numpy()
            if not pre:
                x_t.copy_(norms[-1](x_t))
        return self.to_words(self.last_norm(x_t)).view(*tokens.shape, -1)

    def _add_source(self, number: int, y: Tensor) -> None:
        """Add the cross-attention of a layer to x, and record its weights if `looks` exists.

        y: (B K, M), from which the queries are computed.
        """
        arrays = self._arrays
        assert arrays is not None
        key_BMN, value_BNM = arrays.sources[number]
        small_matmul(y.numpy().reshape(self.slots, self.beams, -1), key_BMN, arrays.source_scores)
        np.add(arrays.source_scores, arrays.source_mask[:, number], out=arrays.source_scores)
        torch.softmax(arrays.source_scores_t, -1, out=arrays.source_weights_t)
        if arrays.looks is not None:
            arrays.looks[*arrays.place, :, number] = arrays.source_weights_BKHS
        arrays.x += small_matmul(arrays.source_weights, value_BNM, arrays.source_read).reshape(arrays.x.shape)


class DecoderArrays:
    """NumPy views of the buffers of a CpuTransformerDecoder, and the arrays of one step.

    Creating views takes time, so most are created once. Names that end with _t are the same memory as a
    tensor. There are N = L K entries in the cache of a slot.

    x: (B K, M), the residual stream.
    place: the index of the slots and of their positions.
    keys, values: for each layer, (B, H, D, N) and (B, H, N, D), the cache of the self-attention.
    sources: for each layer, (B, M, H S) and (B, H S, M): W_q^T k_j / sqrt(D), and W_o v_j + b_o / H.
    scores, weights: (B, H, K, n) of the self-attention, n = upto K; (B, K, H S) of the cross-attention.
    """

    def __init__(self, decoder: CpuTransformerDecoder):
        slots, beams, heads, width = decoder.slots, decoder.beams, decoder.heads, decoder.width
        like = decoder.output.weight
        self.slots, self.beams, self.heads = slots, beams, heads
        self.scale = (width // heads) ** -0.5
        self.embedding: Array = decoder.embedding.weight.detach().numpy()
        self.positions: Array = decoder.tables[0].numpy() if decoder.tables else np.zeros(0)
        self.mask: Array = decoder.mask.numpy()
        self.flat_mask: Array = self.mask.reshape(slots, 1, beams, -1)
        self.own: Array = decoder.own.numpy()
        self.caches: list[Array] = [each.numpy() for each in decoder.caches]
        flat = [each.reshape(slots, -1, 2, heads, width // heads) for each in self.caches]
        self.keys = [each[:, :, 0].transpose(0, 2, 3, 1) for each in flat]
        self.values = [each[:, :, 1].transpose(0, 2, 1, 3) for each in flat]
        sources = [each.numpy() for each in decoder.sources]
        self.sources = [(each[:, 0].swapaxes(1, 2), each[:, 1]) for each in sources]
        self.source_mask: Array = decoder.source_mask.numpy()
        self.looks: Array | None = None if decoder.looks is None else decoder.looks.numpy()
        self.rows = np.arange(slots)
        self.place: Place = (slice(None), 0)
        self.x_t, self.read_t = (like.new_zeros(slots * beams, width) for _ in range(2))
        self.x: Array = self.x_t.numpy()
        self.read_BHKD = self.read_t.numpy().reshape(slots, beams, heads, -1).swapaxes(1, 2)
        sizes = slots, beams, heads, decoder.source_length
        self.source_scores_t, self.source_weights_t = (like.new_zeros(sizes) for _ in range(2))
        self.source_weights_BKHS: Array = self.source_weights_t.numpy()
        self.source_weights = self.source_weights_BKHS.reshape(slots, beams, -1)
        self.source_scores = self.source_scores_t.numpy().reshape(slots, beams, -1)
        self.source_read = np.empty((slots, beams, width), self.x.dtype)
        self.upto = 0

    def begin(self, parents: Array, position: Array, upto: int) -> None:
        """Update the mask of the self-attention, and allocate the arrays of its scores; see step()."""
        if self.beams > 1:
            if self.slots == 1:  # the same, but faster
                self.mask[0, :, :upto] = self.mask[0, :, :upto][parents[0]]
            else:
                self.mask[:, :, :upto] = self.mask[:, :, :upto][self.rows[:, None], parents]
        same = self.slots == 1 or bool((position == position[0]).all())
        self.place = (slice(None), int(position[0])) if same else (self.rows, position)
        self.mask[self.place[0], :, self.place[1]] = self.own
        if upto != self.upto:
            self.upto, sizes = upto, (self.slots, self.heads, self.beams, upto * self.beams)
            self.scores, self.weights = (np.empty(sizes, self.x.dtype) for _ in range(2))
            self.scores_t, self.weights_t = torch.from_numpy(self.scores), torch.from_numpy(self.weights)

    def attend(self, number: int, new_BK3HD: Array) -> Tensor:
        """Write keys and values of the newest tokens to a cache; return the self-attention, (B K, M)."""
        self.caches[number][self.place] = new_BK3HD[:, :, 1:]
        entries, query_BHKD = self.upto * self.beams, new_BK3HD[:, :, 0].swapaxes(1, 2)
        query_BHKD *= self.scale
        small_matmul(query_BHKD, self.keys[number][..., :entries], self.scores)
        np.add(self.scores, self.flat_mask[..., :entries], out=self.scores)
        torch.softmax(self.scores_t, -1, out=self.weights_t)
        small_matmul(self.weights, self.values[number][:, :, :entries], self.read_BHKD)
        return self.read_t


def small_matmul(a: Array, b: Array, out: Array) -> Array:
    """Compute the matrix products of two arrays (..., K, N) and (..., N, M), and write them to `out`."""
    if a.shape[-2] * a.shape[-1] * b.shape[-1] <= MOST_PRODUCTS:
        return np.matmul(a, b, out=out)
    out[...] = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
    return out
