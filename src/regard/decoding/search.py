"""search(): from a model and a batch to hypotheses, by whichever way of searching is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.data.batch import BOS, Batch
from regard.decoding.active_rows import device_of, quietly
from regard.decoding.beam import Beam, beam_search
from regard.decoding.forced_decoding import CROSS, observe, pieces_of
from regard.decoding.greedy import Greedy, greedy_search
from regard.decoding.hypothesis import Found, Hypothesis
from regard.decoding.sampling import Sample, sample_search
from regard.errors import ArgumentError, RegardError, message
from regard.models.base import Model

__all__ = ["Search", "search"]

Search = Greedy | Beam | Sample
"""A way of searching."""


def search(
    model: Model,
    batch: Batch,
    how: Search,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    look: str | None = CROSS,
) -> list[list[Hypothesis]]:
    """What a model says to each source of a batch: a list of hypotheses for each, the best first.

    The targets of the batch, if it has any, are not read. prefixes: tokens that each sentence must begin
    with, [] for none. look: the sites whose attention every hypothesis carries, with * as wildcard; None for
    none. Every source gets a hypothesis; one that did not end within its limit is there, unfinished, only
    where no other is.

    >>> import torch
    >>> from regard.data.batch import Batch
    >>> from regard.decoding import Greedy, search
    >>> from regard.models import Encoded, Model, State
    >>> class Countdown(Model):
    ...     target_size = 8
    ...     def encode(self, source, lengths):
    ...         return Encoded(lengths)
    ...     def start(self, encoded):
    ...         return State()
    ...     def step(self, state, tokens, encoded):
    ...         following = torch.where(tokens == 2, 6, tokens - 1)  # BOS, 6, 5, 4, EOS
    ...         return state, 9.0 * torch.nn.functional.one_hot(following, 8)
    >>> search(Countdown(), Batch.collate([[4], [5, 6]]), Greedy(), look=None)[1][0].tokens
    (6, 5, 4, 3)
    """
    if not isinstance(how, Search):
        problem = f"how is {how!r}"
        raise ArgumentError(message("search()", problem, expected="Greedy(...), Beam(...) or Sample(...)"))
    if not len(batch):
        return []
    batch = batch.to(device_of(model))
    with quietly(model):
        found = _found(model, batch, how, prefixes)
    if found.token_scores.isnan().any():
        raise RegardError(
            message(
                "search()",
                "the model gave scores that are not numbers",
                hint="its training has diverged, or its numbers are too large for their dtype",
            )
        )
    # Something is said to every source, even where every token was as good as impossible.
    there_BK = found.ranking > -torch.inf
    there_BK[:, 0] = True
    looked = _looked(model, batch, found, there_BK, look)
    return _hypotheses(found.map(Tensor.cpu), there_BK.cpu(), looked)


def _found(model: Model, batch: Batch, how: Search, prefixes: Sequence[Sequence[int]] | None) -> Found:
    if isinstance(how, Beam):
        return beam_search(model, batch, how, prefixes)
    if isinstance(how, Sample):
        return sample_search(model, batch, how, prefixes)
    return greedy_search(model, batch, how, prefixes)


BySite = dict[str, Tensor]


def _looked(
    model: Model, batch: Batch, found: Found, there_BK: Tensor, look: str | None
) -> list[tuple[BySite, BySite]]:
    """The attention of every hypothesis that is there, and the norms of what was read, by sentence."""
    sentence_N, place_N = there_BK.nonzero(as_tuple=True)
    if look is None:
        return [({}, {}) for _ in range(len(sentence_N))]
    tokens_NL = found.tokens[sentence_N, place_N]
    begun_NL = torch.cat((torch.full_like(tokens_NL[:, :1], BOS), tokens_NL), 1)
    pairs = Batch(
        batch.source[sentence_N],
        batch.source_lengths[sentence_N],
        begun_NL,
        found.lengths[sentence_N, place_N],
        batch.index[sentence_N],
    )
    looked = []
    for piece in pieces_of(pairs, model.target_size):
        observed = observe(model, piece, look)
        looked += [(observed.attention_of(row), observed.values_of(row)) for row in range(len(piece))]
    return looked


def _hypotheses(
    found: Found, there_BK: Tensor, looked: list[tuple[BySite, BySite]]
) -> list[list[Hypothesis]]:
    """As objects, on the CPU."""
    seen = iter(looked)
    lengths, ranking = found.lengths.tolist(), found.ranking.tolist()
    tokens, token_scores = found.tokens.tolist(), found.token_scores.tolist()
    return [
        [
            Hypothesis(
                tuple(tokens[row][place][: lengths[row][place]]),
                tuple(token_scores[row][place][: lengths[row][place]]),
                ranking[row][place],
                *next(seen),
            )
            for place, there in enumerate(places)
            if there
        ]
        for row, places in enumerate(there_BK.tolist())
    ]
