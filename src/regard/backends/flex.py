"""flex: PyTorch's FlexAttention, which compiles masks and biases into the kernel and skips masked blocks.

On CUDA it supports calls that the other fused kernels do not support (where() masks for long sequences,
float32 biases with half-precision queries, learned biases). On CPU it computes the forward pass only and is
meant for tests; "auto" never selects it on CPU.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.backends import blocked
from regard.backends.transforms import once_differentiable_node, reasons_of_transforms
from regard.call import Call, Forward
from regard.masks.mask import PLAIN, Mask, Tile, Window, whole_tile
from regard.positions import Bias
from regard.select import Soft

__all__ = ["not_requested", "reasons", "run", "seen_blocks"]

BLOCK = 128
"""A block of the score matrix has this many query rows and this many keys."""

PAIRS_AT_ONCE = 1 << 24
"""Number of (row, key) pairs to evaluate at once, for masks that must be evaluated for every pair."""

REMEMBERED = 1 << 18
"""A block mask is cached if it has at most this many blocks. A larger block mask is computed again for each
call."""

KEPT = 32
"""The cache holds the last 32 causal and window masks, with up to 4 MiB each, and all those that CUDA graphs
use: a graph reads them at each replay."""

_Key = tuple[bool, Window | None, int, int, int, torch.device]
_kept: dict[_Key, Any] = {}
_in_graphs: dict[_Key, Any] = {}

ScoreChange = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, row, key) -> score: a change of one score, which is compiled into the kernel."""

_COMPILER = shutil.which("g++") or shutil.which("clang++")

VARIANTS = 1 << 20
"""Maximum number of compiled variants of flex_attention. PyTorch's default limits would be too low:
torch.compile raises an error after 8 variants of a function, or 256 variants in total."""

_HAS_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters
_LIMIT_LOCK = threading.Lock()


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != "inner":
        reasons.append("computes inner products, but this score is additive")
    if not isinstance(call.select, Soft):
        reasons.append(f"computes Soft only, not {type(call.select).__name__}")
    if device not in ("cuda", "cpu"):
        reasons.append(f"runs on cuda and cpu, but the call is on {device}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if call.query.dtype == torch.float64:
        reasons.append("supports float32, bfloat16 and float16, not float64")
    if call.dropout:
        reasons.append("has no dropout")
    if isinstance(call.bias, Bias) and (call.bias.asks_query or call.bias.reads):
        reasons.append(
            "supports only a bias that is a function of the positions; "
            f"{type(call.bias).__name__} also depends on the query or on learned weights"
        )
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.bias_tensors)
    if learns and max(call.query.shape[-1], call.value.shape[-1]) > 64:
        reasons.append("supports gradients of a bias only for head widths up to 64")
    if device == "cpu" and call.trains:
        reasons.append("computes no gradients on cpu")
    if device == "cpu" and not _COMPILER:
        reasons.append("needs a C++ compiler on cpu (apt install g++)")
    if device == "cuda" and min(call.query.shape[-1], call.value.shape[-1]) < 16:
        reasons.append("needs a head width of at least 16 on cuda")
    return reasons


def not_requested(call: Call) -> list[str]:
    """Return why "auto" skips this backend although it can run the call; empty if "auto" may select it."""
    return ["on cpu it recompiles for every new shape or mask"] if call.query.device.type == "cpu" else []


def run(call: Call) -> Forward:
    """Compute the forward pass with FlexAttention; mask and bias are compiled into its kernel."""
    from torch.nn.attention.flex_attention import AuxRequest

    options = {
        "score_mod": _score_change(call),
        "block_mask": seen_blocks(call) if call.mask.parts else None,
        "scale": call.scale if call.softcap is not None else call.scale / call.temperature,
        "enable_gqa": call.groups > 1,
    }
    if call.query.device.type == "cpu":  # FlexAttention does not return the lse on CPU: compute it separately
        # In some versions of PyTorch, the CPU lowering fails if key and value are the same buffer. The error
        # is "Unsupported for now if query, key, value are the same buffer" (pytorch/pytorch issue 157612).
        # PyTorch 2.13 accepts such inputs.
        key, value = call.key.clone(), call.value.clone()
        output = _run_compiled(call.query, key, value, **options)
        lse = blocked.run(replace(call, value=call.value[..., :0])).lse
    else:
        output, aux = _run_compiled(
            call.query, call.key, call.value, **options, return_aux=AuxRequest(lse=True)
        )
        lse = aux.lse
    if call.trains:
        once_differentiable_node(output)
    assert lse is not None
    if not call.mask.parts and not isinstance(call.bias, Tensor):
        return Forward(output, lse)
    empty = lse.isneginf()  # rows that see no key; masked_fill also stops their gradients
    return Forward(output.masked_fill(empty.unsqueeze(-1), 0.0), lse.masked_fill(empty, -torch.inf))


