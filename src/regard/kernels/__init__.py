"""Kernels in Triton, which is imported by them and nothing else, and only when one of them is run.

tanh              e^2q and e^2k in place of tanh, reciprocals shared
sight             masks in their normal form
product           matrix products
additive_scores   scores, tile by tile
additive_forward  softmax and context
additive_decode   one query a sequence
additive_weights  gradients of values and scores
additive_backward gradients of query, key and vector
additive_series   those of query, key and vector in bfloat16, as matrix products
launch            how large tiles are, and which way a shape goes
forward_pass      what runs on the way forward, and on how large a grid
backward_pass     and on the way back
additive          both as operators that torch.compile sees
cells             steps of a recurrent cell
cross_entropy     the loss of a large vocabulary
choosing          whether what is not attention runs by them
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["TRITON", "interpreting"]

TRITON = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed."""


def interpreting() -> bool:
    """Whether Triton interprets kernels on the CPU and compiles none; settled when they are loaded."""
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes")
