"""FusedTransformerDecoder: the decoder of a Transformer with few kernels per step, for GPUs.

A layer launches 11 kernels: six matrix products (one of them with the activation), two kernels for attention,
and three that add a residual connection and normalise. The kernels read the cache only up to the position of
each slot, so that one CUDA graph serves all positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.decoding.slots.decoder import resized_rows
from regard.decoding.slots.transformer_decoder import TransformerDecoder
from regard.kernels.choice import by_kernel
from regard.layers.feedforward import FeedForward
from regard.models.base import Encoded, Model, State
from regard.positions.embedded import Embedded

__all__ = ["FusedTransformerDecoder"]

WIDEST_HEAD = 256
"""The largest size of a head for which the kernels have enough shared memory."""


class FusedTransformerDecoder(TransformerDecoder):
    """The decoder of a Transformer on preallocated caches, with Triton kernels.

    history: (B, L, K), int32. The keys and values of beam k at position p are entry history[b, p, k] of the
        cache at this position.
    lengths: (B,), the number of source tokens.
    """

    stops_at_position = True

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        self.norms: list[Any] = [norm for layer in self.layers for norm in layer.norms]
        if self.layers[0].pre:
            self.norms.append(self.decoded)

    @classmethod
    def supports(cls, model: Model) -> bool:
        if not TransformerDecoder.supports(model) or not by_kernel(next(model.parameters())):
            return False
        chosen: Any = model
        return bool(chosen.width // chosen.decoder[0].itself.heads <= WIDEST_HEAD)

    def _allocate_history(self) -> None:
        self.history = self.rows.new_zeros(self.slots, self.length, self.beams, dtype=torch.int32)
        self.lengths = self.rows.new_zeros(self.slots)

    def _load_history(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        self.history.index_fill_(0, slots, 0)  # all beams share the keys and values of a prompt
        if self.sources:
            self.lengths.index_copy_(0, slots, encoded.lengths)

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        # Imported here, because it imports Triton.
        from regard.kernels.search.decoder_step import embed_and_normalize, reorder_history

        reorder_history(self.history, parents, position)
        pre, norms = self.layers[0].pre, iter(self.norms)
        places = self.tables[0] if isinstance(self.scheme, Embedded) else None
        turns = self._turns(position)
        first = next(norms) if pre else None
        x, y = embed_and_normalize(tokens, self.embedding.weight, self.width**0.5, places, position, first)
        for number, layer in enumerate(self.layers):
            x, y = self._add_norm(x, self._attend_history(number, y, position, turns), next(norms))
            if layer.cross is not None:
                x, y = self._add_norm(x, self._attend_source(number, y, position), next(norms))
            assert layer.feedforward is not None  # see supports()
            x, y = self._add_norm(x, feed_forward(layer.feedforward, y), next(norms))
        return self.output(y).view(*tokens.shape, -1)

    def _resize_history(self, slots: Tensor | None) -> None:
        self.history = resized_rows(self.history, slots, self.length, 1)
        self.lengths = self.lengths if slots is None else self.lengths.index_select(0, slots)

    def _add_norm(self, x: Tensor, change: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Return the input of the next residual connection and of the next sublayer."""
        from regard.kernels.search.decoder_step import add_and_normalize

        return add_and_normalize(x, change, norm, self.layers[0].pre)

    def _attend_history(
        self, number: int, y: Tensor, position: Tensor, turns: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return the output of the self-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_history

        attention = self.layers[number].itself
        new = self._projected(number, y, turns)
        return attention.output(attend_history(new, self.caches[number], self.history, position))

    def _attend_source(self, number: int, y: Tensor, position: Tensor) -> Tensor:
        """Return the output of the cross-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_source

        attention = self.layers[number].cross
        assert attention is not None
        sources, lengths, query = self.sources[number], self.lengths, attention.query(y)
        read = attend_source(query, sources, lengths, self.beams, position, self.looks, number)
        return attention.output(read)


def feed_forward(layer: FeedForward, y: Tensor) -> Tensor:
    """Return layer(y) in eval mode. The product with the first matrix and relu are one kernel of cuBLAS."""
    if layer.activation != "relu":
        return layer(y)
    hidden = torch._addmm_activation(layer.inner.bias, y, layer.inner.weight.T)
    return layer.outer(hidden)
