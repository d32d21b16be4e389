"""The first attention learns Korean, and shows where it looked; the fixed vector fails where it is long."""

from __future__ import annotations

import statistics

import pytest
import torch

from benchmarks.korean import measured, training_data
from tests.conftest import seed


@pytest.mark.slow
def test_bahdanau_translates_and_aligns_in_90_seconds():
    """Two cores, the median of five seeds."""
    training_data()
    torch.set_num_threads(2)
    found = [measured(90, "bahdanau", seed() + each) for each in range(5)]
    assert statistics.median(each.bleu for each in found) >= 95
    assert statistics.median(each.error_rate for each in found) <= 15


@pytest.mark.slow
def test_the_fixed_vector_falls_where_sentences_are_long():
    attentive, fixed = (measured(60, name, seed()) for name in ("bahdanau", "seq2seq"))
    assert fixed.bleu_long < fixed.bleu / 4
    assert attentive.bleu_long > 2 * fixed.bleu_long
