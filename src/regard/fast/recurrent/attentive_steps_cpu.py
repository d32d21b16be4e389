"""All steps of a gated cell with additive attention on a CPU, with a custom backward pass.

attentive_steps_cuda.py explains the letters of the shapes. On a CPU, a step of a small model takes longer in
calls of operators and in tanh than in matrix products. So there are few operators for each step:

- The context c_t is only used in C c_t inside the loop. So C h_j is computed once for each source token j,
  and its weighted sum at each step. The contexts of all steps are computed after the last step.
- tanh(x) = 2 sigmoid(2 x) - 1, because torch.sigmoid() is several times as fast as torch.tanh() on a CPU. The
  score v . tanh(x) is then 2 v . sigmoid(2 x) - sum(v). The softmax does not depend on the constant sum(v).
- The gradients of the weights are computed after the last step of the backward pass, for all steps at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.recurrent.gru_cpu import half_product, in_half
from regard.kernels import by_kernel
from regard.memory import Memory

__all__ = ["CpuSteps", "suits_cpu_steps"]

MOST_BYTES = 2**25
"""The largest size of sigmoid(2 x) of all steps that the forward pass stores for the backward pass."""


def suits_cpu_steps(memory: Memory, tensors: tuple[Tensor, ...], half: torch.dtype | None = None) -> bool:
    """Return whether CpuSteps supports a memory with an additive score function.

    It supports float32 and float64 on a CPU, and masks that hide only padding, but not all
    keys of a source.

    tensors: the tensors of CpuSteps. half: the autocast dtype, which some of them may have.
    """
    key, lengths = memory.key, memory.mask.lengths
    if by_kernel(key):  # the kernels run on a CPU, in the interpreter of Triton
        return False
    dtypes = {torch.float32 if each.dtype == half else each.dtype for each in tensors}
    if key.device.type != "cpu" or dtypes not in ({torch.float32}, {torch.float64}):
        return False
    if key.dim() != 3 or not memory.cleaned or not memory.mask.only("lengths"):
        return False
    if not all(each.numel() for each in tensors):
        return False
    return lengths is None or (lengths.shape == key.shape[:1] and bool((lengths > 0).all()))


class CpuSteps(torch.autograd.Function):
    """Forward and backward pass of all steps on a CPU; see suits_cpu_steps().

    The tensors are gates (B, T, 3 M), the initial state (B, M), projected keys (B,
    S, A), values (B, S, E), the vector v of the score function (A,), and the weights of query, context, gates
    and state. `lengths` has the number of keys of each source, or is None. `half` is the dtype of the matrix
    products, or None for that of the tensors. Everything else stays in float32: a sum that is rounded at
    every step loses what it stores.
    """

    @staticmethod
    def forward(
        ctx: Any, lengths: Tensor | None, half: torch.dtype | None, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates, first, key, value, vector, of_query, of_context, of_gate, of_state = tensors
        (batch, steps, _), (_, source, hidden), width = gates.shape, key.shape, first.shape[1]
        joint_MN = in_half(
            torch.cat((2 * of_query, of_gate.T), 1), half
        )  # s @ joint_MN gives 2 query, U_z s and U_r s
        twice_BSA, twice_A, turned_MM = (2 * key).contiguous(), 2 * vector, in_half(of_state.T, half)
        read_BSG = half_product(value, of_context.T, half)
        hidden_BS = _hidden(lengths, key)
        gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        sizes = (width, joint_MN.shape[1], source)
        reset_TBM, both_TBN, weights_TBS = (first.new_empty(steps, batch, size) for size in sizes)
        states_TBM = first.new_empty(steps + 1, batch, width)
        states_TBM[0] = first
        # Large results are computed again in the backward pass: then all steps use the same memory.
        keeps = steps * twice_BSA.nbytes <= MOST_BYTES
        sigmoid_TBSA = twice_BSA.new_empty(steps if keeps else 1, *twice_BSA.shape).expand(steps, -1, -1, -1)
        states, new_TBM = states_TBM.unbind(0), gates_TBG[..., 2 * width :]
        buffers = (gates_TBG, new_TBM, reset_TBM, both_TBN, weights_TBS, sigmoid_TBSA)
        for t, row in enumerate(zip(*(each.unbind(0) for each in buffers), strict=True)):
            gates_BG, new_BM, reset_BM, both_BN, weights_BS, sigmoid_BSA = row
            both_BN.copy_(in_half(states[t], half) @ joint_MN)
            torch.add(both_BN[:, None, :hidden], twice_BSA, out=sigmoid_BSA).sigmoid_()
            scores_BS = torch.mv(sigmoid_BSA.view(-1, hidden), twice_A).view(batch, source)
            if hidden_BS is not None:
                scores_BS.masked_fill_(hidden_BS, -torch.inf)
            torch.softmax(scores_BS, -1, out=weights_BS)
            gates_BG[:, None].baddbmm_(weights_BS[:, None], read_BSG)
            gated(gates_BG, both_BN[:, hidden:], states[t], reset_BM)
            new_BM.add_(in_half(reset_BM, half) @ turned_MM)
            mixed(gates_BG, states[t], states[t + 1])
        ctx.keeps, ctx.half = keeps, half
        kept = (gates_TBG, states_TBM, reset_TBM, both_TBN, weights_TBS, sigmoid_TBSA)
        ctx.save_for_backward(twice_BSA, value, vector, joint_MN, of_context, of_state, read_BSG, *kept)
        contexts_BTE = torch.bmm(weights_TBS.transpose(0, 1), value)
        return states_TBM[1:].transpose(0, 1), contexts_BTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Tensor | None, ...]:
        twice_BSA, value, vector, joint_MN, of_context, of_state, read_BSG, *kept = ctx.saved_tensors
        gates_TBG, states_TBM, reset_TBM, both_TBN, weights_TBS, sigmoid_TBSA = kept
        hidden, width, half = len(vector), len(of_state), ctx.half
        state_MM = in_half(of_state, half)
        dweights_TBS = torch.bmm(dcontexts, value.transpose(1, 2)).transpose(0, 1).contiguous()
        d_TBN = gates_TBG.new_empty(*gates_TBG.shape[:2], hidden + 3 * width)  # of 2 query, z, r and s~
        dqueries, dgates = d_TBN.tensor_split((hidden,), 2)
        dnew, djoint = dgates[..., 2 * width :], d_TBN[..., : hidden + 2 * width]
        buffers = (dstates.transpose(0, 1), gates_TBG, states_TBM[:-1], dgates, dnew, djoint)
        attended = (dqueries, both_TBN[..., :hidden], weights_TBS, dweights_TBS, sigmoid_TBSA)
        rows = list(zip(*(each.unbind(0) for each in (*buffers, *attended)), strict=True))
        dstate_BM, dkey_BSA, dvector_A = (
            torch.zeros_like(each) for each in (states_TBM[0], twice_BSA, vector)
        )
        slope_BSA, twice_A = torch.empty_like(twice_BSA), 2 * vector
        turned_NM, turned_BGS = joint_MN.T, read_BSG.transpose(1, 2)
        for dafter_BM, gates_BG, state_BM, dgates_BG, dnew_BM, djoint_BN, *attention in reversed(rows):
            dquery_BA, query_BA, weights_BS, dweights_BS, sigmoid_BSA = attention
            dstate_BM = mixed_backward(dstate_BM + dafter_BM, gates_BG, state_BM, dgates_BG)
            gated_backward(half_product(dnew_BM, state_MM, half), gates_BG, state_BM, dgates_BG, dstate_BM)
            dweights_BS[:, None].baddbmm_(dgates_BG[:, None], turned_BGS)
            dscores_BS = torch._softmax_backward_data(dweights_BS, weights_BS, -1, weights_BS.dtype)
            if not ctx.keeps:
                torch.add(query_BA[:, None], twice_BSA, out=sigmoid_BSA).sigmoid_()
            dvector_A.addmv_(sigmoid_BSA.view(-1, hidden).T, dscores_BS.flatten())
            torch.addcmul(sigmoid_BSA, sigmoid_BSA, sigmoid_BSA, value=-1, out=slope_BSA)
            torch.mul(torch.bmm(dscores_BS[:, None], slope_BSA)[:, 0], twice_A, out=dquery_BA)
            dkey_BSA.addcmul_(dscores_BS[..., None], slope_BSA)
            dstate_BM.add_(in_half(djoint_BN, half) @ turned_NM)
        djoint_MN = half_product(states_TBM[:-1].flatten(0, 1).T, djoint.flatten(0, 1), half)
        dof_state = half_product(dnew.flatten(0, 1).T, reset_TBM.flatten(0, 1), half)
        weights_BST = weights_TBS.permute(1, 2, 0)
        dread_BSG = torch.bmm(weights_BST, dgates.transpose(0, 1))
        dvalue = torch.baddbmm(half_product(dread_BSG, of_context, half), weights_BST, dcontexts)
        dof_context = half_product(dread_BSG.flatten(0, 1).T, value.flatten(0, 1), half)
        dof_query, dof_gate = 2 * djoint_MN[:, :hidden], djoint_MN[:, hidden:].T
        of_memory = dkey_BSA.mul_(4 * vector), dvalue, 2 * dvector_A
        return (
            None,
            None,
            dgates.transpose(0, 1),
            dstate_BM,
            *of_memory,
            dof_query,
            dof_context,
            dof_gate,
            dof_state,
        )


def _hidden(lengths: Tensor | None, key_BSA: Tensor) -> Tensor | None:
    """Return which keys are padding, (B, S); None if none are."""
    source = key_BSA.shape[1]
    if lengths is None or bool((lengths >= source).all()):
        return None
    return torch.arange(source) >= lengths[:, None]


def gated(gates_BG: Tensor, more_BN: Tensor, state_BM: Tensor, reset_BM: Tensor) -> None:
    """Compute z, r and r * s of GatedCell in place; kernels/recurrent/cells.py explains the arguments."""
    both = gates_BG[:, : more_BN.shape[1]]
    both.add_(more_BN).sigmoid_()
    torch.mul(both[:, state_BM.shape[1] :], state_BM, out=reset_BM)


def mixed(gates_BG: Tensor, state_BM: Tensor, after_BM: Tensor) -> None:
    """Compute s~ and the next state of GatedCell in place, after gated() and the product with r * s."""
    width = state_BM.shape[1]
    new = gates_BG[:, 2 * width :].tanh_()
    torch.lerp(state_BM, new, gates_BG[:, :width], out=after_BM)


def mixed_backward(dstate_BM: Tensor, gates_BG: Tensor, state_BM: Tensor, dgates_BG: Tensor) -> Tensor:
    """Backward pass of mixed(). dstate_BM: the gradient of the next state."""
    width = state_BM.shape[1]
    take, new = gates_BG[:, :width], gates_BG[:, 2 * width :]
    torch.ops.aten.sigmoid_backward(dstate_BM * (new - state_BM), take, grad_input=dgates_BG[:, :width])
    torch.ops.aten.tanh_backward(dstate_BM * take, new, grad_input=dgates_BG[:, 2 * width :])
    return torch.addcmul(dstate_BM, dstate_BM, take, value=-1)


def gated_backward(
    dreset_BM: Tensor, gates_BG: Tensor, state_BM: Tensor, dgates_BG: Tensor, dstate_BM: Tensor
) -> None:
    """Backward pass of gated(). dreset_BM: the gradient of r * s."""
    here = slice(state_BM.shape[1], 2 * state_BM.shape[1])
    torch.ops.aten.sigmoid_backward(dreset_BM * state_BM, gates_BG[:, here], grad_input=dgates_BG[:, here])
    dstate_BM.addcmul_(dreset_BM, gates_BG[:, here])
