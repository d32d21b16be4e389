"""Beam search over a batch: keep the K most probable partial hypotheses (beams) of every sentence.

Each step has these parts, for every sentence:

1. Of the K * V continuations of the beams, take the 2K most probable ones. At most K of them end with EOS,
   because every beam has only one continuation with EOS. So at least K of them do not end with EOS.
2. If continuations among the K most probable ones end with EOS, they are finished hypotheses. They are added
   to the pool, which keeps the Beam.best hypotheses with the highest ranking (log-probability and penalties).
3. The K most probable continuations that do not end with EOS are the next beams.
4. Stop if no continuation of the beams can have a ranking that is high enough for the pool. This early
   stopping is exact: continuing to the maximum length would give the same result.

The class Beams keeps the hypotheses. This module is the reference: it supports every model and every option.
For most models, search() runs the faster search on preallocated tensors instead, in regard.fast.search:
BeamSlots in fast/search/beams.py keeps the hypotheses there.

Hypotheses are ranked with a length penalty and a coverage penalty (Wu et al. 2016, equation 14). The sum of
log-probabilities is higher for short sentences, so it is divided by the length penalty. The coverage penalty
lowers the ranking of a hypothesis that attends little to some source tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import EOS, PAD, Batch, BatchRows
from regard.decoding.active_rows import ActiveRows, Ends, Prompts, start_decoding, state_rows
from regard.decoding.hypothesis import ROOM, SearchResult
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules, check_integers
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.models.base import Model
from regard.roles import CROSS
from regard.sites import Record, scope

ALL_ONES = 2**31 - 1

BLOCK, FEWEST_VALUES = 64, 2**15
"""On a CPU, the highest sums of tensors with at least FEWEST_VALUES are found in blocks of this size."""


def largest(values: Tensor) -> Tensor:
    """Return the index of the highest value of each row (B, N), the first of equal ones; NaN is highest.

    The same as values.argmax(-1). On a CPU, NumPy finds it in a tenth of the time.

    >>> largest(torch.tensor([[0.5, 2.0, 2.0]]))
    tensor([1])
    """
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(-1))
    return values.argmax(-1)


def highest(values: Tensor, count: int, order: Tensor | None = None) -> Tensor:
    """Return the indices of the `count` highest values of each row in descending order, (B, count).

    values: (B, N), float32, N >= count. NaN counts as higher than any number but inf. Of equal values, the
        one with the lower index comes first, which topk() does not guarantee. On a CPU, values of -inf after
        others are in any order: they are forbidden tokens and unused beams, which no search returns.
    order: (B, N), different integers from 0 to 2**31 - 1, that replace the indices in comparisons of equal
        values.

    >>> highest(torch.tensor([[0.5, 2.0, 0.5, 0.1]]), 2)
    tensor([[1, 0]])
    """
    if values.device.type == "cpu":
        best, indices = values.topk(min(count + 1, values.shape[1]))
        if not _some_equal(best):
            return indices[:, :count]
    if order is None:
        order = torch.arange(values.shape[1], device=values.device)
    return sortable(values, order).topk(count).indices


def highest_sums(first: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest sums first[b, k] + values[b, k, v] for each b, and their indices k V + v.

    first: (B, K). values: (B, K, V), float32. Results: (B, count). For the order, see highest().

    On a CPU, only some blocks of large tensors are added and compared: those with the count + 1 highest
    maxima. The `count` highest sums are among them, because each of these blocks has a sum of at least the
    lowest of these maxima, and the other blocks have no higher one.
    """
    vocabulary = values.shape[2]
    blocks, rest = divmod(vocabulary, BLOCK)
    if values.device.type == "cpu" and values.numel() >= FEWEST_VALUES and blocks > count:
        blocked_BKNT = values[:, :, : blocks * BLOCK].view(*values.shape[:2], blocks, BLOCK)
        maxima_BKN = blocked_BKNT.amax(3).add_(first[:, :, None])
        largest_BC, chosen_BC = maxima_BKN.flatten(1).topk(count + 1)
        beam_BC, block_BC = chosen_BC // blocks, chosen_BC % blocks
        rows_B1 = torch.arange(len(values))[:, None]
        sums_BN = (blocked_BKNT[rows_B1, beam_BC, block_BC] + first.gather(1, beam_BC)[..., None]).flatten(1)
        first_BC = beam_BC * vocabulary + block_BC * BLOCK
        place_BN = (first_BC[..., None] + torch.arange(BLOCK)).flatten(1)
        if rest:  # the tokens after the last whole block
            tail_BR = (values[:, :, blocks * BLOCK :] + first[:, :, None]).flatten(1)
            beams_K1 = torch.arange(values.shape[1])[:, None]
            place_R = (beams_K1 * vocabulary + torch.arange(vocabulary - rest, vocabulary)).flatten()
            sums_BN = torch.cat((sums_BN, tail_BR), 1)
            place_BN = torch.cat((place_BN, place_R.expand_as(tail_BR)), 1)
        at_BC = highest(sums_BN, count, place_BN)
        best_BC, lowest_B1 = sums_BN.gather(1, at_BC), largest_BC[:, -1:]
        # A sum equal to the lowest maximum may be in another block too, and then the lower index counts.
        above_B1 = best_BC[:, -1:] > lowest_B1
        if above_B1.all() or (above_B1 | (lowest_B1 == -torch.inf) & (best_BC[:, :1] > -torch.inf)).all():
            return best_BC, place_BN.gather(1, at_BC)
    sums_BN = (first[:, :, None] + values).flatten(1)
    place_BC = highest(sums_BN, count)
    return sums_BN.gather(1, place_BC), place_BC


