# mypy: disable-error-code="no-untyped-def"
"""One step of beam search or greedy search after the logits.

find_candidates() finds the most probable tokens of each row of logits, and the parts of their log-sum-exp, in
one pass: the logits are read once, in their own dtype, and no tensor of log-probabilities is written.

The kernels of beam_step() and greedy_step(), a program for each slot, compute the log-probabilities of these
candidates, select the next tokens, and update the tensors of BeamSlots or GreedySlots. They compute the same
as the PyTorch code of these classes.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "Candidates",
    "beam_step",
    "find_candidates",
    "greedy_step",
]

SMALLEST_BLOCK, LARGEST_BLOCK = 1024, 4096
"""Number of tokens of the vocabulary that a program loads; powers of two. The smallest block has one warp, so
that its threads need no barrier. With many blocks, the next kernel has more candidates to read."""

FEW_CANDIDATES = 512
"""The smallest block is used if a row has at most this many candidates."""

WARPS = 1
"""Number of warps of a program for each 1024 tokens."""


class Candidates(NamedTuple):
    """The COUNT highest logits of each block of the vocabulary, for each row.

    values, tokens: (rows, blocks, COUNT), logits (float32) and token ids (int32). Forbidden tokens have -inf.
    largest, total: (rows, blocks), the maximum m of all logits of the block, and the sum of exp(x - m).
    """

    values: Tensor
    tokens: Tensor
    largest: Tensor
    total: Tensor


@triton.jit
def token_candidates_kernel(
    logits, barred, generated, values, tokens, largest, total, size, beams, minimum, end,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Find the COUNT highest logits among BLOCK tokens of one row; equal ones in the order of their ids.

    logits: reads (rows, size).
    barred: reads (size,), 1 for tokens that are forbidden in every row.
    generated: reads (rows / beams,), the number of tokens of each output. The token `end` is forbidden if the
        output would have fewer than `minimum` tokens.
    values, tokens, largest, total: write the tensors of Candidates.
    HALF: whether the logits have 16 bits. Then value and index are combined to one integer, whose maximum
        is faster to find.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    column = block * BLOCK + place
    inside = column < size
    raw = tl.load(logits + row * size + column, mask=inside, other=-float("inf"))
    x = raw.to(tl.float32)
    best = tl.max(x, 0)
    at = row * tl.num_programs(1) + block
    tl.store(largest + at, best)
    tl.store(total + at, tl.sum(tl.where(inside, tl.exp(x - best), 0.0), 0))
    hidden = tl.load(barred + column, mask=inside, other=1) != 0
    hidden = hidden | ((column == end) & (tl.load(generated + row // beams) + 1 < minimum))
    if HALF:
        bits = tl.where(x == 0.0, 0, raw.to(tl.int16, bitcast=True).to(tl.int32))  # -0.0 is equal to 0.0
        # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
        ascending = bits ^ ((bits >> 15) & 0x7FFF)
        key = tl.where(hidden, -0x80000000, ascending * BLOCK + (BLOCK - 1 - place))
        for number in tl.static_range(COUNT):
            top = tl.max(key, 0)
            missing = top == -0x80000000
            ascending_top = top >> BITS
            bits_top = ascending_top ^ ((ascending_top >> 15) & 0x7FFF)
            value = bits_top.to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
            index = BLOCK - 1 - (top & (BLOCK - 1))
            tl.store(values + at * COUNT + number, tl.where(missing, -float("inf"), value))
            tl.store(tokens + at * COUNT + number, block * BLOCK + tl.where(missing, 0, index))
            key = tl.where(key == top, -0x80000000, key)
    else:
        x = tl.where(hidden, -float("inf"), x)
        for number in tl.static_range(COUNT):
            value, index = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
            tl.store(values + at * COUNT + number, value)
            tl.store(tokens + at * COUNT + number, block * BLOCK + index)
            x = tl.where(place == index, -float("inf"), x)


def find_candidates(
    logits: Tensor, count: int, barred: Tensor, generated: Tensor, minimum: int, end: int
) -> Candidates:
    """Return the `count` highest logits of each block of the vocabulary, for each row; see Candidates.

    logits: (rows, V).
    count: the time of the kernel is proportional to it.
    barred: (V,), uint8, 1 for tokens that are forbidden in every row.
    generated: (slots,), int64, the number of tokens of each output. A slot has rows / slots rows.
    minimum: the token `end` is forbidden if an output would have fewer tokens than this.

    If tokens have equal logits, those with the lowest ids are included.
    """
    rows, size = logits.shape
    logits, block = logits.contiguous(), SMALLEST_BLOCK
    while block < LARGEST_BLOCK and triton.cdiv(size, block) * count > FEW_CANDIDATES:
        block *= 2
    blocks = triton.cdiv(size, block)
    values = logits.new_empty(rows, blocks, count, dtype=torch.float32)
    tokens = logits.new_empty(rows, blocks, count, dtype=torch.int32)
    largest, total = (logits.new_empty(rows, blocks, dtype=torch.float32) for _ in range(2))
    if rows:
        token_candidates_kernel[(rows, blocks)](
            logits, barred, generated, values, tokens, largest, total,
            size, rows // len(generated), minimum, end,
            COUNT=count, BLOCK=block, BITS=block.bit_length() - 1, HALF=logits.itemsize == 2,
            num_warps=max(1, block * WARPS // 1024),
        )  # fmt: skip
    return Candidates(values, tokens, largest, total)


MOST_LANES, MOST_BEST = 8192, 32
"""The largest number of candidates of a slot (with padding) and the largest pool that the kernel supports."""

LANES_PER_WARP = 1024
"""Number of candidates of a slot for each warp of a program."""


@triton.jit
def sortable(number, order):
    """Return int64 numbers in the order of the floats `number`; for equal ones, in the reverse of `order`.

    NaN counts as inf. order: int32, not negative.
    """
    number = tl.where(number != number, float("inf"), number) + 0.0  # turns -0.0 to 0.0
    bits = number.to(tl.int32, bitcast=True)
    # The bits of a float sort as a signed integer if all but the sign of a negative number are inverted.
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ascending.to(tl.int64) << 32) | (0x7FFFFFFF - order).to(tl.int64)


@triton.jit
def log_probabilities(
    values, tokens, largest, total, slot, BEAMS: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr,
    BEAMS_UP: tl.constexpr, LANES_UP: tl.constexpr, BLOCKS_UP: tl.constexpr,
):  # fmt: skip
    """Load the candidates of a slot; return log-probabilities, token ids and which exist, (beams, lanes).

    The last two results are m and log s of each beam, where m + log s is the log-sum-exp of its logits.
    """
    beam = tl.arange(0, BEAMS_UP)[:, None]
    lane = tl.arange(0, LANES_UP)[None, :]
    block = tl.arange(0, BLOCKS_UP)[None, :]
    row = slot * BEAMS + beam
    known = (beam < BEAMS) & (block < BLOCKS)
    top = tl.load(largest + row * BLOCKS + block, mask=known, other=-float("inf"))
    part = tl.load(total + row * BLOCKS + block, mask=known, other=0.0)
    highest = tl.max(top, 1)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    sum = tl.sum(part * tl.exp(top - highest[:, None]), 1)
    log = tl.log(tl.where(tl.arange(0, BEAMS_UP) < BEAMS, sum, 1.0))
    inside = (beam < BEAMS) & (lane < LANES)
    value = tl.load(values + row * LANES + lane, mask=inside, other=-float("inf"))
    token = tl.load(tokens + row * LANES + lane, mask=inside, other=0)
    return (value - highest[:, None]) - log[:, None], token, inside, highest, log


@triton.jit
def add_to_pool(
    pool_ranking, pool_steps, pool_beams, pool_scores, slot, new_C, steps, beam_C, score_C, earlier,
    BEST: tl.constexpr, BEST_UP: tl.constexpr,
):  # fmt: skip
    """Add hypotheses to the pool of a slot, if their ranking is high enough; return its lowest ranking.

    new_C, beam_C, score_C: rankings (-inf if there is no hypothesis), beams and log-probabilities of EOS.
    steps: the number of tokens before EOS.
    earlier: (C, C), whether the second index is lower than the first.

    For equal rankings, the older hypothesis comes first.
    """
    rank = tl.arange(0, BEST_UP)
    pool = slot * BEST + rank
    old = tl.load(pool_ranking + pool, mask=rank < BEST, other=-float("inf"))
    old_steps = tl.load(pool_steps + pool, mask=rank < BEST, other=0)
    old_beams = tl.load(pool_beams + pool, mask=rank < BEST, other=0)
    old_scores = tl.load(pool_scores + pool, mask=rank < BEST, other=0.0)
    rank_old = rank + tl.sum((new_C[None, :] > old[:, None]).to(tl.int32), 1)
    rank_new = tl.sum(((old[None, :] >= new_C[:, None]) & (rank < BEST)[None, :]).to(tl.int32), 1)
    ahead = (new_C[None, :] > new_C[:, None]) | ((new_C[None, :] == new_C[:, None]) & earlier)
    rank_new += tl.sum(ahead.to(tl.int32), 1)
    stays, enters = (rank < BEST) & (rank_old < BEST), rank_new < BEST
    tl.debug_barrier()  # all threads have read the old pool
    to_old, to_new = slot * BEST + rank_old, slot * BEST + rank_new
    tl.store(pool_ranking + to_old, old, mask=stays)
    tl.store(pool_steps + to_old, old_steps, mask=stays)
    tl.store(pool_beams + to_old, old_beams, mask=stays)
    tl.store(pool_scores + to_old, old_scores, mask=stays)
    tl.store(pool_ranking + to_new, new_C, mask=enters)
    tl.store(pool_steps + to_new, steps + 0 * rank_new, mask=enters)
    tl.store(pool_beams + to_new, beam_C.to(tl.int64), mask=enters)
    tl.store(pool_scores + to_new, score_C, mask=enters)
    lowest = tl.max(tl.where(stays & (rank_old == BEST - 1), old, -float("inf")))
    entered = tl.max(tl.where(enters & (rank_new == BEST - 1), new_C, -float("inf")))
    return tl.where(entered > lowest, entered, lowest)


@triton.jit
def beam_step_kernel(
    logits, values, tokens, largest, total, sums, count, limits, done, last, parents, tree, links,
    token_scores, pool_ranking, pool_steps, pool_beams, pool_scores, divisors, vocabulary, length, end,
    BEAMS: tl.constexpr, BEST: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr,
    BEAMS_UP: tl.constexpr, BEST_UP: tl.constexpr, LANES_UP: tl.constexpr, BLOCKS_UP: tl.constexpr,
    TAKEN_UP: tl.constexpr,
):  # fmt: skip
    """Select the next beams of one slot, and add hypotheses that end to its pool.

    logits: reads (slots * BEAMS, vocabulary).
    values, tokens, largest, total: read the tensors of Candidates, (slots * BEAMS, ...).
    tree: BeamSlots.tokens. The other names up to `divisors` are those of BeamSlots, read and written.
    vocabulary, length, end: the vocabulary size, the number of positions of `tree`, and the id of EOS.
    BEAMS, BEST: the beam size and the size of the pool.
    LANES, BLOCKS: the number of candidates and of blocks of the vocabulary for each beam.
    ..._UP: the same, rounded up to powers of two; TAKEN_UP for 2 * BEAMS.
    """
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(done + slot) != 0:
        return
    score, token, inside, highest, log = log_probabilities(
        values, tokens, largest, total, slot, BEAMS, LANES, BLOCKS, BEAMS_UP, LANES_UP, BLOCKS_UP
    )
    beam = tl.arange(0, BEAMS_UP)
    before = tl.load(sums + slot * BEAMS + beam, mask=beam < BEAMS, other=-float("inf"))
    key = sortable(before[:, None] + score, token + vocabulary * beam[:, None])
    nothing: tl.constexpr = -0x8000000000000000
    key = tl.where(inside, key, nothing)

    # The 2 BEAMS most probable continuations, one after the other.
    index = tl.arange(0, TAKEN_UP)
    key_C = tl.full([TAKEN_UP], nothing, tl.int64)
    for number in tl.static_range(2 * BEAMS):
        best = tl.max(key)
        key_C = tl.where(index == number, best, key_C)
        key = tl.where(key == best, nothing, key)
    exists = key_C != nothing
    order_C = tl.where(exists, 0x7FFFFFFF - (key_C & 0x7FFFFFFF), 0).to(tl.int32)
    beam_C = order_C // vocabulary
    token_C = order_C - beam_C * vocabulary
    ascending = (key_C >> 32).to(tl.int32)
    sum_C = (ascending ^ ((ascending >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    sum_C = tl.where(exists, sum_C, -float("inf"))
    own = beam_C[:, None] == beam[None, :]
    highest_C = tl.sum(tl.where(own, highest[None, :], 0.0), 1)
    log_C = tl.sum(tl.where(own, log[None, :], 0.0), 1)
    logit_C = tl.load(logits + (slot * BEAMS + beam_C) * vocabulary + token_C).to(tl.float32)
    score_C = tl.where(sum_C == -float("inf"), -float("inf"), (logit_C - highest_C) - log_C)

    # The first BEAMS continuations without EOS are the next beams.
    ends_C = (token_C == end) & exists
    used_C = index < 2 * BEAMS
    earlier = index[None, :] < index[:, None]
    place_C = tl.sum((earlier & ((token_C != end) | ~exists)[None, :]).to(tl.int32), 1)
    next_C = used_C & ~ends_C & (place_C < BEAMS)
    steps = tl.load(count + slot)
    at = (slot * length + steps) * BEAMS + place_C
    now = slot * BEAMS + place_C
    tl.store(tree + at, token_C.to(tl.int64), mask=next_C)
    tl.store(links + at, beam_C.to(tl.int64), mask=next_C)
    tl.store(token_scores + at, score_C, mask=next_C)
    tl.store(last + now, token_C.to(tl.int64), mask=next_C)
    tl.store(parents + now, beam_C.to(tl.int64), mask=next_C)
    tl.debug_barrier()  # all threads have read the old sums
    tl.store(sums + now, sum_C, mask=next_C)

    new_C = tl.where(ends_C & (index < BEAMS), tl.div_rn(sum_C, tl.load(divisors + steps + 1)), -float("inf"))
    lowest = add_to_pool(
        pool_ranking, pool_steps, pool_beams, pool_scores, slot, new_C, steps, beam_C, score_C, earlier,
        BEST, BEST_UP,
    )  # fmt: skip

    # Stop if no continuation can have a ranking that is high enough for the pool.
    highest = tl.max(tl.where(next_C, sum_C, -float("inf")))
    limit = tl.load(limits + slot)
    later, final = tl.load(divisors + steps + 2), tl.load(divisors + limit)
    complete = lowest >= tl.div_rn(highest, tl.where(later > final, later, final))
    tl.debug_barrier()  # all threads have read the old number of steps
    tl.store(count + slot, steps + 1)
    tl.store(done + slot, (complete | (steps + 1 >= limit)).to(tl.uint8))


@triton.jit
def greedy_step_kernel(
    values, tokens, largest, total, count, limits, done, last, tree, token_scores, length, end,
    BLOCKS: tl.constexpr, BLOCKS_UP: tl.constexpr,
):  # fmt: skip
    """Select the next token of one slot. The arguments are those of beam_step_kernel, with one candidate for
    each block of the vocabulary."""
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(done + slot) != 0:
        return
    score, token, inside, _, _ = log_probabilities(
        values, tokens, largest, total, slot, 1, BLOCKS, BLOCKS, 1, BLOCKS_UP, BLOCKS_UP
    )
    key = tl.where(inside, sortable(score, token), -0x8000000000000000)
    best = tl.max(key)
    chosen = (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int64)
    steps, limit = tl.load(count + slot), tl.load(limits + slot)
    at = slot * length + steps
    tl.store(tree + at, chosen)
    tl.store(token_scores + at, tl.sum(tl.where(key == best, score, 0.0)))
    tl.store(last + slot, chosen)
    tl.debug_barrier()  # all threads have read the old number of steps
    tl.store(count + slot, steps + 1)
    tl.store(done + slot, ((chosen == end) | (steps + 1 >= limit)).to(tl.uint8))


def beam_step(logits: Tensor, found: Candidates, slots: Any, end: int) -> bool:
    """Select the next beams of every slot that is not done, and update the tensors of `slots`, a BeamSlots.

    logits: (B, K, V), contiguous.
    found: the 2K best candidates of each block of the vocabulary, with a row for each beam.

    Return False and do nothing if there are too many candidates for the kernel.
    """
    beams, best = slots.how.size, slots.how.best
    blocks, lanes = found.largest.shape[1], found.values.shape[1] * found.values.shape[2]
    up = triton.next_power_of_2
    every = up(beams) * up(lanes)
    if every > MOST_LANES or best > MOST_BEST:
        return False
    beam_step_kernel[(slots.slots,)](
        logits, *found, slots.sums, slots.count, slots.limits, slots.done.view(torch.uint8), slots.last,
        slots.parents, slots.tokens, slots.links, slots.token_scores, slots.pool_ranking, slots.pool_steps,
        slots.pool_beams, slots.pool_scores, slots.divisors, logits.shape[-1], slots.tokens.shape[1], end,
        BEAMS=beams, BEST=best, LANES=lanes, BLOCKS=blocks, BEAMS_UP=up(beams), BEST_UP=up(best),
        LANES_UP=up(lanes), BLOCKS_UP=up(blocks), TAKEN_UP=up(2 * beams),
        num_warps=max(1, every // LANES_PER_WARP),
    )  # fmt: skip
    return True


def greedy_step(found: Candidates, slots: Any, end: int) -> None:
    """Select the next token of every slot that is not done, and update the tensors of `slots`, a GreedySlots.

    found: the best candidate of each block of the vocabulary, with a row for each slot.
    """
    blocks = found.largest.shape[1]
    greedy_step_kernel[(slots.slots,)](
        *found, slots.count, slots.limits, slots.done.view(torch.uint8), slots.last, slots.tokens,
        slots.token_scores, slots.tokens.shape[1], end,
        BLOCKS=blocks, BLOCKS_UP=triton.next_power_of_2(blocks), num_warps=1,
    )  # fmt: skip
