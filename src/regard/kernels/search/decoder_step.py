# mypy: disable-error-code="no-untyped-def"
"""One decoding step of a Transformer, and the attention of a step of Bahdanau's decoder.

*Attention of a Transformer*, a program for each beam and head. The keys and values of all beams of a slot are
in one cache. `history` says which entry of the cache a beam continues at each position, so that the search
does not copy the cache when it reorders beams.

*Embedding, residual connection and layer normalisation*, a program for each row.

*Weights of additive attention*, a program for each beam. additive/decode.py computes scores for one query per
sequence. Here, the beams of a source share its keys, and the softmax is part of the kernel.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

__all__ = [
    "add_and_normalize",
    "additive_step_weights",
    "attend_history",
    "attend_source",
    "embed_and_normalize",
    "reorder_history",
]

HISTORY_COLUMNS, CHANNELS_PER_WARP = 16, 64
"""Self-attention: number of keys in a tile, and number of channels of a head for each warp of a program.

These numbers were the fastest on an H200, with 64 and 256 slots of 5 beams."""

SOURCE_COLUMNS, SOURCE_WARPS = 32, {2: 2, 4: 1}
"""Cross-attention: number of keys in a tile, and number of warps by the number of bytes of an element."""


@triton.jit
def reorder_history_kernel(
    history, parents, position, length, BEAMS: tl.constexpr, BEAMS_UP: tl.constexpr, COLUMNS: tl.constexpr
):
    """Let every beam of a slot continue the history of its parent, and begin a new entry.

    history: reads and writes (slots, length, BEAMS), int32, the entry of each beam at each position.
    parents: reads (slots, BEAMS). position: reads (slots,).
    """
    slot = tl.program_id(0).to(tl.int64)
    beam = tl.arange(0, BEAMS_UP)
    now = tl.load(position + slot)
    parent = tl.load(parents + slot * BEAMS + beam, mask=beam < BEAMS, other=0)
    base = history + slot * length * BEAMS
    for first in range(0, now, COLUMNS):
        place = first + tl.arange(0, COLUMNS)
        inside = (place < now)[:, None] & (beam < BEAMS)[None, :]
        row = place.to(tl.int64)[:, None] * BEAMS
        entry = tl.load(base + row + parent[None, :], mask=inside, other=0)
        tl.debug_barrier()  # all threads have read these positions
        tl.store(base + row + beam[None, :], entry, mask=inside)
    tl.store(base + now * BEAMS + beam, beam, mask=beam < BEAMS)


@triton.jit
def history_attention_kernel(
    joined, cache, history, position, output, heads, width, length, scale,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the self-attention of one beam and head, and store the new key and value in the cache.

    joined: reads (rows, 3, heads, width): query, key and value of the new token.
    cache: reads and writes (slots, length, BEAMS, 2, heads, width).
    history: reads (slots, length, BEAMS). position: reads (slots,).
    output: writes (rows, heads, width).
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, beam = row // BEAMS, row % BEAMS
    model = heads * width
    channel = tl.arange(0, WIDTH)
    there = channel < width
    own = joined + row * 3 * model + head * width + channel
    query = tl.load(own, mask=there, other=0.0).to(tl.float32) * scale
    new_key = tl.load(own + model, mask=there, other=0.0)
    new_value = tl.load(own + 2 * model, mask=there, other=0.0)
    now = tl.load(position + slot)
    base = cache + slot * length * BEAMS * 2 * model + head * width
    new_at = base + (now * BEAMS + beam) * 2 * model + channel
    tl.store(new_at, new_key, mask=there)
    tl.store(new_at + model, new_value, mask=there)
    top = tl.sum(query * new_key.to(tl.float32), 0)
    total, read = 1.0, new_value.to(tl.float32)
    for first in range(0, now, COLUMNS):
        place = (first + tl.arange(0, COLUMNS)).to(tl.int64)
        inside = place < now
        entry = tl.load(history + (slot * length + place) * BEAMS + beam, mask=inside, other=0)
        at = base + ((place * BEAMS + entry) * 2 * model)[:, None] + channel[None, :]
        known = inside[:, None] & there[None, :]
        key = tl.load(at, mask=known, other=0.0).to(tl.float32)
        value = tl.load(at + model, mask=known, other=0.0).to(tl.float32)
        score = tl.where(inside, tl.sum(query[None, :] * key, 1), -float("inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        weight, kept = tl.exp(score - higher), tl.exp(top - higher)
        total = total * kept + tl.sum(weight, 0)
        read = read * kept + tl.sum(weight[:, None] * value, 0)
        top = higher
    tl.store(
        output + row * model + head * width + channel, (read / total).to(output.dtype.element_ty), mask=there
    )


@triton.jit(do_not_specialize=["site", "sites", "length"])
def source_attention_kernel(
    query, sources, lengths, output, position, looks, site, sites, heads, width, keys, length, scale,
    BEAMS: tl.constexpr, BEAMS_UP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ONE_TILE: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Compute the cross-attention of one slot and head, for all its beams.

    query: reads (rows, heads, width).
    sources: reads (slots, keys, 2, heads, width). lengths: reads (slots,), the number of keys of each slot.
    output: writes (rows, heads, width).
    looks: writes (slots, length, BEAMS, sites, heads, keys) at the position of the slot and at `site`, if
        LOOK is true: the attention weights.
    ONE_TILE: whether one tile contains all keys, so that no loop is needed. The results are the same.
    """
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model = heads * width
    beam, channel = tl.arange(0, BEAMS_UP), tl.arange(0, WIDTH)
    there = channel < width
    tile = (beam < BEAMS)[:, None] & there[None, :]
    own = ((slot * BEAMS + beam) * model + head * width)[:, None] + channel[None, :]
    q = tl.load(query + own, mask=tile, other=0.0)
    end = tl.load(lengths + slot)
    now = tl.load(position + slot) if LOOK else 0  # loaded early, so that other work hides the latency
    base = sources + slot * keys * 2 * model + head * width
    step = (slot * length + now) * BEAMS + beam
    look = (looks + ((step * sites + site) * heads + head) * keys)[:, None]
    used = (beam < BEAMS)[:, None]
    if ONE_TILE:
        place = tl.arange(0, COLUMNS)
        at = base + (place * 2 * model)[:, None] + channel[None, :]
        known = (place < end)[:, None] & there[None, :]
        key = tl.load(at, mask=known, other=0.0)
        value = tl.load(at + model, mask=known, other=0.0)
        score = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
        score = tl.where((place < end)[None, :], score, -float("inf"))
        weight = tl.exp(score - tl.max(score, 1)[:, None])
        total = tl.sum(weight, 1)
        if LOOK:  # before the second product, which hides the time of the store
            shown = (weight / total[:, None]).to(looks.dtype.element_ty)
            tl.store(look + place[None, :], shown, mask=used & (place < end)[None, :])
        read = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    else:
        top = tl.full([BEAMS_UP], -float("inf"), tl.float32)
        total = tl.zeros([BEAMS_UP], tl.float32)
        read = tl.zeros([BEAMS_UP, WIDTH], tl.float32)
        score = tl.zeros([BEAMS_UP, COLUMNS], tl.float32)
        for first in range(0, end, COLUMNS):
            place = (first + tl.arange(0, COLUMNS)).to(tl.int64)
            at = base + (place * 2 * model)[:, None] + channel[None, :]
            known = (place < end)[:, None] & there[None, :]
            key = tl.load(at, mask=known, other=0.0)
            value = tl.load(at + model, mask=known, other=0.0)
            score = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
            score = tl.where((place < end)[None, :], score, -float("inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            weight, kept = tl.exp(score - higher[:, None]), tl.exp(top - higher)
            total = total * kept + tl.sum(weight, 1)
            read = read * kept[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            top = higher
        if LOOK:
            # The scores of the last tile are known. Those of earlier tiles are computed again.
            last = tl.cdiv(end, COLUMNS) * COLUMNS - COLUMNS
            column = (last + tl.arange(0, COLUMNS))[None, :]
            shown = (tl.exp(score - top[:, None]) / total[:, None]).to(looks.dtype.element_ty)
            tl.store(look + column, shown, mask=used & (column >= 0) & (column < end))
            for first in range(0, last, COLUMNS):
                place = (first + tl.arange(0, COLUMNS)).to(tl.int64)
                key = tl.load(
                    base + (place * 2 * model)[:, None] + channel[None, :], mask=there[None, :], other=0.0
                )
                score = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
                shown = (tl.exp(score - top[:, None]) / total[:, None]).to(looks.dtype.element_ty)
                tl.store(look + place[None, :], shown, mask=used)
    read = tl.where(end > 0, read / total[:, None], 0.0)
    tl.store(output + own, read.to(output.dtype.element_ty), mask=tile)


def tile_keys(most: int, cache: Tensor) -> int:
    """Return the number of keys in a tile: `most` for keys of 128 bytes, fewer for larger ones."""
    size = triton.next_power_of_2(cache.shape[-1]) * cache.itemsize
    return max(16, min(most, most * 128 // size))


def reorder_history(history: Tensor, parents: Tensor, position: Tensor) -> None:
    """Let every beam continue the history of its parent, and begin a new entry at the position of its slot.

    history: (slots, L, beams), int32. parents: (slots, beams). position: (slots,).
    """
    slots, length, beams = history.shape
    reorder_history_kernel[(slots,)](
        history, parents, position, length,
        BEAMS=beams, BEAMS_UP=triton.next_power_of_2(beams), COLUMNS=64, num_warps=1,
    )  # fmt: skip


def attend_history(joined: Tensor, cache: Tensor, history: Tensor, position: Tensor) -> Tensor:
    """Return the self-attention of every beam, (rows, M), and store the new keys and values in the cache.

    joined: (rows, 3 M), query, key and value of the new token of each beam.
    cache: (slots, L, beams, 2, H, D). history: (slots, L, beams). position: (slots,).
    """
    slots, length, beams, _, heads, width = cache.shape
    output = joined.new_empty(slots * beams, heads * width)
    padded = triton.next_power_of_2(width)
    history_attention_kernel[(slots * beams, heads)](
        joined, cache, history, position, output, heads, width, length, width**-0.5,
        BEAMS=beams, WIDTH=padded, COLUMNS=HISTORY_COLUMNS,
        num_warps=max(1, padded // CHANNELS_PER_WARP),
    )  # fmt: skip
    return output


def attend_source(
    query: Tensor,
    sources: Tensor,
    lengths: Tensor,
    beams: int,
    position: Tensor,
    looks: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """Return the cross-attention of every beam, (rows, M).

    query: (rows, M). sources: (slots, S, 2, H, D). lengths: (slots,), the number of source tokens.
    position: (slots,), the position of each slot.
    looks: (slots, L, beams, X, H, S). The attention weights are written to it, at the position of
        each slot and at the index `site` of the X sites. None records nothing.
    """
    slots, keys, _, heads, width = sources.shape
    output, columns = torch.empty_like(query), tile_keys(SOURCE_COLUMNS, sources)
    length, sites = (0, 0) if looks is None else (looks.shape[1], looks.shape[3])
    source_attention_kernel[(slots, heads)](
        query, sources, lengths, output, position, output if looks is None else looks, site, sites,
        heads, width, keys, length, width**-0.5,
        BEAMS=beams, BEAMS_UP=max(16, triton.next_power_of_2(beams)),
        WIDTH=max(16, triton.next_power_of_2(width)), COLUMNS=columns, ONE_TILE=keys <= columns,
        LOOK=looks is not None, num_warps=SOURCE_WARPS.get(sources.itemsize, 4),
    )  # fmt: skip
    return output


NORM_WARPS = 1
"""Number of warps of a program that computes a layer normalisation."""


@triton.jit
def normalized(x, weight, bias, columns, width, epsilon):
    """Return LayerNorm(x) for one row x, which is 0 outside `width` columns."""
    inside = columns < width
    mean = tl.sum(x, 0) / width
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / width + epsilon)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * scale * factor + tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def embed_norm_kernel(
    tokens, table, places, position, x, normed, weight, bias, beams, width, factor, epsilon,
    PLACES: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute x = factor * embedding + position embedding, and LayerNorm(x), for one row.

    tokens: reads (rows,). table: reads (V, width). places: reads (L, width), the position embeddings.
    position: reads (rows / beams,), the position of each slot.
    x, normed: write (rows, width).
    PLACES, NORM: whether there are position embeddings, and whether `normed` is computed.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    token = tl.load(tokens + row)
    value = tl.load(table + token * width + columns, mask=inside, other=0.0).to(tl.float32) * factor
    value = value.to(x.dtype.element_ty).to(tl.float32)  # round as PyTorch does
    if PLACES:
        place = tl.load(position + row // beams)
        value += tl.load(places + place * width + columns, mask=inside, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    tl.store(x + row * width + columns, value.to(x.dtype.element_ty), mask=inside)
    if NORM:
        result = normalized(value, weight, bias, columns, width, epsilon)
        tl.store(normed + row * width + columns, result.to(x.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_kernel(
    x, change, total, normed, weight, bias, width, epsilon, SUM: tl.constexpr, WIDTH: tl.constexpr
):
    """Compute total = x + change, and LayerNorm(total), for one row. All tensors have shape (rows, width).

    SUM: whether `total` is written.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    at = row * width + columns
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(change + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(x.dtype.element_ty).to(tl.float32)  # round as PyTorch does
    if SUM:
        tl.store(total + at, value.to(x.dtype.element_ty), mask=inside)
    result = normalized(value, weight, bias, columns, width, epsilon)
    tl.store(normed + at, result.to(x.dtype.element_ty), mask=inside)


def embed_and_normalize(
    tokens: Tensor,
    table: Tensor,
    factor: float,
    places: Tensor | None,
    position: Tensor,
    norm: nn.LayerNorm | None,
) -> tuple[Tensor, Tensor]:
    """Return x = factor * embedding + position embedding, and LayerNorm(x), both (rows, M).

    tokens: (slots, beams), token ids; rows = slots * beams.
    table: (V, M), the embeddings.
    places: (L, M), the position embeddings, or None.
    position: (slots,), the position of each slot.
    norm: if it is None, the second result is x too.
    """
    rows, width = tokens.numel(), table.shape[1]
    x = table.new_empty(rows, width)
    normed = x if norm is None else torch.empty_like(x)
    embed_norm_kernel[(rows,)](
        tokens, table, table if places is None else places, position, x, normed,
        table if norm is None else norm.weight, table if norm is None else norm.bias,
        tokens.shape[1], width, factor, 0.0 if norm is None else norm.eps,
        PLACES=places is not None, NORM=norm is not None, WIDTH=triton.next_power_of_2(width),
        num_warps=NORM_WARPS,
    )  # fmt: skip
    return x, normed


def add_and_normalize(x: Tensor, change: Tensor, norm: nn.LayerNorm, keep: bool) -> tuple[Tensor, Tensor]:
    """Return x + change, and LayerNorm(x + change). All tensors have shape (rows, M) and are contiguous.

    keep: whether the sum is needed. If not, the first result is the second one.
    """
    rows, width = x.shape
    normed = torch.empty_like(x)
    total = torch.empty_like(x) if keep else normed
    add_norm_kernel[(rows,)](
        x, change, total, normed, norm.weight, norm.bias, width, norm.eps,
        SUM=keep, WIDTH=triton.next_power_of_2(width), num_warps=NORM_WARPS,
    )  # fmt: skip
    return total, normed


COLUMNS, WIDTH, WARPS = 4, 512, 4
"""Number of keys and of channels in a tile, and number of warps of a program."""

WEIGHTS = 128
"""Largest number of weights that a program computes from the scores at once."""


@triton.jit
def additive_step_kernel(
    query, keys, vector, lengths, scores, weights, looks, position, beams, count, width, length, query_row,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, WEIGHTS: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Compute softmax(v . tanh(q + k)) of one beam.

    query: reads (rows, width) with the row stride query_row. keys: reads (slots, count, width).
    vector: reads (width,). lengths: reads (slots,), the number of keys of each slot.
    scores: writes and reads (rows, count), float32. weights: writes (rows, count), 0 for padding.
    looks: writes (slots, length, beams, count) at the position of the slot, if LOOK is true: the weights.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row // beams
    end = tl.load(lengths + slot)
    if LOOK:  # at the beginning, so that the program does not wait for the position
        looks += ((slot * length + tl.load(position + slot)) * beams + row % beams) * count
    top, total = -float("inf"), 0.0
    for first in range(0, end, COLUMNS):
        column = (first + tl.arange(0, COLUMNS)).to(tl.int64)
        inside = column < end
        score = tl.zeros([COLUMNS], tl.float32)
        for start in range(0, width, WIDTH):
            channel = start + tl.arange(0, WIDTH)
            there = channel < width
            q = tl.load(query + row * query_row + channel, mask=there, other=0.0).to(tl.float32)
            v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
            at = keys + ((slot * count + column) * width)[:, None] + channel[None, :]
            k = tl.load(at, mask=inside[:, None] & there[None, :], other=0.0).to(tl.float32)
            score += tl.sum(v[None, :] * (2.0 * tl.sigmoid(2.0 * (q[None, :] + k)) - 1.0), 1)
        score = tl.where(inside, score, -float("inf"))
        tl.store(scores + row * count + column, score, mask=inside)
        higher = tl.maximum(top, tl.max(score, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(score - higher), 0)
        top = higher
    tl.debug_barrier()  # all scores are stored
    # Few iterations: the compiler starts no load before the stores of the preceding iteration.
    for first in range(0, count, WEIGHTS):
        column = first + tl.arange(0, WEIGHTS)
        score = tl.load(scores + row * count + column, mask=column < end, other=-float("inf"))
        weight = tl.where(column < end, tl.exp(score - top) / total, 0.0)
        tl.store(weights + row * count + column, weight.to(weights.dtype.element_ty), mask=column < count)
        if LOOK:
            tl.store(looks + column, weight.to(looks.dtype.element_ty), mask=column < count)


def additive_step_weights(
    query: Tensor, keys: Tensor, vector: Tensor, lengths: Tensor, position: Tensor, looks: Tensor | None
) -> Tensor:
    """Return the attention weights of every beam, (slots, beams, S), 0 for padding.

    query: (rows, A), of which rows may be strided; rows = slots * beams.
    keys: (slots, S, A). vector: (A,). lengths: (slots,), the number of source tokens.
    position: (slots,), the position of each slot.
    looks: (slots, L, beams, 1, 1, S). The weights are written to it, at the position of each slot.
        None records nothing.
    """
    (rows, width), (slots, count, _) = query.shape, keys.shape
    beams = rows // slots
    scores = query.new_empty(rows, count, dtype=torch.float32)
    weights = query.new_empty(slots, beams, count)
    additive_step_kernel[(rows,)](
        query, keys, vector, lengths, scores, weights, scores if looks is None else looks, position,
        beams, count, width, 0 if looks is None else looks.shape[1], query.stride(0),
        COLUMNS=COLUMNS, WIDTH=WIDTH, WEIGHTS=min(WEIGHTS, triton.next_power_of_2(count)),
        LOOK=looks is not None, num_warps=WARPS,
    )  # fmt: skip
    return weights
