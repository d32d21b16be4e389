"""The first attention learns Korean, and shows where it looked; the fixed vector fails where it is long.

Here for as many steps as 90 seconds on two cores gave when benchmarks/korean.py was last run, since tests
share their cores; the benchmark keeps the time.
"""

from __future__ import annotations

import statistics

import pytest

from benchmarks.korean import measured
from benchmarks.loop import steps
from tests.conftest import seed


@pytest.mark.slow
def test_bahdanau_translates_and_aligns():
    found = [measured(steps(1450), "bahdanau", seed() + each) for each in range(5)]
    assert statistics.median(each.bleu for each in found) >= 95
    assert statistics.median(each.error_rate for each in found) <= 15


@pytest.mark.slow
def test_the_fixed_vector_falls_where_sentences_are_long():
    attentive, fixed = measured(steps(1200), "bahdanau", seed()), measured(steps(1900), "seq2seq", seed())
    assert fixed.bleu_long < fixed.bleu / 4
    assert attentive.bleu_long > 2 * fixed.bleu_long
