"""Command lines of benchmarks: wrong input gives an error message, and no results are overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import (
    call_time,
    decoding,
    decoding_precision,
    decoding_profile,
    generation,
    looking_speed,
    packing,
    precision,
)
from tests.facts import table_rows


@pytest.mark.parametrize(
    ("main", "options", "facts"),
    [
        (call_time.main, ["--device", "cuda"], "CUDA"),
        (decoding.main, ["--device", "cuda"], "CUDA"),
        (looking_speed.main, ["--device", "cuda"], "CUDA"),
        (generation.main, ["--device", "cuda"], "CUDA"),
        (decoding_profile.main, ["transformer-64"], "CUDA"),
        (decoding_precision.main, ["run", "a.txt", "b.txt", "--device", "cuda"], "CUDA"),
        (decoding_precision.main, ["run", "a.txt", "b.txt"], "a.txt"),
        (decoding.main, ["nope"], "nope"),
        (packing.main, [], "CUDA"),
        (precision.main, ["--device", "cuda"], "CUDA"),
        (precision.main, ["--device", "cpu", "--steps", "3"], "--steps"),
    ],
)
def test_wrong_input_is_an_error_message(
    main: Callable[[], object],
    options: list[str],
    facts: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code not in (0, None)
    assert facts in f"{stopped.value.code} {capsys.readouterr().err}"


class Child:
    """Stands for a process of call_time that prints these lines."""

    def __init__(self, lines: list[str]):
        self.stdout, self.returncode = lines, 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def children(lines: list[str]) -> SimpleNamespace:
    return SimpleNamespace(Popen=lambda *_, **__: Child(lines), PIPE=None)


ROW = '[{"name": "plain", "gradients": false, "kind": "wall", "ours": 2, "theirs": 1, "ours_median": 2, '
ROW += '"theirs_median": 1}]'


def test_call_time_writes_only_with_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    written: list[Path] = []
    monkeypatch.setattr(call_time, "write", lambda folder, *_: written.append(folder))
    monkeypatch.setattr(call_time, "subprocess", children([ROW]))
    monkeypatch.setattr(sys, "argv", ["call_time", "--processes", "1"])
    call_time.main()
    assert any(row[:2] == ["plain", "no"] for row in table_rows(capsys.readouterr().out)) and not written
    monkeypatch.setattr(sys, "argv", ["call_time", "--processes", "1", "--output", f"{tmp_path}"])
    call_time.main()
    assert written == [tmp_path]
    monkeypatch.setattr(call_time, "subprocess", children([]))
    monkeypatch.setattr(sys, "argv", ["call_time", "--only", "nope"])
    with pytest.raises(SystemExit):
        call_time.main()
    assert "nope" in capsys.readouterr().err
