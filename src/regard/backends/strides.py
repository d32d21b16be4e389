"""Strides: which memory layouts the fused kernels of PyTorch take, and copies for the others."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["aligned", "dense", "last_dense"]


def last_dense(tensor: Tensor) -> Tensor:
    """Return the tensor with stride 1 in its last dimension, copied if necessary.

    The kernels assume this stride and do not check it.
    """
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def dense(tensor: Tensor) -> bool:
    """Whether the kernels take the tensor with its strides: the last is 1, and on CUDA, rows are aligned."""
    if not tensor.is_cuda:
        return tensor.is_contiguous() or tensor.stride(-1) == 1
    return tensor.stride(-1) == 1 and _rows_are_aligned(tensor)


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, copied if its rows are not aligned in memory. CUDA kernels load 16 bytes at a time.

    A tensor whose width is no multiple of 16 bytes is returned as it is: kernels that support such a width
    do not need aligned rows.
    """
    if not tensor.is_cuda or tensor.shape[-1] * tensor.element_size() % 16 or _rows_are_aligned(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _rows_are_aligned(tensor: Tensor) -> bool:
    """Whether every row of the tensor begins at a multiple of 16 bytes."""
    step = 16 // tensor.element_size()
    sizes, strides = tensor.shape[:-1], tensor.stride()[:-1]
    rows = all(size == 1 or stride % step == 0 for size, stride in zip(sizes, strides, strict=True))
    return rows and tensor.storage_offset() % step == 0
