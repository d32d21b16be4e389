"""fused: a Triton kernel computes entropy, alignment, mass and pooled weights from query, key and lse.

The score must be an inner product of query and key. Memory is linear in T + S. The kernel can run after the
forward pass of any backend that returns an lse. It runs on CUDA; with TRITON_INTERPRET=1 in the environment,
it runs in Triton's interpreter on the CPU, which is meant for tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.call import Call, Forward
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.look import Look
from regard.looking.block_pooling import block_means
from regard.looking.blockwise import weights_of_rows
from regard.looking.look_result import Seen
from regard.positions import Bias
from regard.select import Soft

__all__ = ["reasons", "run"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256
POOLED_STEP = 64
"""The block size of Look(pooled=...) must be a multiple of the size of all tiles of the kernel."""


def reasons(call: Call, look: Look) -> list[str]:
    """Return why this pass cannot compute what `look` requests; empty if it can."""
    reasons, device = [], call.query.device.type
    if call.combine != "inner":
        reasons.append("computes inner products, but this score is additive")
    if not isinstance(call.select, Soft):
        reasons.append(f"supports only select=Soft(), not {type(call.select).__name__}")
    if call.softcap is not None:
        reasons.append("has no soft cap of the scores")
    if not TRITON:
        reasons.append(f"needs triton ({install_command('kernels')})")
    if device != "cuda" and not (device == "cpu" and interpreting()):
        reasons.append(f"runs on cuda, but the call is on {device}")
    if look.weights:
        reasons.append("does not compute the whole matrix of weights")
    if look.top:
        reasons.append("does not compute the largest weights (top)")
    if look.pooled % POOLED_STEP:
        reasons.append(f"needs a block size that is a multiple of {POOLED_STEP}, not pooled={look.pooled}")
    if look.gradient:
        reasons.append("computes no gradients")
    if not call.mask.only("causal", "lengths", "window", "documents", "table"):
        reasons.append("supports named masks and bool tensors, but no conditions such as where()")
    if isinstance(call.bias, Bias):
        reasons.append(f"does not support {type(call.bias).__name__}")
    if call.query.dtype not in DTYPES:
        reasons.append(f"supports float32, bfloat16 and float16, not {call.query.dtype}")
    if call.query.shape[-1] > MAX_WIDTH:
        reasons.append(f"supports D up to {MAX_WIDTH}, not {call.query.shape[-1]}")
    if 0 in (*call.sizes, call.query.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    return reasons


@torch.no_grad()
def run(call: Call, forward: Forward, look: Look) -> Seen:
    """Compute entropy, alignment, mass and pooled weights with one kernel.

    The weights of look.rows are computed without this kernel, by weights_of_rows().
    """
    assert forward.lse is not None
    from regard.kernels.inner_look_pass import inner_look

    wanted = look.entropy, look.alignment, look.mass, look.pooled
    entropy = alignment = mass = pooled = None
    if any(wanted):
        mask = call.mask
        documents = (None if ids is None else ids.contiguous() for ids in mask.documents or (None, None))
        bias = call.bias if isinstance(call.bias, Tensor) else None
        tensors = call.query, call.key, forward.lse, bias, mask.table, mask.lengths, *documents
        numbers = call.start, *mask.sides, call.scale, 1 / call.temperature, *wanted
        entropy, alignment, mass, pooled = inner_look(*tensors, *numbers)
    return Seen(
        rows=weights_of_rows(call, forward.lse, look.rows) if look.rows is not None else None,
        alignment=alignment if look.alignment else None,
        entropy=entropy if look.entropy else None,
        mass=mass if look.mass else None,
        pooled=block_means(pooled, call.sizes, look.pooled) if look.pooled and pooled is not None else None,
    )
