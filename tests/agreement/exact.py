"""The gradients of one backend held against float64 on the same numbers: the projections of the score, which
every backend shares, have been rounded before, so that what is left is the error of the backend alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from regard.backends import BACKENDS
from regard.call import Call, Forward
from regard.positions import Bias

FROBENIUS = {torch.bfloat16: 1.35e-2, torch.float16: 2e-3}
"""The relative Frobenius error |ours - exact| / |exact| that a tensor may have, by the dtype of the call."""


def in_dtype(call: Call, dtype: torch.dtype, gradients: bool = False) -> Call:
    """The same numbers in this dtype, as leaves that require a gradient where `gradients` says so."""

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
    """The same numbers in float64."""
    return in_dtype(call, torch.float64)


def gradients_of(call: Call, backend: str, doutput: Tensor) -> dict[str, Tensor]:
    """Output, and the gradient of every tensor of the call that learns, in float64."""
    forward: Forward = BACKENDS[backend].run(call)
    tensors = {"query": call.query, "key": call.key, "value": call.value, "vector": call.vector}
    if isinstance(call.bias, Bias):
        tensors |= {f"bias.{name}": parameter for name, parameter in call.bias.named_parameters()}
    elif call.bias is not None:
        tensors["bias"] = call.bias
    learning = {name: each for name, each in tensors.items() if each is not None and each.requires_grad}
    found = torch.autograd.grad(
        forward.output, list(learning.values()), doutput.to(forward.output), allow_unused=True
    )
    named = zip(learning, found, strict=True)
    return {"output": forward.output.detach().double().cpu()} | {
        name: each.double().cpu() for name, each in named if each is not None
    }


def frobenius(call: Call, backend: str, doutput: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """(ours, exact) for the output and each gradient. Where the exact one vanishes (rows that see one key
    alone), no relative error exists: those tensors are left to the elementwise check."""
    ours = gradients_of(in_dtype(call, call.query.dtype, gradients=True), backend, doutput)
    exact = gradients_of(in_dtype(call, torch.float64, gradients=True), "reference", doutput)
    assert ours.keys() <= exact.keys()
    return {name: (each, exact[name]) for name, each in ours.items() if exact[name].norm() > 1e-9}


def assert_near(name: str, ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """The relative Frobenius error is within what this dtype allows."""
    error = ((ours - exact).norm() / exact.norm()).item()
    assert error <= FROBENIUS[dtype], f"{name}: relative Frobenius error {error:.2g}"
