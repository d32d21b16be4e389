"""fused: Triton kernels compute all looks except the whole matrix of weights, from query, key and lse.

One kernel computes entropy, alignment, mass and pooled weights, another one the largest weights (top). Memory
is linear in T + S. The kernels can run after the forward pass of any backend that returns an lse. They run on
CUDA; with TRITON_INTERPRET=1 in the environment, they run in Triton's interpreter on the CPU, which is meant
for tests.

The kernels compute inner products. For an additive score, the scores of some queries at a time are computed
by the kernel of additive attention. They are passed to the looking kernels as a bias, with queries and keys
that are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attended import Attended, Top
from regard.call import Call, Forward
from regard.dimensions import in_transform
from regard.files.requirements import install_command
from regard.kernels import TRITON, interpreting, on_device
from regard.kernels.launch import MAX_GRID
from regard.kernels.looking import Weights
from regard.look import Look
from regard.looking.blockwise import weights_of_rows
from regard.looking.look_kernels import POOLED_STEP, Wanted, kernel_looks
from regard.masks.mask import PLAIN
from regard.positions import Bias
from regard.select import Soft

__all__ = ["reasons", "run"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256
MAX_TOP = 16
"""Maximum k of Look(top=k). The kernel finds the largest scores of a tile one by one."""


def reasons(call: Call, look: Look) -> list[str]:
    """Return why this pass cannot compute what `look` requests; empty if it can."""
    reasons, device = [], call.query.device.type
    batch, heads, _, _ = call.sizes
    if call.combine == "additive":
        if call.softcap is not None:
            reasons.append("supports a soft cap for inner products only, but this score is additive")
    elif call.query.shape[-1] > MAX_WIDTH:
        reasons.append(f"supports D up to {MAX_WIDTH} for inner products, not {call.query.shape[-1]}")
    if not isinstance(call.select, Soft):
        reasons.append(f"supports only select=Soft(), not {type(call.select).__name__}")
    if not TRITON:
        reasons.append(f"needs triton ({install_command('kernels')})")
    if device != "cuda" and not (device == "cpu" and interpreting()):
        reasons.append(f"runs on cuda, but the call is on {device}")
    if look.weights:
        reasons.append("does not compute the whole matrix of weights")
    if look.top > MAX_TOP:
        reasons.append(f"computes at most {MAX_TOP} of the largest weights, not top={look.top}")
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
    if 0 in (*call.sizes, call.query.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if batch * heads > MAX_GRID:
        reasons.append(f"supports B * H up to {MAX_GRID:,}, not {batch * heads:,}")
    return reasons


@torch.no_grad()
def run(call: Call, forward: Forward, look: Look) -> Attended:
    """Compute entropy, alignment, mass and pooled weights with one kernel, the largest weights with another.

    The weights of look.rows are computed without these kernels, by weights_of_rows().
    """
    assert forward.lse is not None
    wanted = Wanted(look.entropy, look.alignment, look.mass, look.pooled, look.top)
    found = iter(_computed(call, forward.lse, wanted) if any(wanted) else ())
    entropy, alignment, mass, pooled = (next(found) if requested else None for requested in wanted[:4])
    return Attended(
        forward.output,
        rows=weights_of_rows(call, forward.lse, look.rows) if look.rows is not None else None,
        top=Top(next(found), next(found)) if look.top else None,
        alignment=alignment,
        entropy=entropy,
        mass=mass,
        pooled=pooled,
    )


def _computed(call: Call, lse: Tensor, wanted: Wanted) -> tuple[Tensor, ...]:
    """Return the requested tensors in the order of Wanted."""
    weights = _weights(call, lse)
    vector = call.vector if call.combine == "additive" else None
    tensors = (each for each in (*weights, vector) if isinstance(each, Tensor))
    if torch.compiler.is_compiling() or in_transform() or any(type(each) not in PLAIN for each in tensors):
        return kernel_looks(weights, vector, wanted, by_operator=True)
    with on_device(call.query):
        return kernel_looks(weights, vector, wanted)


def _weights(call: Call, lse: Tensor) -> Weights:
    """Return what defines the weights of a call."""
    of_query, of_key = (
        None if ids is None else ids.contiguous() for ids in call.mask.documents or (None, None)
    )
    left, right = call.mask.sides
    placed = left is not None or right is not None or of_query is not None
    return Weights(
        call.query,
        call.key,
        lse,
        bias=call.bias if isinstance(call.bias, Tensor) else None,
        table=call.mask.table,
        lengths=call.mask.lengths,
        of_query=of_query,
        of_key=of_key,
        start=call.start if placed else 0,  # otherwise it is not read
        left=left,
        right=right,
        scale=call.scale,
        cap=0.0 if call.softcap is None else call.softcap,
        bias_scale=1 / call.temperature,
    )
