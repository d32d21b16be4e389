"""The loops over the steps of a gated cell with attention: forward and backward pass.

attentive_cell.py explains the letters of the shapes. attentive_steps.py runs the same loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.gated_cell import gated, gated_backward, mixed, mixed_backward

__all__ = ["Steps", "backward_steps", "forward_steps", "parts_of", "split"]

SPLITS = (5, 4, 3, 2)
"""Numbers of parts of the product with the weight of r * s. The first that is possible is used."""


class Steps(NamedTuple):
    """The results of all steps, which the backward pass reads.

    gates_TBG: the activations of the gates z, r and s~.
    states_TBM: the initial state and the state after each step, (T + 1, B, M).
    reset_TBM: r * s at each step.
    both_TBN: the query at each step, U_z s and U_r s.
    contexts_TBE: the contexts.
    """

    gates_TBG: Tensor
    states_TBM: Tensor
    reset_TBM: Tensor
    both_TBN: Tensor
    contexts_TBE: Tensor


def forward_steps(
    attend: Callable[[Tensor, Tensor], None], gates: Tensor, first: Tensor, joint_NM: Tensor,
    of_context: Tensor, of_state: Tensor,
) -> Steps:  # fmt: skip
    """Run all steps.

    attend: gets the query of a step, (B, A), and a tensor (B, E), to which it writes the context.
    gates: the input part of the gates, (B, T, 3 M).
    first: the initial state.
    joint_NM: s @ joint_NM.T is the query, U_z s and U_r s.
    of_context, of_state: the weights of the context and of r * s.
    """
    (batch, steps, _), (size, width) = gates.shape, joint_NM.shape
    hidden = size - 2 * width
    gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    states_TBM = first.new_empty(steps + 1, batch, width)
    states_TBM[0] = first
    reset_TBM, both_TBN = first.new_empty(steps, batch, width), first.new_empty(steps, batch, size)
    contexts_TBE = first.new_empty(steps, batch, of_context.shape[1])
    parts = parts_of(width)
    reset_TPBK, state_weight = split(reset_TBM, parts), of_state.T.unflatten(0, (parts, -1))
    tensors = (gates_TBG, reset_TBM, reset_TPBK, both_TBN, contexts_TBE)
    states, rows = states_TBM.unbind(0), zip(*(each.unbind(0) for each in tensors), strict=True)
    joint_weight, context_weight = joint_NM.T, of_context.T
    for t, (gates_BG, reset_BM, reset_PBK, both_BN, context_BE) in enumerate(rows):
        torch.mm(states[t], joint_weight, out=both_BN)
        attend(both_BN[:, :hidden], context_BE)
        gates_BG.addmm_(context_BE, context_weight)
        gated(gates_BG, both_BN[:, hidden:], states[t], reset_BM)
        mixed(gates_BG, states[t], states[t + 1], torch.bmm(reset_PBK, state_weight))
    return Steps(gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE)


def backward_steps(
    dattend: Callable[[Tensor, Tensor, Tensor, int, Tensor], None], dstates: Tensor, dcontexts: Tensor,
    joint_NM: Tensor, of_context: Tensor, of_state: Tensor, forward: Steps,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Backward pass of forward_steps(), without the gradients of weights and memory.

    dattend: gets five arguments. The first two are P tensors, (P, B, E), and another, (B, E); their sum is
        the gradient of the context. It writes this gradient to the third, (B, E). The fourth is the number t
        of the step. It writes the gradient of the query to the last, (B, A).
    dstates, dcontexts: gradients of the states and contexts, (B, T, M) and (B, T, E).
    forward: the results of forward_steps().

    Returns:
    1. d_TBN, the gradients of the query, z, r and s~, in this order. For z, r and s~, they are the gradients
       before the activation function (sigmoid or tanh).
    2. the gradient of the initial state.
    3. dcontexts_TBE, the gradients of the contexts.
    """
    (steps, batch, width), size = forward.reset_TBM.shape, len(joint_NM)
    hidden = size - 2 * width
    # The kernels read rows with any stride, but not expanded gradients, such as those of sum().
    dstates, dcontexts = (each if each.stride(2) == 1 else each.contiguous() for each in (dstates, dcontexts))
    dcontexts_TBE = dcontexts.new_empty(steps, batch, dcontexts.shape[2])
    d_TBN = forward.gates_TBG.new_empty(steps, batch, hidden + 3 * width)
    # The matrix products below sum over N, G and M. Split each sum into P parts: several smaller products use
    # more of the device in parallel. The kernel that reads the result adds the parts.
    parts, of_width = 3 if size % 3 == 0 else 1, parts_of(width)
    joint_PNM, context_PGE = joint_NM.unflatten(0, (parts, -1)), of_context.unflatten(0, (3, -1))
    state_PKM = of_state.unflatten(0, (of_width, -1))
    dstate_BM = torch.zeros_like(forward.states_TBM[0])
    parts_PBM = dstate_BM.new_zeros(parts, batch, width)
    tensors = (
        d_TBN[..., :hidden],
        d_TBN[..., hidden:],
        split(d_TBN[..., hidden + 2 * width :], of_width),
        split(d_TBN[..., :size], parts),
        split(d_TBN[..., hidden:], 3),
        dstates.transpose(0, 1),
        dcontexts.transpose(0, 1),
        dcontexts_TBE,
        forward.gates_TBG,
    )
    rows = list(zip(*(each.unbind(0) for each in tensors), strict=True))
    states = forward.states_TBM.unbind(0)
    for t in reversed(range(steps)):
        dquery_BA, dgates_BG, dnew_PBK, djoint_PBN, dgates_PBG, *others = rows[t]
        more_BM, more_BE, dcontext_BE, gates_BG = others
        dstate_BM = mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, states[t], dgates_BG)
        gated_backward(torch.bmm(dnew_PBK, state_PKM), gates_BG, states[t], dgates_BG, dstate_BM)
        dattend(torch.bmm(dgates_PBG, context_PGE), more_BE, dcontext_BE, t, dquery_BA)
        parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
    return d_TBN, dstate_BM + parts_PBM.sum(0), dcontexts_TBE


def parts_of(width: int) -> int:
    """Return the number of parts of a sum over `width` elements, each of which is a multiple of 16 bytes."""
    return next((parts for parts in SPLITS if width % (8 * parts) == 0), 1)


def split(x_TBM: Tensor, parts: int) -> Tensor:
    """Return a view (T, P, B, M / P)."""
    return x_TBM.unflatten(2, (parts, -1)).transpose(1, 2)
