"""Calls of sdpa-cpu in blocks of query rows.

With a window, documents or ALiBi, the tensor is computed for one block of queries at a time, and the kernel
of sdpa-cpu gets only the keys that at least one query of the block may see: memory is linear in T + S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends.transforms import differentiable
from regard.call import Call
from regard.masks.mask import Tile

__all__ = ["attend_by_rows", "uses_rows"]

ROWS = 128
"""Number of queries in a block."""

FEWEST_KEYS = 16
"""Number of keys of a block, at least: with fewer, the kernel may lose NaN, see Kernel.may_lose_nan()."""

FEWEST_SCORES = 1 << 18
"""The smallest T x S for which the kernel is called by blocks."""


class Block(NamedTuple):
    """Some queries, the keys that they may see, and what Call.added() returns for them."""

    rows: slice
    columns: slice
    added: Tensor | None
    seeing: Tensor | None


def uses_rows(call: Call) -> bool:
    """Whether to run a call of sdpa-cpu by blocks of rows. It must need a tensor with T rows."""
    _, _, queries, keys = call.sizes
    if torch.compiler.is_compiling() or torch._C._functorch.get_interpreter_stack():
        return False
    enough = queries > ROWS and keys >= FEWEST_KEYS and queries * keys >= FEWEST_SCORES
    return enough and call.query.shape[3] == call.value.shape[3]


def attend_by_rows(call: Call) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T) of a call of which uses_rows() is true."""
    # The kernel assumes stride 1 in the last dimension, and does not check it.
    tensors = (t if t.stride(-1) == 1 else t.contiguous() for t in (call.query, call.key, call.value))
    query, key, value = tensors
    call = replace(call, query=query, key=key, value=value)
    output, lse = _ByRows.apply(call, query, key, value, *call.bias_tensors)
    return output, lse


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        call = call.detached()
        batch, heads, queries, _ = call.sizes
        output = torch.empty_like(call.query)
        wide = torch.promote_types(call.query.dtype, torch.float32)
        lse = output.new_empty(batch, heads, queries, dtype=wide)
        hidden = torch.zeros(lse.shape, dtype=torch.bool)  # queries that see no key
        for rows, columns, added, seeing in blocks(call):
            output[:, :, rows], lse[:, :, rows] = torch._scaled_dot_product_flash_attention_for_cpu(
                *_parts(call, rows, columns), 0.0, False, attn_mask=added, scale=call.scale / call.temperature
            )
            if seeing is not None:
                hidden[:, :, rows] = ~seeing
        output.masked_fill_(hidden[..., None], 0.0)
        ctx.call = call
        ctx.save_for_backward(*tensors, output, lse, hidden)
        shown = lse.masked_fill(hidden, -torch.inf)
        ctx.mark_non_differentiable(shown)
        return output, shown

    @staticmethod
    def backward(ctx: Any, doutput: Tensor, _: Tensor) -> tuple[Any, ...]:
        *tensors, output, lse, hidden = ctx.saved_tensors
        call: Call = ctx.call
        if torch.is_grad_enabled():  # backward(create_graph=True), for a double backward
            found = differentiable(call, [*tensors[:3], None, *tensors[3:]], doutput)
            return None, *found[:3], *found[4:]
        doutput = doutput.masked_fill(hidden[..., None], 0.0)
        dquery = torch.empty_like(call.query)
        dkey, dvalue = torch.zeros_like(call.key), torch.zeros_like(call.value)
        for rows, columns, added, _seeing in blocks(call):
            of_rows, of_keys, of_values = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                doutput[:, :, rows],
                *_parts(call, rows, columns),
                output[:, :, rows],
                lse[:, :, rows],
                0.0,
                False,
                attn_mask=added,
                scale=call.scale / call.temperature,
            )
            dquery[:, :, rows] = of_rows
            dkey[:, :, columns] += of_keys
            dvalue[:, :, columns] += of_values
        return None, dquery, dkey, dvalue, *(None for _ in tensors[3:])


def _parts(call: Call, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries of a block, and the keys and values that they may see."""
    return call.query[:, :, rows], call.key[:, :, columns], call.value[:, :, columns]


def blocks(call: Call) -> Iterator[Block]:
    """Divide the queries of the call into blocks."""
    batch, heads, queries, _ = call.sizes
    relative = call.bias is None and call.mask.only("causal", "window")
    known: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None]] = {}
    for first in range(0, queries, ROWS):
        rows = slice(first, min(first + ROWS, queries))
        columns = _visible(call, rows)
        # A mask of causal() and window() only depends on the difference of the positions.
        place = rows.stop - first, columns.start - first, columns.stop - first
        if not relative or place not in known:
            rows_T, columns_S = (torch.arange(each.start, each.stop) for each in (rows, columns))
            tile = Tile(rows_T, columns_S, call.start, batch, heads)
            known = {place: call.added(call.query[:, :, rows], tile, call.mask)}
        yield Block(rows, columns, *known[place])


def _visible(call: Call, rows: slice) -> slice:
    """Return the keys that these queries may see, and possibly others, but at least FEWEST_KEYS."""
    keys = call.key.shape[2]
    low, high = call.mask.span(rows.start + call.start, rows.stop - 1 + call.start, keys)
    if call.mask.documents is not None and low < high:
        of_query, of_key = call.mask.documents
        own = of_query[:, rows.start + call.start : rows.stop + call.start]
        among = (of_key[:, low:high] >= own.min()) & (of_key[:, low:high] <= own.max())
        places = among.any(0).nonzero()
        low, high = (low + int(places[0]), low + int(places[-1]) + 1) if len(places) else (low, low)
    high = min(max(high, low + FEWEST_KEYS), keys)
    return slice(min(low, high - FEWEST_KEYS), high)
