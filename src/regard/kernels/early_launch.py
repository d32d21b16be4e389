# mypy: disable-error-code="no-untyped-def"
"""Start a kernel of a recurrent step while the preceding kernel still runs (programmatic dependent launch).

A step launches several short kernels, one after another. Usually, a kernel starts about a microsecond after
the preceding one has ended. With programmatic dependent launch, its programs start earlier, load what does
not depend on the preceding kernels, and then wait for them in wait_for_previous(). NVIDIA GPUs from Hopper on
support this.

Rules:
- Every program of an early kernel calls wait_for_previous(), so that the end of a kernel implies the end of
  all kernels before it.
- Before that call, a program writes nothing. It reads only tensors that were written before the loop, and not
  those that the last kernel before the loop writes, because that kernel may still run.

Tested: on an NVIDIA H200 (triton 3.6).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.kernels import interpreting

__all__ = ["early_options", "supports_early", "wait_for_previous"]

HOPPER = (9, 0)
"""The lowest compute capability with programmatic dependent launch."""

ENABLED = True
"""Whether kernels are started early; tests set it to False."""


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Wait until the preceding kernel has ended and its results are visible; let the next one start."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


def early_options(wanted: bool) -> dict[str, Any]:
    """Return the argument EARLY of a kernel, and for an early launch on the current device its option."""
    if wanted and ENABLED and not interpreting() and supports_early(_device()):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def _device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


@functools.cache
def supports_early(device: int | torch.device) -> bool:
    """Whether kernels can start early on a CUDA device. True without a device, for compiling them ahead."""
    try:
        return torch.cuda.get_device_capability(device) >= HOPPER
    except (AssertionError, RuntimeError):
        return True
