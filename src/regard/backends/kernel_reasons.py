"""Why the Triton kernels of the backends fused, masked and short refuse a call."""

from __future__ import annotations

import torch

from regard.backends.sdpa import AMPERE, device_capability
from regard.backends.transforms import reasons_of_transforms
from regard.call import Call
from regard.files.requirements import install_command
from regard.kernels import TRITON, interpreting
from regard.select import Soft

__all__ = ["reasons_of_inner_kernels", "reasons_of_kernels"]


SCORES = {
    "inner": "computes inner products, but this score is additive",
    "additive": "computes additive scores, but this score is an inner product",
}
"""By the scores that a kernel computes: the reason why it does not compute the others."""


def reasons_of_kernels(call: Call, combine: str) -> list[str]:
    """Return why no Triton kernel can run the call: reasons that all these backends share.

    combine: the scores that the kernel computes, "inner" or "additive".
    """
    reasons = reasons_of_transforms()
    device = call.query.device.type
    if call.combine != combine:
        reasons.append(SCORES[combine])
    if call.softcap is not None:
        reasons.append("has no soft cap of the scores")
    if not TRITON:
        reasons.append(f"needs triton ({install_command('kernels')})")
    if device != "cuda" and not (device == "cpu" and interpreting()):
        reasons.append(f"runs on cuda, but the call is on {device}")
    if not isinstance(call.select, Soft):
        reasons.append(f"computes Soft only, not {type(call.select).__name__}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    return reasons


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reasons_of_inner_kernels(call: Call) -> list[str]:
    """Return why no Triton kernel for inner products can run the call, apart from its mask and its sizes."""
    reasons = reasons_of_kernels(call, "inner")
    device = call.query.device
    if device.type == "cuda" and device_capability(device) < AMPERE:
        reasons.append("needs compute capability 8.0")
    if call.bias is not None:
        reasons.append("has no bias")
    if call.query.dtype not in DTYPES:
        reasons.append(f"supports float32, bfloat16 and float16, not {call.query.dtype}")
    return reasons
