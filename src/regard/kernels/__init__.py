"""Triton kernels. Triton is imported only by these modules, and only when a kernel is used.

One folder per concern:

additive    additive attention: forward and backward pass
inner       inner-product attention with masks: forward and backward pass
looking     the looking pass: entropy, alignment, column mass, pooled weights, and the largest weights
training    cross-entropy, dropout, residual connections, sums of gradients
recurrent   steps of gated cells, of the decoder of Bahdanau, of LSTMN and of neural Turing machines
search      greedy and beam search

Files that they share:

launch          sizes, strides and precision that launches need
tanh            tanh(q + k) from e^2q and e^2k, with shared reciprocals
mask            masks inside a kernel
dropout         dropout inside a kernel, and its seeds
matrix_product  matrix products inside a kernel

Letters in the formulas: q, k, v are elements of query, key and vector; r = 1 / (1 + e^2q e^2k), so that
tanh(q + k) = 1 - 2 r; g is the gradient of v . tanh(q + k), the score without the factor `scale`. K is the
number of key heads. "B H" is one dimension of size B * H, batch and heads.

Arguments that many kernels share:

query, key, value, vector     (B, H, T, D), (B, K, S, D), (B, K, S, E), (1 or H, D)
heads, groups                 H, and the number of query heads that share a key head, H / K
queries, keys, width, depth   T, S, D, E
lengths, start, left, right,
document_of_query, ..._key    the mask; see Sight in additive/forward.py
LENGTHS, LEFT, RIGHT,
DOCUMENTS                     whether the mask has lengths, a left or right limit, or documents
first_row, row_count          first row and number of rows of the chunk that one launch processes
x_batch, x_head, x_row        strides of the tensor x, in elements, along batch, heads and rows
x_step                        stride of the tensor x along the batch
x_part                        stride of the tensor x between two of its partial results (parts)
ROWS, COLUMNS, WIDTH, DEPTH   tile sizes along T, S, D and E
spans                         number of spans; a span is a range of SPAN channels (additive/tile_sizes.py)
reach_of_query, reach_of_key  largest |q| or |k| of each tile and span
bias                          added to v . tanh(q + k), (B, H, T, S) with strides that can be 0
seed, dropout                 dropout of the weights; see dropout
wide_of_query, wide_of_key    flags of the channels of each tile, for is_wide() (see tanh)
whole_of_query, whole_of_key  flags of the channels of each sequence
EIGHTS                        whether all strides are multiples of 8, which allows vectorised loads
APPROXIMATE                   use approximate GPU instructions; False in the interpreter
PRECISION                     precision of matrix products; see matrix_product
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from regard.dimensions import in_transform

__all__ = ["TRITON", "by_kernel", "interpreting", "is_current", "on_device"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

TRITON = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed."""


def interpreting() -> bool:
    """Whether Triton runs kernels in its CPU interpreter, that is, whether TRITON_INTERPRET=1 is set.

    Triton reads this environment variable when a module with kernels is imported. Later changes have no
    effect.
    """
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes")


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
