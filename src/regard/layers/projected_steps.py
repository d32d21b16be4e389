"""All steps of a gated cell with additive attention over few keys, with values that are projected once.

The gates of the cell contain C c_t. The context c_t is a sum of the values h_s with weights w_ts:
C c_t = sum_s w_ts (C h_s). So the values are projected with C once, and the loop over the steps contains no
matrix product with C. The contexts themselves are computed after the last step. attentive_cell.py explains
the letters of the shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layers.gated_cell import gated_backward, mixed, mixed_backward
from regard.layers.gated_steps import Steps
from regard.layers.joint_linear import product_in_float32

__all__ = ["projected_backward", "projected_forward"]


def projected_forward(
    gates: Tensor, first: Tensor, joint_MN: Tensor, of_context: Tensor, of_state: Tensor, key: Tensor,
    value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run all steps. Return the tensors of Steps, the attention weights (T, B, S), and the projected values.

    The arguments are those of attentive_steps.run_forward().
    """
    from regard.kernels.additive_gates import attend_gates

    (batch, steps, _), width = gates.shape, first.shape[1]
    gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    states_TBM = first.new_empty(steps + 1, batch, width)
    states_TBM[0] = first
    reset_TBM = first.new_empty(steps, batch, width)
    both_TBN = first.new_empty(steps, batch, joint_MN.shape[1])
    weights_TBS = first.new_empty(steps, batch, key.shape[1], dtype=torch.float32)
    projected_BSG, state_weight = value @ of_context.T, of_state.T
    tensors = (gates_TBG, gates_TBG[..., 2 * width :], reset_TBM, both_TBN, weights_TBS)
    states, rows = states_TBM.unbind(0), zip(*(each.unbind(0) for each in tensors), strict=True)
    for t, (gates_BG, new_BM, reset_BM, both_BN, weights_BS) in enumerate(rows):
        torch.mm(states[t], joint_MN, out=both_BN)
        memory = key, projected_BSG, vector, lengths
        attend_gates(both_BN, *memory, gates_BG, states[t], weights_BS, reset_BM)
        new_BM.addmm_(reset_BM, state_weight)
        mixed(gates_BG, states[t], states[t + 1])
    contexts_BTE = torch.bmm(weights_TBS.transpose(0, 1).to(value.dtype), value)
    steps_of = Steps(gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_BTE.transpose(0, 1))
    return *steps_of, weights_TBS, projected_BSG


def projected_backward(
    dstates: Tensor, dcontexts: Tensor, joint_MN: Tensor, of_context: Tensor, of_state: Tensor,
    gates_TBG: Tensor, states_TBM: Tensor, reset_TBM: Tensor, both_TBN: Tensor, contexts_TBE: Tensor,
    weights_TBS: Tensor, projected_BSG: Tensor, key: Tensor, value: Tensor, vector: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Backward pass of projected_forward().

    Returns d_TBN and the gradient of the initial state, as backward_steps() does, and the gradients of the
    keys, the values, the vector, and the weight of the context.
    """
    from regard.kernels.additive_gates import attend_gates_backward
    from regard.kernels.additive_recurrent import memory_backward

    (steps, batch, width), size, hidden = reset_TBM.shape, joint_MN.shape[1], key.shape[2]
    d_TBN = gates_TBG.new_empty(steps, batch, hidden + 3 * width)
    # As in backward_steps(): the product with joint_PNM gives P partial sums, which the next step adds.
    parts = 3 if size % 3 == 0 else 1
    joint_PNM = joint_MN.T.unflatten(0, (parts, -1)).contiguous()
    dstate_BM = torch.zeros_like(states_TBM[0])
    parts_PBM = dstate_BM.new_zeros(parts, batch, width)
    dweights_TBS = product_in_float32(dcontexts, value.transpose(1, 2)).transpose(0, 1).contiguous()
    dscores_TBS, queries_TBA = torch.empty_like(weights_TBS), both_TBN[..., :hidden]
    djoint_TPBN = d_TBN[..., :size].unflatten(2, (parts, -1)).transpose(1, 2)
    tensors = (
        d_TBN[..., :hidden], d_TBN[..., hidden:], d_TBN[..., hidden + 2 * width :], djoint_TPBN,
        dstates.transpose(0, 1).contiguous(), gates_TBG, queries_TBA, weights_TBS, dweights_TBS, dscores_TBS,
    )  # fmt: skip
    rows, states = list(zip(*(each.unbind(0) for each in tensors), strict=True)), states_TBM.unbind(0)
    for t in reversed(range(steps)):
        dquery_BA, dgates_BG, dnew_BM, djoint_PBN, more_BM, gates_BG, query, weights, dweights, dscores = (
            rows[t]
        )
        dstate_BM = mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, states[t], dgates_BG)
        gated_backward(dnew_BM @ of_state, gates_BG, states[t], dgates_BG, dstate_BM)
        memory = key, projected_BSG, vector, lengths
        attend_gates_backward(dgates_BG, dweights, query, *memory, weights, dquery_BA, dscores)
        parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
    weights_BST = weights_TBS.permute(1, 2, 0).to(key.dtype)
    dprojected = torch.bmm(weights_BST, d_TBN[..., hidden:].transpose(0, 1)).flatten(0, 1)
    dvalue = torch.bmm(weights_BST, dcontexts)
    dvalue += (dprojected @ of_context).view_as(dvalue)
    dof_context = product_in_float32(dprojected.T, value.flatten(0, 1))
    dkey, dvector = memory_backward(queries_TBA, key, vector, dscores_TBS)
    return d_TBN, dstate_BM + parts_PBM.sum(0), dkey, dvalue, dvector, dof_context