def sortable(values: Tensor, order: Tensor) -> Tensor:
    """Return int64 numbers in the order of float32 values; for equal values, in the reverse of `order`.

    order: integers from 0 to 2**31 - 1. If they differ, the results differ, and topk() has only one answer.
    """
    # Adding 0.0 turns -0.0 to 0.0, which is equal but has another bit pattern.
    number = torch.where(values.isnan(), torch.inf, values) + 0.0
    bits = number.view(torch.int32)
    # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
    ascending = bits ^ ((bits >> 31) & ALL_ONES)
    return (ascending.long() << 32) | (ALL_ONES - order)


def _some_equal(descending: Tensor) -> bool:
    """Whether some adjacent values of a row (B, N) are equal; -inf counts only in rows of nothing else."""
    equal = descending[:, 1:] == descending[:, :-1]
    if not equal.any():  # mostly
        return False
    first, later = descending[:, :1], descending[:, 1:]
    return bool((equal & ((later > -torch.inf) | (first == -torch.inf))).any())


MOST_BEAMS = 5000
"""The maximum beam size, and the maximum number of hypotheses to return (n-best)."""


MOST_ALPHA = 20
"""The maximum absolute value of alpha, the exponent of a length penalty."""


@dataclass(frozen=True)
class Length:
    """A length penalty: the log-probability is divided by base(length) ** alpha. Subclasses define base().

    alpha: the exponent. 0 disables the penalty; a larger alpha favours longer sentences.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not abs(self.alpha) <= MOST_ALPHA:
            hint = "use 0 to disable the penalty, or a larger alpha to favour longer sentences"
            expected, call = f"a number, -{MOST_ALPHA} to {MOST_ALPHA}", f"{type(self).__name__}()"
            raise ArgumentError(message(call, f"alpha is {self.alpha!r}", expected=expected, hint=hint))

    def base(self, length: int) -> float:
        """Return the number that is raised to the power alpha, for a sentence of `length` tokens with EOS."""
        raise TypeError(f"{type(self).__name__} must define base()")

    def table(self, longest: int, device: torch.device) -> Tensor:
        """Return the divisor of the log-probability, base(length) ** alpha, for each length, (longest + 1,).

        The lengths are 0 to `longest`. The entry for length 0 is 1; it is not used.
        """
        powers = [self.base(length) ** self.alpha for length in range(1, longest + 1)]
        largest = torch.finfo(torch.float32).max  # avoid inf for long sentences
        return torch.tensor([1.0, *powers], dtype=torch.float64).clamp(max=largest).to(device, torch.float32)


@dataclass(frozen=True)
class GNMT(Length):
    """Length penalty: divide the log-probability of a sentence Y by ((5 + |Y|) / 6) ** alpha.

    |Y| is the number of tokens, EOS included (Wu et al. 2016, equation 14).

    >>> from regard.decoding import GNMT
    >>> GNMT(alpha=1.0).base(7)
    2.0
    """

    alpha: float = 0.6

    def base(self, length: int) -> float:
        """Return (5 + length) / 6. `length` is the number of tokens with EOS."""
        return (5 + length) / 6


@dataclass(frozen=True)
class Average(Length):
    """Length penalty: divide the log-probability of a sentence Y by |Y| ** alpha.

    |Y| is the number of tokens, EOS included. With alpha = 1, the ranking is the average log-probability per
    token.

    >>> from regard.decoding import Average
    >>> Average().base(7)
    7.0
    """

    def base(self, length: int) -> float:
        """Return `length`, the number of tokens with EOS, as a float."""
        return float(length)


LENGTHS: dict[str, type[Length]] = {"average": Average, "gnmt": GNMT}
"""The length penalties by their names on the command line, as in --length-penalty average:1."""

MIN_COVERED = 1e-6
"""Lower bound of the summed attention weights on a source token, for the coverage penalty.

