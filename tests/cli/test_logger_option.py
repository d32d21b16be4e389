"""regard train --logger: a function of the user is called for every event, and is not stored in the run."""

from __future__ import annotations

from pathlib import Path


def test_the_command_calls_a_logger_of_the_current_folder(command, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "from pathlib import Path\n\ndef log(event, values):\n    Path(event).touch()\n"
    (tmp_path / "own_log.py").write_text(source, encoding="utf-8")
    (tmp_path / "a.tsv").write_text(
        "".join(f"good\ta good film {n}\nbad\ta bad film {n}\n" for n in range(20)), encoding="utf-8"
    )
    arguments = ("--task", "classification", "--train-file", tmp_path / "a.tsv", "--steps", 2, "--width", 8)
    more = ("--set", "evaluation.samples=0", "--threads", 1, "--device", "cpu")
    result = command("train", *arguments, *more, "--output", tmp_path / "run", "--logger", "own_log:log")
    assert result.status == 0
    assert all((tmp_path / event).is_file() for event in ("start", "evaluation", "checkpoint", "end"))
    assert "own_log" not in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
