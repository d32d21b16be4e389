"""benchmarks/mask_kernels.py: its table, and the backends that it names."""

from __future__ import annotations

from benchmarks.mask_kernels import NAMES, Row, table
from regard.backends import BACKENDS
from tests.facts import mentions


def test_the_table_shows_times_and_what_is_missing():
    rows = [
        Row("1,2,3,4", "padding", "F.sdpa", 20.4, 60.6),
        Row("1,2,3,4", "padding", "masked", 10.0, 40.0),
        Row("1,2,3,4", "padding", "flex", missing="RuntimeError: no"),
    ]
    text = table(rows)
    cells = {"F.sdpa": "20 / 61", "masked": "10 / 40"}
    assert f"| 1,2,3,4 | padding | {' | '.join(cells.get(name, '') for name in NAMES)} |" in text
    assert mentions(text, "1,2,3,4", "padding", "flex", "RuntimeError")


def test_all_names_but_that_of_torch_are_backends():
    assert set(NAMES) - {"F.sdpa"} <= set(BACKENDS)