Sparse attention can be 0, and log 0 would be -inf.
"""


def coverage(attended: Tensor, lengths: Tensor) -> Tensor:
    """Compute the coverage penalty: sum over s of log min(attended_s, 1), at most 0 (Wu et al. 2016, eq. 14).

    attended: (..., S), for each source token, the sum of the attention weights of all target tokens on it.
    lengths: (...), the number of source tokens.

    Return: (...).

    Differs from the paper: attended_s is at least 1e-6, so that a token without attention does not give -inf.

    >>> import torch
    >>> from regard.decoding import coverage
    >>> coverage(torch.tensor([[1.5, 0.5, 0.0]]), torch.tensor([2])).exp()  # the third is padding
    tensor([0.5000])
    """
    position = torch.arange(attended.shape[-1], device=attended.device)
    logs = attended.clamp(MIN_COVERED, 1.0).log()
    return torch.where(position < lengths[..., None], logs, 0.0).sum(-1)


@dataclass(frozen=True)
class Beam:
    """Settings of beam search. Hypotheses are ranked with a length penalty and a coverage penalty:

    ranking(Y) = log P(Y | X) / length(|Y|) + coverage * sum_s log min(sum_t a_ts, 1)
    (Wu et al. 2016, equation 14)

    X is the source, Y the hypothesis, and a_ts the attention weight of target token t on source token s.

    size: the beam size.
    best: the number of hypotheses to return, those with the highest ranking (n-best).
    length: the length penalty, GNMT(alpha) or Average(alpha). alpha=0 disables it.
    coverage: the weight of the coverage penalty, beta in the paper. 0 disables it. It uses the attention to
        the source, averaged over layers and heads.
    rules: constraints on the output, such as its maximum length.

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
        check_integers("Beam()", size=(self.size, 1, MOST_BEAMS), best=(self.best, 1, MOST_BEAMS))
        if not isinstance(self.length, Length):
            expected = "GNMT(alpha) or Average(alpha)"
            raise ArgumentError(message("Beam()", f"length is {self.length!r}", expected=expected))
        if not isinstance(self.coverage, int | float) or not 0 <= self.coverage < float("inf"):
            problem = f"coverage is {self.coverage!r}"
            raise ArgumentError(message("Beam()", problem, expected="a number, 0 or more"))


@dataclass(frozen=True, eq=False)
class Beams(BatchRows):
    """The K beams of b sentences after t steps, and the pool of their finished hypotheses.

    tokens, token_scores: (b, K, t), the tokens of the beams and their log-probabilities.
    sums: (b, K), the log-probability of each beam, -inf for unused beams.
    covered: (b, K, S), the sum of the attention weights on each source token; (b, K, 0) without a coverage
        penalty.
    pool: the finished hypotheses with the highest ranking, at most Beam.best for each sentence.
    """

    tokens: Tensor
    token_scores: Tensor
    sums: Tensor
    covered: Tensor
    pool: SearchResult

    @classmethod
    def at_start(cls, active: ActiveRows, how: Beam) -> Beams:
        """Return the beams before the first step: one empty beam per sentence, and K - 1 unused beams."""
        sentences, device = len(active), active.index.device
        sums_BK = torch.full((sentences, how.size), -torch.inf, device=device)
        sums_BK[:, 0] = 0.0
        empty_BK0 = torch.zeros(sentences, how.size, 0, device=device)
        pool = SearchResult.empty(sentences, how.best, 0, device)
        return cls(empty_BK0.long(), empty_BK0, sums_BK, empty_BK0, pool)

    def result(self, divisor: Tensor) -> SearchResult:
        """Return the pool. For sentences without a finished hypothesis, return the unfinished beams instead.

        divisor: the length penalty at the current length, for the ranking of unfinished beams.
        """
        best = self.pool.ranking.shape[1]
        order_BK = highest(self.sums, min(best, self.sums.shape[1]))
        unfinished = SearchResult(
            _take(self.tokens, order_BK),
            _take(self.token_scores, order_BK),
            _take(self.sums, order_BK) / divisor,
        )
        # The pool may have room for more hypotheses than there are beams: pad to the size of the pool.
        missing = best - order_BK.shape[1]
        unfinished = SearchResult(
            pad(unfinished.tokens, (0, 0, 0, missing)),
            pad(unfinished.token_scores, (0, 0, 0, missing)),
            pad(unfinished.ranking, (0, missing), value=-torch.inf),
        )
        none_B = self.pool.ranking[:, 0] == -torch.inf
        return SearchResult(
            torch.where(none_B[:, None, None], unfinished.tokens, self.pool.tokens),
            torch.where(none_B[:, None, None], unfinished.token_scores, self.pool.token_scores),
            torch.where(none_B[:, None], unfinished.ranking, self.pool.ranking),
        )


