"""What the launches of many kernels need: sizes, strides, alignment, precision, and the device."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from regard.kernels import interpreting

__all__ = ["MAX_GRID", "in_eights", "in_rows", "power_of_two", "precision_of", "processors", "steps", "up"]

MAX_GRID = 65535
"""Maximum size of the second and third dimension of a CUDA grid."""


def up(number: int, multiple: int) -> int:
    """Round `number` up to a multiple of `multiple`."""
    return -(-number // multiple) * multiple


def power_of_two(number: int) -> int:
    """Round `number`, at least 1, up to a power of two."""
    return 1 << (number - 1).bit_length()


def steps(name: str, tensor: Tensor) -> dict[str, int]:
    """Return the strides of a tensor (B, H, T, D) as keyword arguments of a kernel.

    For the name "key" they are key_batch, key_head and key_row. The last stride is left out, because it is
    always 1."""
    return {
        f"{name}_batch": tensor.stride(0),
        f"{name}_head": tensor.stride(1),
        f"{name}_row": tensor.stride(2),
    }


def in_eights(*tensors: Tensor) -> bool:
    """Whether all rows of the tensors start and end at a multiple of 8 elements.

    If they do, kernels can load 8 elements at once (their parameter EIGHTS)."""
    sizes = (size for tensor in tensors for size in (*tensor.stride()[:3], tensor.shape[3]))
    return all(size % 8 == 0 for size in sizes) and not any(tensor.data_ptr() % 16 for tensor in tensors)


def in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with stride 1 in its last dimension, as the kernels assume; copied if necessary."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def precision_of(value: Tensor) -> str:
    """Return the name of the precision of matrix products, the parameter PRECISION of kernels.

    For float32: "tf32x3", three TF32 products, which are as precise as one float32 product and faster; or
    "ieee" if the device has no TF32. For half precision: "tf32", which has no effect there. In the
    interpreter: "ieee" for float32, "widened" for half precision."""
    if value.dtype == torch.float32:
        return "tf32x3" if multiplies_tf32(value.device) and not interpreting() else "ieee"
    return "widened" if interpreting() else "tf32"


@functools.cache
def processors(device: torch.device) -> int:
    """Number of multiprocessors of a CUDA device; 0 for the CPU (interpreter), where work is not split."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def multiplies_tf32(device: torch.device) -> bool:
    """Whether the device supports TF32 matrix products: CUDA needs compute capability 8.0 or higher."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
