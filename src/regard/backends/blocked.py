"""blocked: attention in plain PyTorch, in blocks of queries; memory linear in T + S.

It runs calls that the fused kernels do not support (additive scores, Sparse, learned biases, other devices).
If all scores fit in little memory, there is one block, whose weights autograd saves. Otherwise the backward
pass computes the weights of each block again (torch.utils.checkpoint). If one query attends to a NaN, the
outputs of other queries in the same block can become NaN too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from regard.backends.transforms import reasons_of_transforms
from regard.blocks import at_once, tile_scores
from regard.blocks.sparse_weights import sparse_weights
from regard.call import Call, Forward
from regard.masks.mask import Tile, readable
from regard.positions import Bias
from regard.select import Soft, Sparse

__all__ = ["attend_small", "few", "reasons", "run"]

MOST_SCORES = 1 << 22
"""Maximum number of scores, B * H * T * S, of a block on a CPU: 16 MiB of float32, which a backward pass
needs about three times. For GPUs, at_once() computes a larger limit from this number."""

SPARSE_SCORES = 1 << 18
"""The same for Sparse, which reads the scores of a block about 30 times: they should stay in the cache."""

FEW = 1 << 18
"""Additive attention is computed without blocks if tanh(q + k), B * H * T * S * A elements, has at most this
many on a CPU: 1 MiB of float32. For GPUs, at_once() computes a larger limit from this number."""

FEW_OF_ONE_QUERY = 1 << 23
"""The same for T = 1, a step of a decoder: tanh(q + k) then has the size of the keys."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_transforms()
    if not isinstance(call.select, Soft | Sparse):
        reasons.append(f"computes Soft and Sparse only, block by block, not {type(call.select).__name__}")
    if isinstance(call.select, Sparse) and call.query.device.type != "cpu":
        reasons.append("computes Sparse on a CPU only")
    if torch.compiler.is_compiling():
        reasons.append("its loop over blocks cannot be compiled by torch.compile")
    return reasons


