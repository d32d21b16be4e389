"""Strides: which memory layouts the fused kernels of PyTorch take, and copies for the others."""

from __future__ import annotations

import functools
from typing import Any

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
    return _dense_rows(tensor.shape, tensor.stride(), tensor.storage_offset() % 16, tensor.element_size())


@functools.lru_cache(maxsize=1024)
def _dense_rows(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, element_size: int) -> bool:
    return strides[-1] == 1 and _aligned_rows(shape, strides, offset, element_size)


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
    return _aligned_rows(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size())


def _aligned_rows(shape: tuple[int, ...], strides: tuple[int, ...], offset: Any, element_size: int) -> bool:
    step = 16 // element_size
    rows = zip(shape[:-1], strides[:-1], strict=True)
    return all(size == 1 or stride % step == 0 for size, stride in rows) and offset % step == 0
