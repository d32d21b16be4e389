"""short: Triton kernels for inner products of short sequences, with dropout; for training.

One program computes a whole head, so that every tensor is read and written once. The kernels support
causal() and padding(), up to 128 queries and keys.

This backend runs on CUDA. If TRITON_INTERPRET=1 is set in the environment before the first call, the
kernels run in Triton's interpreter on the CPU, which is slow and meant for tests.
"""

from __future__ import annotations

import torch

from regard.backends.kernel_reasons import reasons_of_inner_kernels
from regard.backends.sdpa import last_dense
from regard.backends.transforms import once_differentiable_node
from regard.call import Call, Forward

__all__ = ["not_requested", "reasons", "run"]

LONGEST, WIDEST = 128, 128
"""Maximum number of queries and keys, and maximum width of a head: a program holds a head in registers."""


def reasons(call: Call) -> list[str]:
    """Return why this backend cannot run the call; empty if it can."""
    reasons = reasons_of_inner_kernels(call)
    if torch.compiler.is_compiling():
        reasons.append("does not support torch.compile")
    if not call.mask.only("causal", "lengths"):
        reasons.append("supports no masks except causal() and padding()")
    if call.groups != 1:
        reasons.append("needs as many key heads as query heads")
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
    from regard.kernels.inner.short import ShortAttention

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
