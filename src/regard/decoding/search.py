"""search(): decode a batch with greedy search, beam search or sampling."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import BOS, PAD, Batch
from regard.decoding.active_rows import Ends, Prompts, device_of, eval_without_grad, float32_copy
from regard.decoding.beam import Beam, beam_search
from regard.decoding.forced_decoding import observe, pieces_of
from regard.decoding.greedy import Greedy, greedy_search
from regard.decoding.hypothesis import Hypothesis, SearchResult, rows_as_tuples
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit
from regard.decoding.sampling import Sample, sample_search
from regard.errors import ArgumentError, RegardError, RegardWarning, message
from regard.fast.search.choice import search_decoder
from regard.fast.search.recorded_attention import RecordedAttention
from regard.fast.search.search_loop import EarlyEnds, recorded_attention, slot_search
from regard.models.base import Model
from regard.roles import CROSS, BySite

NO_INT8 = "only the decoders of a Transformer and of bahdanau, without replaced layers, can use them"
"""Why a search with another decoder on preallocated tensors does not use int8 weights."""

Search = Greedy | Beam | Sample
"""A search method with its settings."""


def search(
    model: Model,
    batch: Batch | Prompts,
    how: Search,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    look: str | None = CROSS,
    limit: LengthLimit = TRANSLATION_LIMIT,
    ends: Ends | None = None,
    stopping: Callable[[], bool] | None = None,
) -> list[list[Hypothesis]]:
    """Decode each source of a batch. Return a list of hypotheses for each source, best first.

    batch: the sources (targets are ignored), or Prompts that a language model continues. With Prompts, a
        hypothesis has only the tokens and scores after the prompt, but its attention has a row for each token
        of the prompt and of the output.
    how: Greedy(...), Beam(...) or Sample(...).
    prefixes: for each source, the tokens that its output must begin with; [] for a source without a prefix.
    look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records nothing.
        The steps of the search record cross-attention, if the model and the search support it. Other sites
        are recorded by forced decoding after the search.
    limit: the maximum number of output tokens, used if how.rules.maximum is None.
    ends: a function that ends hypotheses before EOS, for example at a stop string (see active_rows.Ends).
    stopping: a function that returns True if all hypotheses must end, for example after Ctrl-C. The search on
        preallocated tensors then generates one more token.

    The search runs on preallocated tensors if regard.fast.search.search_decoder() finds a decoder for the
    model and the options. Otherwise, beam_search(), greedy_search() or sample_search() runs. The hypotheses
    are the same.

    Every source has at least one hypothesis. Beam search returns unfinished hypotheses (cut at the maximum
    length) only if no hypothesis of the source is finished.

    >>> import torch
    >>> from regard.data.batch import Batch
    >>> from regard.decoding import Greedy
    >>> from regard.decoding.search import search
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
    recorded = None
    with eval_without_grad(model):
        decoder = search_decoder(model, how, ends)
        if model.int8_steps and (isinstance(decoder, list) or not decoder.int8):
            reasons = "; ".join(decoder if isinstance(decoder, list) else [NO_INT8])
            problem = f"this search does not use int8 weights but float32, because {reasons}"
            warnings.warn(message("search()", problem), RegardWarning, stacklevel=2)
        if not isinstance(decoder, list):
            single = not isinstance(how, Sample) or how.count == 1
            recorded = recorded_attention(model, batch, look, decoder) if single else None
            early = None if ends is None and stopping is None else EarlyEnds(ends, stopping)
            result = slot_search(
                model, batch, how, prefixes, limit=limit, recorded=recorded, early_ends=early
            )
        else:
            stops = _ends_or_stops(ends, stopping)
            if isinstance(how, Beam):
                result = beam_search(model, batch, how, prefixes, limit=limit, ends=stops)
            elif isinstance(how, Sample):
                result = sample_search(model, batch, how, prefixes, limit=limit, ends=stops)
            else:
                result = greedy_search(model, batch, how, prefixes, limit=limit, ends=stops)
    # With NumPy, because PyTorch takes longer for small arrays, and on a GPU, the device waits now.
    if np.isnan(result.token_scores.cpu().numpy()).any():
        wider = float32_copy(model)
        if wider is not None:
            return search(
                wider, batch, how, prefixes=prefixes, look=look, limit=limit, ends=ends, stopping=stopping
            )
        hint = "check that training did not diverge; if activations overflow, use model.float()"
        raise RegardError(message("search()", "the scores of the model are NaN", hint=hint))
    if look is None:
        return _as_hypotheses(result, None)
    if recorded is None or not recorded.complete:
        return _as_hypotheses(result, _forced_attention(model, batch, result, look))
    return _as_hypotheses(result, recorded)


