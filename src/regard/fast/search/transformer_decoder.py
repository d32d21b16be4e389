"""TransformerDecoder: the decoder of a Transformer on preallocated caches. It has a variant for GPUs.

The cache of a slot has the keys and values of all its K beams, at every position. A beam is not a copy of the
cache: a mask says which of the K entries at each position belong to the history of the beam. When the search
reorders beams, only this mask changes. The keys and values of the source are stored once for all K beams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.fast.search.decoder import SlotDecoder, resized_rows, write_rows
from regard.fast.search.linear import Linear, linear
from regard.kernels.choice import by_kernel
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.models.base import Encoded, Model, State
from regard.models.transformer import Transformer, TransformerLayer
from regard.models.transformer_language import TransformerLanguageModel
from regard.positions import Rotary
from regard.positions.embedded import Embedded, Table
from regard.roles import Role
from regard.scores import ScaledDot
from regard.select import Soft

__all__ = ["FusedTransformerDecoder", "TransformerDecoder"]

WIDEST_HEAD = 256
"""The largest size of a head for which the kernels of FusedTransformerDecoder have enough shared memory."""

Index = tuple[Tensor | slice, Tensor | int]
"""The index of slots and of their positions."""

Turns = tuple[Tensor, Tensor] | None
"""Cosines and sines of a Rotary scheme at the position of each slot; None without one."""


class LayerParts(NamedTuple):
    """The functions of one layer, which read its weights when they are created.

    project: query, key and value of the self-attention.
    output: the output layer of the self-attention.
    cross_query, cross_output: the layers of the cross-attention; None without one.
    feed_forward: the feed-forward layer.
    norms: the layer normalisations.
    """

    project: Linear
    output: Linear
    cross_query: Linear | None
    cross_output: Linear | None
    feed_forward: Linear
    norms: list[Linear]

    @classmethod
    def of(cls, layer: TransformerLayer, joined: tuple[Tensor, Tensor | None], rows: int, int8: bool) -> Self:
        """Return the functions of a layer.

        joined: the result of joined_projections().
        rows, int8: see linear().
        """

        def product(of: Any, relu: bool = False) -> Linear:
            return linear(of.weight, of.bias, rows, int8, relu)

        cross, norms, inner = layer.cross, layer.norms, layer.feedforward
        assert inner is not None and isinstance(norms, nn.ModuleList)  # see TransformerDecoder.reasons()
        return cls(
            linear(*joined, rows, int8),
            product(layer.itself.output),
            None if cross is None else product(cross.query),
            None if cross is None else product(cross.output),
            _feed_forward(inner, product),
            [_normalisation(norm) for norm in norms],
        )


class TransformerDecoder(SlotDecoder):
    """The decoder of a Transformer, or a Transformer language model, on preallocated caches.

    caches: for each layer, (B, 2, H, L, K, D), the keys and values of the self-attention.
    sources: for each layer, (B, 2, H, S, D), the keys and values of the cross-attention.
    mask: (B, K, L, K), added to the scores of the self-attention: 0 for the history of a beam, else -inf.
    source_mask: (B, 1, 1, S), added to the scores of the cross-attention: 0, or -inf for padding.
    joined: for each layer, weights and biases of query, key and value of the self-attention as one matrix and
        one vector.
    """

    heads: int

    in_inference_mode = True
    int8 = True
    cache_dim = 3
    """The dimension of the L positions in `caches`."""

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        assert isinstance(model, Transformer | TransformerLanguageModel)
        self.slots, self.beams, self.length, self.source_length = slots, beams, length, source_length
        self.embedding = model.target if isinstance(model, Transformer) else model.embedding
        self.layers: list[TransformerLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.decoded, self.output, self.scheme = model.decoded, model.output, model.position
        self.heads, self.pre = self.layers[0].itself.heads, self.layers[0].pre
        self.width, self.int8_steps = model.width, model.int8_steps
        like = self.output.weight
        self.rows = torch.arange(slots, device=like.device)
        sources = self.layers if isinstance(model, Transformer) else []
        self.caches = [like.new_zeros(self._cache_shape()) for _ in self.layers]
        self.sources = [like.new_zeros(self._source_shape()) for _ in sources]
        self.tables = self._position_tables(like)
        self.joined = [joined_projections(layer.itself) for layer in self.layers]
        self._allocate_history()
        self._read_weights()

    def _cache_shape(self) -> tuple[int, ...]:
        return self.slots, 2, self.heads, self.length, self.beams, self.width // self.heads

    def _source_shape(self) -> tuple[int, ...]:
        return self.slots, 2, self.heads, self.source_length, self.width // self.heads

    def _allocate_history(self) -> None:
        """Allocate the tensors that say which keys and values belong to each beam."""
        like, slots, beams = self.output.weight, self.slots, self.beams
        self.mask = like.new_full((slots, beams, self.length, beams), -torch.inf)
        self.source_mask = like.new_zeros(slots, 1, 1, self.source_length)
        self.own = torch.where(torch.eye(beams, device=like.device) > 0, 0.0, -torch.inf).to(like.dtype)

    def _read_weights(self) -> None:
        """Create the functions of all layers and of the output layer."""
        rows, int8 = self.slots * self.beams, self.int8_steps
        pairs = zip(self.layers, self.joined, strict=True)
        self.parts = [LayerParts.of(layer, joined, rows, int8) for layer, joined in pairs]
        self.to_words = linear(self.output.weight, self.output.bias, rows, int8)

    @classmethod
    def reasons(cls, model: Model) -> list[str]:
        if type(model) not in (Transformer, TransformerLanguageModel):
            return [f"{type(model).__name__} is not a Transformer"]
        chosen: Any = model
        attention = [each for layer in chosen.decoder for each in (layer.itself, layer.cross) if each]
        reasons = []
        if not all(layer.select == Soft() for layer in chosen.decoder):
            reasons.append("the attention weights are not computed with softmax")
        if not all(type(each.score) is ScaledDot for each in attention):
            reasons.append("the scores are not the scaled inner product")
        if not all(each.key_heads == each.heads for each in attention):
            reasons.append("heads share keys and values")
        if not all(each.position is None or isinstance(each.position, Rotary) for each in attention):
            reasons.append("the positions are added to the scores")
        elif not (chosen.position is None or isinstance(chosen.position, Embedded)):
            reasons.append("the positions are not added to the embeddings")
        if not all(layer.feedforward is not None for layer in chosen.decoder):
            reasons.append("a layer has no feed-forward sublayer")
        return reasons

    @classmethod
    def recordable(cls, model: Model) -> dict[str, Role]:
        layers: Any = model.decoder if isinstance(model, Transformer) else ()
        return {layer.cross.site: layer.cross.role for layer in layers}

    @classmethod
    def build(
        cls, model: Model, slots: int, beams: int, length: int, source_length: int
    ) -> TransformerDecoder:
        return cls(model, slots, beams, length, source_length)

    def refresh(self) -> None:
        for layer, (weight, bias) in zip(self.layers, self.joined, strict=True):
            new_weight, new_bias = joined_projections(layer.itself)
            weight.copy_(new_weight)
            if bias is not None and new_bias is not None:
                bias.copy_(new_bias)
        if isinstance(self.scheme, Table):
            for table, new_table in zip(self.tables, self._position_tables(self.output.weight), strict=True):
                table.copy_(new_table)
        if not self.output.weight.is_cuda:
            self._read_weights()

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        for buffer, memory in zip(self.sources, encoded.memories, strict=True):
            both_b2HSD = torch.stack((memory.key, memory.value), 1)
            buffer[slots] = functional.pad(both_b2HSD, (0, 0, 0, self.source_length - both_b2HSD.shape[3]))
        for buffer, memory in zip(self.caches, state.past, strict=False):  # a prompt, which all beams share
            both_b2HPD = torch.stack((memory.key, memory.value), 1)
            buffer[slots, :, :, : state.position, 0] = both_b2HPD.to(buffer.dtype)
        if self.sources:
            inside = torch.arange(self.source_length, device=slots.device) < encoded.lengths[:, None]
            hidden_bS = torch.where(inside, 0.0, -torch.inf).to(self.source_mask.dtype)
            self.source_mask.index_copy_(0, slots, hidden_bS[:, None, None])
        self.mask.index_fill_(0, slots, -torch.inf)
        if state.past:
            self.mask[slots, :, : state.position, 0] = 0.0

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        if self.beams > 1:
            reached = self.mask[:, :, :upto]
            reached.copy_(reached[self.rows[:, None], parents])
        at = self._at(position)
        self.mask[at[0], :, at[1]] = self.own
        mask_B1KN = self.mask[:, None, :, :upto].flatten(3)
        x = functional.embedding(tokens.flatten(), self.embedding.weight) * self.width**0.5
        if isinstance(self.scheme, Embedded):
            places = self.tables[0][at[1]]  # (M,) if all slots have the same position
            x.view(*tokens.shape, -1).add_(places if places.dim() == 1 else places[:, None])
        turns = self._turns(position)
        for number in range(len(self.layers)):
            x = self._layer(number, x, mask_B1KN, at, upto, turns)
        return self.to_words(self.decoded(x)).view(*tokens.shape, -1)

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.slots, other.length = self.slots if slots is None else len(slots), length
        other.caches = [resized_rows(each, slots, length, self.cache_dim) for each in self.caches]
        other.sources = [each if slots is None else each.index_select(0, slots) for each in self.sources]
        other.rows = self.rows[: other.slots]
        if length != self.length:
            other.tables = other._position_tables(self.output.weight)
        if self.looks is not None:
            other.looks = resized_rows(self.looks, slots, length, 1)
        other._resize_history(slots)
        return other

    def _resize_history(self, slots: Tensor | None) -> None:
        """Resize the tensors of _allocate_history() to the length of this decoder; see resized()."""
        self.mask = resized_rows(self.mask, slots, self.length, 2, -torch.inf)
        if slots is not None:
            self.source_mask = self.source_mask.index_select(0, slots)

    def _at(self, position: Tensor) -> Index:
        """Return the index of the buffers (B, L, ...) at the position of each slot, (B,).

        On a CPU, slices are returned if all slots have the same position: they are faster than indices.
        """
        if position.device.type == "cpu" and bool((position == position[0]).all()):
            return slice(None), int(position[0])
        return self.rows, position

    def _turns(self, position: Tensor) -> Turns:
        if self.scheme is not None or not self.tables:
            return None
        cosines, sines = (table[position][:, None, None, None] for table in self.tables)
        return cosines, sines

    def _projected(self, number: int, y: Tensor, turns: Turns) -> Tensor:
        """Return query, key and value of one token of each beam, (B, K, 3, H, D)."""
        new_BK3HD = self.parts[number].project(y).view(self.slots, self.beams, 3, self.heads, -1)
        if turns is None:
            return new_BK3HD
        scheme = self.layers[number].itself.position
        assert isinstance(scheme, Rotary)
        return torch.cat((scheme.rotate(new_BK3HD[:, :, :2], *turns), new_BK3HD[:, :, 2:]), 2)

    def _layer(self, number: int, x: Tensor, mask_B1KN: Tensor, at: Index, upto: int, turns: Turns) -> Tensor:
        """Compute one layer for the embeddings x, (B K, M), of one token of each beam.

        at: see _at().
        """
        parts, pre, cache = self.parts[number], self.pre, self.caches[number]
        new_BK3HD = self._projected(number, parts.norms[0](x) if pre else x, turns)
        cache.permute(0, 3, 4, 1, 2, 5)[at] = new_BK3HD[:, :, 1:]
        read, _ = self._attend(new_BK3HD[:, :, 0], cache[:, :, :, :upto].flatten(3, 4), mask_B1KN)
        x = x + parts.output(read)
        if not pre:
            x = parts.norms[0](x)
        if parts.cross_query is not None and parts.cross_output is not None:
            query = parts.cross_query(parts.norms[1](x) if pre else x)
            query_BKHD = query.view(self.slots, self.beams, self.heads, -1)
            read, weights_BHKS = self._attend(query_BKHD, self.sources[number], self.source_mask)
            if self.looks is not None:
                self.looks[*at, :, number] = weights_BHKS.transpose(1, 2).to(self.looks.dtype)
            x = x + parts.cross_output(read)
            if not pre:
                x = parts.norms[1](x)
        total = x + parts.feed_forward(parts.norms[-1](x) if pre else x)
        return total if pre else parts.norms[-1](total)

    def _attend(self, query_BKHD: Tensor, both_B2HND: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention of K queries in each slot to N keys and values, (B K, M), and its weights."""
        key_BHND, value_BHND = both_B2HND.unbind(1)
        query_BHKD = query_BKHD.transpose(1, 2) * query_BKHD.shape[-1] ** -0.5
        weights_BHKN = (query_BHKD @ key_BHND.transpose(2, 3)).add_(mask).softmax(-1)
        read = (weights_BHKN @ value_BHND).transpose(1, 2).reshape(self.slots * self.beams, -1)
        return read, weights_BHKN

    def _position_tables(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return what depends on the position: embeddings (L, M), or cosines and sines of the angles."""
        if isinstance(self.scheme, Embedded):
            # A finished slot may be one position after the end of a table of position embeddings.
            known = min(
                self.length, len(self.scheme.table) if isinstance(self.scheme, Table) else self.length
            )
            rows = self.scheme.rows(0, known, like).detach().to(like.dtype)
            return (functional.pad(rows, (0, 0, 0, self.length - known)),)
        inner = self.layers[0].itself.position
        return inner.turns(0, self.length, like) if isinstance(inner, Rotary) else ()


class FusedTransformerDecoder(TransformerDecoder):
    """The decoder of a Transformer on preallocated caches, with Triton kernels, for GPUs.

    A layer launches 11 kernels: six matrix products (one of them with the activation), two kernels for
    attention, and three that add a residual connection and normalise. The kernels read the cache only up to
    the position of each slot, so that one CUDA graph serves all positions.

    caches: for each layer, (B, L, K, 2, H, D).
    sources: for each layer, (B, S, 2, H, D).
    history: (B, L, K), int32. The keys and values of beam k at position p are entry history[b, p, k] of the
        cache at this position.
    lengths: (B,), the number of source tokens.
    """

    stops_at_position = True
    int8 = False
    cache_dim = 1

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        self.norms: list[Any] = [norm for layer in self.layers for norm in layer.norms]
        if self.pre:
            self.norms.append(self.decoded)

    def _cache_shape(self) -> tuple[int, ...]:
        return self.slots, self.length, self.beams, 2, self.heads, self.width // self.heads

    def _source_shape(self) -> tuple[int, ...]:
        return self.slots, self.source_length, 2, self.heads, self.width // self.heads

    @classmethod
    def reasons(cls, model: Model) -> list[str]:
        reasons = TransformerDecoder.reasons(model)
        chosen: Any = model
        if not by_kernel(next(model.parameters())):
            reasons.append("no Triton kernels for this device and dtype")
        elif not reasons and chosen.width // chosen.decoder[0].itself.heads > WIDEST_HEAD:
            reasons.append(f"the size of the heads is above {WIDEST_HEAD}")
        return reasons

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        for buffer, memory in zip(self.sources, encoded.memories, strict=True):
            write_rows(buffer, slots, torch.stack((memory.key, memory.value), 2).transpose(1, 3))
        for buffer, memory in zip(self.caches, state.past, strict=False):  # a prompt, which all beams share
            both_bP2HD = torch.stack((memory.key, memory.value), 2).transpose(1, 3)
            buffer[slots, : state.position, 0] = both_bP2HD.to(buffer.dtype)
        self.history.index_fill_(0, slots, 0)  # all beams share the keys and values of a prompt
        if self.sources:
            self.lengths.index_copy_(0, slots, encoded.lengths)

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        # Imported here, because it imports Triton.
        from regard.kernels.search.decoder_step import embed_and_normalize, reorder_history

        reorder_history(self.history, parents, position)
        norms = iter(self.norms)
        places = self.tables[0] if isinstance(self.scheme, Embedded) else None
        turns = self._turns(position)
        first = next(norms) if self.pre else None
        x, y = embed_and_normalize(tokens, self.embedding.weight, self.width**0.5, places, position, first)
        for number, layer in enumerate(self.layers):
            x, y = self._add_norm(x, self._attend_history(number, y, position, turns), next(norms))
            if layer.cross is not None:
                x, y = self._add_norm(x, self._attend_source(number, y, position), next(norms))
            assert layer.feedforward is not None  # see reasons()
            x, y = self._add_norm(x, _feed_forward_on_gpu(layer.feedforward, y), next(norms))
        return self.output(y).view(*tokens.shape, -1)

    def _allocate_history(self) -> None:
        self.history = self.rows.new_zeros(self.slots, self.length, self.beams, dtype=torch.int32)
        self.lengths = self.rows.new_zeros(self.slots)

    def _resize_history(self, slots: Tensor | None) -> None:
        self.history = resized_rows(self.history, slots, self.length, 1)
        self.lengths = self.lengths if slots is None else self.lengths.index_select(0, slots)

    def _add_norm(self, x: Tensor, change: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Return the input of the next residual connection and of the next sublayer."""
        from regard.kernels.search.decoder_step import add_and_normalize

        return add_and_normalize(x, change, norm, self.pre)

    def _attend_history(self, number: int, y: Tensor, position: Tensor, turns: Turns) -> Tensor:
        """Return the output of the self-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_history

        new = self._projected(number, y, turns)
        return self.layers[number].itself.output(
            attend_history(new, self.caches[number], self.history, position)
        )

    def _attend_source(self, number: int, y: Tensor, position: Tensor) -> Tensor:
        """Return the output of the cross-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_source

        attention = self.layers[number].cross
        assert attention is not None
        sources, lengths, query = self.sources[number], self.lengths, attention.query(y)
        read = attend_source(query, sources, lengths, self.beams, position, self.looks, number)
        return attention.output(read)


def joined_projections(attention: Any) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases of query, key and value of a MultiHead layer as one matrix and one vector."""
    layers = attention.query, attention.key, attention.value
    biases = [each.bias.detach() for each in layers if each.bias is not None]
    return torch.cat([each.weight.detach() for each in layers]), torch.cat(biases) if biases else None


def _normalisation(norm: Any) -> Linear:
    """Return a function that computes norm(x), which takes less time than calling the module."""
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _feed_forward(layer: FeedForward, product: Callable[..., Linear]) -> Linear:
    """Return a function that computes layer(x) in eval mode; for product, see LayerParts.of()."""
    relu = layer.activation == "relu"
    inner, outer = product(layer.inner, relu), product(layer.outer)
    gate = None if layer.gate is None else product(layer.gate)
    if relu and gate is None:
        return lambda x: outer(inner(x))
    activation = (lambda x: x) if relu else ACTIVATIONS[layer.activation]
    return lambda x: outer(activation(inner(x)) if gate is None else activation(inner(x)) * gate(x))


def _feed_forward_on_gpu(layer: FeedForward, y: Tensor) -> Tensor:
    """Return layer(y) in eval mode. The product with the first matrix and relu are one kernel of cuBLAS."""
    if layer.activation != "relu":
        return layer(y)
    hidden = torch._addmm_activation(layer.inner.bias, y, layer.inner.weight.T)
    return layer.outer(hidden)
