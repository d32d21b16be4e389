"""Double backward (gradients of gradients) for backends with their own backward pass."""

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
    """Return gradients of `tensors` that can be differentiated again, computed by the reference backend.

    tensors: query, key, value, vector and the tensors of the bias, as passed to the backend.
    doutput: gradient of the output.

    A tensor that does not require a gradient gets None. Unlike the backends that call it, this function
    allocates tensors of size T x S.
    """
    if call.dropout:
        raise BackendError(
            message(
                "attention()",
                "the backends 'blocked' and 'fused' do not support double backward with dropout",
                hint='use backend="reference"',
            )
        )
    query, key, value, vector, *bias = tensors
    assert query is not None and key is not None and value is not None
    call = replace(call, query=query, key=key, value=value, vector=vector)
    if isinstance(call.bias, Tensor):
        call = replace(call, bias=bias[0])
    learned = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    output = reference.run(call).output
    gradients = iter(torch.autograd.grad(output, learned, doutput, create_graph=True, allow_unused=True))
    return [next(gradients) if tensor is not None and tensor.requires_grad else None for tensor in tensors]
