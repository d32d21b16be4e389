"""Fast twins of models and their steps: the same numbers from the same parameters, in less time.

The modules of layers/ and models/ are the equations of their papers, in plain PyTorch and attention(). What
computes the same faster stands in this folder, and is chosen in one place each: twins.py for the modules of a
model in training, search/ for decoding, captured/ for whole training steps as CUDA graphs. Each of them
gives its reasons where it does not apply, and falls back to the plain code. With the environment variable
REGARD_FAST=0, no twin is used.
"""

from __future__ import annotations

import os

__all__ = ["enabled"]


def enabled() -> bool:
    """Whether fast twins may be used: False with REGARD_FAST=0 in the environment."""
    return os.environ.get("REGARD_FAST", "1") != "0"
