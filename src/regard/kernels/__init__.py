"""Triton kernels. Triton is imported only by these modules, and only when a kernel is used.

tanh               tanh(q + k) from e^2q and e^2k, with shared reciprocals
kernel_mask        masks inside a kernel
matrix_product     matrix products inside a kernel
additive_scores    scores of additive attention, in tiles
additive_forward   online softmax and output
additive_decode    one query per sequence (decoding), forward and backward
additive_weights   backward pass, part 1: gradients of values and scores
additive_backward  backward pass, part 2: gradients of query, key and vector
additive_series    the same in bfloat16, as matrix products (Fourier series of tanh)
launch             tile sizes, and the choice of kernels by shape
forward_pass       launches the kernels of the forward pass
backward_pass      launches the kernels of the backward pass
additive           forward and backward pass as custom operators for torch.compile
recurrent_cells    one step of a recurrent cell
cross_entropy      cross-entropy over a large vocabulary
kernel_choice      whether recurrent cells and the loss use their kernels
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["TRITON", "interpreting"]

TRITON = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed."""


def interpreting() -> bool:
    """Whether Triton runs kernels in its CPU interpreter; Triton checks this when kernels are imported."""
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes")
