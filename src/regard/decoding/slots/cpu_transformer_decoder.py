"""CpuTransformerDecoder: TransformerDecoder with fewer operations in a step, on a CPU.

The query of the cross-attention is only used in products with the keys: (W_q y) . k_j = y . (W_q^T k_j). The
values are only used in the output layer: W_o sum_j a_j v_j = sum_j a_j (W_o v_j). So W_q^T k_j and W_o v_j
are computed once for each source token, layer and head. A step then needs two products instead of four: with
all W_q^T k_j of a sentence, and with all its W_o v_j.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decoding.slots.transformer_decoder import Index, TransformerDecoder
from regard.kernels.kernel_choice import by_kernel
from regard.models.base import Encoded, Model
from regard.models.transformer import Transformer

__all__ = ["CpuTransformerDecoder"]

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

    def _add_cross(self, number: int, x: Tensor, y: Tensor, at: Index) -> Tensor:
        key_BNM, value_BNM = self.sources[number].unbind(1)
        sizes = self.slots, self.beams, -1
        scores_BKN = torch.baddbmm(self.source_mask[:, number], y.view(sizes), key_BNM.transpose(1, 2))
        weights_BKHS = scores_BKN.view(*sizes[:2], self.heads, -1).softmax(-1)
        if self.looks is not None:
            self.looks[*at, :, number] = weights_BKHS.to(self.looks.dtype)
        x.view(sizes).baddbmm_(weights_BKHS.view(sizes), value_BNM)
        return x
