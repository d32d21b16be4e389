"""All steps of a gated cell with additive attention by Triton kernels, with a custom backward pass.

Autograd would accumulate the gradients of the weights and of the memory step by step. Here the backward pass
computes them once, after its last step: one matrix product for each weight, and one pass of the attention
kernels over all steps for the memory. The loop over the steps computes only the gradients that the next
iteration needs.

The context c enters the gates only as C c, the weighted sum of C h_j for the values h_j. So these products
are computed once, before the first step, and the contexts, which the readout needs, after the last step.

T is the number of steps, B the number of sequences, S the number of keys, M the width of the state, and E the
width of the context. G = 3 M is the size of the gates z, r and s~ together. A is the hidden size of the score
function. N = A + 2 M is the size of the query, z and r together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on
from regard.fast.joint_linear import ALIGNMENT, product_in_float32
from regard.kernels import by_kernel
from regard.memory import Memory

__all__ = ["CudaSteps", "suits_cuda_steps"]

SPLITS = (5, 4, 3, 2)
"""Numbers of parts of the product with the weight of r * s. The first that is possible is used."""


def suits_cuda_steps(memory: Memory, tensors: tuple[Tensor, ...]) -> bool:
    """Return whether CudaSteps supports a memory with an additive score function, and a mask of padding only.

    tensors: the tensors of CudaSteps. Without autocast, they must have one dtype.
    """
    key, lengths = memory.key, memory.mask.lengths
    if not by_kernel(key) or key.dim() != 3 or not memory.cleaned:
        return False  # the kernels multiply the values of padding by 0
    same = autocast_on(key.device.type) or len({each.dtype for each in tensors}) == 1
    known = same and all(each.numel() for each in tensors)
    return known and memory.mask.only("lengths") and (lengths is None or lengths.device == key.device)


class CudaSteps(torch.autograd.Function):
    """Forward and backward pass of all steps.

    The tensors are gates (B, T, 3 M), the initial state (B, M), projected keys (B, S, A), values (B, S, E),
    the vector v of the score function (A,), and the weights of query, context, gates and state. `lengths` has
    the number of keys of each sequence, or is None. `dtype` is the dtype of all computations.

    Returns the states (B, T, M) and the contexts (B, T, E).
    """

    @staticmethod
    def forward(
        ctx: Any, lengths: Tensor | None, dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        from regard.kernels.additive.forward import Forward, Sight
        from regard.kernels.recurrent import cells
        from regard.kernels.recurrent.attended_gates import attended_gates

        ctx.dtypes = [each.dtype for each in tensors]
        *memory_and_more, of_query, of_context, of_gate, of_state = tensors
        gates, first, key, value, vector, of_context, of_state = (
            each.to(dtype) for each in (*memory_and_more, of_context, of_state)
        )
        # s @ joint_NM.T gives the query, U_z s and U_r s.
        (inner, hidden), outer = of_query.shape, len(of_gate)
        joint_NM = gates.new_empty(hidden + outer, inner)
        joint_NM[:hidden], joint_NM[hidden:] = of_query.T, of_gate
        (batch, steps, _), (size, width), keys = gates.shape, joint_NM.shape, key.shape[1]
        projected_BSG = torch.mm(value.flatten(0, 1), of_context.T).unflatten(0, (batch, keys))
        inputs_TBG = (gates if gates.stride(2) == 1 else gates.contiguous()).transpose(0, 1)
        gates_TBG, contexts_TBE = (
            gates.new_empty(inputs_TBG.shape),
            value.new_empty(steps, batch, value.shape[2]),
        )
        states_TBM = first.new_empty(steps + 1, batch, width)
        states_TBM[0] = first
        reset_TBM, both_TBN = first.new_empty(steps, batch, width), first.new_empty(steps, batch, size)
        norms = first.new_empty(steps, 2, batch, dtype=torch.float32)
        weights_TBS = aligned_rows(value, steps, batch, keys)
        parts = parts_of(width)
        reset_TPBK, state_weight = split(reset_TBM, parts), of_state.T.unflatten(0, (parts, -1))
        memory, sight = (
            (key[:, None], value[:, None], vector[None]),
            Sight(lengths, None, None, 0, None, None),
        )
        tensors = (inputs_TBG, gates_TBG, reset_TBM, reset_TPBK, both_TBN, weights_TBS, norms)
        states, rows = states_TBM.unbind(0), zip(*(each.unbind(0) for each in tensors), strict=True)
        scores, joint_weight = [], joint_NM.T
        for t, (inputs_BG, gates_BG, reset_BM, reset_PBK, both_BN, weights_BS, norm) in enumerate(rows):
            torch.mm(states[t], joint_weight, out=both_BN)
            query = both_BN[:, None, None, :hidden]
            scores.append(Forward(query, *memory, sight, 1.0, hold=True).decoded()[:, 0])
            of_gates = inputs_BG, both_BN[:, hidden:], states[t], gates_BG, reset_BM
            attended_gates(scores[t], projected_BSG, lengths, *of_gates, weights_BS, norm)
            cells.mixed(gates_BG, states[t], states[t + 1], torch.bmm(reset_PBK, state_weight))
        torch.bmm(weights_TBS.transpose(0, 1), value, out=contexts_TBE.transpose(0, 1))
        ctx.lengths = lengths
        weights = joint_NM, of_context, of_state
        steps_of = gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE, weights_TBS
        ctx.save_for_backward(key, value, vector, projected_BSG, *weights, *steps_of, norms, *scores)
        return states_TBM[1:].transpose(0, 1), contexts_TBE.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.recurrent import cells
        from regard.kernels.recurrent.attended_gates import gates_backward, memory_backward, query_backward

        key, value, vector, projected_BSG, joint_NM, of_context, of_state, *saved = ctx.saved_tensors
        gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE, weights_TBS, norms, *scores = saved
        (steps, batch, width), size, hidden = reset_TBM.shape, len(joint_NM), key.shape[2]
        # The kernels read rows with any stride, but not expanded gradients, such as those of sum().
        dstates, dcontexts = (
            each if each.stride(2) == 1 else each.contiguous() for each in (dstates, dcontexts)
        )
        # The part of the gradient of the weights that comes from the contexts that the readout reads.
        extra_BTS = product_in_float32(dcontexts, value.transpose(1, 2))
        d_TBN = gates_TBG.new_empty(steps, batch, hidden + 3 * width)  # of the query, z, r and s~
        # The matrix products below sum over N and M. Split each sum into P parts: several smaller products
        # use more of the device in parallel. The kernel that reads the result adds the parts.
        parts, of_width = 3 if size % 3 == 0 else 1, parts_of(width)
        joint_PNM = joint_NM.unflatten(0, (parts, -1))
        state_PKM = of_state.unflatten(0, (of_width, -1))
        dstate_BM = torch.zeros_like(states_TBM[0])
        parts_PBM = dstate_BM.new_zeros(parts, batch, width)
        dscores_TBS = norms.new_empty(steps, batch, key.shape[1])
        tensors = (
            d_TBN[..., :hidden],
            d_TBN[..., hidden:],
            split(d_TBN[..., hidden + 2 * width :], of_width),
            split(d_TBN[..., :size], parts),
            dstates.transpose(0, 1),
            extra_BTS.transpose(0, 1),
            gates_TBG,
            both_TBN[..., :hidden],
            norms,
            dscores_TBS,
        )
        rows = list(zip(*(each.unbind(0) for each in tensors), scores, strict=True))
        states, lengths = states_TBM.unbind(0), ctx.lengths
        for t in reversed(range(steps)):
            dquery_BA, dgates_BG, dnew_PBK, djoint_PBN, *others = rows[t]
            more_BM, extra_BS, gates_BG, query_BA, norm, dscores_BS, score = others
            dstate_BM = cells.mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, states[t], dgates_BG)
            of_gates = gates_BG, states[t], dgates_BG, dstate_BM
            dweights = gates_backward(torch.bmm(dnew_PBK, state_PKM), *of_gates, projected_BSG, lengths)
            of_scores = dweights, extra_BS, score, norm
            query_backward(*of_scores, query_BA, key, vector, lengths, dquery_BA, dscores_BS)
            parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
        flat = d_TBN.flatten(0, 1)
        dcontexts_TBE = dcontexts.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        dcontexts_TBE.flatten(0, 1).addmm_(flat[:, hidden:], of_context)
        dkey, dvector = memory_backward(both_TBN[..., :hidden], key, vector, dscores_TBS)
        dvalue = torch.bmm(weights_TBS.permute(1, 2, 0), dcontexts_TBE.transpose(0, 1))
        djoint_NM = product_in_float32(flat[:, :size].T, states_TBM[:-1].flatten(0, 1))
        dof_context = product_in_float32(flat[:, hidden:].T, contexts_TBE.flatten(0, 1))
        dof_state = product_in_float32(flat[:, hidden + 2 * width :].T, reset_TBM.flatten(0, 1))
        dgates, dfirst = d_TBN[..., hidden:].transpose(0, 1), dstate_BM + parts_PBM.sum(0)
        of_weights = djoint_NM[:hidden].T, dof_context, djoint_NM[hidden:], dof_state
        gradients = dgates, dfirst, dkey, dvalue, dvector, *of_weights
        return None, None, *(each.to(dtype) for each, dtype in zip(gradients, ctx.dtypes, strict=True))


def aligned_rows(like: Tensor, *sizes: int) -> Tensor:
    """Return a new tensor of these sizes whose rows begin at multiples of ALIGNMENT elements."""
    *outer, width = sizes
    return like.new_empty(*outer, -(-width // ALIGNMENT) * ALIGNMENT)[..., :width]


def parts_of(width: int) -> int:
    """Return the number of parts of a sum over `width` elements, each of which is a multiple of 16 bytes."""
    return next((parts for parts in SPLITS if width % (8 * parts) == 0), 1)


def split(x_TBM: Tensor, parts: int) -> Tensor:
    """Return a view (T, P, B, M / P)."""
    return x_TBM.unflatten(2, (parts, -1)).transpose(1, 2)
