"""blocked: block-wise attention with an online softmax in plain PyTorch; memory linear in T + S.

It runs calls that the fused kernels do not support (additive scores, dropout on CPU, learned biases, other
devices). The backward pass recomputes the weights of each block from the lse. Additive scores are saved for
the backward pass if they take less memory than query and key. If one query attends to a NaN, the outputs of
other queries in the same block can become NaN too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.transforms import differentiable, reasons_of_transforms
from regard.blocks import (
    add_additive_gradients,
    at_once,
    column_blocks,
    row_blocks,
    softcap_slope,
    tile_scores,
)
from regard.call import Call, Forward
from regard.masks.mask import Tile
from regard.positions import Bias
from regard.select import Soft

__all__ = ["attend_small", "few", "reasons", "run"]

FEW = 1 << 18
"""Additive attention is computed without blocks if tanh(q + k), B * H * T * S * A elements, has at most this
many on a CPU: 1 MiB of float32. For GPUs, at_once() computes a larger limit from this number."""

FEW_OF_ONE_QUERY = 1 << 23
"""The same for T = 1, a step of a decoder: tanh(q + k) then has the size of the keys."""

MOST_SCORES = 1 << 22
"""An inner product on a CPU is computed without blocks if it has at most this many scores, B * H * T * S:
16 MiB of float32, which the backward pass needs about three times."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_transforms()
    if not isinstance(call.select, Soft):
        name = type(call.select).__name__
        reasons.append(f"computes Soft only, block by block; {name} needs whole rows of scores")
    if torch.compiler.is_compiling():
        reasons.append("its loop over blocks cannot be compiled by torch.compile")
    return reasons


def run(call: Call) -> Forward:
    """Compute attention block by block, or without blocks if the input is small."""
    if _is_small(call):
        return _run_small(call)
    if _at_once(call):
        return _run_at_once(call)
    output, lse = _Blocked.apply(call, call.query, call.key, call.value, call.vector, *call.bias_tensors)
    return Forward(output, lse)


def few(queries: int, elements: int) -> bool:
    """Whether a CPU computes additive attention of T queries without blocks. elements: B * H * T * S * A."""
    return elements <= (FEW_OF_ONE_QUERY if queries == 1 else FEW)


def _is_small(call: Call) -> bool:
    """Whether this call can be computed without blocks.

    The score must be additive, without bias, soft cap, dropout or groups (query heads that share a key
    head), and tanh(q + k) must have few elements (FEW).
    """
    if call.combine != "additive" or call.bias is not None or call.softcap is not None:
        return False
    if call.dropout or call.groups != 1:
        return False
    batch, heads, queries, keys = call.sizes
    elements = batch * heads * queries * keys * call.query.shape[-1]
    if call.query.device.type == "cpu":
        return few(queries, elements)
    return elements <= at_once(FEW, call.query.device)


def _at_once(call: Call) -> bool:
    """Whether to store all scores of an inner product: on a CPU, this takes a third of the time."""
    batch, heads, queries, keys = call.sizes
    few = batch * heads * queries * keys <= MOST_SCORES
    return call.combine == "inner" and call.query.device.type == "cpu" and keys > 0 and few


