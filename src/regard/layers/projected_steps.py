"""The loops over the steps of a gated cell with additive attention, for few keys: fewer kernels per step.

The context c of a step is a weighted sum of the values h_j. The gates need C c, which is the same weighted
sum of C h_j. These products are computed once, before the first step. kernels/recurrent/attention.py computes
attention and gates of a step. The contexts, which the readout needs, are computed after the last step.

attentive_cell.py explains the letters of the shapes. gated_steps.py contains the loops for many keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layers.gated_steps import parts_of, split

__all__ = ["backward", "forward"]

ALIGNMENT = 8
"""The rows of the weights in half precision begin at multiples of this number of elements."""


def forward(
    gates: Tensor, first: Tensor, joint_NM: Tensor, of_context: Tensor, of_state: Tensor, key: Tensor,
    value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run all steps; arguments as in attentive_steps.run_forward().

    Returns the tensors of Steps, with the queries instead of both_TBN, and then the weights in float32,
    (T, B, S), the weights in the dtype of the values, (B, T, S), and the projected values C h_j, (B, S, 3 M).
    """
    from regard.kernels.recurrent.attention import attend_gated
    from regard.kernels.recurrent.cells import mixed

    (batch, steps, _), (size, width), keys = gates.shape, joint_NM.shape, key.shape[1]
    hidden = size - 2 * width
    gates = gates if gates.stride(2) == 1 else gates.contiguous()
    projected = torch.mm(value.flatten(0, 1), of_context.T).unflatten(0, value.shape[:2])
    gates_TBG, reset_TBM, queries_TBA, states_TBM = (
        first.new_empty(count, batch, columns)
        for count, columns in ((steps, 3 * width), (steps, width), (steps, hidden), (steps + 1, width))
    )
    weights_TBS = value.new_empty(steps, batch, keys, dtype=torch.float32)
    parts = parts_of(width)
    reset_TPBK, state_weight = split(reset_TBM, parts), of_state.T.unflatten(0, (parts, -1))
    tensors = (gates.transpose(0, 1), gates_TBG, reset_TBM, reset_TPBK, queries_TBA, weights_TBS)
    states, rows = states_TBM.unbind(0), zip(*(each.unbind(0) for each in tensors), strict=True)
    joint_weight, memory = joint_NM.T, (key, projected, vector, lengths)
    states_TBM[0] = first
    for t, (inputs_BG, gates_BG, reset_BM, reset_PBK, query_BA, weights_BS) in enumerate(rows):
        both_PBN = torch.mm(states[t], joint_weight)[None]
        results = gates_BG, reset_BM, query_BA, weights_BS
        attend_gated(both_PBN, *memory, inputs_BG, states[t], *results)
        new_PBM = torch.bmm(reset_PBK, state_weight)
        mixed(gates_BG, states[t], states[t + 1], new_PBM)
    weights_BTS = value.new_empty(batch, steps, -(-keys // ALIGNMENT) * ALIGNMENT)[..., :keys]
    weights_BTS.copy_(weights_TBS.transpose(0, 1))
    contexts_TBE = torch.bmm(weights_BTS, value).transpose(0, 1)
    of_steps = gates_TBG, states_TBM, reset_TBM, queries_TBA, contexts_TBE
    return *of_steps, weights_TBS, weights_BTS, projected


def backward(
    dstates: Tensor, dcontexts: Tensor, joint_NM: Tensor, of_context: Tensor, of_state: Tensor,
    gates_TBG: Tensor, states_TBM: Tensor, reset_TBM: Tensor, queries_TBA: Tensor, contexts_TBE: Tensor,
    weights_TBS: Tensor, weights_BTS: Tensor, projected: Tensor, key: Tensor, value: Tensor, vector: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Backward pass of forward(); arguments as in attentive_steps.run_backward().

    Returns d_TBN and the gradient of the initial state, as gated_steps.backward_steps() does, the gradients
    of key, value and vector, and the gradient of the projected values.
    """
    from regard.kernels.recurrent.attention import attend_gated_backward
    from regard.kernels.recurrent.attention_gradients import context_products, memory_backward
    from regard.kernels.recurrent.cells import mixed_backward

    (steps, batch, width), size = reset_TBM.shape, len(joint_NM)
    hidden = size - 2 * width
    # The kernels need contiguous rows, which the expanded gradients of sum() do not have.
    dstates, dcontexts = (each if each.stride(2) == 1 else each.contiguous() for each in (dstates, dcontexts))
    # The part of the gradient of the attention weights that comes from the contexts that the readout reads.
    extra_BTS = context_products(dcontexts, value)
    d_TBN = gates_TBG.new_empty(steps, batch, hidden + 3 * width)
    dscores_TBS = torch.empty_like(weights_TBS)
    # Each product sums over N or M. The sum is split into P parts: several smaller products use more of the
    # device in parallel. The kernel that reads the result adds the parts.
    parts, of_width = 3 if size % 3 == 0 else 1, parts_of(width)
    joint_PNM, state_PKM = joint_NM.unflatten(0, (parts, -1)), of_state.unflatten(0, (of_width, -1))
    dnew, djoint = d_TBN[..., hidden + 2 * width :], d_TBN[..., :size]
    tensors = (
        d_TBN[..., :hidden],
        d_TBN[..., hidden:],
        split(dnew, of_width),
        split(djoint, parts),
        dstates.transpose(0, 1),
        extra_BTS.transpose(0, 1),
        gates_TBG,
        states_TBM[:-1],
        queries_TBA,
        weights_TBS,
        dscores_TBS,
    )
    rows = list(zip(*(each.unbind(0) for each in tensors), strict=True))
    dstate_BM = torch.zeros_like(states_TBM[0])
    parts_PBM = dstate_BM.new_zeros(parts, batch, width)
    for row in reversed(rows):
        dquery_BA, dgates_BG, dnew_t, djoint_t, more_BM, extra_BS, gates_BG, state_BM, *others = row
        query_BA, weights_BS, dscores_BS = others
        of_cell = gates_BG, state_BM, dgates_BG
        dstate_BM = mixed_backward(parts_PBM, dstate_BM, more_BM, *of_cell)
        dreset_PBM = torch.bmm(dnew_t, state_PKM)
        attend_gated_backward(
            dreset_PBM, *of_cell, dstate_BM, extra_BS, query_BA, key, projected, vector, lengths, weights_BS,
            dquery_BA, dscores_BS,
        )  # fmt: skip
        parts_PBM = torch.bmm(djoint_t, joint_PNM)
    dkey, dvector = memory_backward(queries_TBA, key, vector, dscores_TBS)
    weights_BST = weights_BTS.transpose(1, 2)
    dprojected = torch.bmm(weights_BST, d_TBN[..., hidden:].transpose(0, 1))
    dvalue = torch.bmm(weights_BST, dcontexts)
    dvalue.flatten(0, 1).addmm_(dprojected.flatten(0, 1), of_context)
    return d_TBN, dstate_BM + parts_PBM.sum(0), dkey, dvalue, dvector, dprojected
