"""Small-input path of the blocked backend: additive attention without blocks.

tanh(q + k) is computed as one tensor and saved for the backward pass. For small inputs, this is faster than a
loop over blocks. An example is a recurrent decoder, which calls attention() once per word. FEW limits the
memory for the saved tensor; larger inputs are computed block by block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.backends.double_backward import differentiable
from regard.blocks.additive_blocks import at_once
from regard.call import Call, Forward

__all__ = ["fits", "run"]

FEW = 1 << 18
"""Maximum number of elements of tanh(q + k) on a CPU: 1 MiB of float32. There are B * H * T * S * A elements.
For GPUs, at_once() computes a larger limit from this number."""


def fits(call: Call) -> bool:
    """Whether this call can be computed without blocks.

    The score must be additive, without bias and dropout. Each query head must have its own key head. The
    number of elements of tanh(q + k) is limited by FEW.
    """
    if call.combine != "additive" or call.bias is not None or call.dropout or call.groups != 1:
        return False
    batch, heads, queries, keys = call.sizes
    return batch * heads * queries * keys * call.query.shape[-1] <= at_once(FEW, call.query.device)


def run(call: Call) -> Forward:
    """Compute additive attention for a small input, with tanh(q + k) as one tensor."""
    output, lse = _Small.apply(call, call.query, call.key, call.value, call.vector)
    return Forward(output, lse)


class _Small(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        query, key, value, vector = (tensor.to(dtype) for tensor in tensors)
        hidden_BHTSA = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
        if len(vector) == 1:
            scores_BHTS = hidden_BHTSA @ vector[0]
        else:
            scores_BHTS = (hidden_BHTSA @ vector[:, None, :, None]).squeeze(-1)
        if call.temperature != 1:
            scores_BHTS = scores_BHTS / call.temperature
        if call.mask.parts:
            scores_BHTS = torch.where(call.mask.tile(call.whole), scores_BHTS, -torch.inf)
        best = scores_BHTS.amax(-1, keepdim=True) if key.shape[2] else query.new_zeros(())
        level = torch.where(best == -torch.inf, 0.0, best)
        weights_BHTS = (scores_BHTS - level).exp_()
        total = weights_BHTS.sum(-1, keepdim=True)
        weights_BHTS /= torch.where(total == 0, 1.0, total)
        lse_BHT = (level + total.log()).squeeze(-1)
        ctx.call = call.detached()
        ctx.save_for_backward(*tensors, hidden_BHTSA, weights_BHTS)
        ctx.mark_non_differentiable(lse_BHT)
        return (weights_BHTS @ value).to(call.value.dtype), lse_BHT

    @staticmethod
    def backward(ctx: Any, doutput: Tensor, _: Tensor) -> tuple[Any, ...]:
        *tensors, hidden_BHTSA, weights_BHTS = ctx.saved_tensors
        if torch.is_grad_enabled():  # backward(create_graph=True), for a double backward
            return None, *differentiable(ctx.call, tensors, doutput)
        dtype, (queries, keys) = weights_BHTS.dtype, weights_BHTS.shape[2:]
        doutput = doutput.to(dtype)
        value, vector = tensors[2].to(dtype), tensors[3].to(dtype)
        dvalue = weights_BHTS.mT @ doutput
        dweights = doutput @ value.mT
        dscores = dweights.sub_((dweights * weights_BHTS).sum(-1, keepdim=True)).mul_(weights_BHTS)
        if ctx.call.temperature != 1:
            dscores /= ctx.call.temperature
        if len(vector) == 1:
            dvector = (dscores.reshape(-1) @ hidden_BHTSA.flatten(0, -2))[None]
        else:
            dvector = (dscores.unsqueeze(-1) * hidden_BHTSA).sum((0, 2, 3))
        slope = torch.ops.aten.tanh_backward(dscores.unsqueeze(-1).expand_as(hidden_BHTSA), hidden_BHTSA)
        factor_H1A = vector[:, None, :]
        dquery = (slope.squeeze(-2) if keys == 1 else slope.sum(-2)) * factor_H1A
        dkey = (slope.squeeze(-3) if queries == 1 else slope.sum(-3)) * factor_H1A
        gradients = (dquery, dkey, dvalue, dvector)
        return None, *(each.to(tensor.dtype) for each, tensor in zip(gradients, tensors, strict=True))
