"""Statistics of REINFORCE with and without a baseline, from the same samples."""

from __future__ import annotations

import pytest
import torch

from regard.compare.attention_weights import _length_classes, _noise_statistics
from regard.compare.length_bins import SentenceSet
from regard.compare.score_gradients import gradient_statistics, sample_scores
from regard.data.batch import Batch
from regard.models import build_model


def test_samples_without_a_baseline_give_those_with_any_baseline():
    torch.manual_seed(0)
    model = build_model("bahdanau", 9, 9, width=6, select="hard").double()
    batch = Batch.collate([[4, 5, 6]], [[7, 8]])
    plain, helped = sample_scores(model, batch, 8), sample_scores(model, batch, 8, baseline=-5.0)
    found = _noise_statistics(plain, -5.0, sampled=True)
    expected = gradient_statistics(helped.gradients)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    variance = gradient_statistics(plain.gradients)["gradient_variance"]
    assert found["variance_without_baseline"] == pytest.approx(variance)


def test_sentences_within_the_training_length_are_divided_by_length():
    pairs = [("a " * length, "b") for length in (9, 1, 4, 7, 2, 30, 3, 5, 6)]
    classes = _length_classes(SentenceSet(pairs, "made up", longest_trained=8))
    assert [[len(source.split()) for source, _ in own] for own in classes] == [[1], [2], [3], [4]]
    assert len(_length_classes(SentenceSet(pairs[:2], "made up"))) == 2
