"""The backward pass: some rows at a time, from scores to their gradient, and from there to everything."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels.additive_backward import additive_key_backward_kernel, additive_query_backward_kernel
from regard.kernels.additive_decode import additive_decode_backward_kernel
from regard.kernels.additive_weights import (
    additive_balance_kernel,
    additive_value_backward_kernel,
    additive_weigh_kernel,
)
from regard.kernels.forward_pass import Forward, Prepared, in_eights, in_rows, steps
from regard.kernels.launch import up

__all__ = ["Backward"]


class Backward:
    """One call on its way back. scores: those held, or nothing. others: whether the gradients of key, value
    and vector are wanted too."""

    def __init__(self, forward: Forward, doutput: Tensor, norm: Tensor, scores: Tensor, others: bool):
        self.forward, self.doutput, self.others = forward, in_rows(doutput), others
        self.norm, self.held = norm, scores
        self.shape, self.launch = forward.shape, forward.launch
        self.sequences = self.shape.batch * self.shape.heads
        self.key_sequences = self.shape.batch * self.shape.key_heads

    def run(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of query, key, value and vector."""
        forward, shape = self.forward, self.shape
        chunks = range(0, shape.queries, shape.chunk)
        several = len(chunks) > 1
        prepared = None if self.held.numel() else forward.prepared()
        self.alone = shape.kind == "decode" and shape.groups == 1
        self.rows: Prepared | None = None if self.alone else forward.prepared(turned=False)
        self.dquery = forward.query.new_empty(forward.query.shape)
        # What is added up over chunks is added up in float32.
        dtype = torch.float32 if several else forward.key.dtype
        self.dkey = forward.key.new_empty(forward.key.shape if self.others else (0,), dtype=dtype)
        self.dvalue = forward.value.new_empty(forward.value.shape if self.others else (0,), dtype=dtype)
        dvector = None
        for first in chunks:
            rows = min(shape.chunk, shape.queries - first)
            scores = self.held
            if prepared is not None:
                parts = forward.scores(prepared, first, rows)
                scores = parts[0] if len(parts) == 1 else parts.sum(0)
            found = self.chunk(scores, first, rows)
            dvector = found if dvector is None else dvector + found
        assert dvector is not None
        if not self.others:
            dvector = dvector.new_empty(0)
        elif forward.vector.shape[0] == 1:
            dvector = dvector.sum(0, keepdim=True)
        return (
            self.dquery,
            self.dkey.to(forward.key.dtype),
            self.dvalue.to(forward.value.dtype),
            dvector.to(forward.vector.dtype),
        )

    def chunk(self, scores: Tensor, first: int, rows: int) -> Tensor:
        """Add what some rows send back; what they send to the vector, by head, (H, D)."""
        if self.others:
            self.to_value(scores, first, rows)
        dscores, turned = self.weighed(scores, first, rows, turned=not self.alone)
        if self.rows is None:
            return self.at_once(dscores)
        if self.others:
            self.to_key(self.rows, dscores, first, rows)
        return self.to_query(self.rows, turned, first, rows)

    def weighed(self, scores: Tensor, first: int, rows: int, turned: bool) -> tuple[Tensor, Tensor]:
        """The gradient of the scores, and the same turned, in whole tiles: first that of the weights, then,
        once what a row's weights make of it is known, that of the scores in its place."""
        forward, shape, launch = self.forward, self.shape, self.launch
        whole = up(rows, launch.rows), up(shape.keys, launch.columns)
        dscores = forward.new(self.sequences, *whole)
        other = forward.new(self.sequences, whole[1], whole[0]) if turned else dscores
        grid = whole[0] // launch.rows, whole[1] // launch.columns, self.sequences
        deltas = forward.new(self.sequences, grid[1], whole[0])
        both = {
            **forward.sight.whole(forward.query), **forward.sizes, "first_row": first, "row_count": rows,
            "scores_head": scores.stride(0), "scores_row": scores.stride(1),
            "dscores_head": dscores.stride(0), "dscores_row": dscores.stride(1),
            "key_tiles": grid[1], "size": self.norm[0].numel(),
            "ROWS": launch.rows, "COLUMNS": launch.columns, "num_warps": 4,
        }  # fmt: skip
        additive_weigh_kernel[grid](
            scores, self.norm, forward.value, self.doutput, dscores, deltas, **both, depth=shape.depth,
            **steps("value", forward.value), **steps("doutput", self.doutput),
            DEPTH=launch.depth, PRECISION=forward.precision,
            EIGHTS=in_eights(forward.value, self.doutput),
        )  # fmt: skip
        additive_balance_kernel[grid](
            scores, self.norm, dscores, other, deltas, **both, scale=forward.scale,
            turned_row=other.stride(1), TURNED=turned,
        )  # fmt: skip
        return dscores, other

    def to_value(self, scores: Tensor, first: int, rows: int) -> None:
        """The gradient of the values from some rows."""
        forward, shape, launch = self.forward, self.shape, self.launch
        grid = -(-shape.keys // launch.columns), -(-shape.depth // launch.depth), self.key_sequences
        additive_value_backward_kernel[grid](
            scores, self.norm, self.doutput, self.dvalue,
            **forward.sight.whole(forward.query), **forward.sizes, depth=shape.depth,
            first_row=first, row_count=rows, **steps("doutput", self.doutput),
            scores_head=scores.stride(0), scores_row=scores.stride(1), size=self.norm[0].numel(),
            ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=launch.depth, ADD=first > 0,
            PRECISION=forward.precision, EIGHTS=in_eights(self.doutput), num_warps=4,
        )  # fmt: skip

    def to_key(self, made: Prepared, dscores: Tensor, first: int, rows: int) -> None:
        """The gradient of the keys from some rows."""
        forward, shape, launch = self.forward, self.shape, self.launch
        owned = 4 * launch.fours
        grid = -(-shape.keys // owned), -(-shape.width // launch.channels), self.key_sequences
        additive_key_backward_kernel[grid](
            forward.query, forward.key, forward.vector, made.query, made.key, dscores, self.dkey,
            *forward.split(made.reach),
            **forward.sight.by_position(forward.query), **forward.sizes, width=shape.width, pitch=shape.pitch,
            **forward.sources, zero=0, **forward.tiles, first_row=first, row_count=rows,
            dscores_head=dscores.stride(0), dscores_row=dscores.stride(1),
            ROWS=launch.rows, COLUMNS=launch.columns, LANES=32 * launch.warps, ADD=first > 0,
            FOURS=launch.fours, EXACT=forward.centred, APPROXIMATE=forward.approximate,
            num_warps=launch.warps,
        )  # fmt: skip

    def to_query(self, made: Prepared, turned: Tensor, first: int, rows: int) -> Tensor:
        """The gradient of some rows of the query; what they send to the vector, by head, (H, D)."""
        forward, shape, launch = self.forward, self.shape, self.launch
        grid = -(-rows // (4 * launch.fours)), -(-shape.width // launch.channels)
        key_tiles = shape.tiles[1]
        parts = shape.key_parts(self.sequences * grid[0] * grid[1] * launch.warps, key_tiles, turned.device)
        part_tiles = -(-key_tiles // parts)
        parts = -(-key_tiles // part_tiles)
        place = self.dquery[:, :, first:]
        if parts > 1:
            place = forward.new(parts, shape.batch, shape.heads, rows, shape.width)
        dvector = forward.new(shape.batch, shape.heads, parts * grid[0] * launch.fours, shape.width)
        additive_query_backward_kernel[(*grid, self.sequences * parts)](
            forward.query, forward.key, forward.vector, made.query, made.key, turned, place, dvector,
            *forward.split(made.reach),
            **forward.sight.by_position(forward.query), **forward.sizes, width=shape.width, pitch=shape.pitch,
            **forward.sources, zero=0, **forward.tiles, first_row=first, row_count=rows,
            parts=parts, part_tiles=part_tiles, dscores_head=turned.stride(0), turned_row=turned.stride(1),
            dquery_part=place.stride(0) if parts > 1 else 0, dquery_head=place.stride(-3),
            dvector_row=shape.width, ROWS=launch.rows, COLUMNS=launch.columns,
            LANES=32 * launch.warps, FOURS=launch.fours, EXACT=forward.centred,
            APPROXIMATE=forward.approximate, num_warps=launch.warps, maxnreg=launch.registers,
        )  # fmt: skip
        if parts > 1:
            self.dquery[:, :, first : first + rows] = place.sum(0)
        return dvector.sum((0, 2))

    def at_once(self, dscores: Tensor) -> Tensor:
        """All gradients where there is one query a sequence and a key head for each; (H, D) of the vector."""
        forward, shape, launch = self.forward, self.shape, self.launch
        grid, tiles = -(-shape.width // launch.width), -(-shape.keys // launch.some)
        parts = shape.key_parts(self.sequences * grid * launch.warps, tiles, dscores.device)
        part_keys = -(-tiles // parts) * launch.some
        parts = -(-shape.keys // part_keys)
        dquery = self.dquery if parts == 1 else forward.new(parts, *self.dquery.shape)
        dvector = forward.new(parts, shape.batch, shape.heads, shape.width)
        sources = {name: step for name, step in forward.sources.items() if name != "query_row"}
        additive_decode_backward_kernel[(grid, self.sequences, parts)](
            forward.query, forward.key, forward.vector, dscores, dquery, self.dkey, dvector,
            **forward.sight.by_length(forward.query),
            heads=shape.heads, keys=shape.keys, width=shape.width, **sources, dscores_head=dscores.stride(0),
            part_keys=part_keys, dquery_part=self.dquery.numel(), dvector_part=dvector.stride(0),
            COLUMNS=launch.some, WIDTH=launch.width, OTHERS=self.others, APPROXIMATE=forward.approximate,
            num_warps=launch.warps,
        )  # fmt: skip
        if parts > 1:
            self.dquery.copy_(dquery.sum(0))
        return dvector.sum((0, 1)) if self.others else dvector
