"""The LSTMN benchmark: its correctness check, its measurements and its table, on the CPU."""

from __future__ import annotations

import torch

from benchmarks import lstmn

TINY = lstmn.Sizes(words=20, embedding=5, width=6, rows=3, window=4)
CPU = torch.device("cpu")


def test_plain_loop_has_the_loss_and_gradients_of_regard():
    errors = lstmn.gate(TINY, CPU, ["lstmn"])
    assert set(errors) == {"lstmn, depth 1", "lstmn, depth 3"} and max(errors.values()) < 1e-5


def test_rows_of_the_table():
    rows = [lstmn.measured(name, 1, TINY, CPU, 0.0) for name in ("lstm", "plain loop", "lstmn")]
    assert all("missing" not in row and row["tokens a second"] > 0 for row in rows)
    rows.append({"way": "lstmn, captured", "depth": 1, "missing": "RuntimeError: no CUDA"})
    lines = lstmn.table(rows).splitlines()
    assert len(lines) == 6 and "| 1.0 |" in lines[3] and "CUDA" in lines[5]
