"""Whether layers and losses run as Triton kernels, and on which device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from regard.dimensions import in_transform
from regard.kernels import TRITON, interpreting

__all__ = ["by_kernel", "is_current", "on_device"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def by_kernel(tensor: Tensor) -> bool:
    """Whether layers and losses use Triton kernels for tensors of this device and dtype.

    float64 tensors use plain PyTorch, because the kernels accumulate in float32. Inside torch.func
    transforms, all tensors use plain PyTorch, because the transforms do not support custom kernels.

    >>> by_kernel(torch.zeros(1, dtype=torch.float64))
    False
    """
    device = tensor.device.type
    if not TRITON or (device == "cpu" and not interpreting()):  # the frequent cases on a CPU
        return False
    if tensor.dtype not in DTYPES or in_transform():
        return False
    return is_current(tensor.device) if device == "cuda" else device == "cpu"


def is_current(device: torch.device) -> bool:
    """Whether `device` is the current CUDA device; True for devices of other types, such as the CPU.

    Triton kernels and CUDA graphs always run on the current CUDA device.

    >>> is_current(torch.device("cpu"))
    True
    """
    return device.type != "cuda" or device.index in (None, torch.cuda.current_device())


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the device of the tensor is the current one, as Triton launches need."""
    return nullcontext() if is_current(tensor.device) else torch.cuda.device(tensor.device)
