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

from regard import sites
from regard.attention import attention
from regard.dimensions import autocast_on
from regard.kernels.choice import by_kernel
from regard.layers.attentive_cpu_steps import CpuSteps, suits_cpu_steps
from regard.layers.gated_cell import GatedCell
from regard.layers.gated_steps import Steps, backward_steps, forward_steps
from regard.layers.joint_linear import product_in_float32
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
    tensors: tuple[Tensor, ...] = (gates_BTG, first_BM, memory.key, memory.value)
    if autocast_on(device):  # cast once here, not at every step
        dtype = torch.get_autocast_dtype(device)
        tensors = tuple(each.to(dtype) for each in tensors)
        with torch.autocast(device, enabled=False):
            return _Along.apply(memory, site, dtype, *tensors, *weights)
    tensors = (*tensors, *weights)
    same = all(each.dtype == gates_BTG.dtype for each in tensors)
    if device == "cpu" and same and suits_cpu_steps(memory, gates_BTG.dtype) and gates_BTG.numel():
        return CpuSteps.apply(memory.mask.lengths, *tensors)
    return _Along.apply(memory, site, score.vector.dtype, *tensors)


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

    If attentive_steps.py can run the steps, attention() is not called at each step.
    """

    @staticmethod
    def forward(
        ctx: Any, memory: Memory, site: str, dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates, first, key, value, vector, of_query, of_context, of_gate, of_state = tensors
        ctx.dtypes = [each.dtype for each in tensors[4:]]
        # s @ joint_NM.T gives the query, U_z s and U_r s.
        width, hidden = of_query.shape
        joint_NM = of_query.new_empty(hidden + 2 * width, width, dtype=dtype)
        joint_NM[:hidden], joint_NM[hidden:] = of_query.T, of_gate
        vector, of_context, of_state = (each.to(dtype) for each in (vector, of_context, of_state))
        tensors = (gates, first, key, value, vector, joint_NM, of_context, of_state)
        weights = joint_NM, of_context, of_state
        graphs: list[tuple[Tensor, Tensor]] = []
        ctx.lengths, ctx.by_kernels = memory.mask.lengths, _by_kernels(memory, tensors)
        if ctx.by_kernels:
            from regard.layers.attentive_steps import run_forward

            steps, held = run_forward(gates, first, weights, key, value, vector, ctx.lengths)
        else:
            projected, held = _with_tensors(memory, key, value, vector), ()
            # A different value of `start` at each step would compile a new kernel at each step. If the mask
            # contains only lengths, `start` has no effect, so 0 is passed at all steps.
            timeless = memory.mask.only("lengths")

            def attend(query_BA: Tensor, context_BE: Tensor) -> None:
                with torch.enable_grad():
                    query = query_BA[:, None].detach().requires_grad_()
                    start = 0 if timeless else len(graphs)
                    context = attention(query, projected, start=start, site=site).output
                graphs.append((context, query))
                context_BE.copy_(context.detach()[:, 0])

            steps = forward_steps(attend, gates, first, *weights)
        ctx.memory, ctx.site, ctx.graphs = memory, site, graphs
        ctx.save_for_backward(key, value, vector, *weights, *steps, *held)
        return steps.states_TBM[1:].transpose(0, 1), steps.contexts_TBE.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dcontexts: Tensor) -> tuple[Tensor | None, ...]:
        key, value, vector, *saved = ctx.saved_tensors
        weights, steps, held = (saved[0], saved[1], saved[2]), Steps(*saved[3:8]), saved[8:]
        width, hidden = steps.reset_TBM.shape[2], key.shape[-1]
        if ctx.by_kernels:
            from regard.layers.attentive_steps import run_backward

            d_TBN, dfirst, *rest = run_backward(
                dstates, dcontexts, weights, steps, held, key, value, vector, ctx.lengths
            )
        else:
            graphs = ctx.graphs

            def dattend(parts: Tensor, more: Tensor, dcontext_BE: Tensor, t: int, dquery_BA: Tensor) -> None:
                context, query = graphs[t]
                torch.add(parts.sum(0), more, out=dcontext_BE)
                (dquery,) = torch.autograd.grad(context, query, dcontext_BE[:, None])
                dquery_BA.copy_(dquery[:, 0])

            d_TBN, dfirst, *rest = backward_steps(dattend, dstates, dcontexts, *weights, steps)
        ctx.graphs = None
        flat = d_TBN.flatten(0, 1)
        djoint_NM = product_in_float32(flat[:, : hidden + 2 * width].T, steps.states_TBM[:-1].flatten(0, 1))
        dstate = product_in_float32(flat[:, hidden + 2 * width :].T, steps.reset_TBM.flatten(0, 1))
        if len(rest) == 4:  # few keys
            *rest, dprojected = rest
            dcontext = product_in_float32(dprojected.flatten(0, 1).T, value.flatten(0, 1))
        else:
            dcontext = product_in_float32(flat[:, hidden:].T, steps.contexts_TBE.flatten(0, 1))
        if len(rest) == 1:
            queries_BTA, dcontexts_BTE = (
                each.transpose(0, 1) for each in (steps.both_TBN[..., :hidden], rest[0])
            )
            rest = _read_backward(ctx.memory, ctx.site, queries_BTA, key, value, vector, dcontexts_BTE)
        dkey, dvalue, dvector = rest
        dgates = d_TBN[..., hidden:].transpose(0, 1)
        dweights = (dvector, djoint_NM[:hidden].T, dcontext, djoint_NM[hidden:], dstate)
        own = [each.to(dtype) for each, dtype in zip(dweights, ctx.dtypes, strict=True)]
        return None, None, None, dgates, dfirst, dkey, dvalue, *own


def _by_kernels(memory: Memory, tensors: tuple[Tensor, ...]) -> bool:
    """Whether the kernels of additive attention run all steps. If not, each step calls attention()."""
    key, lengths = tensors[2], memory.mask.lengths
    if not by_kernel(key) or sites._any_open or torch.compiler.is_compiling() or key.dim() != 3:
        return False
    if not memory.cleaned:  # the kernels multiply the values of padding by 0
        return False
    same = all(each.dtype == key.dtype and each.numel() for each in tensors)
    return same and memory.mask.only("lengths") and (lengths is None or lengths.device == key.device)


def _read_backward(
    memory: Memory, site: str, queries: Tensor, key: Tensor, value: Tensor, vector: Tensor, dcontexts: Tensor
) -> list[Tensor]:
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
    return list(torch.autograd.grad(contexts, leaves, dcontexts))