def beam_search(
    model: Model,
    batch: Batch | Prompts,
    how: Beam,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    stop_early: bool = True,
    limit: LengthLimit = TRANSLATION_LIMIT,
    ends: Ends | None = None,
) -> SearchResult:
    """Run beam search on a batch.

    how: the settings of the search.
    prefixes: for each sentence, the tokens that its output must begin with.
    stop_early: stop decoding a sentence as soon as its n-best list is final. With False, it is decoded to the
        maximum length, with the same result.
    limit: the maximum number of output tokens, used if how.rules.maximum is None.
    ends: a function that ends hypotheses before EOS (see Ends). Hypotheses that it ends count as finished.
    """
    active, state, last_R1 = start_decoding(model, batch, how.rules, prefixes, how.size, limit)
    longest = int(active.limits.max()) if len(active) else 0
    result = SearchResult.empty(len(active), how.best, min(longest, ROOM), last_R1.device)
    divisors = how.length.table(longest + 1, last_R1.device)
    beams = Beams.at_start(active, how)
    for step in range(longest):
        recording = scope(Look(weights=True), at=CROSS) if how.coverage else nullcontext(Record())
        with recording as record:
            state, logits_R1V = model.step(state, last_R1, active.encoded)
        if how.coverage:
            beams = replace(beams, covered=_add_coverage(beams.covered, record))
        scores_RV = logits_R1V[:, -1].float().log_softmax(-1)
        beams, source_RK = advance(beams, scores_RV, active, how, divisors, ends)

        done_B = step + 1 >= active.limits
        if stop_early:
            done_B = done_B | (beams.pool.ranking[:, -1] >= bound(beams, active, divisors))
        rows_R = source_RK.flatten()
        if done_B.any():
            done_b, remaining_b = done_B.nonzero()[:, 0], (~done_B).nonzero()[:, 0]
            result = result.with_room_for(step + 1, longest)
            result.write(active.index[done_b], beams.select(done_b).result(divisors[step + 1]))
            if not len(remaining_b):
                break
            active, beams = active.select(remaining_b), beams.select(remaining_b)
            rows_R = rows_R[state_rows(remaining_b, how.size)]
        state, last_R1 = state.select(rows_R), beams.tokens[:, :, -1].reshape(-1, 1)
    return result


