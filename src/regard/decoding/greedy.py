"""Greedy: say the most probable token, again and again; and the loop that sampling shares with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.data.batch import EOS, PAD, Batch
from regard.decoding.active_rows import begin, rows_of
from regard.decoding.hypothesis import ROOM, Found
from regard.decoding.rules import Rules
from regard.models.base import Model

__all__ = ["Greedy", "greedy_search", "walk"]

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""From log-probabilities (rows, V), the places of the live sentences in the batch (b,) and the step, to
tokens (rows,)."""

DROP = 4
"""Sentences that have ended are dropped when one in so many has: each dropping copies the state."""


@dataclass(frozen=True)
class Greedy:
    """Say the most probable token that the rules permit, until EOS.

    >>> from regard.decoding import Greedy, Rules
    >>> Greedy(rules=Rules(maximum=20)).rules.maximum
    20
    """

    rules: Rules = field(default_factory=Rules)


def greedy_search(
    model: Model, batch: Batch, how: Greedy, prefixes: Sequence[Sequence[int]] | None = None
) -> Found:
    """The tokens that are the most probable each in its turn; of equals, the first."""
    return walk(model, batch, how.rules, prefixes, 1, lambda left_RV, number_b, step: left_RV.argmax(-1))


def walk(
    model: Model,
    batch: Batch,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None,
    each: int,
    choose: Choose,
) -> Found:
    """Say one token after another, each chosen from the log-probabilities that the rules left."""
    live, state, last_R1 = begin(model, batch, rules, prefixes, each)
    longest = int(live.limits.max()) if len(live) else 0
    found = Found.empty(len(live), each, min(longest, ROOM), last_R1.device)
    said_RT = last_R1[:, :0]
    ended_R = torch.zeros(len(said_RT), dtype=torch.bool, device=last_R1.device)
    for step in range(longest):
        state, logits_R1V = model.step(state, last_R1, live.encoded)
        scores_RV = logits_R1V[:, -1].float().log_softmax(-1)
        left_RV = rules.permitted(scores_RV, said_RT, live.must_say(step, each))
        token_R = torch.where(ended_R, PAD, choose(left_RV, live.number, step))
        score_R = torch.where(ended_R, 0.0, scores_RV.gather(1, token_R[:, None])[:, 0])
        found = found.roomy(step + 1, longest)
        found.tokens[live.number, :, step] = token_R.view(-1, each)
        found.token_scores[live.number, :, step] = score_R.view(-1, each)

        last_R1 = token_R[:, None]
        said_RT = torch.cat((said_RT, last_R1), 1)
        ended_R |= (token_R == EOS) | (step + 1 >= live.limits).repeat_interleave(each)
        done_b = ended_R.view(-1, each).all(-1)
        done = int(done_b.sum())
        if done == len(live):
            break
        if done * DROP >= len(live):
            kept_b = (~done_b).nonzero()[:, 0]
            rows_R = rows_of(kept_b, each)
            live, state = live.keep(kept_b), state.reorder(rows_R)
            last_R1, said_RT, ended_R = last_R1[rows_R], said_RT[rows_R], ended_R[rows_R]
    return replace(found, ranking=found.token_scores.sum(-1))
