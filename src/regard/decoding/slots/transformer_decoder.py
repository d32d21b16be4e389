"""TransformerDecoder: the decoder of a Transformer on preallocated caches, for beam search and greedy search.

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

from regard.decoding.slots.decoder import SlotDecoder, resized_rows, write_rows
from regard.decoding.slots.packed_linear import Linear, PackedWeights
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.models.base import Encoded, Model, State
from regard.models.transformer import Transformer, TransformerLayer
from regard.models.transformer_language import TransformerLanguageModel
from regard.positions import Rotary
from regard.positions.embedded import Embedded, Table
from regard.roles import Role
from regard.scores import ScaledDot
from regard.select import Soft

__all__ = ["TransformerDecoder", "normalisation"]

Index = tuple[Tensor | slice, Tensor | int]
"""The index of slots and of their positions."""


class LayerParts(NamedTuple):
    """The functions of one layer. They cost less time on the host than calls of modules.

    norms: the layer normalisations.
    output: the output layer of the self-attention.
    cross_query, cross_output: the layers of the cross-attention; None without one.
    feed_forward: the feed-forward layer.
    """

    norms: list[Linear]
    output: Linear
    cross_query: Linear | None
    cross_output: Linear | None
    feed_forward: Linear

    @classmethod
    def of(cls, layer: TransformerLayer, product: Callable[..., Linear], scale: float) -> LayerParts:
        """Return the functions of a layer.

        product: a function that returns the linear layer with some weights and biases, and optionally relu.
        scale: factor of the queries of the cross-attention.
        """
        norms: Any = layer.norms
        cross: Any = layer.cross
        assert layer.feedforward is not None  # see supports()
        return cls(
            [normalisation(each) for each in norms],
            product(layer.itself.output.weight, layer.itself.output.bias),
            None if cross is None else product(*_scaled(cross.query, scale)),
            None if cross is None else product(cross.output.weight, cross.output.bias),
            _feed_forward(layer.feedforward, product),
        )


class TransformerDecoder(SlotDecoder):
    """The decoder of a Transformer, or a Transformer language model, on preallocated caches.

    caches: for each layer, (B, L, K, 2, H, D), the keys and values of the self-attention.
    sources: for each layer, (B, S, 2, H, D), the keys and values of the cross-attention.
    mask: (B, K, L, K), added to the scores of the self-attention: 0 for the history of a beam, else -inf.
    source_mask: (B, 1, 1, S), added to the scores of the cross-attention: 0, or -inf for padding.
    """

    in_inference_mode = True
    cache_dim = 1
    """The dimension of the L positions in `caches`."""
    scales_queries = False
    """Whether the weights of the queries are multiplied by 1 / sqrt(D)."""

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        assert isinstance(model, Transformer | TransformerLanguageModel)
        self.slots, self.beams, self.length, self.source_length = slots, beams, length, source_length
        translates = isinstance(model, Transformer)
        self.embedding = model.target if isinstance(model, Transformer) else model.embedding
        self.layers: list[TransformerLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.decoded, self.output, self.scheme = model.decoded, model.output, model.position
        attention = self.layers[0].itself
        self.heads: int = attention.heads
        self.width = model.width
        like = self.output.weight
        self.caches = [like.new_zeros(self._cache_shape(length)) for _ in self.layers]
        self.sources = self._new_sources(like) if translates else []
        self.rows = torch.arange(slots, device=like.device)
        self.packed = PackedWeights(model, slots * beams, model.int8_steps)
        self.weights, self.projections, self.parts, self.to_words = self._products()
        self.pre = self.layers[0].pre
        self.tables = self._position_tables(like)
        self._allocate_history()

    def _cache_shape(self, length: int) -> tuple[int, ...]:
        """Return the shape of a cache with room for `length` positions; see `caches`."""
        return self.slots, length, self.beams, 2, self.heads, self.width // self.heads

    def _new_sources(self, like: Tensor) -> list[Tensor]:
        """Return new buffers for the source; see `sources`."""
        size = (self.heads, self.width // self.heads)
        return [like.new_zeros(self.slots, self.source_length, 2, *size) for _ in self.layers]

    def _products(
        self,
    ) -> tuple[list[tuple[Tensor, Tensor | None]], list[Linear], list[LayerParts], Linear]:
        """Return the joined weights (see _joined()), and the functions of all layers and of the output layer.

        The functions are for query, key and value of the self-attention, and for the rest of the layer.
        """
        self.packed.start()
        product = self.packed.linear
        scale = (self.width // self.heads) ** -0.5 if self.scales_queries else 1.0
        weights = [_joined(layer.itself, scale) for layer in self.layers]
        projections = [product(*joined) for joined in weights]
        parts = [LayerParts.of(layer, product, scale) for layer in self.layers]
        return weights, projections, parts, product(self.output.weight, self.output.bias)

    def _allocate_history(self) -> None:
        """Allocate the tensors that say which keys and values belong to each beam."""
        like, slots, beams = self.output.weight, self.slots, self.beams
        self.mask = like.new_full((slots, beams, self.length, beams), -torch.inf)
        self.source_mask = like.new_zeros(slots, 1, 1, self.source_length)
        self.own = torch.where(torch.eye(beams, device=like.device) > 0, 0.0, -torch.inf).to(like.dtype)

    @classmethod
    def supports(cls, model: Model) -> bool:
        """Return whether this class computes the same as the model.

        The attention must be a softmax of the scaled inner product. Positions must be added to the embeddings
        or rotate queries and keys.
        """
        if type(model) not in (Transformer, TransformerLanguageModel):
            return False
        chosen: Any = model
        layers = [each for each in chosen.decoder if each.select == Soft() and _is_plain(each.itself)]
        layers = [each for each in layers if each.feedforward is not None]
        plain = [each for each in layers if each.cross is None or _is_plain(each.cross)]
        scheme = chosen.position
        return len(plain) == len(chosen.decoder) and (scheme is None or isinstance(scheme, Embedded))

    @classmethod
    def recordable(cls, model: Model) -> dict[str, Role]:
        layers: Any = model.decoder if isinstance(model, Transformer) else ()
        return {layer.cross.site: layer.cross.role for layer in layers}

    def refresh(self) -> None:
        if self.output.weight.device.type == "cpu":
            self.weights, self.projections, self.parts, self.to_words = self._products()
            return
        for layer, (weight, bias) in zip(self.layers, self.weights, strict=True):
            new_weight, new_bias = _joined(layer.itself)
            weight.copy_(new_weight)
            if bias is not None and new_bias is not None:
                bias.copy_(new_bias)
        if isinstance(self.scheme, Table):
            for table, new_table in zip(self.tables, self._position_tables(self.output.weight), strict=True):
                table.copy_(new_table)

    @classmethod
    def build(
        cls, model: Model, slots: int, beams: int, length: int, source_length: int
    ) -> TransformerDecoder:
        return cls(model, slots, beams, length, source_length)

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        self._load_sources(slots, encoded)
        for buffer, memory in zip(self.caches, state.past, strict=False):  # a prompt, which all beams share
            both = torch.stack((memory.key, memory.value), 2).transpose(1, 3)
            buffer[slots, : state.position, 0] = both.to(buffer.dtype)
        self._load_history(slots, encoded, state)

    def _load_sources(self, slots: Tensor, encoded: Encoded) -> None:
        """Write the keys and values of new sentences to `sources`; see load()."""
        for buffer, memory in zip(self.sources, encoded.memories, strict=True):
            write_rows(buffer, slots, torch.stack((memory.key, memory.value), 2).transpose(1, 3))

    def _load_history(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        """Start new sentences: only the keys and values of a prompt belong to the beams."""
        if self.sources:
            self._load_source_mask(slots, encoded.lengths)
        self.mask.index_fill_(0, slots, -torch.inf)
        if state.past:
            self.mask[slots, :, : state.position, 0] = 0.0

    def _load_source_mask(self, slots: Tensor, lengths: Tensor) -> None:
        """Write the lengths of new sources, (b,), to `source_mask`."""
        inside = torch.arange(self.source_length, device=slots.device) < lengths[:, None]
        hidden_bS = torch.where(inside, 0.0, -torch.inf).to(self.source_mask.dtype)
        self.source_mask.index_copy_(0, slots, hidden_bS[:, None, None])

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        rows_BK = tokens.shape
        if self.beams > 1:
            reached = self.mask[:, :, :upto]
            if self.slots == 1:  # the same, but faster
                reached.copy_(reached.index_select(1, parents[0]))
            else:
                reached.copy_(reached[self.rows[:, None], parents])
        at = self._at(position)
        self.mask[at[0], :, at[1]] = self.own
        mask_B1KN = self.mask[:, None, :, :upto].flatten(3)
        x = self.embedding(tokens.flatten()) * self.width**0.5
        turns = self._turns(position)
        if isinstance(self.scheme, Embedded):
            places = self.tables[0][at[1]]  # (M,) if all slots have the same position
            x = (x.view(*rows_BK, -1) + (places if places.dim() == 1 else places[:, None])).flatten(0, 1)
        for number in range(len(self.layers)):
            x = self._layer(number, x, mask_B1KN, at, upto, turns)
        return self.to_words(self.decoded(x)).view(*rows_BK, -1)

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.slots, other.length = self.slots if slots is None else len(slots), length
        other.caches = [resized_rows(each, slots, length, self.cache_dim) for each in self.caches]
        other.sources = [each if slots is None else each.index_select(0, slots) for each in self.sources]
        other.rows = torch.arange(other.slots, device=self.rows.device)
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
        if position.device.type == "cpu":
            places = position.numpy()
            if (places == places[0]).all():
                return slice(None), int(places[0])
        return self.rows, position

    def _turns(self, position: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return cosines and sines of a Rotary scheme at the position of each slot; None without one."""
        if self.scheme is not None or not self.tables:
            return None
        cosines, sines = (table[position][:, None, None, None] for table in self.tables)
        return cosines, sines

    def _projected(self, number: int, y: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return query, key and value of one token of each beam, (B, K, 3, H, D).

        turns: see _turns().
        """
        joined = self.projections[number](y)
        new_BK3HD = joined.view(self.slots, self.beams, 3, self.heads, -1)
        if turns is None:
            return new_BK3HD
        scheme = self.layers[number].itself.position
        assert isinstance(scheme, Rotary)
        return torch.cat((scheme.rotate(new_BK3HD[:, :, :2], *turns), new_BK3HD[:, :, 2:]), 2)

    def _layer(
        self,
        number: int,
        x: Tensor,
        mask_B1KN: Tensor,
        at: Index,
        upto: int,
        turns: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Compute one layer for the embeddings x, (B K, M), of one token of each beam.

        at: see _at().
        """
        parts, pre, cache = self.parts[number], self.pre, self.caches[number]
        new_BK3HD = self._projected(number, parts.norms[0](x) if pre else x, turns)
        cache[at] = new_BK3HD[:, :, 1:]
        read = self._read(new_BK3HD[:, :, 0], cache[:, :upto].flatten(1, 2), mask_B1KN)
        x = x + parts.output(read)
        if not pre:
            x = parts.norms[0](x)
        if parts.cross_query is not None:
            x = self._add_cross(number, x, parts.norms[1](x) if pre else x, at)
            if not pre:
                x = parts.norms[1](x)
        total = x + parts.feed_forward(parts.norms[-1](x) if pre else x)
        return total if pre else parts.norms[-1](total)

    def _add_cross(self, number: int, x: Tensor, y: Tensor, at: Index) -> Tensor:
        """Return x plus the cross-attention of a layer, whose queries are computed from y; all (B K, M).

        x may be changed in place.
        """
        query, output = self.parts[number].cross_query, self.parts[number].cross_output
        assert query is not None and output is not None
        return x + output(
            self._read_source(number, query(y).view(self.slots, self.beams, self.heads, -1), at)
        )

    def _read_source(self, number: int, query_BKHD: Tensor, at: Index) -> Tensor:
        """Return the cross-attention of a layer, (B K, M), and record its weights if `looks` exists."""
        if self.looks is None:
            return self._read(query_BKHD, self.sources[number], self.source_mask)
        key_BHSD, value_BHSD = self.sources[number].transpose(1, 3).unbind(2)
        query_BHKD = query_BKHD.transpose(1, 2) * query_BKHD.shape[-1] ** -0.5
        weights_BHKS = (query_BHKD @ key_BHSD.transpose(2, 3) + self.source_mask).softmax(-1)
        self.looks[*at, :, number] = weights_BHKS.transpose(1, 2).to(self.looks.dtype)
        return (weights_BHKS @ value_BHSD).transpose(1, 2).reshape(self.slots * self.beams, -1)

    def _read(self, query_BKHD: Tensor, both_BN2HD: Tensor, mask: Tensor) -> Tensor:
        """Return the attention of K queries in each slot over N keys and values, (B K, M)."""
        key_BHND, value_BHND = both_BN2HD.transpose(1, 3).unbind(2)
        output_BHKD = functional.scaled_dot_product_attention(
            query_BKHD.transpose(1, 2), key_BHND, value_BHND, attn_mask=mask
        )
        return output_BHKD.transpose(1, 2).reshape(self.slots * self.beams, -1)

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


def _is_plain(attention: Any) -> bool:
    """Return whether a MultiHead layer computes softmax(q . k / sqrt(D)); Rotary positions are allowed."""
    position = attention.position
    return (
        type(attention.score) is ScaledDot
        and attention.key_heads == attention.heads
        and (position is None or isinstance(position, Rotary))
    )


def normalisation(norm: nn.LayerNorm) -> Linear:
    """Return a function that computes norm(x)."""
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _feed_forward(layer: FeedForward, product: Callable[..., Linear]) -> Linear:
    """Return a function that computes layer(x) in eval mode; for product, see LayerParts.of()."""
    relu = layer.activation == "relu"
    inner = product(layer.inner.weight, layer.inner.bias, relu)
    linears = (layer.outer, *(() if layer.gate is None else (layer.gate,)))
    outer, *gates = (product(each.weight, each.bias) for each in linears)
    if relu and not gates:
        return lambda x: outer(inner(x))
    activation = (lambda x: x) if relu else ACTIVATIONS[layer.activation]

    def compute(x: Tensor) -> Tensor:
        hidden = activation(inner(x))
        for gate in gates:
            hidden = hidden * gate(x)
        return outer(hidden)

    return compute


def _joined(attention: nn.Module, scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """Return the weights and biases of the query, key and value projections as one matrix and one vector.

    scale: factor of the weights and biases of the query.
    """
    layer: Any = attention
    parts = [_scaled(layer.query, scale), _scaled(layer.key, 1.0), _scaled(layer.value, 1.0)]
    weight, biases = torch.cat([each for each, _ in parts]), [bias for _, bias in parts if bias is not None]
    return weight, torch.cat(biases) if biases else None


def _scaled(linear: nn.Linear, scale: float) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases of a linear layer, multiplied by a factor."""
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if scale == 1.0:
        return weight, bias
    return weight * scale, None if bias is None else bias * scale
