"""Run a gated recurrent cell with attention at every step over a whole sequence, with a custom backward pass.

Autograd would accumulate the gradients of the weights and of the memory step by step. Here the backward pass
computes them once, after its last step: one matrix product for each weight, and one attention call over all
steps for the memory. The loop over the steps computes only the gradients that the next iteration needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention import attention
from regard.dimensions import autocast_on
from regard.layers.gated_cell import GatedCell, gated, gated_backward, mixed, mixed_backward
from regard.memory import Memory
from regard.scores import Additive, Score

__all__ = ["attend_along"]


def attend_along(
    cell: GatedCell, gates_BTG: Tensor, first_BM: Tensor, memory: Memory, site: str
) -> tuple[Tensor, Tensor]:
    """Run a gated cell over a sequence. At each step, the previous state attends to the memory.

    c_t = attention(s_{t-1}, memory),  s_t = cell(gates_t, s_{t-1}, c_t)

    The shapes below are for B sequences, T steps and states of size M.

    cell: the gated recurrent cell.
    gates_BTG: the input part of the gates, from cell.gates(), (B, T, 3 M).
    first_BM: the initial state s_0, (B, M).
    memory: keys and values from regard.prepare(), with an additive score function.
    site: name of the attention layer for record() and intervene().

    Returns the states s_t (B, T, M) and the contexts c_t (B, T, E). The result is the same as calling
    attention() and the cell at each step. Double backward is not supported. Do not use it inside record():
    the backward pass makes one more attention() call, over all steps, which would be recorded too.

    >>> import regard
    >>> cell, score = GatedCell(input_size=3, width=4, context_size=5), regard.Additive(4, 5)
    >>> memory = regard.prepare(torch.randn(2, 6, 5), score=score)
    >>> states, contexts = attend_along(cell, cell.gates(torch.randn(2, 7, 3)), torch.zeros(2, 4), memory, "")
    >>> states.shape, contexts.shape
    (torch.Size([2, 7, 4]), torch.Size([2, 7, 5]))
    """
    score, device = memory.score, gates_BTG.device.type
    assert isinstance(score, Additive) and cell.context is not None
    weights = (score.vector, score.query_weight, cell.context.weight, cell.gate.weight, cell.state.weight)
    tensors: tuple[Tensor, ...] = (gates_BTG, first_BM, memory.key, memory.value, *weights)
    if autocast_on(device):  # cast once here, not at every step
        dtype = torch.get_autocast_dtype(device)
        tensors = tuple(each.to(dtype) for each in tensors)
        with torch.autocast(device, enabled=False):
            return _Along.apply(memory, site, *tensors)
    return _Along.apply(memory, site, *tensors)


class _ProjectedAdditive(Score):
    """Additive score function without projections: v . tanh(query + key).

    The queries and keys are already projected.

    vector: the vector v of the score function, (A,).
    """

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector[None]

    def plan_key(self) -> tuple[object, ...] | None:
        return self.vector.shape, self.vector.dtype, self.vector.device, self.vector.requires_grad


def _with_tensors(memory: Memory, key: Tensor, value: Tensor, vector: Tensor) -> Memory:
    """Return a copy of the memory with other keys, other values, and another vector v in its score function.

    The score function is v . tanh(query + key), for queries and keys that are already projected.
    """
    return replace(memory, key=key, value=value, score=_ProjectedAdditive(vector), key_size=key.shape[-1])


class _Along(torch.autograd.Function):
    """Forward and backward pass of attend_along(), over all steps.

    T is the number of steps, B the number of sequences, M the width of the state, and E the width of the
    context. G = 3 M is the size of the gates z, r and s~ together. A is the hidden size of the score
    function. N = A + 2 M is the size of the query, z and r together.

    gates_TBG is updated in place. Before a step, it contains the input part of the gates. After the step, it
    contains the activations of the gates.
    """

    @staticmethod
    def forward(ctx: Any, memory: Memory, site: str, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        gates, first, key, value, vector, of_query, of_context, of_gate, of_state = tensors
        (batch, steps, _), width, hidden = gates.shape, first.shape[1], of_query.shape[1]
        gates_TBG = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        states_TBM = first.new_empty(steps + 1, batch, width)
        states_TBM[0] = first
        reset_TBM = first.new_empty(steps, batch, width)
        joint_MN = torch.cat((of_query, of_gate.T), 1)  # s @ joint_MN gives the query, U_z s and U_r s
        projected, contexts, graphs = _with_tensors(memory, key, value, vector), [], []
        # A different value of `start` at each step would compile a new kernel at each step. If the mask
        # contains only lengths, `start` has no effect, so 0 is passed at all steps.
        timeless = memory.mask.only("lengths")
        for t in range(steps):
            both_BN = states_TBM[t] @ joint_MN
            with torch.enable_grad():
                query = both_BN[:, None, :hidden].detach().requires_grad_()
                context = attention(query, projected, start=0 if timeless else t, site=site).output
            graphs.append((context, query))
            contexts.append(context.detach()[:, 0])
            gates_TBG[t].addmm_(contexts[t], of_context.T)
            gated(gates_TBG[t], both_BN[:, hidden:], states_TBM[t], reset_TBM[t])
            gates_TBG[t, :, 2 * width :].addmm_(reset_TBM[t], of_state.T)
            mixed(gates_TBG[t], states_TBM[t], states_TBM[t + 1])
        contexts_TBE = torch.stack(contexts)
        ctx.memory, ctx.site, ctx.graphs = memory, site, graphs
        ctx.save_for_backward(*tensors[2:], joint_MN, gates_TBG, states_TBM, reset_TBM, contexts_TBE)
        return states_TBM[1:].transpose(0, 1), contexts_TBE.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Tensor | None, ...]:
        key, value, vector, of_query, of_context, _, of_state, *saved = ctx.saved_tensors
        joint_MN, gates_TBG, states_TBM, reset_TBM, contexts_TBE = saved
        (steps, batch, width), hidden = reset_TBM.shape, of_query.shape[1]
        dstates_TBM = dstates.transpose(0, 1).contiguous()
        dcontexts_TBE = dcontexts.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        # The gradients of the query, z, r and s~, in this order. For z, r and s~, they are the gradients
        # before the activation function (sigmoid or tanh).
        d_TBN = gates_TBG.new_empty(steps, batch, hidden + 3 * width)
        # The matrix product below sums over N. If N is divisible by 3, split this sum into P = 3 parts: three
        # smaller products use more of the device in parallel. The next iteration adds the parts.
        joint_PNM = joint_MN.T.unflatten(0, (3 if joint_MN.shape[1] % 3 == 0 else 1, -1)).contiguous()
        dstate_BM = torch.zeros_like(states_TBM[0])
        parts_PBM = dstate_BM.new_zeros(len(joint_PNM), batch, width)
        for t in reversed(range(steps)):
            d_BN, gates_BG, state_BM = d_TBN[t], gates_TBG[t], states_TBM[t]
            dgates_BG = d_BN[:, hidden:]
            dstate_BM = mixed_backward(parts_PBM, dstate_BM, dstates_TBM[t], gates_BG, state_BM, dgates_BG)
            dreset_BM = dgates_BG[:, 2 * width :] @ of_state
            gated_backward(dreset_BM, gates_BG, state_BM, dgates_BG, dstate_BM)
            dcontexts_TBE[t].addmm_(dgates_BG, of_context)
            context, query = ctx.graphs[t]
            (dquery,) = torch.autograd.grad(context, query, dcontexts_TBE[t, :, None])
            d_BN[:, :hidden] = dquery[:, 0]
            djoint_PBN = d_BN[:, : hidden + 2 * width].unflatten(1, (len(joint_PNM), -1)).transpose(0, 1)
            parts_PBM = torch.bmm(djoint_PBN, joint_PNM)
        queries_BTA = torch.cat([query.detach() for _, query in ctx.graphs], 1)
        ctx.graphs = None
        flat = d_TBN.flatten(0, 1)
        djoint_MN = states_TBM[:-1].flatten(0, 1).T @ flat[:, : hidden + 2 * width]
        dcontext = flat[:, hidden:].T @ contexts_TBE.flatten(0, 1)
        dstate = flat[:, hidden + 2 * width :].T @ reset_TBM.flatten(0, 1)
        dread = _read_backward(
            ctx.memory, ctx.site, queries_BTA, key, value, vector, dcontexts_TBE.transpose(0, 1)
        )
        dquery, dgate = djoint_MN[:, :hidden], djoint_MN[:, hidden:].T
        dgates = d_TBN[..., hidden:].transpose(0, 1)
        return None, None, dgates, dstate_BM + parts_PBM.sum(0), *dread, dquery, dcontext, dgate, dstate


def _read_backward(
    memory: Memory, site: str, queries: Tensor, key: Tensor, value: Tensor, vector: Tensor, dcontexts: Tensor
) -> tuple[Tensor, ...]:
    """Compute the gradients of the keys, the values and the vector v of the score function.

    The score function is v . tanh(query + key). The gradients come from one attention() call with the queries
    of all steps.

    queries: the queries of all steps.
    vector: the vector v.
    dcontexts: the gradients of the contexts of all steps.
    """
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (key, value, vector)]
        contexts = attention(queries, _with_tensors(memory, *leaves), site=site).output
    return torch.autograd.grad(contexts, leaves, dcontexts)
