"""All steps of a gated cell with additive attention, by the kernels of additive attention.

The loops are those of gated_steps.py. They call the kernels directly instead of attention().
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.layers import projected_steps
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
    """Run all steps; return their results, and tensors for run_backward().

    gates, first: as in forward_steps(). weights: its joint_NM, of_context and of_state.
    key, value: (B, S, A) and (B, S, E). vector: (A,).
    lengths: number of keys of each sequence, or None.
    """
    forward: Callable[..., tuple[Tensor, ...]] = projected_steps.forward if has_few_keys(key) else _forward
    results = forward(gates, first, *weights, key, value, vector, lengths)
    return Steps(*results[:5]), results[5:]


def has_few_keys(key: Tensor) -> bool:
    """Whether projected_steps.py runs the steps."""
    from regard.kernels.recurrent.attention_gradients import LONGEST

    return key.shape[1] <= LONGEST


def _forward(
    gates: Tensor, first: Tensor, joint_NM: Tensor, of_context: Tensor, of_state: Tensor, key: Tensor,
    value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from regard.kernels.additive import operators

    memory = (key[:, None], value[:, None], vector[None], lengths)
    norms: list[Tensor] = []
    scores: list[Tensor] = []

    def attend(query_BA: Tensor, context_BE: Tensor) -> None:
        arguments: list[Any] = [query_BA[:, None, None], *memory, *NO_MASK, True, *NO_EXTRA]
        output, _, norm, score = operators.run_forward(*arguments)
        norms.append(norm)
        scores.append(score)
        context_BE.copy_(output.view(len(output), -1))

    steps = forward_steps(attend, gates, first, joint_NM, of_context, of_state)
    return *steps, torch.stack(norms), torch.stack(scores)


def run_backward(
    dstates: Tensor, dcontexts: Tensor, weights: tuple[Tensor, ...], steps: Steps, held: list[Tensor],
    key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the backward pass of all steps.

    Returns the results of backward_steps(); with few keys, those of projected_steps.backward().

    steps, held: the results of run_forward(). The others: as in run_forward() and backward_steps().
    """
    backward: Callable[..., tuple[Tensor, ...]] = projected_steps.backward if has_few_keys(key) else _backward
    return backward(dstates, dcontexts, *weights, *steps, *held, key, value, vector, lengths)


def _backward(
    dstates: Tensor, dcontexts: Tensor, joint_NM: Tensor, of_context: Tensor, of_state: Tensor,
    gates_TBG: Tensor, states_TBM: Tensor, reset_TBM: Tensor, both_TBN: Tensor, contexts_TBE: Tensor,
    norms: Tensor, scores: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from regard.kernels.additive import operators

    steps = Steps(gates_TBG, states_TBM, reset_TBM, both_TBN, contexts_TBE)
    memory = (key[:, None], value[:, None], vector[None])
    hidden = key.shape[2]

    def dattend(parts: Tensor, more: Tensor, dcontext_BE: Tensor, t: int, dquery_BA: Tensor) -> None:
        torch.add(parts.sum(0), more, out=dcontext_BE)
        query = both_TBN[t, :, None, None, :hidden]
        arguments: list[Any] = [dcontext_BE[:, None, None], query, *memory, norms[t], scores[t], lengths]
        arguments += (*NO_MASK, False, *NO_EXTRA, False)
        dquery, *_ = operators.run_backward(*arguments)
        dquery_BA.copy_(dquery.view(len(dquery), -1))

    return backward_steps(dattend, dstates, dcontexts, joint_NM, of_context, of_state, steps)
