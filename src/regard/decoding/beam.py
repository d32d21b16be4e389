"""Beam search: keep the K most probable beginnings of every sentence, all sentences and beams at once.

Every step takes the best 2K of the K V continuations, which hold K at least that go on. Those of the best K
that end here compete, by their ranking with penalties, for a pool of the `best` ended so far; the first K
that go on are the next beams, by log-probability alone. A sentence is done when nothing that its beams could
still become would enter the pool. That is exact: going on to the limit would give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import EOS, Batch
from regard.decoding.active_rows import Live, begin, rows_of
from regard.decoding.hypothesis import ROOM, Found
from regard.decoding.penalties import GNMT, Length, coverage
from regard.decoding.rules import Rules, whole
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.models.base import Model
from regard.sites import Record, scope

__all__ = ["Beam", "MOST_BEAMS", "beam_search", "best_of"]

MOST_BEAMS = 5000
"""The largest beam size, and the largest number of sentences to return (n-best)."""


@dataclass(frozen=True)
class Beam:
    """Keep the `size` most probable beginnings; give the `best` sentences by their ranking.

    ranking(Y) = log P(Y | X) / length(|Y|) + coverage * sum_s log min(sum_t a_ts, 1)
    (Wu et al. 2016, equation 14)

    length: GNMT(alpha), Average(alpha), or either with alpha 0 for none. coverage: beta, 0 or more; above 0
    the model's attention to the source is looked at at every step, averaged over layers and heads.

    >>> from regard.decoding import Average, Beam
    >>> Beam(size=12, best=3, length=Average(alpha=0.8), coverage=0.2).best
    3
    """

    size: int = 5
    best: int = 1
    length: Length = field(default_factory=GNMT)
    coverage: float = 0.0
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        whole("Beam()", size=(self.size, 1, MOST_BEAMS), best=(self.best, 1, MOST_BEAMS))
        if not isinstance(self.length, Length):
            expected = "GNMT(alpha) or Average(alpha)"
            raise ArgumentError(message("Beam()", f"length is {self.length!r}", expected=expected))
        if not isinstance(self.coverage, int | float) or not 0 <= self.coverage < float("inf"):
            problem = f"coverage is {self.coverage!r}"
            raise ArgumentError(message("Beam()", problem, expected="a number, 0 or more"))


@dataclass(frozen=True, eq=False)
class Beams:
    """The beginnings of b sentences, K each, and the pool of those that ended.

    tokens, token_scores: (b, K, t). sums: (b, K), -inf where there is no beam. covered: (b, K, S), what each
    source token received, S = 0 where nobody asks.
    """

    tokens: Tensor
    token_scores: Tensor
    sums: Tensor
    covered: Tensor
    pool: Found

    @classmethod
    def at_start(cls, live: Live, how: Beam) -> Beams:
        """One empty beam for each sentence; the other K - 1 are not there yet."""
        sentences, device = len(live), live.number.device
        sums_BK = torch.full((sentences, how.size), -torch.inf, device=device)
        sums_BK[:, 0] = 0.0
        nothing = torch.zeros(sentences, how.size, 0, device=device)
        pool = Found.empty(sentences, how.best, 0, device)
        return cls(nothing.long(), nothing, sums_BK, nothing, pool)

    def keep(self, index: Tensor) -> Beams:
        """Only these of the sentences, (b',)."""
        return Beams(
            self.tokens.index_select(0, index),
            self.token_scores.index_select(0, index),
            self.sums.index_select(0, index),
            self.covered.index_select(0, index),
            self.pool.map(lambda tensor: tensor.index_select(0, index)),
        )

    def result(self, divisor: Tensor) -> Found:
        """The pool; for sentences of which nothing ended, the beams as they were cut."""
        best = self.pool.ranking.shape[1]
        order_BK = best_of(self.sums, min(best, self.sums.shape[1]))[1]
        cut = Found(
            _take(self.tokens, order_BK),
            _take(self.token_scores, order_BK),
            _take(self.sums, order_BK) / divisor,
        )
        # The pool may have room for more than there are beams.
        short = best - order_BK.shape[1]
        cut = Found(
            pad(cut.tokens, (0, 0, 0, short)),
            pad(cut.token_scores, (0, 0, 0, short)),
            pad(cut.ranking, (0, short), value=-torch.inf),
        )
        none_B = self.pool.ranking[:, 0] == -torch.inf
        return Found(
            torch.where(none_B[:, None, None], cut.tokens, self.pool.tokens),
            torch.where(none_B[:, None, None], cut.token_scores, self.pool.token_scores),
            torch.where(none_B[:, None], cut.ranking, self.pool.ranking),
        )


def beam_search(
    model: Model,
    batch: Batch,
    how: Beam,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    stop_early: bool = True,
) -> Found:
    """The best sentences that beams find; without stop_early every sentence goes on to its limit."""
    live, state, last_R1 = begin(model, batch, how.rules, prefixes, how.size)
    longest = int(live.limits.max()) if len(live) else 0
    found = Found.empty(len(live), how.best, min(longest, ROOM), last_R1.device)
    divisors = how.length.table(longest + 1, last_R1.device)
    beams = Beams.at_start(live, how)
    for step in range(longest):
        look = scope(Look(weights=True), at="*cross") if how.coverage else nullcontext(Record())
        with look as seen:
            state, logits_R1V = model.step(state, last_R1, live.encoded)
        if how.coverage:
            beams = replace(beams, covered=_covered(beams.covered, seen))
        scores_RV = logits_R1V[:, -1].float().log_softmax(-1)
        beams, source_RK = advance(beams, scores_RV, live, how, divisors)

        done_B = step + 1 >= live.limits
        if stop_early:
            done_B = done_B | (beams.pool.ranking[:, -1] >= bound(beams, live, divisors))
        rows_R = source_RK.flatten()
        if done_B.any():
            ended_b, kept_b = done_B.nonzero()[:, 0], (~done_B).nonzero()[:, 0]
            found = found.roomy(step + 1, longest)
            found.put(live.number[ended_b], beams.keep(ended_b).result(divisors[step + 1]))
            if not len(kept_b):
                break
            live, beams = live.keep(kept_b), beams.keep(kept_b)
            rows_R = rows_R[rows_of(kept_b, how.size)]
        state, last_R1 = state.reorder(rows_R), beams.tokens[:, :, -1].reshape(-1, 1)
    return found


def advance(beams: Beams, scores_RV: Tensor, live: Live, how: Beam, divisors: Tensor) -> tuple[Beams, Tensor]:
    """The beams one token later, and the row of the state that each came from, (b, K)."""
    sentences, size, step = beams.tokens.shape
    vocabulary = scores_RV.shape[-1]
    said_RT = beams.tokens.flatten(0, 1)
    left_RV = how.rules.permitted(scores_RV, said_RT, live.must_say(step, size))
    sums_BN = (beams.sums[:, :, None] + left_RV.view(sentences, size, vocabulary)).flatten(1)
    sums_BC, place_BC = best_of(sums_BN, 2 * size)
    beam_BC, token_BC = place_BC // vocabulary, place_BC % vocabulary
    score_BC = scores_RV.view(sentences, -1).gather(1, place_BC)
    tokens_BCT = torch.cat((_take(beams.tokens, beam_BC), token_BC[..., None]), -1)
    token_scores_BCT = torch.cat((_take(beams.token_scores, beam_BC), score_BC[..., None]), -1)

    ends_BC = token_BC == EOS
    ranking_BK = sums_BC[:, :size] / divisors[step + 1]
    if how.coverage:
        missing_BK = coverage(beams.covered, live.encoded.lengths[:, None])
        ranking_BK = ranking_BK + how.coverage * missing_BK.gather(1, beam_BC[:, :size])
    ranking_BK = torch.where(ends_BC[:, :size], ranking_BK, -torch.inf)
    pool = _merged(beams.pool, Found(tokens_BCT[:, :size], token_scores_BCT[:, :size], ranking_BK))

    on_BK = ends_BC.int().argsort(dim=-1, stable=True)[:, :size]
    beam_BK = beam_BC.gather(1, on_BK)
    row_BK = beam_BK + size * torch.arange(sentences, device=beam_BK.device)[:, None]
    after = Beams(
        _take(tokens_BCT, on_BK),
        _take(token_scores_BCT, on_BK),
        sums_BC.gather(1, on_BK),
        _take(beams.covered, beam_BK),
        pool,
    )
    return after, row_BK


def bound(beams: Beams, live: Live, divisors: Tensor) -> Tensor:
    """What no sentence that the beams may still become can be ranked above, (b,).

    A sum only falls, coverage takes away, and a sum below 0 ranks highest under the largest divisor, which
    stands at one end of the lengths to come: divisors rise or fall all the way.
    """
    now = beams.tokens.shape[-1]
    largest_B = torch.maximum(divisors[now + 1], divisors[live.limits])
    return beams.sums.amax(-1) / largest_B


def best_of(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each row, (rows, N), and their places; of equals, the first.

    topk() leaves open which it takes of those equal to the least that it takes. So the greater ones are from
    it, and the equal ones by their place. There is room for both; what is too much goes to place N, the last.
    """
    size = scores.shape[-1]
    large_RC, place_RC = scores.topk(count)
    least_R1 = large_RC[:, -1:]
    backwards_N = torch.arange(size, 0, -1, device=scores.device, dtype=torch.int32)
    equal_RC = torch.where(scores == least_R1, backwards_N, 0).topk(count).values.long()
    places = (
        torch.cat((torch.where(large_RC > least_R1, place_RC, size), size - equal_RC), -1).sort(-1).values
    )
    there = places.clamp(max=size - 1)
    values = torch.where(places < size, scores.gather(-1, there), -torch.inf)
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], there.gather(-1, order[:, :count])


def _merged(pool: Found, ended: Found) -> Found:
    """The best of both; of equals, those that ended before."""
    ranking = torch.cat((pool.ranking, ended.ranking), 1)
    ranking_BN, place_BN = best_of(ranking, pool.ranking.shape[1])
    tokens = torch.cat((pad(pool.tokens, (0, 1)), ended.tokens), 1)
    token_scores = torch.cat((pad(pool.token_scores, (0, 1)), ended.token_scores), 1)
    return Found(_take(tokens, place_BN), _take(token_scores, place_BN), ranking_BN)


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    """Hypotheses of each sentence by number: tensor (b, K, ...), index (b, C) -> (b, C, ...)."""
    return tensor[torch.arange(len(index), device=index.device)[:, None], index]


def _covered(before: Tensor, seen: Record) -> Tensor:
    """What each source token has received after this step, (b, K, S), averaged over layers and heads."""
    each = [weights for calls in seen.values() for call in calls if (weights := call.weights) is not None]
    if not each:
        raise ArgumentError(
            message(
                "search()",
                "Beam(coverage=...) needs the attention to the source, and this model shows none",
                expected="sites whose names end in 'cross', with weights",
                hint="Beam(coverage=0) ranks without it",
            )
        )
    means = [weights.float().mean(1) if weights.dim() == 4 else weights.float() for weights in each]
    now_BKS = torch.stack(means).mean(0)
    return now_BKS if before.shape[-1] == 0 else before + now_BKS
