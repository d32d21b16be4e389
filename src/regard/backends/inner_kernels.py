"""Why the Triton kernels for inner products (the backends short and masked) refuse a call."""

from __future__ import annotations

import torch

from regard.backends.kernel_reasons import reasons_of_kernels
from regard.backends.sdpa import AMPERE, device_capability
from regard.call import Call

__all__ = ["reasons_of_inner_kernels"]

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
