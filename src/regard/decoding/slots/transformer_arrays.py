"""TransformerArrays: the attention of a decoding step of a Transformer on a CPU, in NumPy.

For a few rows, an operation or a matrix product takes several times as long to start in PyTorch as in NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.decoding.slots.small_products import small_matmul

if TYPE_CHECKING:
    from regard.decoding.slots.cpu_transformer_decoder import CpuTransformerDecoder

__all__ = ["TransformerArrays"]

Array = np.ndarray[Any, Any]

Place = tuple[Array | slice, Array | int]
"""The index of slots and of their positions, in an array."""


class TransformerArrays:
    """NumPy views of the buffers of a CpuTransformerDecoder, and the arrays of one step.

    Creating views takes time, so most are created once. Attributes that end with _t are tensors, which share
    memory with the arrays of the same name. There are N = L K entries in the cache of a slot.

    x: (B K, M), the residual stream.
    place: the index of the slots and of their positions.
    keys, values: for each layer, (B, H, D, N) and (B, H, N, D), the cache of the self-attention.
    sources: for each layer, the keys and values of the cross-attention. (B, H, D, S) and (B, H, S, D); or
        (B, 1, M, H S) and (B, 1, H S, M) if the decoder is a FoldedTransformerDecoder ("folded" below).
    scores, weights: (B, H, K, n) of the self-attention, n = upto K.
    source_scores, source_weights: of the cross-attention, (B, H, K, S), or (B, 1, K, H S) if folded.
    """

    def __init__(self, decoder: CpuTransformerDecoder):
        slots, beams, heads, width = decoder.slots, decoder.beams, decoder.heads, decoder.width
        like = decoder.output.weight
        self.slots, self.beams, self.heads = slots, beams, heads
        self.embedding: Array = decoder.embedding.weight.detach().numpy()
        self.positions: Array = decoder.tables[0].numpy() if decoder.tables else np.zeros(0)
        self.mask: Array = decoder.mask.numpy()
        self.flat_mask: Array = self.mask.reshape(slots, 1, beams, -1)
        self.own: Array = decoder.own.numpy()
        self.caches: list[Array] = [each.numpy() for each in decoder.caches]
        flat = [each.reshape(slots, 2, heads, -1, width // heads) for each in self.caches]
        self.keys, self.values = [each[:, 0].swapaxes(2, 3) for each in flat], [each[:, 1] for each in flat]
        sources = [each.numpy() for each in decoder.sources]
        if decoder.folded:
            self.sources = [(each[:, :1].swapaxes(2, 3), each[:, 1:]) for each in sources]
        else:
            self.sources = [(each[:, 0].swapaxes(2, 3), each[:, 1]) for each in sources]
        mask: Array = decoder.source_mask.numpy()
        self.source_masks = [mask[:, at : at + 1] if decoder.folded else mask for at in range(len(sources))]
        self.looks: Array | None = None if decoder.looks is None else decoder.looks.numpy()
        self.rows = np.arange(slots)
        self.place: Place = (slice(None), 0)
        self.x_t, self.read_t = (like.new_zeros(slots * beams, width) for _ in range(2))
        self.x: Array = self.x_t.numpy()
        self.read_BHKD = self.read_t.numpy().reshape(slots, beams, heads, -1).swapaxes(1, 2)
        self.source_read_t, source_length = torch.zeros_like(self.x_t), decoder.source_length
        sizes = (slots, beams, heads) if decoder.folded else (slots, heads, beams)
        self.source_scores_t, self.source_weights_t = (
            like.new_zeros(*sizes, source_length) for _ in range(2)
        )
        scores, weights = self.source_scores_t.numpy(), self.source_weights_t.numpy()
        self.weights_BKHS = weights if decoder.folded else weights.swapaxes(1, 2)
        read = self.source_read_t.numpy()
        if decoder.folded:
            self.source_scores, self.source_weights = (
                each.reshape(slots, 1, beams, -1) for each in (scores, weights)
            )
            self.source_read = read.reshape(slots, 1, beams, -1)
        else:
            self.source_scores, self.source_weights = scores, weights
            self.source_read = read.reshape(slots, beams, heads, -1).swapaxes(1, 2)
        self.upto = 0

    def begin(self, parents: Array, position: Array, upto: int) -> None:
        """Update the mask of the self-attention, and allocate its scores; see SlotDecoder.step()."""
        if self.beams > 1:
            if self.slots == 1:  # the same result in less time
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
        slots, position = self.place
        cache_BLK2HD = self.caches[number].transpose(0, 3, 4, 1, 2, 5)
        cache_BLK2HD[slots, position] = new_BK3HD[:, :, 1:]
        entries, query_BHKD = self.upto * self.beams, new_BK3HD[:, :, 0].swapaxes(1, 2)
        small_matmul(query_BHKD, self.keys[number][..., :entries], self.scores)
        np.add(self.scores, self.flat_mask[..., :entries], out=self.scores)
        torch.softmax(self.scores_t, -1, out=self.weights_t)
        small_matmul(self.weights, self.values[number][:, :, :entries], self.read_BHKD)
        return self.read_t

    def attend_source(self, number: int, query: Array) -> Tensor:
        """Return the cross-attention of a layer, (B K, M), and record its weights.

        query: (B, H, K, D); or (B, 1, K, M) if folded.
        """
        key, value = self.sources[number]
        small_matmul(query, key, self.source_scores)
        np.add(self.source_scores, self.source_masks[number], out=self.source_scores)
        torch.softmax(self.source_scores_t, -1, out=self.source_weights_t)
        if self.looks is not None:
            self.looks[*self.place, :, number] = self.weights_BKHS
        small_matmul(self.source_weights, value, self.source_read)
        return self.source_read_t