def advance(
    beams: Beams,
    scores_RV: Tensor,
    active: ActiveRows,
    how: Beam,
    divisors: Tensor,
    ends: Ends | None = None,
) -> tuple[Beams, Tensor]:
    """Extend the beams by one token.

    scores_RV: (b K, V), the log-probabilities of the next token.
    divisors: the length penalty at each length, from 0 tokens.
    ends: a function that ends hypotheses before EOS (see Ends). If fewer than K beams of a sentence are left,
        the others become unused beams with the log-probability -inf.

    Return the extended beams, and the row of the decoder state that each of them continues, (b, K).
    """
    sentences, size, step = beams.tokens.shape
    vocabulary = scores_RV.shape[-1]
    tokens_RT = beams.tokens.flatten(0, 1)
    permitted_RV = how.rules.permitted(scores_RV, tokens_RT, active.forced_tokens(step, size))
    sums_BC, place_BC = highest_sums(beams.sums, permitted_RV.view(sentences, size, vocabulary), 2 * size)
    beam_BC, token_BC = place_BC // vocabulary, place_BC % vocabulary
    score_BC = scores_RV.view(sentences, -1).gather(1, place_BC)
    tokens_BCT = torch.cat((_take(beams.tokens, beam_BC), token_BC[..., None]), -1)
    token_scores_BCT = torch.cat((_take(beams.token_scores, beam_BC), score_BC[..., None]), -1)

    ends_BC = token_BC == EOS
    if ends is not None:
        ends_BC = ends_BC | ends(tokens_BCT, active.index)
    ranking_BK = sums_BC[:, :size] / divisors[step + 1]
    if how.coverage:
        penalty_BK = coverage(beams.covered, active.encoded.lengths[:, None])
        ranking_BK = ranking_BK + how.coverage * penalty_BK.gather(1, beam_BC[:, :size])
    ranking_BK = torch.where(ends_BC[:, :size], ranking_BK, -torch.inf)
    finished = SearchResult(tokens_BCT[:, :size], token_scores_BCT[:, :size], ranking_BK)
    # Of equal rankings, hypotheses of the pool come first.
    before = beams.pool
    ranking = torch.cat((before.ranking, finished.ranking), 1)
    best_BK = highest(ranking, before.ranking.shape[1])
    tokens = torch.cat((pad(before.tokens, (0, 1)), finished.tokens), 1)
    token_scores = torch.cat((pad(before.token_scores, (0, 1)), finished.token_scores), 1)
    best = SearchResult(_take(tokens, best_BK), _take(token_scores, best_BK), _take(ranking, best_BK))
    missing_BK1 = (best.ranking == -torch.inf)[..., None]
    pool = SearchResult(
        best.tokens.masked_fill(missing_BK1, PAD),
        best.token_scores.masked_fill(missing_BK1, 0.0),
        best.ranking,
    )

    next_BK = ends_BC.int().argsort(dim=-1, stable=True)[:, :size]
    beam_BK = beam_BC.gather(1, next_BK)
    sums_BK = sums_BC.gather(1, next_BK)
    if ends is not None:
        sums_BK = torch.where(ends_BC.gather(1, next_BK), -torch.inf, sums_BK)
    row_BK = beam_BK + size * torch.arange(sentences, device=beam_BK.device)[:, None]
    extended = Beams(
        _take(tokens_BCT, next_BK),
        _take(token_scores_BCT, next_BK),
        sums_BK,
        _take(beams.covered, beam_BK),
        pool,
    )
    return extended, row_BK


def bound(beams: Beams, active: ActiveRows, divisors: Tensor) -> Tensor:
    """Return an upper bound on the ranking of any continuation of the beams, (b,).

    The log-probability can only decrease, and the coverage penalty is at most 0. A negative log-probability
    gives the highest ranking if it is divided by the largest divisor. The divisors increase or decrease
    monotonically with the length. So the largest divisor is that of the shortest or of the longest possible
    length.
    """
    now = beams.tokens.shape[-1]
    largest_B = torch.maximum(divisors[now + 1], divisors[active.limits])
    return beams.sums.amax(-1) / largest_B


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    """Select C of the K hypotheses of each sentence.

    tensor: (b, K, ...), values of the hypotheses.
    index: (b, C), the indices of the hypotheses to select.

    Return: (b, C, ...).
    """
    return tensor[torch.arange(len(index), device=index.device)[:, None], index]


def _add_coverage(before: Tensor, record: Record) -> Tensor:
    """Add the weights of this decoding step, averaged over layers and heads, to the sums of earlier steps.

    before: (b, K, S), the sum of the attention weights of earlier steps on each source token.

    Return: (b, K, S).
    """
    recorded = [
        weights for calls in record.values() for call in calls if (weights := call.weights) is not None
    ]
    if not recorded:
        raise ArgumentError(
            message(
                "search()",
                "the coverage penalty needs cross-attention weights, but this model records none",
                expected="a model with attention layers of the role 'cross'",
                hint="disable the coverage penalty with Beam(coverage=0)",
            )
        )
    means = [weights.float().mean(1) if weights.dim() == 4 else weights.float() for weights in recorded]
    now_BKS = torch.stack(means).mean(0)
    return now_BKS if before.shape[-1] == 0 else before + now_BKS
