"""IBM model 1 and the HMM give the posteriors of an enumeration of all alignments."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.aligner.fertility import fertility_factors
from regard.aligner.hmm import WIDEST, Jumps, hmm_posteriors
from regard.aligner.ibm1 import ibm1_posteriors

NULL = 0.1


def random_batch(sizes, seed=0):
    """Return emission, null, target mask and source mask of pairs with these (target, source) lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows, targets, sources = len(sizes), max(t for t, _ in sizes), max(s for _, s in sizes)
    emission = torch.rand(rows, targets, sources, generator=generator)
    null = torch.rand(rows, targets, generator=generator)
    target_mask = torch.tensor([[t < size for t in range(targets)] for size, _ in sizes])
    source_mask = torch.tensor([[s < size for s in range(sources)] for _, size in sizes])
    return emission, null, target_mask, source_mask, NULL


def random_jumps(seed=1):
    generator = torch.Generator().manual_seed(seed)
    sizes = 2 * WIDEST + 1, WIDEST + 1, WIDEST + 1
    return Jumps(*(torch.rand(size, generator=generator) + 0.05 for size in sizes))


def enumerated(emission_TS, null_T, jumps=None):
    """Sum the probability of every alignment of one pair; return the posteriors, and the expected jumps.

    An alignment has a source position and a bit (null word or not) for each target word. The null word keeps
    the position, as in the HMM; without jumps, each word is independent, as in IBM model 1.
    """
    targets, sources = emission_TS.shape
    posteriors, total = torch.zeros(targets, sources), 0.0
    widths, starts, ends = torch.zeros(2 * WIDEST + 1), torch.zeros(WIDEST + 1), torch.zeros(WIDEST + 1)
    for places in itertools.product(range(sources), repeat=targets):
        for real in itertools.product((True, False), repeat=targets):
            probability, before, moves = 1.0, None, []
            for step, (place, is_real) in enumerate(zip(places, real, strict=True)):
                if jumps is None:
                    move = 1 / sources
                elif before is None:
                    start = jumps.start[:sources]
                    move = float(start[place] / start.sum())
                elif is_real:
                    row = jumps.width[WIDEST - before : WIDEST - before + sources]
                    move = float(row[place] / row.sum())
                    moves.append(place - before)
                else:
                    move = float(place == before)
                word = (1 - NULL) * emission_TS[step, place] if is_real else NULL * null_T[step]
                probability *= move * float(word)
                before = place
            if jumps is not None:
                probability *= float(jumps.end[sources - 1 - before])
            total += probability
            for step, (place, is_real) in enumerate(zip(places, real, strict=True)):
                posteriors[step, place] += probability * is_real
            for move in moves:
                widths[WIDEST + move] += probability
            starts[places[0]] += probability * real[0]
            ends[sources - 1 - places[-1]] += probability
    return posteriors / total, widths / total, starts / total, ends / total


@pytest.mark.parametrize("sizes", [[(3, 2)], [(1, 1)], [(2, 3), (3, 1), (1, 3)]])
def test_ibm1_equals_the_enumeration(sizes):
    batch = random_batch(sizes)
    posteriors = ibm1_posteriors(*batch)
    for row, (targets, sources) in enumerate(sizes):
        expected, *_ = enumerated(batch[0][row, :targets, :sources], batch[1][row, :targets])
        torch.testing.assert_close(posteriors[row, :targets, :sources], expected)
    assert not posteriors[~(batch[2][:, :, None] & batch[3][:, None])].any()


@pytest.mark.parametrize("sizes", [[(3, 3)], [(1, 1)], [(4, 2)], [(2, 3), (3, 1), (1, 3)]])
def test_hmm_equals_the_enumeration(sizes):
    batch, jumps, counts = random_batch(sizes), random_jumps(), Jumps.zeros()
    posteriors = hmm_posteriors(*batch, jumps, counts)
    expected = Jumps.zeros()
    for row, (targets, sources) in enumerate(sizes):
        pair = batch[0][row, :targets, :sources], batch[1][row, :targets]
        probabilities, width, start, end = enumerated(*pair, jumps)
        torch.testing.assert_close(posteriors[row, :targets, :sources], probabilities)
        expected.width += width
        expected.start += start
        expected.end += end
    for name in ("width", "start", "end"):
        torch.testing.assert_close(getattr(counts, name), getattr(expected, name))
    assert not posteriors[~(batch[2][:, :, None] & batch[3][:, None])].any()


def test_padding_does_not_change_a_pair():
    long, short = random_batch([(5, 6), (2, 3)]), random_batch([(2, 3)])
    for function, more in ((ibm1_posteriors, ()), (hmm_posteriors, (random_jumps(),))):
        alone = function(long[0][1:, :2, :3], long[1][1:, :2], short[2], short[3], NULL, *more)
        torch.testing.assert_close(function(*long, *more)[1:, :2, :3], alone)


def test_long_sentences_do_not_underflow():
    emission, null, *masks = random_batch([(400, 300)])
    posteriors = hmm_posteriors(emission * 1e-6, null * 1e-6, *masks, random_jumps())
    assert bool(posteriors.isfinite().all()) and float(posteriors.sum()) > 200


def test_fertility_factors_are_ratios_of_poisson_probabilities():
    posteriors, fertility = random_batch([(3, 2)])[0], torch.tensor([[0.5, 2.0]])
    factors = fertility_factors(posteriors, fertility)
    for target, source in itertools.product(range(3), range(2)):
        others = sum(float(posteriors[0, other, source]) for other in range(3) if other != target)
        expected = float(fertility[0, source]) / (others + 1)
        assert float(factors[0, target, source]) == pytest.approx(expected, rel=1e-5)
