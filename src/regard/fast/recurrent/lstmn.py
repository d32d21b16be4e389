"""FastLSTMNLayer: a layer of a long short-term memory-network on a GPU, in one autograd function.

At each step, an LSTMN (Cheng et al. 2016) attends to the hidden and cell states of earlier steps, its tapes.
Autograd would store every step, and accumulate the gradients of the weights step by step. Here, the tapes are
allocated once. The terms of queries and gates that depend only on the inputs are computed before the loop. In
each step, one matrix product projects the summary h~_t to the gates of this step and to the query of the next
step. The backward pass computes the gradients of the weights after its loop. A step launches two Triton
kernels and two matrix products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.fast.hooks import is_hooked
from regard.fast.twin import Twin
from regard.kernels import by_kernel
from regard.layers.lstmn import LSTMNLayer, last_steps
from regard.memory import Memory
from regard.sites import scopes_at

__all__ = ["FastLSTMNLayer"]


class FastLSTMNLayer(LSTMNLayer, Twin):
    """Run all steps of a layer with Triton kernels, without one attention() call per step.

    On a CPU, the same loop in PyTorch takes 0.9 to 1 times as long as the plain layer, so it has no twin.
    """

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        weight = module.input.weight
        return [] if by_kernel(weight) else [f"the layer is on {weight.device.type} in {weight.dtype}"]

    def forward(
        self,
        x: Tensor,
        past: Memory,
        summary: Tensor,
        added: Tensor | None = None,
        tape: int | None = None,
        position: int = 0,
    ) -> tuple[Tensor, Tensor, Memory, Tensor]:
        plain = is_hooked(self.summary) or not isinstance(self.summary, nn.Linear) or not by_kernel(x)
        if plain or scopes_at(self.site, self.role) or torch.compiler.is_compiling():
            return LSTMNLayer.forward(self, x, past, summary, added, tape, position)
        of_input, of_summary = self.score.query_weight.tensor_split((x.shape[-1],))
        queries_BTA = x @ of_input
        query_BA = torch.addmm(queries_BTA[:, 0], summary, of_summary)
        joint_MN = torch.cat((self.summary.weight.T, of_summary), 1)
        if added is not None and added.stride(-1) != 1:
            added = added.contiguous()
        keys_BSA, values_BSE, summary = _Steps.apply(
            tape, self.input(x), query_BA, queries_BTA[:, 1:], past.key[:, 0], past.value[:, 0], added,
            joint_MN, self.score.key_weight, self.score.vector,
        )  # fmt: skip
        states_BTM, cells_BTM = values_BSE[:, past.length :].chunk(2, -1)
        past = replace(past, key=keys_BSA[:, None], value=values_BSE[:, None])
        return states_BTM, cells_BTM, last_steps(past, tape), summary


class _Steps(torch.autograd.Function):
    """The steps of an LSTMN layer (Cheng et al. 2016, eq. 4 to 9); see LSTMNLayer for the equations.

    B is the number of sequences, T the number of steps, and S the number of earlier steps, which are already
    on the tapes. M is the width of the states, E = 2 M, and A the hidden size of the score function. G is the
    size of all gates together: 4 M, or 5 M with the gate r. N = G + A.

    tape: maximum number of earlier steps that a step can attend to; None for all.
    gates: the part of the gates that depends on the inputs, W x_t + b, (B, T, G).
    query: the query of the first step, W_x x_1 + W_h~ h~_0, (B, A).
    later: the part of the later queries that depends on the inputs, W_x x_t, (B, T - 1, A).
    keys, values: the tapes: the projected hidden states W_h h_i, (B, S, A), and [h_i; c_i], (B, S, E).
    added: vectors (B, T, M) that are added to the cell states c_t. If there is a gate r, they are multiplied
        by r first. None: nothing is added.
    joint: projects h~_t to the gates and to the next query, (M, N).
    of_key, vector: W_h, (M, A), and v, (A,).

    Returns the tapes after the last step, keys (B, S + T, A) and values (B, S + T, E), and the summary h~ of
    the last step, (B, M). Double backward is not supported.

    Row t of work_BTN contains the gates of step t (G columns) and the query of step t + 1 (A columns). Before
    the loop, the row contains only the terms that depend on the inputs. Step t adds the terms that depend on
    h~_t, then replaces the gates by their activations.
    """

    @staticmethod
    def forward(
        ctx: Any, tape: int | None, gates: Tensor, query: Tensor, later: Tensor, keys: Tensor, values: Tensor,
        added: Tensor | None, joint: Tensor, of_key: Tensor, vector: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from regard.kernels.recurrent import lstmn

        (batch, steps, size), width, before = gates.shape, len(joint), keys.shape[1]
        keys_BSA, values_BSE = (_longer(each, steps) for each in (keys, values))
        work_BTN = gates.new_empty(batch, steps, joint.shape[1])
        work_BTN[..., :size] = gates
        work_BTN[:, : steps - 1, size:] = later
        work_BTN[:, steps - 1, size:] = 0.0
        reads_BTE = values_BSE.new_empty(batch, steps, 2 * width)
        scores_BTS = keys.new_empty(batch, steps, before + steps, dtype=torch.float32)
        totals_BT = keys.new_empty(batch, steps, dtype=torch.float32)
        for t in range(steps):
            last = before + t
            first = 0 if tape is None else max(last - tape, 0)
            own = work_BTN[:, t - 1, size:] if t else query
            scored = scores_BTS[:, t], totals_BT[:, t]
            lstmn.read(own, keys_BSA, values_BSE, vector, first, last, *scored, reads_BTE[:, t])
            work_BTN[:, t].addmm_(reads_BTE[:, t, :width], joint)
            more = None if added is None else added[:, t]
            lstmn.cell(work_BTN[:, t, :size], reads_BTE[:, t], more, values_BSE[:, last])
            torch.mm(values_BSE[:, last, :width], of_key, out=keys_BSA[:, last])
        ctx.tape, ctx.sizes = tape, (before, width, size)
        ctx.save_for_backward(
            query,
            added,
            joint,
            of_key,
            vector,
            keys_BSA,
            values_BSE,
            work_BTN,
            reads_BTE,
            scores_BTS,
            totals_BT,
        )
        return keys_BSA, values_BSE, reads_BTE[:, -1, :width].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkeys: Tensor, dvalues: Tensor, dsummary: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.recurrent import lstmn

        query, added, joint, of_key, vector, keys_BSA, values_BSE, *saved = ctx.saved_tensors
        work_BTN, reads_BTE, scores_BTS, totals_BT = saved
        before, width, size = ctx.sizes
        steps = work_BTN.shape[1]
        dkeys_BSA, dvalues_BSE = (
            each.clone(memory_format=torch.contiguous_format) for each in (dkeys, dvalues)
        )
        d_BTN = torch.empty_like(work_BTN)
        d_BTN[:, steps - 1, size:] = 0.0
        dquery_BA, dvector_BA = torch.empty_like(query), torch.zeros_like(query)
        dread_BE = torch.empty_like(reads_BTE[:, 0])
        dadded = None if added is None else torch.empty_like(added, memory_format=torch.contiguous_format)
        into_key_AM, into_summary_NM = of_key.T.contiguous(), joint.T.contiguous()
        for t in reversed(range(steps)):
            last = before + t
            first = 0 if ctx.tape is None else max(last - ctx.tape, 0)
            dvalues_BSE[:, last, :width].addmm_(dkeys_BSA[:, last], into_key_AM)
            more = (None, None) if added is None or dadded is None else (added[:, t], dadded[:, t])
            lstmn.cell_backward(
                work_BTN[:, t, :size], reads_BTE[:, t], values_BSE[:, last], dvalues_BSE[:, last],
                d_BTN[:, t, :size], dread_BE, *more,
            )  # fmt: skip
            torch.mm(d_BTN[:, t], into_summary_NM, out=dread_BE[:, :width])
            if t == steps - 1:
                dread_BE[:, :width] += dsummary
            own, down = (work_BTN[:, t - 1, size:], d_BTN[:, t - 1, size:]) if t else (query, dquery_BA)
            lstmn.read_backward(
                own, keys_BSA, values_BSE, vector, first, last, scores_BTS[:, t], totals_BT[:, t],
                reads_BTE[:, t], dread_BE, dkeys_BSA, dvalues_BSE, down, dvector_BA,
            )  # fmt: skip
        summaries, states = reads_BTE[..., :width].flatten(0, 1), values_BSE[:, before:, :width].flatten(0, 1)
        djoint_MN = summaries.T @ d_BTN.flatten(0, 1)
        dof_key_MA = states.T @ dkeys_BSA[:, before:].flatten(0, 1)
        dlater = d_BTN[:, : steps - 1, size:]
        dtapes = dkeys_BSA[:, :before], dvalues_BSE[:, :before]
        dweights = djoint_MN, dof_key_MA, dvector_BA.sum(0)
        return None, d_BTN[..., :size], dquery_BA, dlater, *dtapes, dadded, *dweights


def _longer(tape_BSD: Tensor, steps: int) -> Tensor:
    """Return a copy of a tape (B, S, D) with uninitialised memory for more steps, (B, S + steps, D)."""
    batch, before, size = tape_BSD.shape
    longer = tape_BSD.new_empty(batch, before + steps, size)
    longer[:, :before] = tape_BSD
    return longer
