"""One step of GatedCell in place, forward and backward: for loops over steps with their own backward pass.

On CUDA, each function is one Triton kernel (kernels/recurrent/cells.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import by_kernel

__all__ = ["gated", "gated_backward", "mixed", "mixed_backward"]


def gated(gates_BG: Tensor, more_BN: Tensor, state_BM: Tensor, reset_BM: Tensor) -> None:
    """Compute the first half of one step of GatedCell, in place: update gate z, reset gate r, and r * s.

    gates_BG: (B, 3 width), with one third each for z, r and the candidate state s~. On entry, it contains W e
        + C c, the terms of the input and the context. The first two thirds are overwritten with z and r.
    more_BN: (B, 2 width), the recurrent parts of z and r: U_z s and U_r s.
    state_BM: (B, width), the previous state s.
    reset_BM: (B, width), receives r * s.
    """
    if by_kernel(state_BM):
        from regard.kernels.recurrent import cells

        cells.gated(gates_BG, more_BN, state_BM, reset_BM)
        return
    width = state_BM.shape[1]
    both = gates_BG[:, : 2 * width]
    both.add_(more_BN).sigmoid_()
    torch.mul(both[:, width:], state_BM, out=reset_BM)


def mixed(gates_BG: Tensor, state_BM: Tensor, after_BM: Tensor, parts_PBM: Tensor | None = None) -> None:
    """Compute the second half of one step of GatedCell, in place: s~ and the next state (1 - z) * s + z * s~.

    z is the update gate, r the reset gate, and s~ the candidate state.

    gates_BG: (B, 3 width). On entry, it contains z, r, and s~ before the tanh. The last third is overwritten
        with s~.
    state_BM: (B, width), the previous state s.
    after_BM: (B, width), receives the next state.
    parts_PBM: P tensors, which are added to the last third of the gates first; None for none.
    """
    if by_kernel(state_BM):
        from regard.kernels.recurrent import cells

        cells.mixed(gates_BG, state_BM, after_BM, parts_PBM)
        return
    width = state_BM.shape[1]
    new = gates_BG[:, 2 * width :]
    if parts_PBM is not None:
        new += parts_PBM.sum(0)
    new.tanh_()
    torch.lerp(state_BM, new, gates_BG[:, :width], out=after_BM)


def mixed_backward(
    parts_PBM: Tensor | None,
    dstate_BM: Tensor,
    more_BM: Tensor,
    gates_BG: Tensor,
    state_BM: Tensor,
    dgates_BG: Tensor,
) -> Tensor:
    """Backward pass of mixed(): compute the gradients of z and s~ before their activation functions.

    z is the update gate, r the reset gate, and s~ the candidate state of GatedCell.

    parts_PBM, dstate_BM, more_BM: the gradient of the next state is parts_PBM.sum(0) + dstate_BM + more_BM.
        On a CPU, parts_PBM can be None, which means 0.
    gates_BG: (B, 3 width), the activations z, r and s~.
    state_BM: (B, width), the previous state s.
    dgates_BG: (B, 3 width), receives the gradient for z in the first third and for s~ in the last third.

    Returns the part of the gradient of the previous state that flows through (1 - z) * s.
    """
    if parts_PBM is not None and by_kernel(state_BM):
        from regard.kernels.recurrent import cells

        return cells.mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, state_BM, dgates_BG)
    width = state_BM.shape[1]
    take, new = gates_BG[:, :width], gates_BG[:, 2 * width :]
    dstate_BM = dstate_BM + more_BM if parts_PBM is None else parts_PBM.sum(0) + dstate_BM + more_BM
    torch.ops.aten.sigmoid_backward(dstate_BM * (new - state_BM), take, grad_input=dgates_BG[:, :width])
    torch.ops.aten.tanh_backward(dstate_BM * take, new, grad_input=dgates_BG[:, 2 * width :])
    return torch.addcmul(dstate_BM, dstate_BM, take, value=-1)


def gated_backward(
    parts_PBM: Tensor, gates_BG: Tensor, state_BM: Tensor, dgates_BG: Tensor, dstate_BM: Tensor
) -> None:
    """Backward pass of gated(): compute the gradients of the reset gate r and of the previous state s.

    z is the update gate of GatedCell, and s~ the candidate state.

    parts_PBM: P tensors, whose sum is the gradient of r * s.
    gates_BG: (B, 3 width), the activations z, r and s~.
    state_BM: (B, width), the previous state s.
    dgates_BG: (B, 3 width), receives in the second third the gradient of r before its sigmoid.
    dstate_BM: (B, width), the gradient of s. The part that flows through r * s is added to it.
    """
    if by_kernel(state_BM):
        from regard.kernels.recurrent import cells

        cells.gated_backward(parts_PBM, gates_BG, state_BM, dgates_BG, dstate_BM)
        return
    width, dreset_BM = state_BM.shape[1], parts_PBM.sum(0) if len(parts_PBM) > 1 else parts_PBM[0]
    reset = gates_BG[:, width : 2 * width]
    place = dgates_BG[:, width : 2 * width]
    torch.ops.aten.sigmoid_backward(dreset_BM * state_BM, reset, grad_input=place)
    dstate_BM.addcmul_(dreset_BM, reset)
