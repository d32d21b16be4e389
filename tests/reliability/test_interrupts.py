"""Ctrl-C at any moment: exit status 130, one line, no traceback, no files left."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # noqa: F401 - a module of entry.STARTING

from regard import __main__ as entry
from tests.reading import PACKAGE, import_path

MOMENTS = 60
"""Number of interrupts per command in `make test-all`."""

COMMANDS = {
    "version": ["--version"],
    "tour": ["tour"],
    "train": ["train", "--built-in", "korean", "--output", "run", "--minutes", "1", "--threads", "1"],
}


def interrupted(folder: Path, arguments: list[str], seconds: float) -> tuple[int, str]:
    """Start a command and send SIGINT after this time; return its exit status and standard error."""
    environment = {
        **os.environ,
        "PYTHONPATH": import_path(PACKAGE.parent),
        "REGARD_CACHE": str(folder / "cache"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A job that a shell starts in the background ignores SIGINT, and its child processes do too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, errors


def quiet(name: str, status: int, errors: str) -> bool:
    """Whether a command ended with status 130, no traceback, and a last line about the interrupt.

    A short command may end with status 0 before the interrupt; training takes a minute and may not.
    """
    ours = r'regard/cli|regard/__main__\.py", line \d+, in (?!<module>)|/typer/|/torch/\w+\.py'
    if status in (1, -signal.SIGINT) and not re.search(ours, errors):
        return True  # Python was still starting and had not called main() of regard/__main__.py
    if status not in (0, 130) or "Traceback" in errors or "Exception ignored" in errors:
        return False
    last = errors.strip().splitlines()[-1] if errors.strip() else ""
    if name == "train":
        return status == 130 and ("interrupted" in last or "saved" in last)
    return status == 0 or "interrupted" in last


@pytest.mark.parametrize(
    ("name", "seconds"), [("version", 0.1), ("tour", 0.3), ("tour", 0.8), ("train", 0.2), ("train", 1.2)]
)
def test_early_interrupt_prints_one_line(tmp_path: Path, name: str, seconds: float):
    status, errors = interrupted(tmp_path, COMMANDS[name], seconds)
    assert quiet(name, status, errors), (status, errors)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupt_at_any_moment_prints_one_line(tmp_path: Path, name: str):
    chosen = random.Random(name)
    for number in range(MOMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, errors = interrupted(folder, COMMANDS[name], 0.02 + number / 30 + chosen.random() / 30)
        assert quiet(name, status, errors), (number, status, errors)


LATE = """
import os, signal, sys
from regard.__main__ import main
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
        kill(process, number)
late = Late()  # deleted while Python exits, after it has restored the handlers of the system
sys.argv = ["regard", "--version"]
main()
"""


def test_interrupt_while_python_exits_does_not_kill_the_process():
    ran = subprocess.run(
        [sys.executable, "-c", LATE],
        env={**os.environ, "PYTHONPATH": import_path(PACKAGE.parent)},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("regard")


def frames(*stack: tuple[str, str, str]) -> Any:
    """Return a fake stack from (module, function, file) per frame, innermost first."""
    frame = None
    for module, function, file in reversed(stack):
        code = SimpleNamespace(co_name=function, co_filename=file)
        frame = SimpleNamespace(f_globals={"__name__": module}, f_code=code, f_back=frame)
    return frame


def test_interrupt_of_a_command_prints_at_once(monkeypatch, capfd):
    monkeypatch.setattr(entry, "_announced", [])
    command = ("regard.cli.train", "train", "train.py")
    with pytest.raises(KeyboardInterrupt):
        entry._interrupt(signal.SIGINT, frames(("regard.data", "read", "data.py"), command))
    assert capfd.readouterr().err == "stopping ...\n"


@pytest.mark.parametrize("starting", [False, True])
def test_interrupt_during_imports_exits_at_once(monkeypatch, capfd, starting: bool):
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(entry, "_announced", [])
    monkeypatch.setattr(entry, "RETRY", 1000.0)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys.modules["torch"].__spec__, "_initializing", starting, raising=False)
    importing = ("importlib", "_load", "<frozen importlib._bootstrap>")
    stack = frames(importing, ("regard.cli.train", "train", "train.py"))
    if starting:
        with pytest.raises(SystemExit) as ended:
            entry._interrupt(signal.SIGINT, stack)
        assert ended.value.code == 130
    else:
        entry._interrupt(signal.SIGINT, stack)
    printed = capfd.readouterr().err
    assert printed == ("regard: interrupted\n" if starting else "stopping ...\n")


def test_run_interrupted_before_its_first_step_saves_nothing(tmp_path: Path, monkeypatch, capsys):
    from regard.cli import main
    from regard.tasks.translation import plan

    def strike(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "make_plan", strike)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    options = ["--built-in", "korean", "--set", "data.pairs=200", "--output", str(out), "--steps", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *options])
    assert ended.value.code == 130
    assert "first step" in capsys.readouterr().err
    assert not (out / "config.toml").exists() and not list(out.glob("step-*"))
