"""Run all steps of an LSTMN layer in one autograd function, with a custom backward pass.

At each step, an LSTMN (long short-term memory-network, Cheng et al. 2016) attends to the hidden and cell
states of earlier steps, its tapes. Autograd would store every step, and accumulate the gradients of the
weights step by step. Here, the tapes are allocated once. The terms of queries and gates that depend only on
the inputs are computed before the loop. In each step, one matrix product projects the summary h~_t to the
gates of this step and to the query of the next step. The backward pass computes the gradients of the weights
after its loop. On CUDA, a step launches two Triton kernels and two matrix products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import by_kernel

__all__ = ["lstmn_steps"]


def lstmn_steps(
    gates_BTG: Tensor,
    query_BA: Tensor,
    later_BTA: Tensor,
    keys_BSA: Tensor,
    values_BSE: Tensor,
    added_BTM: Tensor | None,
    weights: tuple[Tensor, Tensor, Tensor],
    tape: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the steps of an LSTMN layer (Cheng et al. 2016, eq. 4 to 9); see LSTMNLayer for the equations.

    B is the number of sequences, T the number of steps, and S the number of earlier steps, which are already
    on the tapes. M is the width of the states, E = 2 M, and A the hidden size of the score function. G is the
    size of all gates together: 4 M, or 5 M with the gate r.

    gates_BTG: the part of the gates that depends on the inputs, W x_t + b.
    query_BA: the query of the first step, W_x x_1 + W_h~ h~_0.
    later_BTA: the part of the later queries that depends on the inputs, W_x x_t, (B, T - 1, A).
    keys_BSA: the projected hidden states W_h h_i of the steps on the tapes.
    values_BSE: the states [h_i; c_i] of the steps on the tapes.
    added_BTM: vectors that are added to the cell states c_t. If there is a gate r, they are multiplied by r
        first. None: nothing is added.
    weights: three tensors. The matrix (M, G + A) projects h~_t to the gates and to the next query. The others
        are W_h, (M, A), and v, (A,).
    tape: maximum number of earlier steps that a step can attend to; None for all.

    Returns the tapes after the last step, keys (B, S + T, A) and values (B, S + T, E), and the summary h~ of
    the last step, (B, M). Double backward is not supported.

    >>> B, T, M, A = 2, 3, 4, 5
    >>> weights = torch.randn(M, 4 * M + A), torch.randn(M, A), torch.randn(A)
    >>> inputs = torch.randn(B, T, 4 * M), torch.randn(B, A), torch.randn(B, T - 1, A)
    >>> keys, values, summary = lstmn_steps(
    ...     *inputs, torch.zeros(B, 0, A), torch.zeros(B, 0, 2 * M), None, weights, None
    ... )
    >>> keys.shape, values.shape, summary.shape
    (torch.Size([2, 3, 5]), torch.Size([2, 3, 8]), torch.Size([2, 4]))
    """
    if added_BTM is not None and added_BTM.stride(-1) != 1:
        added_BTM = added_BTM.contiguous()
    tensors = gates_BTG, query_BA, later_BTA, keys_BSA, values_BSE, added_BTM, *weights
    keys, values, summary = _Steps.apply(tape, *tensors)
    return keys, values, summary