@functools.cache
def _compiled(static: bool) -> Callable[..., Any]:
    """Return PyTorch's flex_attention, compiled by torch.compile.

    static: whether to compile flex_attention again for each new shape of the inputs. If False, dynamic shapes
        are allowed.
    """
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        # torch.compile has a limit on the recompilations of each function. This function is separate, so that
        # calls of flex_attention from other code do not count towards its limit.
        return flex_attention(query, key, value, **options)

    # With fullgraph=True, PyTorch raises an error at the recompile limit. Otherwise it would fall back to
    # eager code, which allocates T x S.
    options: dict[str, Any] = {"recompile_limit": VARIANTS} if _HAS_LIMIT else {}
    return torch.compile(attend, fullgraph=True, dynamic=False if static else None, **options)


def _run_compiled(query: Tensor, *others: Tensor, **options: Any) -> Any:
    """Run the compiled flex_attention. If Inductor fails with dynamic shapes, compile it for these shapes."""
    static = query.device.type == "cpu"  # on CPU, compilation with dynamic shapes can fail
    if torch.compiler.is_compiling():
        return _compiled(static)(query, *others, **options)
    from torch._inductor.exc import InductorError

    try:
        return _beyond_limit(static, query, *others, **options)
    except InductorError:
        if static:
            raise
    return _beyond_limit(True, query, *others, **options)


def _beyond_limit(static: bool, *tensors: Tensor, **options: Any) -> Any:
    """Run the compiled flex_attention. At PyTorch's recompile limit, increase the limit and try again."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        return _compiled(static)(*tensors, **options)
    except FailOnRecompileLimitHit:
        limits = {"recompile_limit": VARIANTS, "accumulated_recompile_limit": VARIANTS}
        with _LIMIT_LOCK, torch._dynamo.config.patch(limits):
            return _compiled(static)(*tensors, **options)


def _score_change(call: Call) -> ScoreChange | None:
    """Return the score_mod of FlexAttention: soft cap, then bias; None if the call has neither.

    Without a soft cap, the scores that it gets are divided by the temperature already.
    """
    add = _bias(call)
    if call.softcap is None:
        return add
    device = call.query.device
    cap = torch.full((), call.softcap, dtype=torch.float32, device=device)
    temperature = torch.full((), call.temperature, dtype=torch.float32, device=device)

    def change(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        limited = cap * torch.tanh(score / cap) / temperature
        return limited if add is None else add(limited, batch, head, row, j)

    return change


def _bias(call: Call) -> ScoreChange | None:
    bias, device = call.bias, call.query.device
    if bias is None:
        return None
    # `start` and `temperature` are converted to tensors. With Python numbers, torch.compile would recompile
    # for each new number, and Inductor would fail.
    start = torch.full((), call.start, device=device)
    temperature = torch.full((), call.temperature, dtype=torch.float32, device=device)
    if isinstance(bias, Bias):
        return lambda score, batch, head, row, j: score + bias.at(head, row + start, j) / temperature
    varies = tuple(size > 1 for size in bias.shape)
    squeezed = bias.squeeze()

    def dense(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        index = tuple(each for each, used in zip((batch, head, row, j), varies, strict=True) if used)
        return score + squeezed[index].to(score.dtype) / temperature

    return dense


def seen_blocks(call: Call) -> Any:
    """Return FlexAttention's BlockMask for the mask of the call.

    A BlockMask lists the blocks of (query, key) pairs that are partly visible, and those that are fully
    visible. For causal masks, windows and lengths, the keys that a query sees are an interval. Document ids
    are usually sorted. So the first and last element of a block are enough to decide whether the block is
    visible. Sometimes a masked block is treated as visible. This costs time but does not change the result,
    because the kernel still evaluates the mask inside the block. Other masks are evaluated for every pair,
    some rows at a time.

    PyTorch's create_block_mask evaluates every pair for all masks: it is slow to compile, and without
    compilation it stores the whole T x S mask.
    """
    _, _, queries, keys = call.sizes
    mask, device = call.mask, call.query.device
    plain = mask.only("causal", "window") and queries * keys <= REMEMBERED * BLOCK**2
    real = type(call.query) in PLAIN
    if not plain or not real or torch.compiler.is_compiling():  # fake tensors must not be cached
        return _block_mask(mask, call.whole)
    key = (mask.causal, mask.window, queries, keys, call.start, device)
    if not _capturing(device):
        return _cached(key)
    # Tensors that are created during the capture of a CUDA graph must not be cached, but a table from before
    # the capture serves. The graph then does not compute it in each replay.
    blocks = _in_graphs.get(key, _kept.get(key))
    if blocks is None:
        return _block_mask(mask, call.whole)
    _in_graphs[key] = blocks
    return blocks


def _capturing(device: torch.device) -> bool:
    """Whether operations on this device are being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _cached(key: _Key) -> Any:
    """Return the block mask of a causal or window mask from the cache."""
    blocks = _kept.pop(key, None)
    if blocks is None:
        causal, window, queries, keys, start, device = key
        with torch.inference_mode(False):
            blocks = _block_mask(
                Mask(causal=causal, window=window), whole_tile(queries, keys, start, 1, 1, device)
            )
    _kept[key] = blocks  # the last one is the last used
    for oldest in list(_kept)[: max(0, len(_kept) - KEPT)]:
        _kept.pop(oldest, None)
    return blocks


