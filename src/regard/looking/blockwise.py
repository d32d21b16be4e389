"""blocked: compute what a Look requests block by block, from query, key and lse.

With softmax, a weight is exp(score - lse). So a second pass over the scores can compute every field of a
Look. It works after every backend. T x S numbers are stored only if the Look requests the whole matrix of
weights, and only once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from regard.attended import Attended, Top
from regard.blocks import column_blocks, row_blocks, tile_scores
from regard.call import Call, Forward
from regard.dimensions import in_transform
from regard.look import Look
from regard.looking.block_pooling import block_means, block_sums
from regard.masks.mask import Mask, Tile
from regard.select import Soft

__all__ = ["reasons", "run", "weights_of_rows"]

PARTS = 4
"""On a CPU, blocks have a quarter of the scores of those in the forward pass: they stay in the cache, and
more of them need no mask."""

AT_ONCE = 1 << 20
"""Number of weights, B H T S, up to which a CPU computes all weights at once."""

HIDDEN = -1e30
"""Logarithm of the weight of a hidden key, so that weight * logarithm is 0; 0 * -inf would be NaN."""


def reasons(call: Call, look: Look) -> list[str]:
    """Return why this pass cannot compute what `look` requests; empty if it can."""
    reasons = []
    if not isinstance(call.select, Soft):
        reasons.append(f"supports only select=Soft(), not {type(call.select).__name__}")
    if look.gradient:
        reasons.append("computes no gradients")
    if torch.compiler.is_compiling():
        reasons.append("its loop over blocks cannot be compiled by torch.compile")
    return reasons


@torch.no_grad()
def run(call: Call, forward: Forward, look: Look) -> Attended:
    """Compute what `look` requests in one pass over the score matrix, block by block.

    Besides the requested weights, it needs memory for a few numbers per query and one number per key.
    """
    assert forward.lse is not None
    few = call.query.device.type == "cpu" and 0 < math.prod(call.sizes) <= AT_ONCE
    if few and not in_transform() and not forward.lse.isnan().any():
        return _at_once(call, forward, look)
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    call = replace(
        call, query=call.query.to(dtype).contiguous(), key=call.spread(call.key).to(dtype).contiguous()
    )
    batch, heads, queries, keys = call.sizes
    new = call.query.new_zeros
    entropy = new(batch, heads, queries)
    mass = new(batch, heads, keys)
    best = max(look.top, 1 if look.alignment else 0)
    top_scores = new(batch, heads, queries, best).fill_(-torch.inf)
    top_keys = torch.full_like(top_scores, -1, dtype=torch.long)
    size = look.pooled
    pooled = new(batch, heads, *(-(-each // size) for each in (queries, keys))) if size else None
    whole = new(batch, heads, queries, keys) if look.weights else None
    unmasked = replace(call, mask=Mask())
    by_weight = look.entropy or look.mass or size or look.weights
    by_score = by_weight or best
    on_cpu = call.query.device.type == "cpu"
    # On a GPU, the check would synchronise, so NaN is assumed to be possible.
    any_nan = not on_cpu or in_transform() or bool(forward.lse.isnan().any())
    for rows in row_blocks(call) if by_score else ():
        lse = forward.lse[:, :, rows, None].to(dtype)
        level = torch.where(lse == -torch.inf, 0.0, lse)
        for columns, tile in column_blocks(call, rows, PARTS if on_cpu else 1):
            masked = unmasked if _sees_all(call, rows, columns) else call
            scores = tile_scores(masked, call.query[:, :, rows], call.key[:, :, columns], tile)
            if best:
                place = (slice(None), slice(None), rows)
                top_scores[place], top_keys[place] = _merged(
                    top_scores[place], top_keys[place], scores, columns.start
                )
            if by_weight:
                logs = _logs(scores, level, bool(masked.mask.parts) or call.bias is not None, any_nan)
                weights = torch.exp(logs, out=None if whole is None else whole[:, :, rows, columns])
                if look.mass:
                    mass[:, :, columns] += weights.sum(-2)
                if pooled is not None:
                    sums = block_sums(weights, size, rows.start, columns.start)
                    down, across = rows.start // size, columns.start // size
                    pooled[:, :, down : down + sums.shape[2], across : across + sums.shape[3]] += sums
                if look.entropy:
                    entropy[:, :, rows] -= (weights.mul_(logs) if whole is None else logs.mul_(weights)).sum(
                        -1
                    )
    level = torch.where(forward.lse == -torch.inf, 0.0, forward.lse)
    return Attended(
        forward.output,
        weights=whole,
        rows=weights_of_rows(call, forward.lse, look.rows) if look.rows is not None else None,
        top=Top((top_scores - level[..., None]).exp(), top_keys) if look.top else None,
        alignment=top_keys[..., 0] if look.alignment else None,
        entropy=entropy if look.entropy else None,
        mass=mass if look.mass else None,
        pooled=None if pooled is None else block_means(pooled, call.sizes, size),
    )


def _at_once(call: Call, forward: Forward, look: Look) -> Attended:
    """Compute what `look` requests without blocks: run() for few weights, of which none is NaN."""
    assert forward.lse is not None
    scores_BHTS = _scores(call)
    empty_BHT = forward.lse == -torch.inf  # queries that see no key
    some_empty = bool(empty_BHT.any())
    weights_BHTS = torch.softmax(scores_BHTS, -1)  # in less time than exp(score - lse)
    if some_empty:
        weights_BHTS.masked_fill_(empty_BHT[..., None], 0.0)
    top = alignment = entropy = pooled = None
    if look.top:
        found = torch.topk(scores_BHTS, min(look.top, scores_BHTS.shape[-1]), -1)
        short = (0, look.top - found.values.shape[-1])
        keys = torch.where(found.values == -torch.inf, -1, found.indices)
        top = Top(
            functional.pad(weights_BHTS.gather(-1, found.indices), short),
            functional.pad(keys, short, value=-1),
        )
    if look.alignment and top is not None:  # the same key, if several scores are equal
        alignment = top.keys[..., 0]
    elif look.alignment:
        # NumPy finds the first highest value in a tenth of the time of PyTorch.
        alignment = torch.from_numpy(scores_BHTS.numpy().argmax(-1))
        alignment = alignment.masked_fill_(empty_BHT, -1) if some_empty else alignment
    if look.entropy:
        level_BHT1 = torch.where(empty_BHT, 0.0, forward.lse)[..., None].to(scores_BHTS.dtype)
        logs_BHTS = scores_BHTS.sub_(level_BHT1).clamp_(min=HIDDEN)
        entropy = 0.0 - logs_BHTS.mul_(weights_BHTS).sum(-1)
    if look.pooled:
        pooled = block_means(block_sums(weights_BHTS, look.pooled), weights_BHTS.shape, look.pooled)
    return Attended(
        forward.output,
        weights=weights_BHTS if look.weights else None,
        rows=weights_BHTS[:, :, list(look.rows)] if look.rows is not None else None,
        top=top,
        alignment=alignment,
        entropy=entropy,
        mass=weights_BHTS.sum(-2) if look.mass else None,
        pooled=pooled,
    )


def _scores(call: Call) -> Tensor:
    """Return the scores, (B, H, T, S), in at least float32: with bias, -inf where masked."""
    wide = call.widened()
    query, key = wide.query, call.spread(wide.key)
    if call.combine == "inner" and call.softcap is None and call.bias is None:
        scores = (query * (call.scale / call.temperature)) @ key.mT
        return scores.masked_fill_(~call.mask.tile(call.whole), -torch.inf) if call.mask.parts else scores
    return tile_scores(wide, query, key, call.whole)


def _sees_all(call: Call, rows: slice, columns: slice) -> bool:
    """Whether all queries in `rows` see all keys in `columns`, so that no mask has to be applied."""
    left, right = call.mask.sides
    first, last = rows.start + call.start, rows.stop - 1 + call.start
    behind = left is None or columns.start >= last - left
    before = right is None or columns.stop - 1 <= first + right
    return call.mask.only("causal", "window") and behind and before


def _logs(scores: Tensor, level: Tensor, some_hidden: bool, any_nan: bool) -> Tensor:
    """Return the logarithms of the weights, in the memory of `scores`: memory bandwidth limits the loop.

    level: the lse of the queries.
    some_hidden: whether scores can be -inf.
    any_nan: whether the lse can be NaN. The weights of hidden keys are 0 also then.
    """
    hidden = scores == -torch.inf if any_nan and some_hidden else None
    logs = scores.sub_(level)
    if some_hidden:
        logs.clamp_(min=HIDDEN)
    return logs if hidden is None else logs.masked_fill_(hidden, HIDDEN)


def _merged(largest: Tensor, largest_keys: Tensor, scores: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each query and their keys, after one more block of scores.

    largest, largest_keys: the k largest scores and their keys in the blocks so far, (B, H, T, k).
    scores: the scores of the new block.
    first: index of the first key of the new block.
    """
    count = largest.shape[-1]
    if count == 1:  # faster than topk
        values, indices = scores.max(-1, keepdim=True)
    else:
        values, indices = scores.topk(min(count, scores.shape[-1]), -1)
    both = torch.cat((largest, values), -1)
    keys = torch.cat((largest_keys, torch.where(values == -torch.inf, -1, indices + first)), -1)
    best = both.topk(count, -1)
    return best.values, keys.gather(-1, best.indices)


def weights_of_rows(call: Call, lse: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the weights of the R queries with the indices `rows` over all keys, (B, H, R, S)."""
    rows_R = torch.tensor(rows, device=lse.device, dtype=torch.long)
    whole = call.whole
    tile = Tile(rows_R, whole.columns_S, whole.start, whole.batch, whole.heads)
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    query, key = call.query.index_select(2, rows_R).to(dtype), call.spread(call.key).to(dtype)
    scores = tile_scores(call, query, key, tile)
    level = lse.index_select(2, rows_R)[..., None].to(scores.dtype)
    return (scores - torch.where(level == -torch.inf, 0.0, level)).exp()
