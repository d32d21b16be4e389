"""Why the Triton kernels for inner products (the backends short and masked) refuse a call."""

from __future__ import annotations

import torch

from regard.backends.sdpa import AMPERE, device_capability
from regard.backends.transforms import reasons_of_transforms
from regard.call import Call
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.select import Soft

__all__ = ["reasons_of_inner_kernels"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reasons_of_inner_kernels(call: Call) -> list[str]:
    """Return why no Triton kernel for inner products can run the call, apart from its mask and its sizes."""
    reasons = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != "inner":
        reasons.append("computes inner products, but this score is additive")
    if call.softcap is not None:
        reasons.append("has no soft cap of the scores")
    if not TRITON:
        reasons.append(f"needs triton ({install_command('kernels')})")
    if device == "cuda" and device_capability(call.query.device) < AMPERE:
        reasons.append("needs compute capability 8.0")
    elif device != "cuda" and not (device == "cpu" and interpreting()):
        reasons.append(f"runs on cuda, but the call is on {device}")
    if not isinstance(call.select, Soft):
        reasons.append(f"computes Soft only, not {type(call.select).__name__}")
    if call.bias is not None:
        reasons.append("has no bias")
    if call.query.dtype not in DTYPES:
        reasons.append(f"supports float32, bfloat16 and float16, not {call.query.dtype}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    return reasons