def _block_mask(mask: Mask, tile: Tile) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    some, whole = _from_ends(mask, tile)
    if not mask.only("causal", "window", "lengths", "documents"):
        any_visible, all_visible = _evaluated(mask, tile)
        some, whole = some & any_visible, whole & all_visible
    sizes = len(tile.rows_T), len(tile.columns_S)
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~whole), *_in_order(whole), BLOCK, _may_see(mask, tile), seq_lengths=sizes
    )


def _may_see(mask: Mask, tile: Tile) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    # `start` is a tensor, because torch.compile would recompile the mask for each new Python number.
    start = torch.full((), tile.start, device=tile.rows_T.device)

    def may_see(batch: Tensor, head: Tensor, row: Tensor, j: Tensor) -> Tensor:
        return mask.sees(batch, head, row + start, j, row)

    return may_see


def _from_ends(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return which blocks may contain visible (query, key) pairs, and which blocks are fully visible.

    Both results are bool tensors, (B or 1, 1, blocks of rows, blocks of keys). They are computed from the
    first and last position and the smallest and largest document id of each block. Only the parts causal,
    window, lengths and documents of the mask are considered.
    """
    queries, keys = len(tile.rows_T), len(tile.columns_S)
    row, begin = tile.rows_T[::BLOCK, None], tile.columns_S[::BLOCK]
    first, last = row + tile.start, (row + BLOCK).clamp_max(queries) - 1 + tile.start
    end = begin + BLOCK - 1
    some = torch.ones(1, 1, len(row), len(begin), dtype=torch.bool, device=row.device)
    whole = some & (row + BLOCK <= queries) & (end < keys)
    left, right = mask.sides
    if left is not None:
        some, whole = some & (end >= first - left), whole & (begin >= last - left)
    if right is not None:
        some, whole = some & (begin <= last + right), whole & (end <= first + right)
    if mask.lengths is not None:
        lengths = mask.lengths[:, None, None, None]
        some, whole = some & (begin < lengths), whole & (end < lengths)
    if mask.documents is not None:
        of_query, of_key = mask.documents
        low, high = _ends(of_query[:, tile.start : tile.start + queries])
        lowest, highest = (each.mT for each in _ends(of_key[:, :keys]))
        some = some & (low <= highest) & (lowest <= high)
        whole = whole & (low == high) & (lowest == highest) & (low == lowest)
    return some, whole


def _ends(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest document id of each block, two tensors (B, 1, blocks, 1).

    ids: the document id of each position, (B, N).
    """
    last = ids[:, -1:].expand(-1, -ids.shape[1] % BLOCK)
    ends = torch.cat([ids, last], 1).unflatten(1, (-1, BLOCK)).aminmax(dim=2)
    return ends.min[:, None, :, None], ends.max[:, None, :, None]


def _evaluated(mask: Mask, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return which blocks contain visible (query, key) pairs, and which blocks are fully visible.

    Only mask.table and mask.condition are considered; they are evaluated for every pair. Both results are
    (B or 1, H or 1, blocks of rows, blocks of keys).
    """
    keys = len(tile.columns_S)
    evaluated = Mask(table=mask.table, condition=mask.condition)
    rows_at_once = max(1, PAIRS_AT_ONCE // (tile.batch * tile.heads * keys * BLOCK)) * BLOCK
    results = []
    for rows in tile.rows_T.split(rows_at_once):
        seen = evaluated.tile(tile._replace(rows_T=rows))
        seen = seen.expand(*seen.shape[:2], len(rows), keys)
        seen = torch.nn.functional.pad(seen, (0, -keys % BLOCK, 0, -len(rows) % BLOCK))
        blocks = seen.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        results.append((blocks.any(5).any(3), blocks.all(5).all(3)))
    any_visible, all_visible = zip(*results, strict=True)
    return torch.cat(any_visible, 2), torch.cat(all_visible, 2)


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True entries in each row of `blocks`, and the indices of all key blocks.

    In each row, the indices of the True entries come first, in increasing order, as BlockMask requires.

    blocks: a bool tensor, (..., blocks of rows, blocks of keys).
    """
    order = blocks.byte().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()
