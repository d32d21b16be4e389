# mypy: disable-error-code="no-untyped-def"
"""The backward pass of additive attention: Backward launches its kernels, one chunk of query rows at a time.

Part 1 computes the gradients of values and scores from the gradient of the output. Formulas, with weights p,
output gradient dO and values V:

    dp = dO . V     delta = sum over keys of p dp     dscore = p (dp - delta)     dV = p^T dO

With dropout, dp and the p of dV are multiplied by the dropout factors of the forward pass.

additive_weigh_kernel computes dp and partial sums of delta. additive_balance_kernel computes dscore.
additive_value_backward_kernel computes dV. Part 2, the gradients of query, key and vector, is in
gradients.py and decode.py (one query).

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.additive.decode import additive_decode_backward_kernel
from regard.kernels.additive.forward import Forward, Prepared
from regard.kernels.additive.gradients import additive_key_backward_kernel, additive_query_backward_kernel
from regard.kernels.additive.tile_sizes import FEW
from regard.kernels.dropout import dropout_factors
from regard.kernels.launch import in_eights, in_rows, steps, up
from regard.kernels.mask import end_of, tile_is_seen, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = ["Backward", "additive_balance_kernel", "additive_value_backward_kernel", "additive_weigh_kernel"]


@triton.jit
def _weights(scores, norm, place, size, there, seen):
    """Recompute the weights of a tile, exp(score - maximum) / total; 0 where masked (`seen` is False).

    The formula exp(score - lse) would be less precise, because the lse has been rounded.

    norm: maximum and 1 / total of each row, (2, size), from the forward pass.
    place: index of each row.
    there: whether the row exists.
    """
    level = tl.load(norm + place, mask=there, other=0.0)
    inverse = tl.load(norm + size + place, mask=there, other=0.0)
    found = tl.exp2((tl.where(seen, scores, 0.0) - level[:, None]) * LOG2E) * inverse[:, None]
    return tl.where(seen, found, 0.0)


@triton.jit
def additive_weigh_kernel(
    scores, norm, value, doutput, dscores, deltas, seed, dropout,
    lengths, document_of_query, document_of_key, length_step, start, left, right,
    documents_query_step, documents_key_step, heads, groups, queries, keys, depth, first_row, row_count,
    value_batch, value_head, value_row, doutput_batch, doutput_head, doutput_row,
    scores_head, scores_row, dscores_head, dscores_row, key_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    EIGHTS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Compute dp = dO . V, the gradient of the weights p, and partial sums of delta = sum over keys of p dp.

    scores, norm, value, doutput: read, to recompute p and to compute dp. value is V, and doutput is dO.
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    dscores: writes dp, (B H, rows, keys), where rows and keys are rounded up to whole tiles.
    deltas: writes one partial sum per key tile, (B H, key tiles, rows).
    """
    if EIGHTS:
        depth, value_row, doutput_row = depth // 8 * 8, value_row // 8 * 8, doutput_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    both = tl.program_id(2).to(tl.int64)
    batch, head = both // heads, both % heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last, end = first_row + row_count, end_of(lengths, length_step, batch, keys, LENGTHS)
    made = tl.zeros([ROWS], tl.float32)
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        value_at = value + batch * value_batch + head // groups * value_head
        value_at += columns.to(tl.int64)[None, :] * value_row
        doutput_at = doutput + batch * doutput_batch + head * doutput_head
        doutput_at += rows.to(tl.int64)[:, None] * doutput_row
        dweights = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(0, depth, DEPTH):
            channels = first + tl.arange(0, DEPTH)
            of_row = (rows < last)[:, None] & (channels < depth)[None, :]
            of_output = tl.load(doutput_at + channels[None, :], mask=of_row, other=0.0)
            of_column = (channels < depth)[:, None] & (columns < end)[None, :]
            values = tl.load(value_at + channels[:, None], mask=of_column, other=0.0)
            dweights = product(of_output, values, dweights, PRECISION)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + at, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        dweights = tl.where(seen, dweights, 0.0)
        if DROPOUT:
            dweights *= dropout_factors(seed, dropout, both, rows, columns, queries, keys)
        at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
        tl.store(dscores + at, dweights)
        made = tl.sum(weights * dweights, 1)
    tl.store(deltas + (both * key_tiles + tl.program_id(1)) * (tl.num_programs(0) * ROWS) + local, made)


