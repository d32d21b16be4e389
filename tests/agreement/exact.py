"""Gradients of one backend compared with float64 on the same inputs.

The inputs are the projected queries and keys, already rounded to the dtype of the call. All backends share
the projections, so the remaining error is that of the backend alone.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from regard.backends import BACKENDS, reference
from regard.call import Call
from regard.positions import Bias

FROBENIUS = {torch.bfloat16: 1.35e-2, torch.float16: 2e-3}
"""The allowed relative Frobenius error |ours - exact| / |exact| of a tensor, by the dtype of the call."""


def in_dtype(call: Call, dtype: torch.dtype, gradients: bool = False) -> Call:
    """Return the same values in this dtype, as leaves that require a gradient if `gradients` is set."""

    def cast(tensor: Tensor, learns: bool = gradients) -> Tensor:
        return tensor.detach().to(dtype, copy=True).requires_grad_(learns)

    bias = call.bias
    if isinstance(bias, Tensor):
        bias = cast(bias, gradients and bias.requires_grad)
    elif bias is not None:
        learn = [parameter.requires_grad and gradients for parameter in bias.parameters()]
        bias = copy.deepcopy(bias).to(torch.promote_types(dtype, torch.float32))
        for parameter, learns in zip(bias.parameters(), learn, strict=True):
            parameter.requires_grad_(learns)
    return replace(
        call,
        query=cast(call.query),
        key=cast(call.key),
        value=cast(call.value),
        vector=None if call.vector is None else cast(call.vector),
        bias=bias,
    )


def in_float64(call: Call) -> Call:
    """Return the same values in float64."""
    return in_dtype(call, torch.float64)


def gradients_of(call: Call, output: Tensor, doutput: Tensor) -> dict[str, Tensor]:
    """Return the output of this call and the gradients of all its tensors that require one, in float64."""
    tensors = {"query": call.query, "key": call.key, "value": call.value, "vector": call.vector}
    if isinstance(call.bias, Bias):
        tensors |= {f"bias.{name}": parameter for name, parameter in call.bias.named_parameters()}
    elif call.bias is not None:
        tensors["bias"] = call.bias
    learning = {name: each for name, each in tensors.items() if each is not None and each.requires_grad}
    gradients = torch.autograd.grad(output, list(learning.values()), doutput.to(output), allow_unused=True)
    named = zip(learning, gradients, strict=True)
    return {"output": output.detach().double()} | {
        name: each.double() for name, each in named if each is not None
    }


def without_normaliser(call: Call, doutput: Tensor, absolute: bool = False) -> dict[str, Tensor]:
    """Return the gradients in float64 if the normaliser of the softmax were a constant.

    The backward pass subtracts w * sum(w * dO.v) from w * dO.v, both rounded to the dtype of the call. The
    rounding error is therefore relative to the size of these terms, not of their difference.

    absolute: use the absolute values of dO and v. Then dO.v has the size of its largest possible partial
    sum, and the rounding error of the sum is relative to it even if the terms of the sum cancel.
    """
    call = in_dtype(call, torch.float64, gradients=True)
    if absolute:
        call, doutput = replace(call, value=call.value.abs()), doutput.abs()
    scores_BHTS, visible_BHTS = reference.compare(call)
    weights_BHTS = reference.select(call, scores_BHTS, visible_BHTS).weights.detach()
    scaled_BHTS = torch.where(visible_BHTS, scores_BHTS, 0.0) / call.select.temperature
    weights_BHTS = weights_BHTS * (1 + scaled_BHTS - scaled_BHTS.detach())
    output_BHTE = reference.read(weights_BHTS, call.spread(call.value), visible_BHTS)
    if isinstance(call.bias, Bias) and call.bias.reads:
        output_BHTE = output_BHTE + call.bias.read(weights_BHTS, call.whole)
    return gradients_of(call, output_BHTE, doutput)


def exact_gradients(call: Call, doutput: Tensor) -> dict[str, Tensor]:
    """Return the output and the gradients of the reference in float64."""
    wide = in_dtype(call, torch.float64, gradients=True)
    return gradients_of(wide, BACKENDS["reference"].run(wide).output, doutput)


def frobenius(
    call: Call, backend: str, doutput: Tensor, exact: dict[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (ours, exact) for the output and each gradient; exact: the result of exact_gradients().

    Tensors whose exact value is 0 (rows that see a single key) have no relative error and are left out; the
    elementwise check covers them.
    """
    rounded = in_dtype(call, call.query.dtype, gradients=True)
    ours = gradients_of(rounded, BACKENDS[backend].run(rounded).output, doutput)
    assert ours.keys() <= exact.keys()
    return {name: (each, exact[name]) for name, each in ours.items() if exact[name].norm() > 1e-9}


def assert_near(name: str, ours: Tensor, exact: Tensor, dtype: torch.dtype, size: float = 0.0) -> None:
    """Assert that the Frobenius error, relative to the norm, is at most FROBENIUS.

    size: the norm of larger terms whose difference is `exact`. One rounding step of it is allowed too.
    """
    error, norm = (ours - exact).norm().item(), exact.norm().item()
    allowed = max(FROBENIUS[dtype] * norm, torch.finfo(dtype).eps * size)
    assert error <= allowed, f"{name}: relative Frobenius error {error / norm:.2g}, size {size / norm:.2g}"
