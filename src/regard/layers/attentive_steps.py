"""All steps of a gated cell with additive attention, replayed as one list of launches and matrix products.

The loops are those of gated_steps.py. They call the kernels of additive attention directly instead of
attention(). In Python, a step takes longer on the host than on a GPU; kernels/replay.py runs the recorded
steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.kernels.replay import replayed
from regard.layers.gated_steps import Steps, backward_steps, forward_steps

__all__ = ["run_backward", "run_forward"]

NO_MASK: tuple[Any, ...] = (None, None, 0, None, None, 1.0)
"""Arguments of the kernels after the lengths: no documents, no window, and the factor of the scores."""

NO_EXTRA: tuple[Any, ...] = (None, None, 0.0)
"""No bias and no dropout."""


def run_forward(
    gates: Tensor, first: Tensor, weights: tuple[Tensor, ...], key: Tensor, value: Tensor, vector: Tensor,
    lengths: Tensor | None,
) -> tuple[Steps, tuple[Tensor, ...]]:  # fmt: skip
    """Run all steps; return their results, and two tensors for run_backward().

    gates, first: as in forward_steps(). weights: its joint_MN, of_context and of_state.
    key, value: (B, S, A) and (B, S, E). vector: (A,).
    lengths: number of keys of each sequence, or None.
    """
    results = replayed(_forward, (gates, first, *weights, key, value, vector, lengths), ())
    return Steps(*results[:5]), results[5:]


def _forward(
    gates: Tensor, first: Tensor, joint_MN: Tensor, of_context: Tensor, of_state: Tensor, key: Tensor,
    value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from regard.kernels import additive

    memory = (key[:, None], value[:, None], vector[None], lengths)
    norms: list[Tensor] = []
    scores: list[Tensor] = []

    def attend(query_B1A: Tensor) -> Tensor:
        arguments: list[Any] = [query_B1A[:, None], *memory, *NO_MASK, True, *NO_EXTRA]
        output, _, norm, score = additive.run_forward(*arguments)
        norms.append(norm)
        scores.append(score)
        return output.view(len(output), -1)

    steps = forward_steps(attend, gates, first, joint_MN, of_context, of_state)
    return *steps, torch.stack(norms), torch.stack(scores)


def run_backward(
    dstates: Tensor, dcontexts: Tensor, weights: tuple[Tensor, ...], steps: Steps, held: list[Tensor],
    key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of backward_steps().

    steps, held: the results of run_forward(). The others: as in run_forward() and backward_steps().
    """
    tensors = (dstates, dcontexts, *weights, *steps, *held, key, value, vector, lengths)
    return replayed(_backward, tensors, ())


def _backward(
    dstates: Tensor, dcontexts: Tensor, joint_MN: Tensor, of_context: Tensor, of_state: Tensor,
    gates_TBG: Tensor, states_TBM: Tensor, reset_TBM: Tensor, both_TBN: Tensor, contexts_TBE: Tensor,
    norms: Tensor, scores: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from regard.kernels import additive

    steps = Steps(gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE)
    memory = (key[:, None], value[:, None], vector[None])
    hidden = key.shape[2]

    def dattend(dcontext_BE: Tensor, t: int) -> Tensor:
        query = both_TBN[t, :, None, None, :hidden]
        arguments: list[Any] = [dcontext_BE[:, None, None], query, *memory, norms[t], scores[t], lengths]
        arguments += (*NO_MASK, False, *NO_EXTRA, False)
        dquery, *_ = additive.run_backward(*arguments)
        return dquery.view(len(dquery), -1)

    return backward_steps(dattend, dstates, dcontexts, joint_MN, of_context, of_state, steps)
