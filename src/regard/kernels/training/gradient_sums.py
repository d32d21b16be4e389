"""Sums of the columns of a gradient, which the kernel that computed the gradient has computed too.

The gradient of a bias is the sum of the columns of the gradient of a linear layer's output. If a kernel of
attention computes this gradient, it can also sum it, and the linear layer need not read it again. The sums
are an attribute of the gradient tensor: autograd passes the same tensor, or views of it, to the layer.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["column_parts", "keep_column_parts"]

_NAME = "_regard_column_parts"


def keep_column_parts(gradient: Tensor, parts: Tensor) -> None:
    """Keep sums of the columns of a gradient (..., C): the sums of groups of rows, (groups, C).

    Changing the gradient or a view of it afterwards makes the sums invalid.
    """
    setattr(gradient, _NAME, (parts, gradient._version))


def column_parts(gradient: Tensor) -> Tensor | None:
    """Return the kept sums of a gradient, (groups, C), or None if there are none.

    gradient: the tensor of keep_column_parts(), or a view of all its elements in the same order.

    >>> import torch
    >>> gradient = torch.ones(2, 3, 4)
    >>> keep_column_parts(gradient, gradient.sum(1))
    >>> column_parts(gradient.view(6, 4)).shape, column_parts(gradient[0])
    (torch.Size([2, 4]), None)
    >>> column_parts(gradient.mul_(2)) is None
    True
    """
    whole = gradient if gradient._base is None else gradient._base
    parts, version = getattr(whole, _NAME, (None, 0))
    if parts is None or version != whole._version or gradient.numel() != whole.numel():
        return None
    return parts if gradient.is_contiguous() and gradient.shape[-1] == parts.shape[1] else None
