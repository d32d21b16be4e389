# mypy: disable-error-code="no-untyped-def"
"""The forward pass of additive attention: online softmax over the keys, and the weighted sum of the values.

Forward launches all kernels of the pass, those of scores.py and decode.py too. score_chunks() gives
the scores to the looking pass.

The keys can be split over several programs of additive_read_kernel (split-K, as in FlashDecoding);
additive_combine_kernel then combines their partial results.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.additive.decode import additive_decode_kernel
from regard.kernels.additive.scores import additive_prepare_kernel, additive_scores_kernel
from regard.kernels.additive.tile_sizes import SPAN, Shape
from regard.kernels.dropout import dropout_factors
from regard.kernels.launch import in_eights, in_rows, precision_of, steps, up
from regard.kernels.mask import end_of, tile_is_seen, visible
from regard.kernels.matrix_product import product
from regard.kernels.tanh import LOG2E

__all__ = [
    "Extra",
    "Forward",
    "Prepared",
    "Sight",
    "score_chunks",
]


@triton.jit
def _joined(best, total, output, scores, value, factors, DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax: return row maximum, row sum and output after one more tile of keys.

    best: row maximum of the tiles so far, (ROWS,).
    total: row sum of exp(score - maximum) so far, (ROWS,).
    output: sum of exp(score - maximum) value so far, (ROWS, DEPTH).
    scores: the scores of the new tile, -inf where masked, (ROWS, COLUMNS).
    value: the values of the new tile, (COLUMNS, DEPTH).
    factors: if DROPOUT is True, the dropout factors of the weights of the new tile, (ROWS, COLUMNS).
    """
    highest = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2((scores - level[:, None]) * LOG2E)
    shrink = tl.exp2((best - level) * LOG2E)
    total = total * shrink + tl.sum(weights, 1)
    output = output * shrink[:, None]
    if DROPOUT:
        weights = weights * factors
    output = product(weights.to(value.dtype), value, output, PRECISION)
    return highest, total, output


@triton.jit
def _finish(
    best, total, found, output, lse, norm, place, at, rows_inside, inside, part, size, depth, first,
    PARTED: tl.constexpr,
):  # fmt: skip
    """Write the results of the online softmax: output, lse and norm.

    best, total, found: the accumulators of _joined(): row maximum, row sum and output.
    norm: row maximum and 1 / total, (2, rows), from which the backward pass recomputes the weights.
    place: index of each row.
    at: index of each output element.
    size: number of rows.
    first: whether this program computes the first output channels. If False, it writes only `output`. The
        program with the first channels writes lse and norm of the same rows.
    PARTED: whether the keys are split into parts. If True, this program has processed one part, number
        `part`. It writes the following partial results, which additive_combine_kernel combines:
        output: the accumulator `found`, not divided by total, (parts, rows, E).
        norm: row maximum and total, (parts, 2, rows).
        lse: not written.
    """
    level = tl.where(best == float("-inf"), 0.0, best)
    if PARTED:
        norm += part * 2 * size
        tl.store(output + part * size * depth + at, found, mask=inside)
        tl.store(norm + place, best, mask=rows_inside & first)
        tl.store(norm + size + place, total, mask=rows_inside & first)
    else:
        something = tl.where(total == 0.0, 1.0, total)
        tl.store(output + at, found / something[:, None], mask=inside)
        sums = tl.where(total == 0.0, float("-inf"), level + tl.log(something))
        tl.store(lse + place, sums, mask=rows_inside & first)
        tl.store(norm + place, level, mask=rows_inside & first)
        tl.store(norm + size + place, 1.0 / something, mask=rows_inside & first)


