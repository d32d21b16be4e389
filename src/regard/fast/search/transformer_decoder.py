"""TransformerDecoder: the decoder of a Transformer on preallocated caches. It has a variant for GPUs.

The cache of a slot has the keys and values of all its K beams, at every position. A beam is not a copy of the
cache: a mask says which of the K entries at each position belong to the history of the beam. When the search
reorders beams, only this mask changes. The keys and values of the source are stored once for all K beams.

For few sentences on a CPU, the cross-attention is folded. Its query is only used in products with the keys:
(W_q y) . k_j = y . (W_q^T k_j). The values are only used in the output layer: W_o sum_j a_j v_j =
sum_j a_j (W_o v_j). So W_q^T k_j and W_o v_j are computed once for each source token, layer and head. A step
then needs two products instead of four, and reads less memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.fast.search.decoder import SlotDecoder, resized_rows, write_rows
from regard.fast.search.linear import Linear, linear
from regard.kernels import by_kernel
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.models.base import Encoded, Model, State
from regard.models.transformer import Transformer, TransformerLayer
from regard.positions import Rotary
from regard.positions.embedded import Embedded, Table
from regard.roles import Role
from regard.scores import ScaledDot
from regard.select import Soft

__all__ = ["FusedTransformerDecoder", "TransformerDecoder"]

MOST_PAIRS = 2.0
"""The cross-attention is folded if the number of pairs of a head and a source token, B H S, is at most this
many times the width M of the model. W_q^T k_j has H times the size of k_j: more pairs would be slower."""

WIDEST_HEAD = 256
"""The largest size of a head for which the kernels of FusedTransformerDecoder have enough shared memory."""

Index = tuple[Tensor | slice, Tensor | int]
"""The index of slots and of their positions."""

Affine = tuple[Tensor, Tensor | None]
"""Weight and bias of a linear layer."""

Turns = tuple[Tensor, Tensor] | None
"""Cosines and sines of a Rotary scheme at the position of each slot; None without one."""


class LayerParts(NamedTuple):
    """The functions of one layer, which read its weights when they are created.

    project: query, key and value of the self-attention.
    output: the output layer of the self-attention.
    cross_query, cross_output: the layers of the cross-attention; None without one, or if it is folded.
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
    def of(
        cls, layer: TransformerLayer, joined: Affine, product: Callable[..., Linear], scale: float | None
    ) -> LayerParts:
        """Return the functions of a layer.

        joined: the result of _joined_projections().
        product: linear(), as a function of weight, bias and relu.
        scale: the factor of the queries of the cross-attention; None if it is folded.
        """
        cross, norms, inner = layer.cross, layer.norms, layer.feedforward
        assert inner is not None and isinstance(norms, nn.ModuleList)  # see TransformerDecoder.reasons()
        return cls(
            product(*joined, owner=layer.itself.query.weight),
            product(layer.itself.output.weight, layer.itself.output.bias),
            None if cross is None or scale is None else _scaled_product(cross.query, scale, product),
            None if cross is None or scale is None else product(cross.output.weight, cross.output.bias),
            _feed_forward(inner, product),
            [_normalisation(norm) for norm in norms],
        )


class Cache(NamedTuple):
    """Views of the keys and values of one attention layer: creating them in every step takes time.

    keys, values: (B H, D, N) and (B H, N, D), to read N entries.
    new_keys, new_values: (L, B, H, K, D), to write those of one position.
    """

    keys: Tensor
    values: Tensor
    new_keys: Tensor
    new_values: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Cache:
        """Return views of keys and values, (B, H, L, K, D)."""
        flat = [each.view(-1, each.shape[2] * each.shape[3], each.shape[4]) for each in (keys, values)]
        return cls(flat[0].mT, flat[1], keys.permute(2, 0, 1, 3, 4), values.permute(2, 0, 1, 3, 4))


