"""The benchmark of packing: its batches and its table."""

from __future__ import annotations

import pytest

from benchmarks.packing import CASES, Case, table


@pytest.mark.parametrize("name", CASES)
def test_both_batches_have_about_as_many_tokens(name: str):
    case = CASES[name]
    padded, full = case.batch(0, padded=True), case.batch(0, padded=False)
    assert padded.target.shape == (case.rows, case.length + 1)
    assert int(full.target_lengths.min()) == case.length  # no padding
    tokens = [int(batch.target_lengths.sum()) for batch in (padded, full)]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.03)


def test_table_has_the_gain_per_token():
    row = {
        "case": vars(Case("small", 10, 10, 10, 0.2)),
        "padded": {"milliseconds": 1.1, "tokens": 80.0},
        "without padding": {"milliseconds": 1.0, "tokens": 80.0},
    }
    text = table({"rows": {"small, 10 x 10": row}, "environment": {"gpu": "none"}})
    assert "| small, 10 x 10 | 20.0% | 1.100 | 1.000 | 10.0% |" in text