@triton.jit
def additive_balance_kernel(
    scores, norm, dscores, turned, deltas, dbias,
    lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, scale, first_row, row_count,
    scores_head, scores_row, dscores_head, dscores_row, turned_row, size, delta_parts,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Compute g = p (dp - delta) scale, the gradient of v . tanh(q + k).

    scores, norm: read, to recompute the weights p. dp is their gradient, delta the sum of p dp over the keys.
    deltas: reads the partial sums of delta, (B H, delta_parts, rows), and adds them.
    dscores: reads dp, (B H, rows, keys), and overwrites it with g.
    turned: if TURNED is True, writes g transposed, (B H, keys, rows).
    dbias: if BIAS is True, writes g, the gradient of the bias too, except in fully masked tiles.
    """
    both = tl.program_id(2).to(tl.int64)
    batch = both // heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row, column = first_row + tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    rows, columns = first_row + local, column + tl.arange(0, COLUMNS)
    last, end = first_row + row_count, end_of(lengths, length_step, batch, keys, LENGTHS)
    at = both * dscores_head + local.to(tl.int64)[:, None] * dscores_row + columns[None, :]
    turned_at = both * dscores_head + columns.to(tl.int64)[:, None] * turned_row + local[None, :]
    if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
        delta, rows_whole = tl.zeros([ROWS], tl.float32), tl.num_programs(0) * ROWS
        for part in range(delta_parts):
            delta += tl.load(deltas + (both * delta_parts + part) * rows_whole + local)
        seen = visible(
            rows, columns, last, end, start, left, right,
            document_of_query + batch * documents_query_step, document_of_key + batch * documents_key_step,
            LEFT, RIGHT, DOCUMENTS,
        )  # fmt: skip
        of_scores = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
        found = tl.load(scores + of_scores, mask=seen, other=0.0)
        weights = _weights(found, norm, both * queries + rows, size, rows < last, seen)
        found = tl.where(seen, weights * (tl.load(dscores + at) - delta[:, None]) * scale, 0.0)
        if BIAS:
            tl.store(dbias + at, found)
        tl.store(dscores + at, found)
        if TURNED:
            tl.store(turned + turned_at, tl.trans(found))
    elif not TURNED:  # additive_decode_backward_kernel reads all tiles, so write 0 to a fully masked tile
        tl.store(dscores + at, tl.zeros([ROWS, COLUMNS], tl.float32))


@triton.jit
def additive_value_backward_kernel(
    scores, norm, doutput, dvalue, seed, dropout, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count,
    doutput_batch, doutput_head, doutput_row, scores_head, scores_row, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ADD: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute dV = p^T dO, the gradient of the values, for COLUMNS keys, DEPTH channels, `row_count` queries.

    scores, norm: read, to recompute the weights p.
    doutput: reads dO, (B, H, T, E).
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    dvalue: writes (B, K, S, E).
    ADD: add to dvalue instead of overwriting it.

    Launch grid: (key tiles, blocks of DEPTH channels, B K).
    """
    if EIGHTS:
        depth, doutput_row = depth // 8 * 8, doutput_row // 8 * 8
        doutput_batch, doutput_head = doutput_batch // 8 * 8, doutput_head // 8 * 8
    column = tl.program_id(0) * COLUMNS
    columns = column + tl.arange(0, COLUMNS)
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    key_both = tl.program_id(2).to(tl.int64)
    key_heads = heads // groups
    batch, key_head_here = key_both // key_heads, key_both % key_heads
    last = first_row + row_count
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    found = tl.zeros([COLUMNS, DEPTH], tl.float32)
    tiles = tl.cdiv(row_count, ROWS)
    for step in range(groups * tiles):
        head, tile = key_head_here * groups + step // tiles, step % tiles
        both = batch * heads + head
        row = first_row + tile * ROWS
        if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            local = tile * ROWS + tl.arange(0, ROWS)
            rows = first_row + local
            seen = visible(
                rows, columns, last, end, start, left, right,
                document_of_query + batch * documents_query_step,
                document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
            scored = tl.load(scores + at, mask=seen, other=0.0)
            weights = _weights(scored, norm, both * queries + rows, size, rows < last, seen)
            doutput_at = doutput + batch * doutput_batch + head * doutput_head
            of_output = tl.load(
                doutput_at + rows.to(tl.int64)[:, None] * doutput_row + channels[None, :],
                mask=(rows < last)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            if DROPOUT:
                weights *= dropout_factors(seed, dropout, both, rows, columns, queries, keys)
            turned = tl.trans(weights.to(of_output.dtype))
            found = product(turned, of_output, found, PRECISION)
    place = dvalue + (key_both * keys + columns)[:, None] * depth + channels[None, :]
    inside = (columns < keys)[:, None] & (channels < depth)[None, :]
    if ADD:
        found += tl.load(place, mask=inside, other=0.0)
    tl.store(place, found, mask=inside)


FEW_TILES = 8
"""If only the gradient of the query is needed, one program of additive_decode_backward_kernel processes up to
FEW_TILES tiles of keys: to add parts takes longer."""


class Weighed(NamedTuple):
    """g, the gradient of v . tanh(q + k), for a chunk of query rows. Sizes are rounded up to whole tiles.

    dscores: g in float32, (B H, rows, keys).
    turned: g transposed, (B H, keys, rows); dscores itself if the transpose was not requested.
    """

    dscores: Tensor
    turned: Tensor


class Backward:
    """The backward pass of one call of additive attention.

    forward: the additive/forward.Forward of the same call, created with back=True.
    doutput: gradient of the output, (B, H, T, E).
    norm: row maximum and 1 / row sum, from the forward pass.
    scores: the scores, if the forward pass has kept them; otherwise an empty tensor.
    others: whether to compute the gradients of key, value and vector besides the gradient of the query.
    learned: whether to compute the gradient of the bias.
    """

    def __init__(
        self,
        forward: Forward,
        doutput: Tensor,
        norm: Tensor,
        scores: Tensor,
        others: bool,
        learned: bool = False,
    ):
        self.dquery = forward.query.new_empty(forward.query.shape)
        self.forward, self.doutput, self.others = forward, in_rows(doutput), others
        self.norm, self.held = norm, scores
        bias = forward.extra.bias
        self.dbias = torch.zeros_like(bias, dtype=torch.float32) if learned and bias is not None else None
        self.shape, self.launch = forward.shape, forward.launch
        self.sequences = self.shape.batch * self.shape.heads
        self.key_sequences = self.shape.batch * self.shape.key_heads

    def run(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of query, key, value, vector and bias.

        Those of key, value and vector are empty if not `others`, that of the bias if not `learned`."""
        forward, shape = self.forward, self.shape
        chunks = range(0, shape.queries, shape.chunk)
        several = len(chunks) > 1
        prepared = None if self.held.numel() else forward.prepared()
        self.alone = shape.kind == "decode" and shape.groups == 1
        self.rows: Prepared | None = None if self.alone else forward.prepared(turned=False)
        self.dkey = self.place(forward.key, several)
        self.dvalue = self.place(forward.value, several)
        dvector: list[Tensor] = []
        for first in chunks:
            rows = min(shape.chunk, shape.queries - first)
            scores = self.held
            if prepared is not None:
                parts = forward.scores(prepared, first, rows)
                scores = parts[0] if len(parts) == 1 else parts.sum(0)
            dvector += self.chunk(scores, first, rows)
        bias = forward.extra.bias
        return (
            self.dquery,
            self.dkey.to(forward.key.dtype),
            self.dvalue.to(forward.value.dtype),
            self.to_vector(dvector),
            self.norm.new_empty(0) if bias is None or self.dbias is None else self.dbias.to(bias.dtype),
        )

    def whole(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Split Prepared.whole into the values of the query and those of the key."""
        return prepared.whole[: self.sequences], prepared.whole[self.sequences :]

    def place(self, like: Tensor, added: bool) -> Tensor:
        """Allocate the gradient of `like` (key or value); an empty tensor if this gradient is not needed.

        added: whether several chunks or kernels add to the gradient. If so, its dtype is float32."""
        dtype = torch.float32 if added else like.dtype
        return like.new_empty(like.shape if self.others else (0,), dtype=dtype)

    def to_vector(self, parts: list[Tensor]) -> Tensor:
        """Return the gradient of the vector v, (1 or H, D), or an empty tensor if it is not needed.

        parts: tensors (B, H, parts, D) of partial sums, each from one kernel. All partial sums are added."""
        vector = self.forward.vector
        if not self.others:
            return vector.new_empty(0)
        dims = (0, 2) if len(vector) == self.shape.heads else (0, 1, 2)  # a vector per head, or one for all
        return sum(each.sum(dims) for each in parts).view(vector.shape).to(vector.dtype)  # type: ignore[union-attr]

    def chunk(self, scores: Tensor, first: int, rows: int) -> list[Tensor]:
        """Compute the gradients from one chunk of query rows: rows `first` to `first + rows - 1`.

        scores: the scores of these rows, (B H, rows, S).

        Writes or adds to self.dquery, self.dkey and self.dvalue. Returns partial sums of the gradient of the
        vector v of additive attention, as tensors (B, H, parts, D) that to_vector() adds."""
        if self.others:
            self.to_value(scores, first, rows)
        weighed = self.weighed(scores, first, rows, turned=not self.alone)
        if self.rows is None:
            return [self.at_once(weighed.dscores)]
        if self.others:
            self.to_key(self.rows, weighed.dscores, first, rows)
        dquery, *dvector = self.to_query(self.rows, weighed.turned, first, rows)
        if len(dquery) > 1:
            self.dquery[:, :, first : first + rows] = dquery.sum(0)
        return dvector

    def weighed(self, scores: Tensor, first: int, rows: int, turned: bool) -> Weighed:
        """Compute the gradient of the scores for query rows `first` to first + rows - 1, with two kernels.

        additive_weigh_kernel writes the gradient of the weights, and partial sums of delta, the sum over the
        keys of weight * gradient of the weight.
        additive_balance_kernel overwrites the gradient of the weights with the gradient of the scores.

        scores: the scores of these rows, (B H, rows, S).
        turned: whether to write the transpose of the gradient of the scores too."""
        forward, shape, launch = self.forward, self.shape, self.launch
        whole = up(rows, launch.rows), up(shape.keys, launch.columns)
        grid = whole[0] // launch.rows, whole[1] // launch.columns, self.sequences
        dscores = forward.new(self.sequences, *whole)
        other = forward.new(self.sequences, *whole[::-1]) if turned else dscores
        deltas = forward.new(self.sequences, grid[1], whole[0])
        dbias = None if self.dbias is None else torch.zeros_like(dscores)  # fully masked tiles stay 0
        both = {
            **forward.sight.whole(forward.query), **forward.sizes, "first_row": first, "row_count": rows,
            "scores_head": scores.stride(0), "scores_row": scores.stride(1),
            "dscores_head": dscores.stride(0), "dscores_row": dscores.stride(1),
            "size": self.norm[0].numel(), "ROWS": launch.rows, "COLUMNS": launch.columns, "num_warps": 4,
        }  # fmt: skip
        additive_weigh_kernel[grid](
            scores, self.norm, forward.value, self.doutput, dscores, deltas,
            **forward.extra.of_dropout(self.norm), **both, depth=shape.depth, key_tiles=grid[1],
            **steps("value", forward.value), **steps("doutput", self.doutput), DEPTH=launch.depth,
            PRECISION=forward.precision, EIGHTS=in_eights(forward.value, self.doutput),
        )  # fmt: skip
        if grid[1] > FEW:
            deltas = deltas.sum(1, keepdim=True)
        additive_balance_kernel[grid](
            scores, self.norm, dscores, other, deltas, dscores if dbias is None else dbias, **both,
            scale=forward.scale, turned_row=other.stride(1), delta_parts=deltas.shape[1],
            TURNED=turned, BIAS=dbias is not None,
        )  # fmt: skip
        if dbias is not None:
            self.to_bias(dbias[:, :rows, : shape.keys], first, rows)
        return Weighed(dscores, other)

    def to_bias(self, gradient: Tensor, first: int, rows: int) -> None:
        """Add the gradient of the bias from query rows `first` to first + rows - 1 to self.dbias.

        gradient: gradient of v . tanh(q + k) + bias for these rows, (B H, rows, S)."""
        assert self.dbias is not None
        place = self.dbias if self.dbias.shape[2] == 1 else self.dbias[:, :, first : first + rows]
        place += gradient.unflatten(0, (self.shape.batch, self.shape.heads)).sum_to_size(place.shape)

    def to_value(self, scores: Tensor, first: int, rows: int) -> None:
        """Add the gradient of the values from query rows `first` to first + rows - 1 to self.dvalue.

        If `first` is 0, self.dvalue is not initialised yet and is overwritten.

        scores: the scores of these rows, (B H, rows, S)."""
        forward, shape, launch = self.forward, self.shape, self.launch
        grid = -(-shape.keys // launch.columns), -(-shape.depth // launch.depth), self.key_sequences
        additive_value_backward_kernel[grid](
            scores, self.norm, self.doutput, self.dvalue, **forward.extra.of_dropout(self.norm),
            **forward.sight.whole(forward.query), **forward.sizes, depth=shape.depth,
            first_row=first, row_count=rows, **steps("doutput", self.doutput),
            scores_head=scores.stride(0), scores_row=scores.stride(1), size=self.norm[0].numel(),
            ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=launch.depth, ADD=first > 0,
            PRECISION=forward.precision, EIGHTS=in_eights(self.doutput), num_warps=4,
        )  # fmt: skip

    def to_key(self, prepared: Prepared, dscores: Tensor, first: int, rows: int) -> None:
        """Add the gradient of the keys from query rows `first` to first + rows - 1 to self.dkey.

        If `first` is 0, self.dkey is not initialised yet and is overwritten.

        prepared: e^2q and e^2k, in row-major order.
        dscores: gradient of v . tanh(q + k) for these rows."""
        forward, shape, launch = self.forward, self.shape, self.launch
        owned = 4 * launch.fours
        grid = -(-shape.keys // owned), -(-shape.width // launch.channels), self.key_sequences
        additive_key_backward_kernel[grid](
            forward.query, forward.key, forward.vector, prepared.query, prepared.key, dscores, self.dkey,
            *forward.split(prepared.reach), *self.whole(prepared),
            **forward.sight.by_position(forward.query), **forward.sizes, width=shape.width, pitch=shape.pitch,
            **forward.sources, zero=0, **forward.tiles, first_row=first, row_count=rows,
            dscores_head=dscores.stride(0), dscores_row=dscores.stride(1),
            ROWS=launch.rows, COLUMNS=launch.columns, LANES=32 * launch.warps, ADD=first > 0,
            FOURS=launch.fours, EXACT=forward.centred,
            APPROXIMATE=forward.approximate, num_warps=launch.warps,
        )  # fmt: skip

    def to_query(self, prepared: Prepared, turned: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """Return the gradient of query rows `first` to first + rows - 1, and partial sums for the vector v.

        prepared: e^2q and e^2k, in row-major order.
        turned: gradient of v . tanh(q + k) for these rows, transposed.

        Returns:
        1. gradient of the query, (parts, B, H, rows, D); the caller sums it over the parts. If there is one
            part, it is a view of self.dquery.
        2. partial sums of the gradient of the vector v, (B, H, parts, D); to_vector() adds them.
        """
        forward, shape, launch = self.forward, self.shape, self.launch
        grid = -(-rows // (4 * launch.fours)), -(-shape.width // launch.channels)
        key_tiles = shape.tiles[1]
        parts = shape.key_parts(self.sequences * grid[0] * grid[1] * launch.warps, key_tiles, turned.device)
        part_tiles = -(-key_tiles // parts)
        parts = -(-key_tiles // part_tiles)
        place = self.dquery[None, :, :, first : first + rows]
        if parts > 1:
            place = forward.new(parts, *place.shape[1:])
        dvector = forward.new(shape.batch, shape.heads, parts * grid[0] * launch.fours, shape.width)
        additive_query_backward_kernel[(*grid, self.sequences * parts)](
            forward.query, forward.key, forward.vector, prepared.query, prepared.key, turned, place, dvector,
            *forward.split(prepared.reach), *self.whole(prepared),
            **forward.sight.by_position(forward.query), **forward.sizes, width=shape.width, pitch=shape.pitch,
            **forward.sources, zero=0, **forward.tiles, first_row=first, row_count=rows,
            parts=parts, part_tiles=part_tiles, dscores_head=turned.stride(0), turned_row=turned.stride(1),
            dquery_part=place.stride(0), dquery_head=place.stride(2),
            dvector_row=shape.width, ROWS=launch.rows, COLUMNS=launch.columns,
            LANES=32 * launch.warps, FOURS=launch.fours, EXACT=forward.centred,
            APPROXIMATE=forward.approximate, num_warps=launch.warps, maxnreg=launch.registers,
        )  # fmt: skip
        return place, dvector

    def at_once(self, dscores: Tensor) -> Tensor:
        """Compute the gradients of query, key and vector with one kernel, additive_decode_backward_kernel.

        It requires one query per sequence, and as many key heads as query heads. Writes self.dquery and
        self.dkey; returns partial sums of the gradient of the vector v, (B, H, parts, D)."""
        forward, shape, launch = self.forward, self.shape, self.launch
        some, width = shape.decode_tile(dscores.device)
        grid, tiles = -(-shape.width // width), -(-shape.keys // some)
        parts = shape.key_parts(self.sequences * grid * launch.warps, tiles, dscores.device)
        if tiles <= FEW_TILES and not self.others:
            parts = 1
        part_keys = -(-tiles // parts) * some
        parts = -(-shape.keys // part_keys)
        dquery = self.dquery if parts == 1 else forward.new(parts, *self.dquery.shape)
        dvector = forward.new(parts, shape.batch, shape.heads, shape.width)
        sources = {name: step for name, step in forward.sources.items() if name != "query_row"}
        additive_decode_backward_kernel[(grid, self.sequences, parts)](
            forward.query, forward.key, forward.vector, dscores, dquery, self.dkey, dvector,
            **forward.sight.by_length(forward.query),
            heads=shape.heads, keys=shape.keys, width=shape.width, **sources, dscores_head=dscores.stride(0),
            part_keys=part_keys, dquery_part=self.dquery.numel(), dquery_batch=dquery.stride(-4),
            dquery_head=dquery.stride(-3), dvector_part=dvector.stride(0),
            COLUMNS=some, WIDTH=width, OTHERS=self.others, APPROXIMATE=forward.approximate,
            num_warps=launch.warps,
        )  # fmt: skip
        if parts > 1:
            self.dquery.copy_(dquery.sum(0))
        return dvector.movedim(0, 2)