class _Steps(torch.autograd.Function):
    """Forward and backward pass of lstmn_steps().

    For the meaning of B, T, S, M, A, E and G, see lstmn_steps(). N = G + A.

    Row t of work_BTN contains the gates of step t (G columns) and the query of step t + 1 (A columns). Before
    the loop, the row contains only the terms that depend on the inputs. Step t adds the terms that depend on
    h~_t, then replaces the gates by their activations.
    """

    @staticmethod
    def forward(ctx: Any, tape: int | None, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, query_BA, later, keys, values, added, joint_MN, of_key_MA, vector_A = tensors
        (batch, steps, size), (width, joint), before = gates.shape, joint_MN.shape, keys.shape[1]
        keys_BSA, values_BSE = (_longer(each, steps) for each in (keys, values))
        work_BTN = gates.new_empty(batch, steps, joint)
        work_BTN[..., :size] = gates
        work_BTN[:, : steps - 1, size:] = later
        work_BTN[:, steps - 1, size:] = 0.0
        reads_BTE = values_BSE.new_empty(batch, steps, 2 * width)
        precise = torch.promote_types(keys.dtype, torch.float32)
        scores_BTS = keys.new_empty(batch, steps, before + steps, dtype=precise)
        totals_BT = keys.new_empty(batch, steps, dtype=precise)
        for t in range(steps):
            last = before + t
            seen = slice(0 if tape is None else max(last - tape, 0), last)
            query = work_BTN[:, t - 1, size:] if t else query_BA
            scored = scores_BTS[:, t], totals_BT[:, t]
            read(query, keys_BSA, values_BSE, vector_A, seen, *scored, reads_BTE[:, t])
            work_BTN[:, t].addmm_(reads_BTE[:, t, :width], joint_MN)
            more = None if added is None else added[:, t]
            cell(work_BTN[:, t, :size], reads_BTE[:, t], more, values_BSE[:, last])
            torch.mm(values_BSE[:, last, :width], of_key_MA, out=keys_BSA[:, last])
        ctx.tape, ctx.sizes = tape, (before, width, size)
        saved = query_BA, added, joint_MN, of_key_MA, vector_A, keys_BSA, values_BSE
        ctx.save_for_backward(*saved, work_BTN, reads_BTE, scores_BTS, totals_BT)
        return keys_BSA, values_BSE, reads_BTE[:, -1, :width].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkeys: Tensor, dvalues: Tensor, dsummary: Tensor) -> tuple[Tensor | None, ...]:
        query_BA, added, joint_MN, of_key_MA, vector_A, keys_BSA, values_BSE, *saved = ctx.saved_tensors
        work_BTN, reads_BTE, scores_BTS, totals_BT = saved
        before, width, size = ctx.sizes
        steps = work_BTN.shape[1]
        dkeys_BSA, dvalues_BSE = (
            each.clone(memory_format=torch.contiguous_format) for each in (dkeys, dvalues)
        )
        d_BTN = torch.empty_like(work_BTN)
        d_BTN[:, steps - 1, size:] = 0.0
        dquery_BA, dvector_BA = torch.empty_like(query_BA), torch.zeros_like(query_BA)
        dread_BE = torch.empty_like(reads_BTE[:, 0])
        dadded = None if added is None else torch.empty_like(added, memory_format=torch.contiguous_format)
        into_key_AM, into_summary_NM = of_key_MA.T.contiguous(), joint_MN.T.contiguous()
        for t in reversed(range(steps)):
            last = before + t
            seen = slice(0 if ctx.tape is None else max(last - ctx.tape, 0), last)
            dvalues_BSE[:, last, :width].addmm_(dkeys_BSA[:, last], into_key_AM)
            more = (None, None) if added is None or dadded is None else (added[:, t], dadded[:, t])
            activations = work_BTN[:, t, :size], reads_BTE[:, t], values_BSE[:, last]
            cell_backward(*activations, dvalues_BSE[:, last], d_BTN[:, t, :size], dread_BE, *more)
            torch.mm(d_BTN[:, t], into_summary_NM, out=dread_BE[:, :width])
            if t == steps - 1:
                dread_BE[:, :width] += dsummary
            query, dquery = (
                (work_BTN[:, t - 1, size:], d_BTN[:, t - 1, size:]) if t else (query_BA, dquery_BA)
            )
            scored = scores_BTS[:, t], totals_BT[:, t], reads_BTE[:, t], dread_BE
            gradients = dkeys_BSA, dvalues_BSE, dquery, dvector_BA
            read_backward(query, keys_BSA, values_BSE, vector_A, seen, *scored, *gradients)
        summaries = reads_BTE[..., :width].flatten(0, 1)
        states = values_BSE[:, before:, :width].flatten(0, 1)
        djoint_MN = summaries.T @ d_BTN.flatten(0, 1)
        dof_key_MA = states.T @ dkeys_BSA[:, before:].flatten(0, 1)
        dweights = djoint_MN, dof_key_MA, dvector_BA.sum(0)
        dlater = d_BTN[:, : steps - 1, size:]
        dtapes = dkeys_BSA[:, :before], dvalues_BSE[:, :before]
        return None, d_BTN[..., :size], dquery_BA, dlater, *dtapes, dadded, *dweights


