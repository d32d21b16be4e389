"""The command python -m benchmarks: options, and the files that it writes."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks.cases import Case, Gate, Peer
from tests.facts import mentions


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> dict:
    def make(name: str) -> Case:
        peers = (
            Peer("eager", lambda: {"forward": lambda: 1}),
            Peer("regard", lambda: {"forward": lambda: 1}),
        )
        return Case(f"The {name} case", peers, lambda peer: Gate(0.5, 0.5))

    cases = {name: lambda name=name: make(name) for name in ("first", "second")}
    monkeypatch.setitem(command.SUITES, "cpu", cases)
    monkeypatch.setattr(command.Processor, "peak", lambda self, run, case, number: 1.0)
    return cases


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    words = ["benchmarks", "--suite", "cpu", "--seconds", "0.001", *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", words)
    return command.main()


def test_record_and_tables_are_written(suite, monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--into", tmp_path) == 0
    (record,), (text,) = tmp_path.glob("*-cpu.json"), tmp_path.glob("*-cpu.md")
    assert list(json.loads(record.read_text())["cases"]) == ["first", "second"]
    assert "## first" in text.read_text() and mentions(
        capsys.readouterr().out, "first", "float32", "eager", "forward"
    )


def test_named_cases_are_merged_into_todays_record(suite, monkeypatch, tmp_path):
    run(monkeypatch, "--into", tmp_path)
    (record,) = tmp_path.glob("*-cpu.json")
    found = json.loads(record.read_text())
    found["cases"]["first"]["about"], found["cases"]["second"]["about"] = "kept", "measured anew"
    record.write_text(json.dumps(found))
    run(monkeypatch, "second", "--into", tmp_path)
    after = json.loads(record.read_text())["cases"]
    assert [after[name]["about"] for name in after] == ["kept", "The second case"]


def test_record_of_another_machine_is_an_error(suite, monkeypatch, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"environment": {"processor": "another"}, "cases": {}}))
    with pytest.raises(SystemExit, match="machine"):
        command.todays_record(path, {"processor": "this"})
    assert command.todays_record(path, {"processor": "another"}) is not None


def test_no_write_writes_nothing(suite, monkeypatch, tmp_path):
    assert run(monkeypatch, "--into", tmp_path, "--no-write") == 0
    assert list(tmp_path.iterdir()) == []


def test_unknown_case_lists_the_known_cases(suite, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "third")
    error = capsys.readouterr().err.splitlines()[-1]
    assert "'third'" in error and mentions(error, "first", "second")


@pytest.mark.parametrize(
    ("options", "value"),
    [(["--limit", "-3"], "-3"), (["--seconds", "nan"], "nan"), (["--into", __file__], "File exists")],
)
def test_wrong_options_are_errors_before_measuring(suite, options, value, monkeypatch, capsys):
    monkeypatch.setattr(command, "Run", None)
    with pytest.raises(SystemExit):
        run(monkeypatch, *options)
    error = capsys.readouterr().err.splitlines()[-1]
    assert value in error and options[-1] in error