def _run_at_once(call: Call) -> Forward:
    """Compute an inner product with all scores as one tensor. Autograd saves the weights."""
    wide = call.widened()
    key, value = call.spread(wide.key), call.spread(wide.value)
    if call.softcap is None:
        scores = (wide.query * (call.scale / call.temperature)) @ key.mT
    else:
        scores = call.capped((wide.query * call.scale) @ key.mT) / call.temperature
    bias, visible = call.bias_tile(wide.query, call.whole), None
    if bias is not None:
        scores = scores + bias.to(torch.promote_types(bias.dtype, scores.dtype)) / call.temperature
    if call.mask.parts:
        visible = call.mask.tile(call.whole)
        scores = scores.masked_fill(~visible, -torch.inf)
    best = scores.detach().amax(-1)
    seeing = None if bool((best != -torch.inf).all()) else best != -torch.inf
    if seeing is not None:  # a softmax of -inf alone would be NaN, and its gradient too
        scores = scores.masked_fill(~seeing[..., None], 0.0)
    weights = torch.softmax(scores, -1)
    # The largest weight is 1 / sum_s exp(score_s - best).
    lse = best - weights.detach().amax(-1).log()
    if seeing is not None:
        weights = weights.masked_fill(~seeing[..., None], 0.0)
        lse = lse.masked_fill(~seeing, -torch.inf)
    read = functional.dropout(weights, call.dropout) if call.dropout else weights
    output = read @ value
    if isinstance(call.bias, Bias) and call.bias.reads:
        output = output + call.bias.read(read, call.whole)
    return Forward(output.to(call.value.dtype), lse)


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


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**31, ())) if call.dropout else 0
        call = call.detached()
        wide = _widened(call)
        batch, heads, queries, _ = call.sizes
        output = wide.query.new_zeros(batch, heads, queries, call.value.shape[-1])
        lse = wide.query.new_full((batch, heads, queries), -torch.inf)
        saved: list[Tensor] | None = [] if any(ctx.needs_input_grad) and _worth_saving(call) else None
        for rows in row_blocks(wide):
            output[:, :, rows], lse[:, :, rows] = _forward_rows(wide, rows, seed, saved)
        ctx.call, ctx.seed, ctx.scores = call, seed, saved
        ctx.save_for_backward(*tensors, output, lse)
        ctx.mark_non_differentiable(lse)
        return output.to(call.value.dtype), lse

    @staticmethod
    def backward(ctx: Any, doutput: Tensor, _: Tensor) -> tuple[Any, ...]:
        *tensors, output, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # backward(create_graph=True), for a double backward
            return None, *differentiable(ctx.call, tensors, doutput)
        wide = _widened(ctx.call)
        doutput = doutput.to(output.dtype)
        delta_BHT1 = (doutput * output).sum(-1, keepdim=True)
        totals = _Totals(wide)
        saved = None if ctx.scores is None else iter(ctx.scores)
        for rows in row_blocks(wide):
            of_rows = doutput[:, :, rows], lse[:, :, rows, None], delta_BHT1[:, :, rows]
            _backward_rows(wide, rows, ctx.seed, *of_rows, saved, totals)
        return None, *totals.shaped_like(tensors, ctx.call.groups)


def _worth_saving(call: Call) -> bool:
    """Whether to save the scores for the backward pass.

    Only additive scores are saved, because they are slow to recompute; and only if they take less memory than
    query and key, so that memory stays linear in T + S.
    """
    _, _, queries, keys = call.sizes
    return call.combine == "additive" and queries * keys <= (queries + keys) * call.query.shape[-1]


def _widened(call: Call) -> Call:
    """Return a copy of the call in at least float32, with as many key and value heads as query heads.

    Query and key are contiguous in the copy.
    """
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    if (
        dtype == call.query.dtype
        and call.groups == 1
        and call.query.is_contiguous()
        and call.key.is_contiguous()
    ):
        return call
    return replace(
        call,
        query=call.query.to(dtype).contiguous(),
        key=call.spread(call.key.to(dtype)).contiguous(),
        value=call.spread(call.value.to(dtype)),
        vector=None if call.vector is None else call.vector.to(dtype),
    )


