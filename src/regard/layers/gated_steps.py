"""The loops over the steps of a gated cell with attention: forward and backward pass.

attentive_cell.py explains the letters of the shapes. attentive_steps.py runs the same loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.gated_cell import gated, gated_backward, mixed, mixed_backward

__all__ = ["Steps", "backward_steps", "forward_steps"]


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
    attend: Callable[[Tensor], Tensor], gates: Tensor, first: Tensor, joint_MN: Tensor, of_context: Tensor,
    of_state: Tensor,
) -> Steps:  # fmt: skip
    """Run all steps.

    attend: returns the context (B, E) for the query of a step, (B, 1, A).
    gates: the input part of the gates, (B, T, 3 M).
    first: the initial state.
    joint_MN: s @ joint_MN is the query, U_z s and U_r s.
    of_context, of_state: the weights of the context and of r * s.
    """
    (batch, steps, _), width = gates.shape, first.shape[1]
    hidden = joint_MN.shape[1] - 2 * width
    gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    states_TBM = first.new_empty(steps + 1, batch, width)
    states_TBM[0] = first
    reset_TBM, both_TBN = (
        first.new_empty(steps, batch, width),
        first.new_empty(steps, batch, joint_MN.shape[1]),
    )
    new_TBM, contexts = gates_TBG[..., 2 * width :], []
    states, context_weight, state_weight = states_TBM.unbind(0), of_context.T, of_state.T
    rows = zip(*(each.unbind(0) for each in (gates_TBG, new_TBM, reset_TBM, both_TBN)), strict=True)
    for t, (gates_BG, new_BM, reset_BM, both_BN) in enumerate(rows):
        torch.mm(states[t], joint_MN, out=both_BN)
        contexts.append(attend(both_BN[:, None, :hidden]))
        gates_BG.addmm_(contexts[t], context_weight)
        gated(gates_BG, both_BN[:, hidden:], states[t], reset_BM)
        new_BM.addmm_(reset_BM, state_weight)
        mixed(gates_BG, states[t], states[t + 1])
    return Steps(gates_TBG, states_TBM, reset_TBM, both_TBN, torch.stack(contexts))


def backward_steps(
    dattend: Callable[[Tensor, int, Tensor], None], dstates: Tensor, dcontexts: Tensor, joint_MN: Tensor,
    of_context: Tensor, of_state: Tensor, forward: Steps,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Backward pass of forward_steps(), without the gradients of weights and memory.

    dattend: gets the gradient of the context (B, E), the number t of the step, and a tensor (B, A), to which
        it writes the gradient of the query.
    dstates, dcontexts: gradients of the states and contexts, (B, T, M) and (B, T, E).
    forward: the results of forward_steps().

    Returns:
    1. d_TBN, the gradients of the query, z, r and s~, in this order. For z, r and s~, they are the gradients
       before the activation function (sigmoid or tanh).
    2. the gradient of the initial state.
    3. dcontexts_TBE, the gradients of the contexts.
    """
    (steps, batch, width), size = forward.reset_TBM.shape, joint_MN.shape[1]
    hidden = size - 2 * width
    dstates_TBM = dstates.transpose(0, 1).contiguous()
    dcontexts_TBE = dcontexts.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    d_TBN = forward.gates_TBG.new_empty(steps, batch, hidden + 3 * width)
    # The matrix product below sums over N. If N is divisible by 3, split this sum into P = 3 parts: three
    # smaller products use more of the device in parallel. The next iteration adds the parts.
    parts = 3 if size % 3 == 0 else 1
    joint_PNM = joint_MN.T.unflatten(0, (parts, -1)).contiguous()
    dstate_BM = torch.zeros_like(forward.states_TBM[0])
    parts_PBM = dstate_BM.new_zeros(parts, batch, width)
    dqueries, dgates, dnew = d_TBN[..., :hidden], d_TBN[..., hidden:], d_TBN[..., hidden + 2 * width :]
    djoint_TPBN = d_TBN[..., :size].unflatten(2, (parts, -1)).transpose(1, 2)
    tensors = (dqueries, dgates, dnew, djoint_TPBN, dstates_TBM, dcontexts_TBE, forward.gates_TBG)
    rows = list(zip(*(each.unbind(0) for each in tensors), strict=True))
    states = forward.states_TBM.unbind(0)
    for t in reversed(range(steps)):
        dquery_BA, dgates_BG, dnew_BM, djoint_PBN, more_BM, dcontext_BE, gates_BG = rows[t]
        dstate_BM = mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, states[t], dgates_BG)
        dreset_BM = dnew_BM @ of_state
        gated_backward(dreset_BM, gates_BG, states[t], dgates_BG, dstate_BM)
        dcontext_BE.addmm_(dgates_BG, of_context)
        dattend(dcontext_BE, t, dquery_BA)
        parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
    return d_TBN, dstate_BM + parts_PBM.sum(0), dcontexts_TBE
