"""The backward pass of additive attention: launches its kernels, on one chunk of query rows at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive.backward_kernels import (
    additive_key_backward_kernel,
    additive_query_backward_kernel,
)
from regard.kernels.additive.decode import additive_decode_backward_kernel
from regard.kernels.additive.forward import Forward, Prepared, in_eights, in_rows, steps
from regard.kernels.additive.joint_backward import fills_groups, joint_gradients, rows_at_once
from regard.kernels.additive.weights import (
    additive_balance_kernel,
    additive_value_backward_kernel,
    additive_weigh_kernel,
)
from regard.kernels.launch import FEW, up

__all__ = ["Backward"]

JOINT = ("short", "middle", "long")
"""The kinds of shapes for which the gradients of query, key and vector are computed in one pass, in half
precision; see joint_backward.py."""


class Weighed(NamedTuple):
    """g, the gradient of v . tanh(q + k), for a chunk of query rows. Sizes are rounded up to whole tiles.

    dscores: g in float32, (B H, rows, keys); not written if Backward.joint is True.
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
        self.dquery = forward.query.new_empty(forward.query.shape)
        self.joint = self.others and shape.kind in JOINT and fills_groups(self)
        in_parts = self.joint and rows_at_once(self, shape.queries) < shape.queries
        self.dkey = self.place(forward.key, several or in_parts)
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
        if self.joint:
            dquery, dvector = joint_gradients(self, self.rows, weighed, first, rows)
        else:
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
            STRAIGHT=not self.joint, TURNED=turned, BIAS=dbias is not None,
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
        part_keys = -(-tiles // parts) * some
        parts = -(-shape.keys // part_keys)
        dquery = self.dquery if parts == 1 else forward.new(parts, *self.dquery.shape)
        dvector = forward.new(parts, shape.batch, shape.heads, shape.width)
        sources = {name: step for name, step in forward.sources.items() if name != "query_row"}
        additive_decode_backward_kernel[(grid, self.sequences, parts)](
            forward.query, forward.key, forward.vector, dscores, dquery, self.dkey, dvector,
            **forward.sight.by_length(forward.query),
            heads=shape.heads, keys=shape.keys, width=shape.width, **sources, dscores_head=dscores.stride(0),
            part_keys=part_keys, dquery_part=self.dquery.numel(), dvector_part=dvector.stride(0),
            COLUMNS=some, WIDTH=width, OTHERS=self.others, APPROXIMATE=forward.approximate,
            num_warps=launch.warps,
        )  # fmt: skip
        if parts > 1:
            self.dquery.copy_(dquery.sum(0))
        return dvector.movedim(0, 2)
