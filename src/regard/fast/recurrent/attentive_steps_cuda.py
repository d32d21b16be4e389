"""All steps of a gated cell with additive attention by Triton kernels, with a custom backward pass.

Autograd would accumulate the gradients of the weights and of the memory step by step. Here the backward pass
computes them once, after its last step: one matrix product for each weight, and one pass of the attention
kernels over all steps for the memory. The loop over the steps computes only the gradients that the next
iteration needs.

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
from regard.fast.joint_linear import product_in_float32
from regard.kernels import by_kernel
from regard.memory import Memory

__all__ = ["CudaSteps", "suits_cuda_steps"]

NO_MASK: tuple[Any, ...] = (None, None, 0, None, None, 1.0)
"""Arguments of the kernels after the lengths: no documents, no window, and the factor of the scores."""

NO_EXTRA: tuple[Any, ...] = (None, None, 0.0)
"""No bias and no dropout."""

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
        from regard.kernels.additive import operators
        from regard.kernels.recurrent import cells

        ctx.dtypes = [each.dtype for each in tensors]
        gates, first, key, value, vector, of_query, of_context, of_gate, of_state = (
            each.to(dtype) for each in tensors
        )
        # s @ joint_NM.T gives the query, U_z s and U_r s.
        joint_NM = torch.cat((of_query.T, of_gate))
        (batch, steps, _), (size, width), hidden = gates.shape, joint_NM.shape, key.shape[2]
        gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        states_TBM = first.new_empty(steps + 1, batch, width)
        states_TBM[0] = first
        reset_TBM, both_TBN = first.new_empty(steps, batch, width), first.new_empty(steps, batch, size)
        parts = parts_of(width)
        reset_TPBK, state_weight = split(reset_TBM, parts), of_state.T.unflatten(0, (parts, -1))
        memory = (key[:, None], value[:, None], vector[None], lengths)
        contexts, norms, scores = [], [], []
        tensors = (gates_TBG, reset_TBM, reset_TPBK, both_TBN)
        states, rows = states_TBM.unbind(0), zip(*(each.unbind(0) for each in tensors), strict=True)
        joint_weight, context_weight = joint_NM.T, of_context.T
        for t, (gates_BG, reset_BM, reset_PBK, both_BN) in enumerate(rows):
            torch.mm(states[t], joint_weight, out=both_BN)
            query: list[Any] = [both_BN[:, None, None, :hidden], *memory, *NO_MASK, True, *NO_EXTRA]
            output, _, norm, score = operators.run_forward(*query)
            contexts.append(output.view(batch, -1))
            norms.append(norm)
            scores.append(score)
            gates_BG.addmm_(contexts[t], context_weight)
            cells.gated(gates_BG, both_BN[:, hidden:], states[t], reset_BM)
            cells.mixed(gates_BG, states[t], states[t + 1], torch.bmm(reset_PBK, state_weight))
        ctx.lengths, contexts_TBE = lengths, torch.stack(contexts)
        weights = joint_NM, of_context, of_state
        steps_of = gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE
        ctx.save_for_backward(
            key, value, vector, *weights, *steps_of, torch.stack(norms), torch.stack(scores)
        )
        return states_TBM[1:].transpose(0, 1), contexts_TBE.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.additive import operators
        from regard.kernels.additive.backward import Backward
        from regard.kernels.additive.forward import Forward, Sight
        from regard.kernels.recurrent import cells

        key, value, vector, joint_NM, of_context, of_state, *saved = ctx.saved_tensors
        gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE, norms, scores = saved
        (steps, batch, width), size, hidden = reset_TBM.shape, len(joint_NM), key.shape[2]
        memory = (key[:, None], value[:, None], vector[None])
        sight = Sight(ctx.lengths, None, None, 0, None, None)
        # The kernels read rows with any stride, but not expanded gradients, such as those of sum().
        dstates = dstates if dstates.stride(2) == 1 else dstates.contiguous()
        dcontexts_TBE = dcontexts.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        d_TBN = gates_TBG.new_empty(steps, batch, hidden + 3 * width)  # of the query, z, r and s~
        # The matrix products below sum over N, G and M. Split each sum into P parts: several smaller products
        # use more of the device in parallel. The kernel that reads the result adds the parts.
        parts, of_width = 3 if size % 3 == 0 else 1, parts_of(width)
        joint_PNM = joint_NM.unflatten(0, (parts, -1))
        state_PKM = of_state.unflatten(0, (of_width, -1))
        dstate_BM = torch.zeros_like(states_TBM[0])
        parts_PBM = dstate_BM.new_zeros(parts, batch, width)
        tensors = (
            d_TBN[..., :hidden],
            d_TBN[..., hidden:],
            split(d_TBN[..., hidden + 2 * width :], of_width),
            split(d_TBN[..., :size], parts),
            dstates.transpose(0, 1),
            dcontexts_TBE,
            gates_TBG,
            both_TBN,
            norms,
            scores,
        )
        rows = list(zip(*(each.unbind(0) for each in tensors), strict=True))
        states = states_TBM.unbind(0)
        for t in reversed(range(steps)):
            dquery_BA, dgates_BG, dnew_PBK, djoint_PBN, *others = rows[t]
            more_BM, dcontext_BE, gates_BG, both_BN, norm, score = others
            dstate_BM = cells.mixed_backward(parts_PBM, dstate_BM, more_BM, gates_BG, states[t], dgates_BG)
            cells.gated_backward(torch.bmm(dnew_PBK, state_PKM), gates_BG, states[t], dgates_BG, dstate_BM)
            dcontext_BE.addmm_(dgates_BG, of_context)
            step = Forward(both_BN[:, None, None, :hidden], *memory, sight, 1.0, hold=False, back=True)
            dquery = dquery_BA[:, None, None]
            Backward(step, dcontext_BE[:, None, None], norm, score, others=False, dquery=dquery).run()
            parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
        # The gradients of keys, values and v: all steps are queries of one attention call.
        queries_BTA = both_TBN[..., :hidden].transpose(0, 1)
        norm, score = norms[..., 0].movedim(0, -1).contiguous(), scores
        score = scores[:, :, 0].transpose(0, 1).contiguous() if scores.dim() == 4 else scores[0]
        doutput, query = dcontexts_TBE.transpose(0, 1)[:, None], queries_BTA[:, None]
        of_memory: list[Any] = [ctx.lengths, *NO_MASK, True, *NO_EXTRA, False]
        _, dkey, dvalue, dvector, _ = operators.run_backward(doutput, query, *memory, norm, score, *of_memory)
        flat = d_TBN.flatten(0, 1)
        djoint_NM = product_in_float32(flat[:, :size].T, states_TBM[:-1].flatten(0, 1))
        dof_context = product_in_float32(flat[:, hidden:].T, contexts_TBE.flatten(0, 1))
        dof_state = product_in_float32(flat[:, hidden + 2 * width :].T, reset_TBM.flatten(0, 1))
        dgates, dfirst = d_TBN[..., hidden:].transpose(0, 1), dstate_BM + parts_PBM.sum(0)
        dweights = djoint_NM[:hidden].T, dof_context, djoint_NM[hidden:], dof_state
        gradients = dgates, dfirst, dkey[:, 0], dvalue[:, 0], dvector[0], *dweights
        return None, None, *(each.to(dtype) for each, dtype in zip(gradients, ctx.dtypes, strict=True))


def parts_of(width: int) -> int:
    """Return the number of parts of a sum over `width` elements, each of which is a multiple of 16 bytes."""
    return next((parts for parts in SPLITS if width % (8 * parts) == 0), 1)


def split(x_TBM: Tensor, parts: int) -> Tensor:
    """Return a view (T, P, B, M / P)."""
    return x_TBM.unflatten(2, (parts, -1)).transpose(1, 2)
