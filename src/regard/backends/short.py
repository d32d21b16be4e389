"""short: Triton kernels for inner products of short sequences, with dropout; for training.

One program computes a whole head, so that every tensor is read and written once. The kernels support
causal() and padding(), up to 128 queries and keys.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests.
"""

from __future__ import annotations

import torch

from regard.backends.sdpa import AMPERE, device_capability
from regard.backends.strides import last_dense
from regard.backends.transforms import once_differentiable_node, reasons_of_transforms
from regard.call import Call, Forward
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.select import Soft

__all__ = ["not_requested", "reasons", "run"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

LONGEST, WIDEST = 128, 128
"""Maximum number of queries and keys, and maximum width of a head: a program holds a head in registers."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_transforms()
    device = call.query.device.type
    if torch.compiler.is_compiling():
        reasons.append("does not support torch.compile")
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
    if not call.mask.only("causal", "lengths"):
        reasons.append("supports no masks except causal() and padding()")
    if call.bias is not None:
        reasons.append("has no bias")
    if call.groups != 1:
        reasons.append("needs as many key heads as query heads")
    if call.query.dtype not in DTYPES:
        reasons.append(f"supports float32, bfloat16 and float16, not {call.query.dtype}")
    if 0 in (*call.sizes, call.query.shape[-1], call.value.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if max(call.sizes[2:]) > LONGEST or max(call.query.shape[-1], call.value.shape[-1]) > WIDEST:
        reasons.append(f"supports up to {LONGEST} queries and keys, and head widths up to {WIDEST}")
    return reasons


def not_requested(call: Call) -> list[str]:
    """Return why "auto" skips this backend although it can run the call; empty if "auto" may select it."""
    if not call.trains:
        return ["it is for training"]
    if not call.dropout or call.query.dtype == torch.float32:
        return ["used by auto only with dropout, in half precision"]
    return []


def run(call: Call) -> Forward:
    """Compute attention with the Triton kernels."""
    from regard.kernels.short_attention import ShortAttention

    lengths = call.mask.lengths
    if lengths is not None:
        lengths = lengths.expand(call.query.shape[0]).contiguous()
    tensors = (last_dense(each) for each in (call.query, call.key, call.value))
    scale = call.scale / call.temperature
    output, lse = ShortAttention.apply(
        *tensors, lengths, call.start, call.mask.causal, scale, float(call.dropout)
    )
    once_differentiable_node(output)
    return Forward(output, lse)