@triton.jit
def additive_read_kernel(
    scores, held, value, output, lse, norm, seed, dropout, lengths, document_of_query, document_of_key,
    length_step, start, left, right, documents_query_step, documents_key_step,
    heads, groups, queries, keys, depth, first_row, row_count, value_batch, value_head, value_row,
    scores_part, scores_head, scores_row, parts, key_tiles, part_tiles, size,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, HOLD: tl.constexpr,
    SCORE_PARTS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PARTED: tl.constexpr,
    EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute mask and softmax for ROWS query rows, and DEPTH channels of their output, weights @ value.

    scores: reads (SCORE_PARTS, B H, rows, S): partial sums over the channels. The kernel adds the parts.
    held: if HOLD is True, writes the complete scores for the backward pass, (B H, rows, S).
    seed, dropout: used if DROPOUT is True; see kernels/dropout.py.
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T); if PARTED is True, writes partial
        results instead (see _finish()).
    parts: number of parts into which the keys are split.
    part_tiles: number of key tiles in each part.
    Launch grid: (row tiles, blocks of DEPTH channels, B H * parts).
    """
    if EIGHTS:
        depth, value_row = depth // 8 * 8, value_row // 8 * 8
        value_batch, value_head = value_batch // 8 * 8, value_head // 8 * 8
    both = tl.program_id(2).to(tl.int64) // parts
    part = tl.program_id(2) % parts
    batch, head = both // heads, both % heads
    local = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = first_row + tl.program_id(0) * ROWS
    rows = first_row + local
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    value_base = value + batch * value_batch + head // groups * value_head
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DEPTH], tl.float32)
    last = first_row + row_count
    for tile in range(part * part_tiles, tl.minimum((part + 1) * part_tiles, key_tiles)):
        column = tile * COLUMNS
        if tile_is_seen(row, column, last, end, start, left, right, ROWS, COLUMNS, LEFT, RIGHT):
            columns = column + tl.arange(0, COLUMNS)
            seen = visible(
                rows, columns, last, end, start, left, right,
                document_of_query + batch * documents_query_step,
                document_of_key + batch * documents_key_step, LEFT, RIGHT, DOCUMENTS,
            )  # fmt: skip
            at = both * scores_head + local.to(tl.int64)[:, None] * scores_row + columns[None, :]
            these = tl.load(scores + at, mask=seen, other=0.0)
            for each in tl.static_range(1, SCORE_PARTS):  # unrolled, so that all loads are in flight at once
                these += tl.load(scores + each * scores_part + at, mask=seen, other=0.0)
            if HOLD & (tl.program_id(1) == 0):
                tl.store(held + at, these, mask=seen)
            values = tl.load(
                value_base + columns.to(tl.int64)[:, None] * value_row + channels[None, :],
                mask=(columns < end)[:, None] & (channels < depth)[None, :], other=0.0,
            )  # fmt: skip
            these = tl.where(seen, these, float("-inf"))
            factors = these
            if DROPOUT:
                factors = dropout_factors(seed, dropout, both, rows, columns, queries, keys)
            best, total, found = _joined(best, total, found, these, values, factors, DROPOUT, PRECISION)
    place = both * row_count + local if PARTED else both * queries + rows
    at = place[:, None] * depth + channels[None, :]
    inside = (rows < last)[:, None] & (channels < depth)[None, :]
    _finish(
        best, total, found, output, lse, norm, place, at, rows < last, inside, part.to(tl.int64), size,
        depth, tl.program_id(1) == 0, PARTED,
    )  # fmt: skip


@triton.jit
def additive_combine_kernel(
    outputs, norms, output, lse, norm, size, part_size, queries, first_row, row_count, depth, parts,
    ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute output, lse and norm from the partial results for several parts of the keys (split-K).

    outputs, norms: reads the partial results of additive_read_kernel, (parts, rows, E) and (parts, 2, rows),
        where rows = part_size = B * H * row_count.
    output, lse, norm: writes (B, H, T, E), (B, H, T) and (2, B, H, T).
    size: B * H * T.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    wide = tl.full([], 0, tl.int64) + part_size
    channels = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    inside = (rows < part_size)[:, None] & (channels < depth)[None, :]
    at = rows[:, None] * depth + channels[None, :]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    for part in tl.range(0, parts, loop_unroll_factor=8):  # so that several loads are in flight at once
        best = tl.maximum(best, tl.load(norms + part * 2 * wide + rows, mask=rows < part_size, other=0.0))
    level = tl.where(best == float("-inf"), 0.0, best)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DEPTH], tl.float32)
    for part in tl.range(0, parts, loop_unroll_factor=8):
        norms_here = norms + part * 2 * wide + rows
        shrink = tl.exp2((tl.load(norms_here, mask=rows < part_size, other=0.0) - level) * LOG2E)
        total += shrink * tl.load(norms_here + wide, mask=rows < part_size, other=0.0)
        found += shrink[:, None] * tl.load(outputs + part * wide * depth + at, mask=inside, other=0.0)
    place = rows // row_count * queries + first_row + rows % row_count
    at = place[:, None] * depth + channels[None, :]
    _finish(
        best, total, found, output, lse, norm, place, at, rows < part_size, inside, 0, size,
        depth, tl.program_id(1) == 0, False,
    )  # fmt: skip


class Prepared(NamedTuple):
    """The results of additive_prepare_kernel, float32, int8 or int32.

    query, key: e^2q and e^2k (see exponential() in tanh.py), in transposed tiles or in row-major order.
    vector: -2 v, padded with zeros.
    reach: the largest |q| or |k| in each tile and span, (query tiles + key tiles, spans). A span is a range
        of SPAN channels.
    wide: the flags of each channel of a tile (see is_wide() in tanh.py), (query tiles + key tiles, channels),
        int8; only if the exponentials are in transposed tiles.
    whole: the flags of each channel of a sequence, (B H + B K, channels), int32; only if the exponentials are
        in row-major order.
    """

    query: Tensor
    key: Tensor
    vector: Tensor
    reach: Tensor
    wide: Tensor
    whole: Tensor


@dataclass(frozen=True)
class Sight:
    """The mask of a call: which keys j a query at position i may attend to.

    lengths: keys j < length are visible, (B,) or (1,).
    document_of_query, document_of_key: document id of each of the N positions, (B or 1, N); a query sees
        the keys of its own document.
    start: position of the first query; the query with index t has the position i = t + start.
    left, right: keys i - left <= j <= i + right are visible; a causal mask has right = 0.

    A key is visible if all parts of the mask allow it. None means no restriction.
    """

    lengths: Tensor | None
    document_of_query: Tensor | None
    document_of_key: Tensor | None
    start: int
    left: int | None
    right: int | None

    def by_length(self, anything: Tensor) -> dict[str, Any]:
        """Return the mask as keyword arguments for kernels that mask by length only.

        anything: any tensor. It is passed in place of a tensor that is None, and is not read."""
        lengths = self.lengths
        return {
            "lengths": anything if lengths is None else lengths,
            "length_step": 0 if lengths is None or lengths.shape[0] == 1 else lengths.stride(0),
            "LENGTHS": lengths is not None,
        }

    def by_position(self, anything: Tensor) -> dict[str, Any]:
        """Return the mask as keyword arguments for kernels that mask by length and window.

        anything: any tensor. It is passed in place of a tensor that is None, and is not read."""
        return self.by_length(anything) | {
            "start": self.start,
            "left": self.left or 0,
            "right": self.right or 0,
            "LEFT": self.left is not None,
            "RIGHT": self.right is not None,
        }

    def whole(self, anything: Tensor) -> dict[str, Any]:
        """Return the mask as keyword arguments for kernels that mask by length, window and document.

        anything: any tensor. It is passed in place of a tensor that is None, and is not read."""
        of_query, of_key = self.document_of_query, self.document_of_key
        documents = {
            "document_of_query": anything if of_query is None else of_query,
            "document_of_key": anything if of_key is None else of_key,
            "documents_query_step": 0 if of_query is None or of_query.shape[0] == 1 else of_query.stride(0),
            "documents_key_step": 0 if of_key is None or of_key.shape[0] == 1 else of_key.stride(0),
            "DOCUMENTS": of_query is not None,
        }
        return documents | self.by_position(anything)


class Extra(NamedTuple):
    """What a call can have besides a mask: a bias and dropout.

    bias: added to v . tanh(q + k), (B or 1, H or 1, T or 1, S or 1); -inf hides a key from a query.
    seed: seed of the dropout, an int64 tensor with one element; None for no dropout.
    dropout: probability of dropping a weight.
    """

    bias: Tensor | None = None
    seed: Tensor | None = None
    dropout: float = 0.0

    def of_bias(self, anything: Tensor) -> dict[str, Any]:
        """Return the bias as keyword arguments of a kernel; `anything` is passed if there is no bias."""
        bias = anything if self.bias is None else self.bias
        strides = (step if size > 1 else 0 for step, size in zip(bias.stride(), bias.shape, strict=True))
        names = ("bias_batch", "bias_head", "bias_row", "bias_column")
        return {"bias": bias, "BIAS": self.bias is not None, **dict(zip(names, strides, strict=True))}

    def of_dropout(self, anything: Tensor) -> dict[str, Any]:
        """Return the dropout as keyword arguments; `anything` is passed if there is no dropout."""
        seed = anything if self.seed is None else self.seed
        return {"seed": seed, "dropout": self.dropout, "DROPOUT": self.seed is not None}


NO_EXTRA = Extra()
"""No bias and no dropout."""


class Forward:
    """The forward pass of one call of additive attention.

    query: (B, H, T, D).
    key: (B, K, S, D).
    value: (B, K, S, E).
    vector: v in the score scale * v . tanh(q + k), (1 or H, D).
    sight: the mask.
    hold: whether to keep the scores, so that the backward pass need not recompute them. If there are too many
        scores (see Shape.held), they are not kept.
    back: whether this object is created for the backward pass, which takes the shapes and launch parameters
        from it and recomputes the scores with it.
    extra: bias and dropout.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        vector: Tensor,
        sight: Sight,
        scale: float,
        hold: bool,
        back: bool = False,
        extra: Extra = NO_EXTRA,
    ):
        self.query, self.key, self.value, self.vector = map(in_rows, (query, key, value, vector))
        self.sight, self.scale, self.extra = sight, scale, extra
        self.shape = Shape.of(query, key, value, back)
        self.hold = hold and self.shape.held
        self.launch = self.shape.launch
        self.precision = precision_of(value)
        self.centred = value.dtype == torch.float32  # more precise sums; see shared_sum() in tanh.py
        self.approximate = not interpreting()
        shape = self.shape
        self.sizes = {
            "heads": shape.heads,
            "groups": shape.groups,
            "queries": shape.queries,
            "keys": shape.keys,
        }
        self.sources = {
            **steps("query", self.query),
            **steps("key", self.key),
            "vector_head": 0 if self.vector.shape[0] == 1 else self.vector.stride(0),
        }
        self.tiles = {"query_tiles": shape.tiles[0], "key_tiles": shape.tiles[1], "spans": shape.spans}

    def run(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return output, lse, norm, and the scores if they are kept (otherwise an empty tensor).

        norm: for each query, the maximum of its scores and 1 / sum of exp(score - maximum), (2, B, H, T).
        """
        shape = self.shape
        self.output = self.value.new_empty(shape.batch, shape.heads, shape.queries, shape.depth)
        self.lse = self.new(shape.batch, shape.heads, shape.queries)
        self.norm = self.new(2, *self.lse.shape)
        if shape.kind == "decode":
            scores = self.decoded()
            self.read(scores[None], 0, 1, None)
        else:
            scores = self.scores_and_read(self.prepared())
        return self.output, self.lse, self.norm, scores if self.hold else self.new(0)

    def new(self, *sizes: int) -> Tensor:
        """Allocate an uninitialised float32 tensor of this shape on the device of the query."""
        return self.query.new_empty(sizes, dtype=torch.float32)

    def prepared(self, turned: bool = True) -> Prepared:
        """Compute e^2q and e^2k, in transposed tiles if `turned` is True, otherwise in row-major order."""
        shape, launch = self.shape, self.launch
        sequences, key_sequences = shape.batch * shape.heads, shape.batch * shape.key_heads
        tiles, key_tiles = shape.tiles
        padded = shape.padded if turned else shape.pitch
        programs, key_programs = sequences * tiles, key_sequences * key_tiles
        rows = sequences, up(shape.queries, 4), shape.pitch
        key_rows = key_sequences, up(shape.keys, 4), shape.pitch
        flags = (0 if turned else sequences + key_sequences), padded
        prepared = Prepared(
            self.new(*((programs, shape.padded, launch.rows) if turned else rows)),
            self.new(*((key_programs, shape.padded, launch.columns) if turned else key_rows)),
            self.new(self.vector.shape[0], padded),
            self.new(programs + key_programs, shape.spans),
            self.query.new_empty((programs + key_programs) if turned else 0, padded, dtype=torch.int8),
            self.query.new_zeros(flags, dtype=torch.int32),
        )
        additive_prepare_kernel[(programs + key_programs + self.vector.shape[0], shape.spans)](
            self.query, self.key, self.vector, prepared.query, prepared.key, prepared.vector,
            *self.split(prepared.reach), *self.split(prepared.wide),
            prepared.whole[:sequences], prepared.whole[sequences:],
            **self.sight.by_length(self.query),
            heads=shape.heads, key_heads=shape.key_heads, queries=shape.queries, keys=shape.keys,
            width=shape.width, padded=padded, **self.sources,
            query_programs=programs, key_programs=key_programs, query_tiles=tiles, key_tiles=key_tiles,
            ROWS=launch.rows, COLUMNS=launch.columns, WIDTH=64, SPAN=SPAN, TURNED=turned,
            PRECISE=self.centred, EIGHTS=in_eights(self.query, self.key), num_warps=4,
        )  # fmt: skip
        return prepared

    def padded_sources(self) -> dict[str, int]:
        """Return the strides of query, key and Prepared.vector as keyword arguments of a kernel."""
        return self.sources | {"vector_head": 0 if self.vector.shape[0] == 1 else self.shape.padded}

    def split(self, of_tiles: Tensor) -> tuple[Tensor, Tensor]:
        """Split Prepared.reach or Prepared.wide into the values of query tiles and those of key tiles."""
        programs = self.shape.batch * self.shape.heads * self.shape.tiles[0]
        return of_tiles[:programs], of_tiles[programs:]

    def scores(self, prepared: Prepared, first: int, rows: int) -> Tensor:
        """Compute the scores of `rows` query rows, from row `first` on, in parts: (parts, B H, rows, S).

        Each part is the sum over some of the channels. The sum of the parts is the score."""
        shape, launch = self.shape, self.launch
        sequences = shape.batch * shape.heads
        parts = shape.channel_parts(rows, self.query.device)
        part_width = up(-(-shape.padded // parts), launch.group * launch.unroll)
        parts = -(-shape.padded // part_width)
        scores = self.new(parts, sequences, rows, shape.keys)
        additive_scores_kernel[(-(-rows // launch.rows), shape.tiles[1], sequences * parts)](
            self.query, self.key, prepared.vector, prepared.query, prepared.key, *self.split(prepared.reach),
            *self.split(prepared.wide), scores=scores, **self.extra.of_bias(self.query),
            **self.sight.by_position(self.query), **self.sizes, padded=shape.padded,
            scale=self.scale, **self.padded_sources(), **self.tiles, first_tile=first // launch.rows,
            parts=parts, part_width=part_width, scores_part=scores.stride(0),
            scores_head=scores.stride(1), scores_row=scores.stride(2), ROWS=launch.rows,
            COLUMNS=launch.columns, GROUP=launch.group, UNROLL=launch.unroll, CENTRED=self.centred,
            APPROXIMATE=self.approximate, num_warps=max(1, launch.rows * launch.columns // 512),
            maxnreg=launch.score_registers,
        )  # fmt: skip
        return scores

    def decoded(self) -> Tensor:
        """Compute the scores of the single query of each sequence: (B H, 1, S)."""
        shape = self.shape
        columns, width = shape.decode_tile(self.query.device)
        scores = self.new(shape.batch * shape.heads, 1, shape.keys)
        sizes = {name: size for name, size in self.sizes.items() if name != "queries"}
        sources = {name: step for name, step in self.sources.items() if name != "query_row"}
        bias = {name: step for name, step in self.extra.of_bias(self.query).items() if name != "bias_row"}
        additive_decode_kernel[(-(-shape.keys // columns), shape.batch * shape.heads)](
            self.query, self.key, self.vector, scores=scores, **bias,
            **self.sight.by_length(self.query),
            **sizes, width=shape.width, scale=self.scale, **sources, scores_head=scores.stride(0),
            COLUMNS=columns, WIDTH=width, APPROXIMATE=self.approximate,
            num_warps=self.launch.warps,
        )  # fmt: skip
        return scores

    def scores_and_read(self, prepared: Prepared) -> Tensor:
        """Compute the scores, self.output, self.lse and self.norm, one chunk of query rows at a time.

        Returns the scores of the last chunk. If scores are kept (self.hold), there is only one chunk, so
        these are all scores."""
        shape, held = self.shape, self.new(0)
        for first in range(0, shape.queries, shape.chunk):
            rows = min(shape.chunk, shape.queries - first)
            scores = self.scores(prepared, first, rows)
            added = self.new(*scores.shape[1:]) if self.hold and len(scores) > 1 else None
            self.read(scores, first, rows, added)
            held = scores[0] if added is None else added
        return held

    def read(self, scores: Tensor, first: int, rows: int, held: Tensor | None) -> None:
        """Write self.output, self.lse and self.norm of query rows `first` to first + rows - 1.

        scores: (parts, B H, rows, S). Each part is the sum over some of the channels; the sum of the parts is
            the score.
        held: if not None, the sum of the parts is written to it."""
        shape, launch = self.shape, self.launch
        sequences, tiles = shape.batch * shape.heads, -(-shape.keys // launch.read_columns)
        grid = -(-rows // launch.read_rows), -(-shape.depth // launch.depth)
        parts = shape.key_parts(sequences * grid[0] * grid[1] * 4, tiles, self.query.device)
        if parts == 2:  # two parts save less time than the kernel that combines them takes
            parts = 1
        part_tiles = -(-tiles // parts)
        parts = -(-tiles // part_tiles)
        output, norm, size = self.output, self.norm, self.lse.numel()
        if parts > 1:
            size = sequences * rows
            output, norm = self.new(parts, size, shape.depth), self.new(parts, 2, size)
        additive_read_kernel[(*grid, sequences * parts)](
            scores, scores if held is None else held, self.value, output, self.lse, norm,
            **self.extra.of_dropout(self.query), **self.sight.whole(self.query), **self.sizes,
            depth=shape.depth, first_row=first, row_count=rows, **steps("value", self.value),
            SCORE_PARTS=len(scores), scores_part=scores.stride(0),
            scores_head=scores.stride(1), scores_row=scores.stride(2), parts=parts, key_tiles=tiles,
            part_tiles=part_tiles, size=size,
            ROWS=launch.read_rows, COLUMNS=launch.read_columns, DEPTH=launch.depth, HOLD=held is not None,
            PRECISION=self.precision, PARTED=parts > 1, EIGHTS=in_eights(self.value), num_warps=4,
        )  # fmt: skip
        if parts > 1:
            self.combine(output, norm, first, rows)

    def combine(self, outputs: Tensor, norms: Tensor, first: int, rows: int) -> None:
        """Combine the partial results of all parts of the keys, for query rows `first` to first + rows - 1.

        Writes these rows of self.output, self.lse and self.norm.

        outputs, norms: the result of additive_read_kernel for each part, as in additive_combine_kernel."""
        shape, block = self.shape, self.launch.depth
        parts, part_size = len(outputs), shape.batch * shape.heads * rows
        some = 16 if part_size > 1024 else 4
        additive_combine_kernel[(-(-part_size // some), -(-shape.depth // block))](
            outputs, norms, self.output, self.lse, self.norm,
            size=self.lse.numel(), part_size=part_size, queries=shape.queries, first_row=first,
            row_count=rows, depth=shape.depth, parts=parts, ROWS=some, DEPTH=block, num_warps=1,
        )  # fmt: skip


def score_chunks(
    query: Tensor, key: Tensor, vector: Tensor, sight: Sight, multiple: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of the first query and the scores v . tanh(q + k) of each chunk, (B, H, rows, S).

    query: (B, H, T, D). key: (B, K, S, D). vector: v, (1 or H, D).
    sight: the mask. Scores of hidden keys may be any number, or NaN.
    multiple: the number of rows of each chunk except the last one is a multiple of it; a multiple of 64.

    The scores of one chunk need about as much memory as query and key.
    """
    forward = Forward(query, key, key, vector, sight, 1.0, hold=False)
    shape = forward.shape
    if shape.kind == "decode":
        yield 0, forward.decoded().unflatten(0, (shape.batch, shape.heads))
        return
    prepared = forward.prepared()
    chunk = shape.queries if shape.held else max(shape.chunk // multiple * multiple, multiple)
    for first in range(0, shape.queries, chunk):
        scores = forward.scores(prepared, first, min(chunk, shape.queries - first))
        added = scores[0] if len(scores) == 1 else scores.sum(0)
        yield first, added.unflatten(0, (shape.batch, shape.heads))