def _forward_rows(call: Call, rows: slice, seed: int, saved: list[Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return output and lse of the queries in the slice `rows`, computed by online softmax.

    For each block of keys, the function updates three quantities of each query: the maximum of its scores
    (`best`), the sum of exp(score - best) (`total`) and the weighted sum of the values (`output`).

    saved: a list to which the scores of each block are appended, for the backward pass; or None.
    """
    query = call.query[:, :, rows]
    best, total, output = None, None, None
    for columns, tile in column_blocks(call, rows):
        scores = tile_scores(call, query, call.key[:, :, columns], tile)
        highest = scores.amax(-1, keepdim=True)
        new_best = highest if best is None else torch.maximum(best, highest)
        level = _finite(new_best)
        if saved is not None:
            saved.append(scores)
        weights = (scores - level).exp_()
        new_total = weights.sum(-1, keepdim=True)
        if call.dropout:
            weights *= _dropout(call, weights, tile, seed)
        new_output = weights @ call.value[:, :, columns]
        if isinstance(call.bias, Bias) and call.bias.reads:
            new_output += call.bias.read(weights, tile).detach()
        if best is not None and total is not None and output is not None:
            shrink = (best - level).exp_()
            new_total += total * shrink
            new_output += output * shrink
        best, total, output = new_best, new_total, new_output
    if total is None or output is None:  # there are no keys, or the mask hides all of them from these rows
        output = query.new_zeros(*query.shape[:3], call.value.shape[-1])
        return output, query.new_full(query.shape[:3], -torch.inf)
    # If a row sees no key, its total is 0, and log(0) = -inf is the correct lse.
    return output / _nonzero(total), (level + total.log()).squeeze(-1)


class _Totals:
    """The gradients of all inputs, summed over the blocks computed so far.

    query_by_bias: if the bias depends on the query, the part of the gradient of the query that comes from the
        bias. It is added to the gradient of the query at the end.
    factor: the vector v of additive scores. The gradients of query and key are multiplied by v once, at the
        end.
    """

    def __init__(self, call: Call):
        inputs = (call.query, call.key, call.value)
        self.query, self.key, self.value = (tensor.new_zeros(tensor.shape) for tensor in inputs)
        self.vector = None if call.vector is None else torch.zeros_like(call.vector)
        self.factor = None if call.vector is None else call.vector[:, None, :]
        asks_query = isinstance(call.bias, Bias) and call.bias.asks_query
        self.query_by_bias = call.query.new_zeros(call.query.shape) if asks_query else None
        dtype = call.query.dtype
        self.bias = [
            torch.zeros_like(t, dtype=torch.promote_types(t.dtype, dtype)) for t in call.bias_tensors
        ]

    def shaped_like(self, tensors: list[Tensor | None], groups: int) -> list[Tensor | None]:
        """Return the gradients of query, key, value, vector and the bias tensors, in this order.

        Each gradient gets the shape and dtype of its tensor.

        tensors: query, key, value, vector and the bias tensors; None for a tensor that the call does not
            have.
        groups: number of query heads that share a key head. The gradients of key and value are summed over
            these query heads.
        """
        if self.factor is not None:  # add_additive_gradients() does not multiply by v
            self.query *= self.factor
            self.key *= self.factor
        if self.query_by_bias is not None:
            self.query += self.query_by_bias
        if groups > 1:
            self.key, self.value = (t.unflatten(1, (-1, groups)).sum(2) for t in (self.key, self.value))
        gradients = [self.query, self.key, self.value, self.vector, *self.bias]
        return [
            None if gradient is None or tensor is None else gradient.to(tensor.dtype)
            for gradient, tensor in zip(gradients, tensors, strict=True)
        ]


def _backward_rows(
    call: Call,
    rows: slice,
    seed: int,
    doutput: Tensor,
    lse: Tensor,
    delta: Tensor,
    saved: Iterator[Tensor] | None,
    totals: _Totals,
) -> None:
    """Backward pass of the queries in the slice `rows`: add their gradients of all inputs to `totals`.

    doutput, lse: gradient of the output and lse of these rows.
    delta: sum of doutput * output over the channels, for these rows.
    saved: the scores of the forward pass, block by block; None to recompute them.
    """
    query = call.query[:, :, rows]
    level, blocks = _finite(lse), list(column_blocks(call, rows))
    for columns, tile in blocks:
        key, value = call.key[:, :, columns], call.value[:, :, columns]
        scores = tile_scores(call, query, key, tile) if saved is None else next(saved)
        weights = (scores - level).exp_()
        kept = _dropout(call, weights, tile, seed) if call.dropout else None
        dropped = weights if kept is None else weights * kept
        totals.value[:, :, columns] += dropped.transpose(-2, -1) @ doutput
        dweights = doutput @ value.transpose(-2, -1)
        if isinstance(call.bias, Bias) and call.bias.reads:
            dweights += _through_read(call.bias, dropped, tile, doutput, totals)
        if kept is not None:
            dweights *= kept
        if len(blocks) == 1:
            # This block contains all visible keys, so the weights of a row should sum to 1. Dividing by their
            # sum removes the rounding error of the lse, which would be large where terms of the gradient
            # cancel.
            weights /= _nonzero(weights.sum(-1, keepdim=True))
            delta = (weights * dweights).sum(-1, keepdim=True)
        dscores = dweights.sub_(delta).mul_(weights).div_(call.temperature)
        _through_bias(call, query, tile, dscores, rows, columns, totals)
        if call.softcap is not None:
            dscores = dscores * softcap_slope(call, query, key)
        if call.combine == "inner":
            totals.query[:, :, rows] += (dscores @ key) * call.scale
            totals.key[:, :, columns] += (dscores.transpose(-2, -1) @ query) * call.scale
        else:
            assert totals.vector is not None
            places = totals.query[:, :, rows], totals.key[:, :, columns], totals.vector
            add_additive_gradients(query, key, dscores, *places)


def _through_bias(
    call: Call, query: Tensor, tile: Tile, dscores: Tensor, rows: slice, columns: slice, totals: _Totals
) -> None:
    """Backward pass of the bias for one tile: add the gradients that go through the bias to `totals`.

    dscores: gradient of the scores of the tile.
    """
    if isinstance(call.bias, Tensor):
        place = totals.bias[0]
        place = place if place.shape[2] == 1 else place[:, :, rows]
        place = place if place.shape[3] == 1 else place[:, :, :, columns]
        place += dscores.sum_to_size(place.shape)
    elif call.bias is not None and (totals.bias or call.bias.asks_query):
        with torch.enable_grad():
            query = query.detach().requires_grad_(call.bias.asks_query)
            added = call.bias.tile(query, tile)
        _collect(
            added, dscores.sum_to_size(added.shape), [query, *call.bias.parameters()], tile, rows, totals
        )


def _through_read(bias: Bias, weights: Tensor, tile: Tile, doutput: Tensor, totals: _Totals) -> Tensor:
    """Return the gradient of the weights through bias.read(), the term that a bias adds to the output.

    Also add the gradients of the parameters of the bias to `totals`.

    weights: the weights of the tile, after dropout.
    doutput: gradient of the output.
    """
    with torch.enable_grad():
        weights = weights.detach().requires_grad_()
        read = bias.read(weights, tile)
    parameters = list(bias.parameters())
    dweights, *gradients = torch.autograd.grad(read, [weights, *parameters], doutput, allow_unused=True)
    for total, gradient in zip(totals.bias, gradients, strict=True):
        if gradient is not None:
            total += gradient
    return dweights


def _collect(
    added: Tensor, dadded: Tensor, inputs: list[Tensor], tile: Tile, rows: slice, totals: _Totals
) -> None:
    """Backpropagate through the bias of one tile, and add the gradients of `inputs` to `totals`.

    added: the bias of the tile, computed from `inputs` by autograd operations.
    dadded: the gradient of `added`.
    inputs: the query, then the parameters of the bias.
    rows: the query rows of the tile.
    """
    learned = [each for each in inputs if each.requires_grad]
    gradients = dict(
        zip(map(id, learned), torch.autograd.grad(added, learned, dadded, allow_unused=True), strict=True)
    )
    query, *parameters = inputs
    if gradients.get(id(query)) is not None:
        assert totals.query_by_bias is not None
        totals.query_by_bias[:, :, rows] += gradients[id(query)]
    for total, parameter in zip(totals.bias, parameters, strict=True):
        if gradients.get(id(parameter)) is not None:
            total += gradients[id(parameter)]


def _dropout(call: Call, weights: Tensor, tile: Tile, seed: int) -> Tensor:
    """Return a tensor of dropout factors for the weights of one tile, each 0 or 1 / (1 - dropout).

    The factors depend only on the seed and on the rows and keys of the tile, so that forward and backward
    pass use the same factors.
    """
    offset = int(tile.rows_T[0]) * call.sizes[3] + int(tile.columns_S[0])
    generator = torch.Generator(weights.device).manual_seed(seed + offset)
    kept = torch.empty_like(weights).bernoulli_(1 - call.dropout, generator=generator)
    return kept.div_(1 - call.dropout)


def _finite(level: Tensor) -> Tensor:
    """Replace -inf, the maximum or lse of a row that sees no key, by 0. Otherwise -inf - (-inf) gives NaN."""
    return torch.where(level == -torch.inf, 0.0, level)


def _nonzero(total: Tensor) -> Tensor:
    """Replace 0, the sum of the weights of a row that sees no key, by 1, to avoid a division by 0."""
    return torch.where(total == 0, 1.0, total)
