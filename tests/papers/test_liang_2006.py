"""Claims of Vogel, Ney and Tillmann (1996) and of Liang, Taskar and Klein (2006), on the built-in corpus."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.aligner import aligner, expectation
from regard.data import korean_english
from regard.evaluation import Links, score_links


@pytest.fixture(scope="module")
def corpus():
    return list(korean_english("train", 400))


def error_rate(corpus):
    aligned = regard.align([(pair.source, pair.target) for pair in corpus])
    gold = [Links(pair.sure, pair.possible) for pair in corpus]
    found = [[link[:2] for link in pair.links("grow-diag-final-and")] for pair in aligned]
    return score_links(found, gold).error_rate


def test_neighbours_follow_neighbours_in_the_hmm():
    # Which of the two equal words is meant? IBM model 1 cannot know, the HMM takes the next one.
    pairs = [("a b c", "x y z"), ("b", "y"), ("a a", "x x"), ("c b a c", "z y x z")] * 5
    first, *_, last = regard.align(pairs)[-4:]
    assert str(first) == "0-0 1-1 2-2" and str(last) == "0-0 1-1 2-2 3-3"


def test_ibm_model_1_does_not_know_which_of_two_equal_words_is_meant(monkeypatch):
    plain = expectation.ibm1_posteriors
    monkeypatch.setattr(expectation, "hmm_posteriors", lambda *batch: plain(*batch[:5]))
    last = regard.align([("a b c", "x y z"), ("b", "y"), ("c b a c", "z y x z")] * 5)[-1]
    assert last.forward[0, 0] == pytest.approx(float(last.forward[0, 3]), abs=1e-3)


def test_agreement_is_better_than_independent_directions(corpus, monkeypatch):
    agreeing = error_rate(corpus)

    def independent(forward, backward):
        return (forward + backward.transpose(1, 2)) / 2

    monkeypatch.setattr(expectation, "agreed", independent)
    assert agreeing < error_rate(corpus)


def test_counts_of_agreement_are_products_of_posteriors(monkeypatch):
    seen = []
    plain = expectation.agreed

    def recorded(forward, backward):
        seen.append((forward, backward, plain(forward, backward)))
        return seen[-1][2]

    monkeypatch.setattr(expectation, "agreed", recorded)
    regard.align([("a b", "x y"), ("a", "x")])
    assert len(seen) >= aligner.IBM_ITERATIONS + aligner.HMM_ITERATIONS + 1
    for forward, backward, counts in seen:
        torch.testing.assert_close(counts, torch.einsum("bts,bst->bts", forward, backward))
