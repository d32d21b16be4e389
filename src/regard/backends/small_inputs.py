"""Small-input path of the blocked backend: additive attention without blocks.

tanh(q + k) is computed as one tensor and saved for the backward pass. For small inputs, this is faster than a
loop over blocks. An example is a recurrent decoder, which calls attention() once per word. FEW limits the
memory for the saved tensor; larger inputs are computed block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.backends.double_backward import differentiable
from regard.blocks.additive_blocks import at_once
from regard.call import Call, Forward
from regard.dimensions import lift

__all__ = ["attend", "fits", "run"]

FEW = 1 << 18
"""Maximum number of elements of tanh(q + k) on a CPU: 1 MiB of float32. There are B * H * T * S * A elements.
For GPUs, at_once() computes a larger limit from this number."""


def fits(call: Call) -> bool:
    """Whether this call can be computed without blocks.

    The score must be additive, without bias, soft cap, dropout or groups (query heads that share a key
    head), and tanh(q + k) must have few elements (FEW).
    """
    if call.combine != "additive" or call.bias is not None or call.softcap is not None:
        return False
    if call.dropout or call.groups != 1:
        return False
    batch, heads, queries, keys = call.sizes
    return batch * heads * queries * keys * call.query.shape[-1] <= at_once(FEW, call.query.device)


def run(call: Call) -> Forward:
    """Compute additive attention for a small input, with tanh(q + k) as one tensor."""
    assert call.vector is not None
    visible = seeing = None
    if call.mask.parts:
        visible = call.mask.tile(call.whole)
        seeing = visible.any(-1)
    tensors = (call.query, call.key, call.value, call.vector)
    return Forward(*attend(*tensors, visible, seeing, call.temperature, call.detached))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    visible: Tensor | None,
    seeing: Tensor | None,
    temperature: float,
    make_call: Callable[[], Call],
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    visible: the mask, a bool tensor broadcastable to (B, H, T, S); None if no key is hidden.
    seeing: which queries see some key, broadcastable to (B, H, T); None if all do.
    make_call: returns a Call with the options of this call, for a double backward.

    With one head, all tensors may lack the head dimension.
    """
    tensors = (query, key, value, vector)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        output, lse = _Small.apply(visible, seeing, temperature, make_call, *tensors)
        return output, lse
    output, lse, *_ = _forward(visible, seeing, temperature, *tensors)
    return output, lse


def _forward(
    visible: Tensor | None, seeing: Tensor | None, temperature: float, *tensors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, lse, tanh(q + k) and the weights."""
    query, key, value, vector = tensors
    if query.dtype not in _WIDE:
        query, key, value, vector = (tensor.float() for tensor in tensors)
    hidden_BHTSA = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
    if vector.shape[0] == 1:
        scores_BHTS = hidden_BHTSA @ vector[0]
    else:
        scores_BHTS = (hidden_BHTSA @ vector[:, None, :, None]).squeeze(-1)
    if temperature != 1:
        scores_BHTS = scores_BHTS / temperature
    if visible is not None:
        hidden = _HIDDEN[scores_BHTS.dtype] if scores_BHTS.is_cpu else -torch.inf
        scores_BHTS = torch.where(visible, scores_BHTS, hidden)
    weights_BHTS = torch.softmax(scores_BHTS, -1)
    if key.shape[-2]:
        # The largest weight is 1 / sum_s exp(score_s - best). This is faster than torch.logsumexp.
        lse_BHT = scores_BHTS.amax(-1) - weights_BHTS.amax(-1).log()
    else:
        lse_BHT = torch.full_like(scores_BHTS.sum(-1), -torch.inf)
    if seeing is not None:  # the softmax of a row of -inf is NaN
        weights_BHTS = torch.where(seeing.unsqueeze(-1), weights_BHTS, 0.0)
        lse_BHT = torch.where(seeing, lse_BHT, -torch.inf)
    output = weights_BHTS @ value
    dtype = tensors[2].dtype
    return output if output.dtype == dtype else output.to(dtype), lse_BHT, hidden_BHTSA, weights_BHTS


_HIDDEN = {
    dtype: torch.full((), -torch.inf, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)
}
"""-inf as a tensor: torch.where() converts a Python number in each call, which takes longer."""

_WIDE = tuple(_HIDDEN)


class _Small(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        visible: Tensor | None,
        seeing: Tensor | None,
        temperature: float,
        make_call: Callable[[], Call],
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        output, lse_BHT, hidden_BHTSA, weights_BHTS = _forward(visible, seeing, temperature, *tensors)
        ctx.make_call, ctx.temperature = make_call, temperature
        ctx.save_for_backward(*tensors, hidden_BHTSA, weights_BHTS)
        ctx.mark_non_differentiable(lse_BHT)
        return output, lse_BHT

    @staticmethod
    def backward(ctx: Any, doutput: Tensor, _: Tensor) -> tuple[Any, ...]:
        *tensors, hidden_BHTSA, weights_BHTS = ctx.saved_tensors
        if torch.is_grad_enabled():  # backward(create_graph=True), for a double backward
            return *_NO_GRADIENTS, *_differentiable(ctx.make_call(), tensors, doutput)
        dtype, (queries, keys) = weights_BHTS.dtype, weights_BHTS.shape[-2:]
        doutput = doutput.to(dtype)
        value, vector = tensors[2].to(dtype), tensors[3].to(dtype)
        dvalue = weights_BHTS.mT @ doutput
        dweights = doutput @ value.mT
        dscores = dweights.sub_((dweights * weights_BHTS).sum(-1, keepdim=True)).mul_(weights_BHTS)
        if ctx.temperature != 1:
            dscores /= ctx.temperature
        if vector.shape[0] == 1:
            dvector = (dscores.reshape(-1) @ hidden_BHTSA.flatten(0, -2))[None]
        else:
            dvector = (dscores.unsqueeze(-1) * hidden_BHTSA).sum((0, 2, 3))
        slope = torch.ops.aten.tanh_backward(dscores.unsqueeze(-1).expand_as(hidden_BHTSA), hidden_BHTSA)
        factor_H1A = vector[:, None, :]
        dquery = (slope.squeeze(-2) if keys == 1 else slope.sum(-2)) * factor_H1A
        dkey = (slope.squeeze(-3) if queries == 1 else slope.sum(-3)) * factor_H1A
        gradients = (dquery, dkey, dvalue, dvector)
        return *_NO_GRADIENTS, *(
            each.to(tensor.dtype) for each, tensor in zip(gradients, tensors, strict=True)
        )


_NO_GRADIENTS = (None,) * 4  # of the arguments before the tensors


def _differentiable(call: Call, tensors: list[Tensor], doutput: Tensor) -> list[Tensor | None]:
    """Return gradients that can be differentiated again, also of tensors without head dimension."""
    query, key, value, vector = tensors
    if query.dim() == 4:
        return differentiable(call, tensors, doutput)
    gradients = differentiable(call, [lift(query), lift(key), lift(value), vector], lift(doutput))
    *inputs, dvector = gradients
    return [*(None if each is None else each.squeeze(1) for each in inputs), dvector]
