"""CpuTransformerDecoder: TransformerDecoder with fewer and faster operations in a step, on a CPU.

Attention, mask and residual sums run in NumPy, see transformer_arrays.py. packed_linear() runs linear layers.

FoldedTransformerDecoder is for few sentences. The query of the cross-attention is only used in products with
the keys: (W_q y) . k_j = y . (W_q^T k_j). The values are only used in the output layer: W_o sum_j a_j v_j =
sum_j a_j (W_o v_j). So W_q^T k_j and W_o v_j are computed once for each source token, layer and head. A step
then needs two products instead of four: with all W_q^T k_j of a sentence, and with all its W_o v_j.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.decoding.slots.transformer_arrays import TransformerArrays
from regard.decoding.slots.transformer_decoder import TransformerDecoder, normalisation
from regard.kernels.choice import by_kernel
from regard.models.base import Encoded, Model, State
from regard.models.transformer import Transformer
from regard.positions.embedded import Embedded

__all__ = ["CpuTransformerDecoder", "FoldedTransformerDecoder"]

MOST_PAIRS = 2.0
"""The largest number of pairs of a head and a source token, B H S, relative to the width M of the model.

W_q^T k_j has H times the size of k_j. With more pairs, a step reads more memory for the two products than for
the four. With 16 sentences of 20 tokens and 4 heads of size 64, it was slower.
"""

MOST_SLOTS = 32
"""The largest product of the numbers of slots and threads for which the attention runs in NumPy.

NumPy computes the attention with one thread. With one thread and 16 slots, it is twice as fast as PyTorch.
"""


class CpuTransformerDecoder(TransformerDecoder):
    """The decoder of a Transformer with cross-attention on preallocated caches, on a CPU.

    It has the buffers of TransformerDecoder, but `caches` and `sources` have another layout: the keys of a
    head are adjacent, and so are its values. Usually, they are read from the L3 cache, which is much faster
    for adjacent elements.

    caches: for each layer, (B, 2, H, L, K, D).
    sources: for each layer, (B, 2, H, S, D).
    folded: whether `sources` contains the query and output projections of the cross-attention.
    """

    cache_dim = 3
    scales_queries = True
    folded = False
    _arrays: TransformerArrays | None = None

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
        """Return the fastest of the three decoders for this number of slots."""
        chosen: Any = model
        few = slots * chosen.decoder[0].itself.heads * source_length <= MOST_PAIRS * chosen.width
        in_numpy = slots * torch.get_num_threads() <= MOST_SLOTS
        kind = FoldedTransformerDecoder if few else CpuTransformerDecoder if in_numpy else TransformerDecoder
        return kind(model, slots, beams, length, source_length)

    def _cache_shape(self, length: int) -> tuple[int, ...]:
        return self.slots, 2, self.heads, length, self.beams, self.width // self.heads

    def _new_sources(self, like: Tensor) -> list[Tensor]:
        shape = self.slots, 2, self.heads, self.source_length, self.width // self.heads
        return [like.new_zeros(shape) for _ in self.layers]

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        assert not state.past  # only language models have prompts, and this decoder has cross-attention
        super().load(slots, encoded, state)

    def _load_sources(self, slots: Tensor, encoded: Encoded) -> None:
        for buffer, memory in zip(self.sources, encoded.memories, strict=True):
            missing = self.source_length - memory.key.shape[2]
            both_b2HSD = torch.stack((memory.key, memory.value), 1)
            buffer[slots] = pad(both_b2HSD, (0, 0, 0, missing)) if missing else both_b2HSD

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other = super().resized(slots, length)
        other._arrays = None  # these are views of the old tensors
        return other

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        if self._arrays is None:
            self._arrays = TransformerArrays(self)
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
            x += self._cross(number, norms[1](x_t) if pre else x_t).numpy()
            if not pre:
                x_t.copy_(norms[1](x_t))
            x += parts.feed_forward(norms[-1](x_t) if pre else x_t).numpy()
            if not pre:
                x_t.copy_(norms[-1](x_t))
        return self.to_words(self.last_norm(x_t)).view(*tokens.shape, -1)

    def _cross(self, number: int, y: Tensor) -> Tensor:
        """Return the output of the cross-attention of a layer, (B K, M). y: its input, (B K, M)."""
        arrays, parts = self._arrays, self.parts[number]
        assert arrays is not None and parts.cross_query is not None and parts.cross_output is not None
        query_BKHD = parts.cross_query(y).numpy().reshape(self.slots, self.beams, self.heads, -1)
        return parts.cross_output(arrays.attend_source(number, query_BKHD.swapaxes(1, 2)))


class FoldedTransformerDecoder(CpuTransformerDecoder):
    """The decoder of a Transformer for few sentences on a CPU.

    sources: for each layer, (B, 2, H S, M): W_q^T k_j / sqrt(D), and W_o v_j + b_o / H.
    source_mask: (B, X, 1, H S), added to the scores of each of the X layers: b_q . k_j / sqrt(D), or -inf for
        padding.
    """

    folded = True

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

    def _cross(self, number: int, y: Tensor) -> Tensor:
        assert self._arrays is not None
        return self._arrays.attend_source(number, y.numpy().reshape(self.slots, 1, self.beams, -1))
