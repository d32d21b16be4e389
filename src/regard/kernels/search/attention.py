# mypy: disable-error-code="no-untyped-def"
"""Self-attention and cross-attention of one decoding step, a program for each beam and head.

The keys and values of all beams of a slot are in one cache. `history` says which entry of the cache a beam
continues at each position, so that the search does not copy the cache when it reorders beams.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["attend_history", "attend_source", "reorder_history"]

COLUMNS, CHANNELS_PER_WARP = 16, 64
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
        BEAMS=beams, WIDTH=padded, COLUMNS=COLUMNS, num_warps=max(1, padded // CHANNELS_PER_WARP),
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