def _ends_or_stops(ends: Ends | None, stopping: Callable[[], bool] | None) -> Ends | None:
    """Return a function that ends the same hypotheses as ends(), and all of them if stopping() is True."""
    if stopping is None:
        return ends

    def check(tokens_BKT: Tensor, index: Tensor) -> Tensor:
        stops = stopping()
        if stops or ends is None:
            return tokens_BKT.new_full(tokens_BKT.shape[:2], stops, dtype=torch.bool)
        return ends(tokens_BKT, index)

    return check


Recorded = tuple[BySite[Tensor], dict[str, Tensor]]
"""Two dicts for one hypothesis: site -> attention weights, and site -> norms of the value vectors."""


def _forced_attention(
    model: Model, batch: Batch | Prompts, result: SearchResult, look: str
) -> list[Recorded]:
    """Return a pair for each hypothesis, by forced decoding: attention weights and norms of value vectors.

    Both are dicts from attention layers (sites).
    """
    result = result.to(batch.index.device)
    sentence_N, rank_N = result.exists.nonzero(as_tuple=True)
    tokens_NL = result.tokens[sentence_N, rank_N]
    lengths_N = result.lengths[sentence_N, rank_N]
    if isinstance(batch, Prompts):
        prompts = batch.select(sentence_N)
        target_NL = torch.cat((prompts.tokens, tokens_NL), 1)
        lengths_N = lengths_N + prompts.tokens.shape[1] - 1
        empty_NS = prompts.tokens[:, :0]
        pairs = Batch(empty_NS, torch.zeros_like(sentence_N), target_NL, lengths_N, prompts.index)
    else:
        target_NL = torch.cat((torch.full_like(tokens_NL[:, :1], BOS), tokens_NL), 1)
        pairs = replace(batch.select(sentence_N), target=target_NL, target_lengths=lengths_N)
    recorded = list[Recorded]()
    for part in pieces_of(pairs, model.target_size):
        observed = observe(model, part, look)
        recorded += [(observed.attention_of(row), observed.values_of(row)) for row in range(len(part))]
    return recorded


def _as_hypotheses(
    result: SearchResult, recorded: list[Recorded] | RecordedAttention | None
) -> list[list[Hypothesis]]:
    """Convert a search result to Hypothesis objects: one list for each sentence, best first.

    recorded: for each hypothesis that exists, the attention weights and the norms of the value vectors; or
        the weights that the steps of the search recorded; or None, if nothing was recorded.
    """
    tokens_BKL, ranking_BK = result.tokens.cpu().numpy(), result.ranking.cpu().numpy()
    rankings = ranking_BK.ravel().tolist()
    every = Hypothesis.all_of(
        recorded if isinstance(recorded, RecordedAttention) else None,
        (tokens_BKL != PAD).sum(-1).ravel().tolist(),
        rows_as_tuples(tokens_BKL),
        rows_as_tuples(result.token_scores),
        rankings,
    )
    size = ranking_BK.shape[1]
    hypotheses = [every[first : first + size] for first in range(0, len(every), size)]
    if -math.inf in rankings:  # see SearchResult.exists
        hypotheses = [[own[0], *(each for each in own[1:] if each.ranking > -math.inf)] for own in hypotheses]
    if not isinstance(recorded, list):
        return hypotheses
    forced = iter(recorded)
    return [
        [Hypothesis(each.tokens, each.token_scores, each.ranking, *next(forced)) for each in own]
        for own in hypotheses
    ]