def run(call: Call) -> Forward:
    """Compute attention block by block, or in one block if the input is small."""
    if _is_small(call):
        return _run_small(call)
    dtype, wide = call.value.dtype, call.widened()
    batch, heads, queries, keys = call.sizes
    most = SPARSE_SCORES if isinstance(call.select, Sparse) else at_once(MOST_SCORES, call.query.device)
    rows = max(1, most // max(1, batch * heads * keys))
    key, value = call.spread(wide.key), call.spread(wide.value)
    again = call.trains and rows < queries
    parts = []
    for first in range(0, max(queries, 1), rows):
        some = slice(first, min(first + rows, queries))
        low, high = call.mask.span(some.start + call.start, some.stop - 1 + call.start, keys)
        columns = slice(low, high) if low < high else slice(0, min(keys, 1))
        given = (
            wide,
            wide.query[:, :, some],
            key[:, :, columns],
            value[:, :, columns],
            _tile(call, some, columns),
        )
        parts.append(checkpoint(_attend, *given, use_reentrant=False) if again else _attend(*given))
    output, lse = parts[0] if len(parts) == 1 else (torch.cat(each, 2) for each in zip(*parts, strict=True))
    return Forward(output.to(dtype), None if isinstance(call.select, Sparse) else lse)


def _tile(call: Call, rows: slice, columns: slice) -> Tile:
    batch, heads, _, _ = call.sizes
    rows_T, columns_S = (
        torch.arange(each.start, each.stop, device=call.query.device) for each in (rows, columns)
    )
    return Tile(rows_T, columns_S, call.start, batch, heads)


def _attend(call: Call, query: Tensor, key: Tensor, value: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return output and lse of the queries of a tile, whose keys are all that these queries may see.

    With Sparse, the second result is not an lse, and is not used.
    """
    scores = tile_scores(call, query, key, tile)
    if not key.shape[2]:  # no query sees a key
        return scores @ value, query.new_full(query.shape[:3], -torch.inf)
    best = scores.detach().amax(-1)
    seeing = best != -torch.inf
    all_see = readable(seeing) and bool(seeing.all())
    if not all_see:  # a softmax of -inf alone would be NaN, and its gradient too
        scores = scores.masked_fill(~seeing[..., None], 0.0)
    lse = best
    if isinstance(call.select, Sparse):
        weights = sparse_weights(scores, call.select.alpha)
    else:
        weights = torch.softmax(scores, -1)
        # The largest weight is 1 / sum_s exp(score_s - best).
        lse = best - weights.detach().amax(-1).log()
    if not all_see:
        weights = weights.masked_fill(~seeing[..., None], 0.0)
        lse = lse.masked_fill(~seeing, -torch.inf)
    read = functional.dropout(weights, call.dropout) if call.dropout else weights
    output = read @ value
    if isinstance(call.bias, Bias) and call.bias.reads:
        output = output + call.bias.read(read, tile)
    return output, lse


def few(queries: int, elements: int) -> bool:
    """Whether a CPU computes additive attention of T queries without blocks. elements: B * H * T * S * A."""
    return elements <= (FEW_OF_ONE_QUERY if queries == 1 else FEW)


def _is_small(call: Call) -> bool:
    """Whether this call can be computed without blocks.

    The score must be additive, without bias, soft cap, dropout or groups (query heads that share a key
    head), and the selection Soft. tanh(q + k) must have few elements (FEW).
    """
    if call.combine != "additive" or call.bias is not None or call.softcap is not None:
        return False
    if call.dropout or call.groups != 1 or not isinstance(call.select, Soft):
        return False
    batch, heads, queries, keys = call.sizes
    elements = batch * heads * queries * keys * call.query.shape[-1]
    if call.query.device.type == "cpu":
        return few(queries, elements)
    return elements <= at_once(FEW, call.query.device)


def _run_small(call: Call) -> Forward:
    assert call.vector is not None
    bias = seeing = None
    if call.mask.parts:
        visible = call.mask.tile(call.whole)
        seeing = visible.any(-1)
        wide = torch.promote_types(call.query.dtype, torch.float32)
        bias = torch.where(visible | ~seeing.unsqueeze(-1), 0.0, -torch.inf).to(wide)
    tensors = (call.query, call.key, call.value, call.vector)
    return Forward(*attend_small(*tensors, bias, seeing, call.temperature))


def attend_small(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    bias: Tensor | None,
    seeing: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T) of additive attention, with tanh(q + k) as one tensor.

    Autograd saves this tensor for the backward pass. For small inputs, this is faster than a loop over blocks
    with its own backward pass. An example is a recurrent decoder, which calls attention() once per word.

    vector: (H, A), or (1, A) or (A,) if all heads share it.
    bias: added to the scores, broadcastable to (B, H, T, S): -inf for hidden keys, otherwise 0. It is 0 in
        the rows of queries that see no key. None if no key is hidden.
    seeing: which queries see some key, broadcastable to (B, H, T); None if all do.

    With one head, the other tensors may lack the head dimension.
    """
    dtype = value.dtype
    if dtype not in (torch.float32, torch.float64):
        query, key, value, vector = query.float(), key.float(), value.float(), vector.float()
    scores_BHTS = _small_scores(query, key, vector)
    if temperature != 1:
        scores_BHTS = scores_BHTS / temperature
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    weights_BHTS = read_BHTS = torch.softmax(scores_BHTS, -1)
    if seeing is not None:
        read_BHTS = torch.where(seeing.unsqueeze(-1), weights_BHTS, 0.0)
    output = torch.bmm(read_BHTS, value) if value.dim() == 3 else read_BHTS @ value
    return output.to(dtype), _log_sum_exp(scores_BHTS.detach(), weights_BHTS.detach(), seeing)


def _small_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Return v . tanh(q + k), (B, H, T, S)."""
    single = query.shape[-2] == 1
    added = query + key if single else query.unsqueeze(-2) + key.unsqueeze(-3)
    hidden_BHTSA = added.tanh_()  # (B, H, S, A) if T = 1
    if vector.dim() == 1 or vector.shape[0] == 1:
        scores = torch.matmul(hidden_BHTSA, vector if vector.dim() == 1 else vector[0])
    else:
        per_head = vector[:, :, None] if single else vector[:, None, :, None]
        scores = torch.matmul(hidden_BHTSA, per_head).squeeze(-1)
    return scores.unsqueeze(-2) if single else scores


def _log_sum_exp(scores_BHTS: Tensor, weights_BHTS: Tensor, seeing: Tensor | None) -> Tensor:
    """Return the lse (B, H, T) from the scores and their softmax."""
    if not scores_BHTS.shape[-1]:
        return torch.full_like(scores_BHTS.sum(-1), -torch.inf)
    # The largest weight is 1 / sum_s exp(score_s - best). This is faster than torch.logsumexp.
    lse_BHT = scores_BHTS.amax(-1) - weights_BHTS.amax(-1).log()
    return lse_BHT if seeing is None else torch.where(seeing, lse_BHT, -torch.inf)
