"""observe_texts(): compute the log-probability of each token of some texts, and record the attention."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from regard.attended import Attended, Top
from regard.data.batch import PAD, TextBatch
from regard.errors import ArgumentError, message
from regard.evaluation.perplexity import token_losses
from regard.look import Look
from regard.models.language_base import LanguageModel
from regard.roles import BySite
from regard.sites import Record, scope
from regard.torch_modules.eval_mode import in_eval_mode

__all__ = ["LONG", "ObservedText", "observe_in_batches", "observe_texts"]

LONG = 512
"""For a text with more tokens than this, only the TOP largest attention weights of each token are recorded.

This saves memory: with 8 heads and 2,048 tokens, all weights of a layer take 134 MB, the largest ones 6 MB.
"""

TOP = 32

LOGITS, WEIGHTS = 2**26, 2**20
"""Limits of the memory of one forward pass with B texts of T tokens, and with a vocabulary of V tokens.

LOGITS is the maximum number of logits (B T V). WEIGHTS is the maximum number of attention weights of each
head (B T T).
"""


@dataclass(frozen=True, eq=False)
class ObservedText:
    """The result of a forward pass of a language model for one text of T tokens.

    token_scores: log p(x_t | x_1 ... x_t-1) of each token.
    attention: for each attention layer (site), all weights (H, T, T). If a text of the batch has more than
        LONG tokens, this field is empty, and `top` is recorded instead.
    top: for each site, the 32 largest weights of each token, (H, T, 32), and the indices of their keys,
        (H, T, 32).
    """

    token_scores: tuple[float, ...]
    attention: BySite[NDArray[Any]]
    top: dict[str, Top]


def observe_texts(
    model: LanguageModel, rows: Sequence[Sequence[int]], look: str | None, call: str
) -> list[ObservedText]:
    """Compute the log-probability of each token of some texts in one forward pass, and record the attention.

    model: the language model.
    rows: the tokens of each text. The first token (BOS, or EOS in continuous text) is only an input: it has
        no log-probability.
    look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records nothing.
    call: the name of the public function that was called, for error messages.

    >>> from regard.models import build_language_model
    >>> model = build_language_model("transformer", 9, width=8, heads=2, layers=1)
    >>> (observed,) = observe_texts(model, [[2, 5, 6, 3]], "*self", "example()")
    >>> len(observed.token_scores), observed.attention["decoder.0.self"].shape
    (3, (2, 3, 3))
    """
    lengths = [len(row) - 1 for row in rows]
    longest = max(lengths)
    padded_BT = torch.tensor([[*row, *[PAD] * (longest + 1 - len(row))] for row in rows])
    index_B = torch.arange(len(rows))
    batch = TextBatch(padded_BT[:, :-1], padded_BT[:, 1:], torch.tensor(lengths), index_B)
    wanted = Look(top=TOP) if longest > LONG else Look(weights=True)
    recording = nullcontext(Record()) if look is None else scope(wanted, at=look)
    with in_eval_mode(model), torch.no_grad(), recording as record:
        _, losses_BT = token_losses(model, batch.to(model.embedding.weight.device))
    if look is not None and record.called and not record:
        problem = f"look is {look!r}, which matches no site of {type(model).__name__}"
        hint = f"its sites are {', '.join(record.called)}; * is a wildcard"
        raise ArgumentError(message(call, problem, hint=hint))
    scores = (-losses_BT).tolist()
    weights = {site: _all_weights(calls) for site, calls in record.items() if calls[0].weights is not None}
    tops = {site: _all_tops(calls) for site, calls in record.items() if calls[0].top is not None}
    return [
        ObservedText(
            tuple(scores[row][:size]),
            # Copy the weights, because a view would keep the weights of the whole batch in memory.
            BySite(
                {site: each[row, ..., :size, :size].numpy().copy() for site, each in weights.items()},
                record.roles,
            ),
            {site: Top(*(part[row, ..., :size, :].clone() for part in each)) for site, each in tops.items()},
        )
        for row, size in enumerate(lengths)
    ]


def observe_in_batches(
    model: LanguageModel, rows: Sequence[Sequence[int]], look: str | None, call: str
) -> list[ObservedText]:
    """Compute observe_texts() in several batches of texts of similar length, to limit the memory use."""
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    observed: dict[int, ObservedText] = {}
    while order:
        length = len(rows[order[0]]) - 1
        count = LOGITS // (length * model.target_size)
        if look is not None:
            count = 1 if length > LONG else min(count, WEIGHTS // length**2)
        batch, order = order[: max(count, 1)], order[max(count, 1) :]
        results = observe_texts(model, [rows[row] for row in batch], look, call)
        observed.update(zip(batch, results, strict=True))
    return [observed[row] for row in range(len(rows))]


def _all_weights(calls: list[Attended]) -> Tensor:
    """Concatenate the weights that the calls of one attention layer (site) recorded, to (B, H, T, S).

    A recurrent model calls a layer once per token, with 1 query and all keys so far. A Transformer calls a
    layer only once, with T queries. The weight of a key that is missing in a call is 0.
    """
    weights = [call.weights for call in calls if call.weights is not None]
    widest = max(*(each.shape[-1] for each in weights), sum(each.shape[-2] for each in weights))
    return torch.cat([pad(each, (0, widest - each.shape[-1])) for each in weights], -2).float().cpu()


def _all_tops(calls: list[Attended]) -> Top:
    tops = [call.top for call in calls if call.top is not None]
    widest = max(each.weights.shape[-1] for each in tops)
    weights = [pad(each.weights, (0, widest - each.weights.shape[-1])) for each in tops]
    keys = [pad(each.keys, (0, widest - each.keys.shape[-1]), value=-1) for each in tops]
    return Top(torch.cat(weights, -2).float().cpu(), torch.cat(keys, -2).cpu())
