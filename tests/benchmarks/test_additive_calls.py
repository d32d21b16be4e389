"""benchmarks/additive_calls.py: its tables, and shapes from 1 to 8192."""

from __future__ import annotations

from benchmarks.additive_calls import BACKWARD_NAMES, SHAPES, Row, backward_table, scale_table, table
from tests.facts import mentions


def test_shapes_cover_every_size():
    assert len(set(SHAPES)) == 19
    for name in ("queries", "keys", "width"):
        sizes = [getattr(shape, name) for shape in SHAPES]
        assert min(sizes) == 1 and max(sizes) == 8192


def test_tables_show_losses_and_what_is_missing():
    rows = [
        Row("B=1", "regard", "forward", 300.0, 50.0, 200.0),
        Row("B=1", "eager", "forward", 400.0, 60.0, 390.0),
        Row("B=1", "torch.compile", "forward", 200.0, 55.0, 190.0),
        Row("B=1", "eager", "both", missing="OutOfMemoryError: too large"),
    ]
    text = table(rows)
    assert (
        "| B=1 | forward | 0.300 | 0.400 | 0.200 | 0.050 | 0.060 | 0.055 | 0.200 | 0.390 | 0.190 | 1.50 |"
        in text
    )
    assert mentions(text, "B=1", "eager", "both", "OutOfMemoryError")
    scales = [Row("B=1", "1", "both", device=100.0), Row("B=1", "8", "both", device=115.0)]
    assert "| B=1 | both | 8 | 0.115 | 1.15 |" in scale_table(scales)


def test_the_table_of_the_backward_pass_shows_which_part_is_that_of_autograd():
    times = (96.0, 200.0, 51.0, 60.0)
    rows = [Row("B=1", name, "backward", host=time) for name, time in zip(BACKWARD_NAMES, times, strict=True)]
    assert "| B=1 | 96 | 200 | 51 | 60 | 45 | 0.48 |" in backward_table(rows)
