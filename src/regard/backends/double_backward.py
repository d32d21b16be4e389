"""Differentiating twice through a backend whose backward pass is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.backends import reference
from regard.call import Call
from regard.errors import BackendError, message

__all__ = ["differentiable"]


def differentiable(call: Call, tensors: Sequence[Tensor | None], doutput: Tensor) -> list[Tensor | None]:
    """The gradients as a graph of their own, by way of the definition, which materialises.

    tensors: query, key, value, vector and those of the bias, as they were given to the backend.
    """
    if call.dropout:
        raise BackendError(
            message(
                "attention()",
                "backend 'blocked' cannot be differentiated twice through dropout",
                hint='backend="reference" can',
            )
        )
    query, key, value, vector, *bias = tensors
    assert query is not None and key is not None and value is not None
    call = replace(call, query=query, key=key, value=value, vector=vector)
    if isinstance(call.bias, Tensor):
        call = replace(call, bias=bias[0])
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    output = reference.run(call).output
    found = iter(torch.autograd.grad(output, wanted, doutput, create_graph=True, allow_unused=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in tensors]