def read(
    query_BA: Tensor,
    keys_BSA: Tensor,
    values_BSE: Tensor,
    vector_A: Tensor,
    seen: slice,
    scores_BS: Tensor,
    totals_B: Tensor,
    read_BE: Tensor,
) -> None:
    """Attend to the tapes at one step of an LSTMN layer, with additive attention.

    query_BA: the query of the step.
    keys_BSA: the keys on the tapes, W_h h_i.
    values_BSE: the values on the tapes, [h_i; c_i].
    vector_A: v of the score function.
    seen: the range of steps to attend to.
    scores_BS: receives the scores v . tanh(key + query) of the steps in `seen`.
    totals_B: receives the log-sum-exp of these scores.
    read_BE: receives [h~; c~], the weighted mean of the values; 0 if `seen` is empty.
    """
    if by_kernel(keys_BSA):
        from regard.kernels.recurrent import lstmn

        lstmn.read(
            query_BA, keys_BSA, values_BSE, vector_A, seen.start, seen.stop, scores_BS, totals_B, read_BE
        )
        return
    own_BS = torch.tanh(keys_BSA[:, seen] + query_BA[:, None]) @ vector_A
    scores_BS[:, seen] = own_BS
    totals_B.copy_(own_BS.logsumexp(-1))
    read_BE.copy_(torch.bmm(own_BS.softmax(-1)[:, None], values_BSE[:, seen])[:, 0])


def read_backward(
    query_BA: Tensor,
    keys_BSA: Tensor,
    values_BSE: Tensor,
    vector_A: Tensor,
    seen: slice,
    scores_BS: Tensor,
    totals_B: Tensor,
    read_BE: Tensor,
    dread_BE: Tensor,
    dkeys_BSA: Tensor,
    dvalues_BSE: Tensor,
    dquery_BA: Tensor,
    dvector_BA: Tensor,
) -> None:
    """Backward pass of read(). The arguments up to read_BE are the arguments of read().

    dread_BE: the gradient of [h~; c~].
    dkeys_BSA: a tensor to which the gradient of the keys is added.
    dvalues_BSE: a tensor to which the gradient of the values is added.
    dquery_BA: receives the gradient of the query.
    dvector_BA: a tensor to which the gradient of v is added, one row for each sequence.
    """
    if by_kernel(keys_BSA):
        from regard.kernels.recurrent import lstmn

        tensors = scores_BS, totals_B, read_BE, dread_BE, dkeys_BSA, dvalues_BSE, dquery_BA, dvector_BA
        lstmn.read_backward(query_BA, keys_BSA, values_BSE, vector_A, seen.start, seen.stop, *tensors)
        return
    weights_BS = torch.exp(scores_BS[:, seen] - totals_B[:, None]).to(values_BSE.dtype)
    mean_B1 = (read_BE * dread_BE).sum(-1, keepdim=True)
    dscores_BS = weights_BS * (torch.bmm(values_BSE[:, seen], dread_BE[..., None])[..., 0] - mean_B1)
    dvalues_BSE[:, seen] += weights_BS[..., None] * dread_BE[:, None]
    tanh_BSA = torch.tanh(keys_BSA[:, seen] + query_BA[:, None])
    dvector_BA += torch.bmm(dscores_BS[:, None], tanh_BSA)[:, 0]
    dkey_BSA = dscores_BS[..., None] * (vector_A * (1 - tanh_BSA * tanh_BSA))
    dkeys_BSA[:, seen] += dkey_BSA
    dquery_BA.copy_(dkey_BSA.sum(1))


