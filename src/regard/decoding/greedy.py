"""Greedy search, and the token-by-token loop that it shares with sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.data.batch import EOS, PAD, Batch
from regard.decoding.active_rows import Ends, Prompts, start_decoding, state_rows
from regard.decoding.hypothesis import ROOM, SearchResult
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules
from regard.models.base import Model

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""A function that chooses the next token of each hypothesis (row). It returns token ids, (rows,). Arguments:

1. the log-probabilities (rows, V), -inf for tokens that the rules forbid
2. the index in the batch of each sentence that is still being decoded, (b,)
3. the number of the step, from 0
"""

DROP = 4
"""Finished sentences are removed from the batch when at least 1 / DROP of the sentences have finished.

They are not removed at once, because each removal copies the decoder state.
"""


@dataclass(frozen=True)
class Greedy:
    """Settings of greedy search: take the most probable token that the rules permit at every step, until EOS.

    rules: constraints on the output, such as its maximum length.

    >>> from regard.decoding import Greedy, Rules
    >>> Greedy(rules=Rules(maximum=20)).rules.maximum
    20
    """

    rules: Rules = field(default_factory=Rules)


def greedy_search(
    model: Model,
    batch: Batch | Prompts,
    how: Greedy,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    limit: LengthLimit = TRANSLATION_LIMIT,
    ends: Ends | None = None,
) -> SearchResult:
    """Run greedy search on a batch. If tokens have equal scores, the token with the lowest id is taken.

    how: the settings of the search.
    prefixes: for each sentence, the tokens that its output must begin with.
    limit: the maximum number of output tokens, used if how.rules.maximum is None.
    ends: a function that ends hypotheses before EOS (see Ends).
    """

    def choose(permitted_RV: Tensor, index_b: Tensor, step: int) -> Tensor:
        return permitted_RV.argmax(-1)

    return generate(model, batch, how.rules, prefixes, 1, choose, limit=limit, ends=ends)


def generate(
    model: Model,
    batch: Batch | Prompts,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None,
    per_sentence: int,
    choose: Choose,
    *,
    limit: LengthLimit = TRANSLATION_LIMIT,
    ends: Ends | None = None,
) -> SearchResult:
    """Generate outputs token by token, for greedy search and sampling.

    per_sentence: the number of hypotheses for each source, K.
    choose: the function that chooses the next tokens (see Choose).
    limit: the maximum number of output tokens, used if rules.maximum is None.
    ends: a function that ends hypotheses before EOS (see Ends).
    """
    active, state, last_R1 = start_decoding(model, batch, rules, prefixes, per_sentence, limit)
    longest = int(active.limits.max()) if len(active) else 0
    result = SearchResult.empty(len(active), per_sentence, min(longest, ROOM), last_R1.device)
    tokens_RT = last_R1[:, :0]
    ended_R = torch.zeros(len(tokens_RT), dtype=torch.bool, device=last_R1.device)
    for step in range(longest):
        state, logits_R1V = model.step(state, last_R1, active.encoded)
        scores_RV = logits_R1V[:, -1].float().log_softmax(-1)
        permitted_RV = rules.permitted(scores_RV, tokens_RT, active.forced_tokens(step, per_sentence))
        token_R = torch.where(ended_R, PAD, choose(permitted_RV, active.index, step))
        score_R = torch.where(ended_R, 0.0, scores_RV.gather(1, token_R[:, None])[:, 0])
        result = result.with_room_for(step + 1, longest)
        result.tokens[active.index, :, step] = token_R.view(-1, per_sentence)
        result.token_scores[active.index, :, step] = score_R.view(-1, per_sentence)

        last_R1 = token_R[:, None]
        tokens_RT = torch.cat((tokens_RT, last_R1), 1)
        ended_R |= (token_R == EOS) | (step + 1 >= active.limits).repeat_interleave(per_sentence)
        if ends is not None:
            ended_R |= ends(tokens_RT.view(len(active), per_sentence, -1), active.index).flatten()
        done_b = ended_R.view(-1, per_sentence).all(-1)
        done = int(done_b.sum())
        if done == len(active):
            break
        if done * DROP >= len(active):
            remaining_b = (~done_b).nonzero()[:, 0]
            rows_R = state_rows(remaining_b, per_sentence)
            active, state = active.select(remaining_b), state.select(rows_R)
            last_R1, tokens_RT, ended_R = last_R1[rows_R], tokens_RT[rows_R], ended_R[rows_R]
    return replace(result, ranking=result.token_scores.sum(-1))