class TransformerDecoder(SlotDecoder):
    """The decoder of a Transformer, or a Transformer language model, on preallocated caches.

    keys, values: for each layer, (B, H, L, K, D), the keys and values of the self-attention.
    source_keys, source_values: for each layer, (B, H, S, 1, D), those of the cross-attention. If it is
        folded, (B, 1, H S, 1, M): W_q^T k_j / sqrt(D), and W_o v_j + b_o / H.
    mask: (B, K, L, K), added to the scores of the self-attention: 0 for the history of a beam, else -inf.
    source_masks: for each layer, (B, 1, 1, S), added to the scores of the cross-attention: 0, or -inf for
        padding. If it is folded, (B, 1, 1, H S): b_q . k_j / sqrt(D), or -inf.
    joined: for each layer, weights and biases of query, key and value of the self-attention as one matrix and
        one vector. The queries are multiplied by 1 / sqrt(D).
    """

    heads: int

    in_inference_mode = True
    int8 = True
    scales_queries = True
    folded = False

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        chosen: Any = model
        self.embedding = model.target if isinstance(model, Transformer) else chosen.embedding
        self.layers: list[TransformerLayer] = list(chosen.decoder)
        self.decoded, self.output, self.scheme = chosen.decoded, chosen.output, chosen.position
        self.heads: int = self.layers[0].itself.heads
        self.pre = self.layers[0].pre
        self.width, self.int8_steps = chosen.width, model.int8_steps
        self.scale = (self.width // self.heads) ** -0.5 if self.scales_queries else 1.0
        self.rows = torch.arange(slots, device=self.output.weight.device)
        self.tables = self._position_tables(self.output.weight)
        self.joined = [_joined_projections(layer.itself, self.scale) for layer in self.layers]
        self._allocate(len(self.layers) if isinstance(model, Transformer) else 0)
        self._read_weights()

    def _allocate(self, sources: int) -> None:
        """Allocate the caches. sources: the number of layers with cross-attention."""
        like, slots, beams, size = self.output.weight, self.slots, self.beams, self.width // self.heads
        self.folded = not like.is_cuda and slots * self.heads * self.source_length <= MOST_PAIRS * self.width
        shape, source_shape = (
            (slots, self.heads, self.length, beams, size),
            (slots, self.heads, self.source_length, 1, size),
        )
        if self.folded:
            source_shape = slots, 1, self.heads * self.source_length, 1, self.width
        self.keys, self.values = ([like.new_zeros(shape) for _ in self.layers] for _ in range(2))
        self.source_keys, self.source_values = (
            [like.new_zeros(source_shape) for _ in range(sources)] for _ in range(2)
        )
        self.mask = like.new_full((slots, beams, self.length, beams), -torch.inf)
        self.source_masks = [like.new_zeros(slots, 1, 1, source_shape[2]) for _ in range(sources)]
        self.own = torch.where(torch.eye(beams, device=like.device) > 0, 0.0, -torch.inf).to(like.dtype)
        self._create_views()

    def _create_views(self) -> None:
        self.caches = list(map(Cache.of, self.keys, self.values))
        self.sources = list(map(Cache.of, self.source_keys, self.source_values))

    def _read_weights(self) -> None:
        """Create the functions of all layers and of the output layer."""
        rows, int8 = self.slots * self.beams, self.int8_steps

        def product(
            weight: Tensor, bias: Tensor | None, relu: bool = False, owner: Tensor | None = None
        ) -> Linear:
            return linear(weight, bias, rows, int8, relu, owner)

        pairs, scale = zip(self.layers, self.joined, strict=True), None if self.folded else self.scale
        self.parts = [LayerParts.of(layer, joined, product, scale) for layer, joined in pairs]
        self.to_words = product(self.output.weight, self.output.bias)

    @classmethod
    def reasons(cls, model: Model) -> list[str]:
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

    def refresh(self) -> None:
        for layer, (weight, bias) in zip(self.layers, self.joined, strict=True):
            new_weight, new_bias = _joined_projections(layer.itself, self.scale)
            weight.copy_(new_weight)
            if bias is not None and new_bias is not None:
                bias.copy_(new_bias)
        if isinstance(self.scheme, Table):
            for table, new_table in zip(self.tables, self._position_tables(self.output.weight), strict=True):
                table.copy_(new_table)
        if not self.output.weight.is_cuda:  # a captured step reads the weights themselves
            self._read_weights()

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        self._load_sources(slots, encoded)
        for key, value, memory in zip(self.keys, self.values, state.past, strict=False):
            for buffer, new in ((key, memory.key), (value, memory.value)):  # a prompt, which all beams share
                buffer[slots, :, : state.position, 0] = new.to(buffer.dtype)
        self.mask.index_fill_(0, slots, -torch.inf)
        if state.past:
            self.mask[slots, :, : state.position, 0] = 0.0

    def _load_sources(self, slots: Tensor, encoded: Encoded) -> None:
        """Write the keys and values of new sources."""
        inside_bS = torch.arange(self.source_length, device=slots.device) < encoded.lengths[:, None]
        for number, memory in enumerate(encoded.memories):
            missing = self.source_length - memory.key.shape[2]
            key, value = (functional.pad(each, (0, 0, 0, missing)) for each in (memory.key, memory.value))
            bias = key.new_zeros(len(slots), 1, self.source_length)
            if self.folded:
                key, value, bias = _folded(self.layers[number].cross, key, value, self.scale)
            bias = bias.masked_fill(~inside_bS[:, None], -torch.inf)
            for buffers, new in (
                (self.source_keys, key),
                (self.source_values, value),
                (self.source_masks, bias),
            ):
                buffers[number][slots] = new.reshape(-1, *buffers[number].shape[1:])

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
        turns, pre = self._turns(position), self.pre
        for number, parts in enumerate(self.parts):
            norms = parts.norms
            x = x + self._attend_itself(number, norms[0](x) if pre else x, mask_B1KN, at, turns)
            if not pre:
                x = norms[0](x)
            if self.sources:
                x = x + self._attend_source(number, norms[1](x) if pre else x, at)
                if not pre:
                    x = norms[1](x)
            x = x + parts.feed_forward(norms[-1](x) if pre else x)
            if not pre:
                x = norms[-1](x)
        return self.to_words(self.decoded(x)).view(*tokens.shape, -1)

    def resize(self, slots: Tensor | None, before: int) -> None:
        self.rows = self.rows[: self.slots]
        if self.length != before:
            self.tables = self._position_tables(self.output.weight)
        self._resize_caches(slots)

    def _resize_caches(self, slots: Tensor | None) -> None:
        """Resize the tensors of _allocate()."""
        self.keys = [resized_rows(each, slots, self.length, 2) for each in self.keys]
        self.values = [resized_rows(each, slots, self.length, 2) for each in self.values]
        self.mask = resized_rows(self.mask, slots, self.length, 2, -torch.inf)
        if slots is not None:
            self.source_keys = [each.index_select(0, slots) for each in self.source_keys]
            self.source_values = [each.index_select(0, slots) for each in self.source_values]
            self.source_masks = [each.index_select(0, slots) for each in self.source_masks]
        self._create_views()

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

    def _attend_itself(self, number: int, y: Tensor, mask_B1KN: Tensor, at: Index, turns: Turns) -> Tensor:
        """Return the output of the self-attention of a layer, (B K, M). y: its input, (B K, M).

        at: see _at().
        """
        query_BHKD, key_BHKD, value_BHKD = self._projected(number, y, turns).transpose(1, 3).unbind(2)
        cache, entries = self.caches[number], mask_B1KN.shape[-1]
        place = at[1] if isinstance(at[1], int) else (at[1], at[0])
        cache.new_keys[place] = key_BHKD
        cache.new_values[place] = value_BHKD
        keys, values = cache.keys[:, :, :entries], cache.values[:, :entries]
        return self.parts[number].output(self._attend(query_BHKD, keys, values, mask_B1KN)[0])

    def _attend_source(self, number: int, y: Tensor, at: Index) -> Tensor:
        """Return the output of the cross-attention of a layer, (B K, M), and record its weights."""
        query, output = self.parts[number].cross_query, self.parts[number].cross_output
        query_BHKD = y if query is None else query(y)
        query_BHKD = query_BHKD.view(self.slots, self.beams, 1 if self.folded else self.heads, -1).transpose(
            1, 2
        )
        keys, values, _, _ = self.sources[number]
        groups = self.heads if self.folded else 1
        read, weights = self._attend(query_BHKD, keys, values, self.source_masks[number], groups)
        if self.looks is not None:
            weights_BKHS = weights.transpose(1, 2).reshape(self.slots, self.beams, self.heads, -1)
            self.looks[*at, :, number] = weights_BKHS.to(self.looks.dtype)
        return read if output is None else output(read)

    def _attend(
        self, query_BHKD: Tensor, keys: Tensor, values: Tensor, mask: Tensor, groups: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of K queries in each slot, (B K, M), and its weights, (B, H, K, N).

        keys, values: (B H, D, N) and (B H, N, D).
        groups: the softmax is computed over N / groups entries at a time.
        """
        slots, heads, beams, size = query_BHKD.shape
        scores = torch.bmm(query_BHKD.reshape(slots * heads, beams, size), keys)
        masked_BHKN = scores.view(slots, heads, beams, -1).add_(mask)
        weights = masked_BHKN.view(slots * heads, beams, groups, -1).softmax(-1).flatten(2)
        read = torch.bmm(weights, values).view(slots, heads, beams, size)
        return read.transpose(1, 2).reshape(slots * beams, -1), weights.view_as(masked_BHKN)

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

    entries: for each layer, (B, L, K, 2, H, D), the keys and values of the self-attention.
    source_entries: for each layer, (B, S, 2, H, D), those of the cross-attention.
    history: (B, L, K), int32. The keys and values of beam k at position p are entry history[b, p, k] of the
        cache at this position.
    lengths: (B,), the number of source tokens.
    """

    stops_at_position = True
    int8 = False
    scales_queries = False  # the kernels do

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        super().__init__(model, slots, beams, length, source_length)
        self.norms: list[Any] = [norm for layer in self.layers for norm in layer.norms]
        if self.pre:
            self.norms.append(self.decoded)

    def _allocate(self, sources: int) -> None:
        like, size = self.output.weight, (2, self.heads, self.width // self.heads)
        self.entries = [like.new_zeros(self.slots, self.length, self.beams, *size) for _ in self.layers]
        self.source_entries = [like.new_zeros(self.slots, self.source_length, *size) for _ in range(sources)]
        self.history = self.rows.new_zeros(self.slots, self.length, self.beams, dtype=torch.int32)
        self.lengths = self.rows.new_zeros(self.slots)

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
        for buffer, memory in zip(self.source_entries, encoded.memories, strict=True):
            write_rows(buffer, slots, torch.stack((memory.key, memory.value), 2).transpose(1, 3))
        for buffer, memory in zip(self.entries, state.past, strict=False):  # a prompt, which all beams share
            both_bP2HD = torch.stack((memory.key, memory.value), 2).transpose(1, 3)
            buffer[slots, : state.position, 0] = both_bP2HD.to(buffer.dtype)
        self.history.index_fill_(0, slots, 0)  # all beams share the keys and values of a prompt
        if self.source_entries:
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
            x, y = self._add_norm(x, self._attend_itself_by_kernel(number, y, position, turns), next(norms))
            if layer.cross is not None:
                x, y = self._add_norm(x, self._attend_source_by_kernel(number, y, position), next(norms))
            assert layer.feedforward is not None  # see reasons()
            x, y = self._add_norm(x, _feed_forward_on_gpu(layer.feedforward, y), next(norms))
        return self.output(y).view(*tokens.shape, -1)

    def _resize_caches(self, slots: Tensor | None) -> None:
        self.entries = [resized_rows(each, slots, self.length, 1) for each in self.entries]
        self.history = resized_rows(self.history, slots, self.length, 1)
        if slots is not None:
            self.source_entries = [each.index_select(0, slots) for each in self.source_entries]
            self.lengths = self.lengths.index_select(0, slots)

    def _add_norm(self, x: Tensor, change: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Return the input of the next residual connection and of the next sublayer."""
        from regard.kernels.search.decoder_step import add_and_normalize

        return add_and_normalize(x, change, norm, self.pre)

    def _attend_itself_by_kernel(self, number: int, y: Tensor, position: Tensor, turns: Turns) -> Tensor:
        """Return the output of the self-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_history

        new = self._projected(number, y, turns)
        return self.layers[number].itself.output(
            attend_history(new, self.entries[number], self.history, position)
        )

    def _attend_source_by_kernel(self, number: int, y: Tensor, position: Tensor) -> Tensor:
        """Return the output of the cross-attention of a layer, (B K, M)."""
        from regard.kernels.search.decoder_step import attend_source

        attention = self.layers[number].cross
        assert attention is not None
        sources, lengths, query = self.source_entries[number], self.lengths, attention.query(y)
        read = attend_source(query, sources, lengths, self.beams, position, self.looks, number)
        return attention.output(read)


def _joined_projections(attention: Any, scale: float) -> Affine:
    """Return weights and biases of query, key and value of a MultiHead layer as one matrix and one vector.

    scale: a factor of the query.
    """
    layers = _scaled(attention.query, scale), _scaled(attention.key, 1.0), _scaled(attention.value, 1.0)
    biases = [bias for _, bias in layers if bias is not None]
    return torch.cat([weight for weight, _ in layers]), torch.cat(biases) if biases else None


def _scaled(layer: nn.Linear, scale: float) -> Affine:
    """Return weight and bias of a linear layer, multiplied by a factor."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if scale == 1.0:
        return weight, bias
    return weight * scale, None if bias is None else bias * scale


def _scaled_product(layer: nn.Linear, scale: float, product: Callable[..., Linear]) -> Linear:
    """Return a linear layer, multiplied by a factor, as a function. product: see LayerParts.of()."""
    result: Linear = product(*_scaled(layer, scale), owner=layer.weight)
    return result


def _folded(cross: Any, key_bHSD: Tensor, value_bHSD: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the folded keys, values, both (b, H, S, M), and biases of the scores, (b, H, S)."""
    heads, width = key_bHSD.shape[1], cross.query.weight.shape[1]
    (weight, bias), output = _scaled(cross.query, scale), cross.output
    values_bHSM = value_bHSD @ output.weight.T.reshape(heads, -1, width)
    if output.bias is not None:  # the weights of a head sum to 1
        values_bHSM = values_bHSM + output.bias / heads
    biases_bHS = torch.zeros_like(key_bHSD[..., 0])
    if bias is not None:
        biases_bHS = (key_bHSD @ bias.view(heads, -1, 1))[..., 0]
    return key_bHSD @ weight.view(heads, -1, width), values_bHSM, biases_bHS


def _normalisation(norm: Any) -> Linear:
    """Return a function that computes norm(x), which takes less time than calling the module."""
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _feed_forward(layer: FeedForward, product: Callable[..., Linear]) -> Linear:
    """Return a function that computes layer(x) in eval mode; for product, see LayerParts.of()."""
    relu = layer.activation == "relu"
    inner, outer = (
        product(layer.inner.weight, layer.inner.bias, relu),
        product(layer.outer.weight, layer.outer.bias),
    )
    if relu and layer.gate is None:
        return lambda x: outer(inner(x))
    activation = (lambda x: x) if relu else ACTIVATIONS[layer.activation]
    if layer.gate is None:
        return lambda x: outer(activation(inner(x)))
    gate = product(layer.gate.weight, layer.gate.bias)
    return lambda x: outer(activation(inner(x)) * gate(x))


def _feed_forward_on_gpu(layer: FeedForward, y: Tensor) -> Tensor:
    """Return layer(y) in eval mode. The product with the first matrix and relu are one kernel of cuBLAS."""
    if layer.activation != "relu":
        return layer(y)
    hidden = torch._addmm_activation(layer.inner.bias, y, layer.inner.weight.T)
    return layer.outer(hidden)