def cell(gates_BG: Tensor, read_BE: Tensor, added_BM: Tensor | None, value_BE: Tensor) -> None:
    """Compute the gates, the cell state c_t and the hidden state h_t of one step of an LSTMN layer.

    gates_BG: the gates i, f, o, c^, and r if the layer has it. On entry, they are the arguments of sigmoid
        and tanh. They are overwritten with the results.
    read_BE: [h~; c~], the weighted mean of earlier states.
    added_BM: a vector that is added to c_t, or None. If there is a gate r, the vector is multiplied by r
        first.
    value_BE: receives [h_t; c_t].
    """
    if by_kernel(gates_BG):
        from regard.kernels.recurrent import lstmn

        lstmn.cell(gates_BG, read_BE, added_BM, value_BE)
        return
    width = read_BE.shape[1] // 2
    gates_BG[:, : 3 * width].sigmoid_()
    gates_BG[:, 3 * width : 4 * width].tanh_()
    gates_BG[:, 4 * width :].sigmoid_()
    take, forget, show, new, *depth = gates_BG.split(width, -1)
    state_BM, cell_BM = value_BE.split(width, -1)
    torch.mul(forget, read_BE[:, width:], out=cell_BM)
    cell_BM.addcmul_(take, new)
    if added_BM is not None:
        cell_BM += depth[0] * added_BM if depth else added_BM
    torch.mul(show, torch.tanh(cell_BM), out=state_BM)


def cell_backward(
    gates_BG: Tensor,
    read_BE: Tensor,
    value_BE: Tensor,
    dvalue_BE: Tensor,
    dgates_BG: Tensor,
    dread_BE: Tensor,
    added_BM: Tensor | None,
    dadded_BM: Tensor | None,
) -> None:
    """Backward pass of cell().

    gates_BG: the gates after their sigmoid or tanh.
    dvalue_BE: the gradient of [h_t; c_t].
    dgates_BG: receives the gradient of the gates before their sigmoid or tanh.
    dread_BE: receives the gradient of c~ in its second half.
    dadded_BM: receives the gradient of added_BM.
    """
    if by_kernel(gates_BG):
        from regard.kernels.recurrent import lstmn

        lstmn.cell_backward(gates_BG, read_BE, value_BE, dvalue_BE, dgates_BG, dread_BE, added_BM, dadded_BM)
        return
    width = read_BE.shape[1] // 2
    take, forget, show, new, *depth = gates_BG.split(width, -1)
    dtake, dforget, dshow, dnew, *ddepth = dgates_BG.split(width, -1)
    tanh_BM = torch.tanh(value_BE[:, width:])
    dstate_BM, dcell_BM = dvalue_BE.split(width, -1)
    dcell_BM = dcell_BM + dstate_BM * show * (1 - tanh_BM * tanh_BM)
    dshow.copy_(dstate_BM * tanh_BM * show * (1 - show))
    dtake.copy_(dcell_BM * new * take * (1 - take))
    dforget.copy_(dcell_BM * read_BE[:, width:] * forget * (1 - forget))
    dnew.copy_(dcell_BM * take * (1 - new * new))
    torch.mul(dcell_BM, forget, out=dread_BE[:, width:])
    for each in ddepth:
        each.zero_()
    if added_BM is None or dadded_BM is None:
        return
    if depth:
        ddepth[0].copy_(dcell_BM * added_BM * depth[0] * (1 - depth[0]))
        torch.mul(dcell_BM, depth[0], out=dadded_BM)
    else:
        dadded_BM.copy_(dcell_BM)


def _longer(tape_BSD: Tensor, steps: int) -> Tensor:
    """Return a copy of a tape (B, S, D) with uninitialised memory for more steps, (B, S + steps, D)."""
    batch, before, size = tape_BSD.shape
    longer = tape_BSD.new_empty(batch, before + steps, size)
    longer[:, :before] = tape_BSD
    return longer
