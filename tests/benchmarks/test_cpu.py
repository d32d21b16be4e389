"""The table of what a user gets on a CPU: which rows are lost, and parts that are measured again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cpu
from benchmarks.cpu import Row, duration


def rows(seconds: float, factor: float = 1.0):
    """Return one row that Regard loses and one that it wins."""
    yield Row("slower", 0.002 * factor, 0.001, "a peer")
    yield Row("faster", 3e-6, 6e-6, "another")


def test_durations_have_the_unit_that_fits():
    assert [duration(each) for each in (2.5, 0.0123, 4.5e-6, 3e-7)] == [
        "2.5 s",
        "12.3 ms",
        "4.5 µs",
        "0.3 µs",
    ]


def test_a_part_replaces_its_rows_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run(*arguments: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["cpu", "--output", str(tmp_path), *arguments])
        assert cpu.main() == 0
        (path,) = tmp_path.glob("*.json")
        return json.loads(path.read_text())["parts"]

    monkeypatch.setattr(cpu, "PARTS", {"first": rows, "second": rows})
    assert list(run()) == ["first", "second"]
    monkeypatch.setitem(cpu.PARTS, "second", lambda seconds: rows(seconds, 5))
    parts = run("--part", "second")
    assert [parts[name]["rows"][0]["ours"] for name in ("first", "second")] == [0.002, 0.01]
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    table = [line for line in text.splitlines() if line.startswith(("| slower", "| faster"))]
    assert ["✗" in line for line in table] == [True, False] * 2
    assert table[2].split(" | ")[1:] == ["10 ms", "1 ms, a peer", "10.00 |"]
    assert capsys.readouterr().out.rstrip().endswith(text.splitlines()[-1])
