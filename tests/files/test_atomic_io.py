"""Failures at every system call that writes (errors, partial writes, SIGKILL) leave a complete checkpoint."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import DataError
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import mentions
from tests.reading import PACKAGE, ROOT
from tests.training.test_checkpoints import content, identify, names

CALLS = ("mkdir", "open", "write", "fsync", "close", "rename", "replace", "unlink", "rmdir")
"""The functions of os with which save() and mark_best() write."""

REAL = {name: getattr(os, name) for name in CALLS}
REAL["fsync"] = lambda handle: None  # slow, and without effect unless the power fails

ACTIONS: dict[str, Callable[[Checkpoints], object]] = {
    "first save": lambda checkpoints: checkpoints.save(100, *content(100)),
    "next save": lambda checkpoints: checkpoints.save(300, *content(300)),
    "save again": lambda checkpoints: checkpoints.save(200, *content(200, 1)),
    "mark best": lambda checkpoints: checkpoints.mark_best(200),
}

FAILURES = {
    "error": "the call has no effect and raises OSError",
    "late error": "the call has its effect and raises OSError",
    "every later error": "this call and all later ones raise OSError",
    "interrupt": "the call has no effect and raises KeyboardInterrupt",
}
"""How a call can fail; "killed" needs a process of its own."""

LATEST = {
    "first save": {None, (100, 0)},
    "next save": {(200, 0), (300, 0)},
    "save again": {(200, 0), (200, 1)},
    "mark best": {(200, 0)},
}
"""The possible latest checkpoints after each action, wherever it failed; None: no checkpoint."""


class FailingCalls:
    """Replaces the functions of os, records the calls, and makes call number `at` fail: see FAILURES."""

    def __init__(self, at: int | None = None, failure: str = "error"):
        self.at, self.failure = at, failure
        self.names: list[str] = []

    def __enter__(self) -> FailingCalls:
        for name in CALLS:
            setattr(os, name, functools.partial(self.call, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name in CALLS:
            setattr(os, name, REAL[name])

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "open" and _reads(*arguments):
            return REAL[name](*arguments, **options)
        number = len(self.names)
        self.names.append(name)
        if self.at is None or number < self.at or (number > self.at and self.failure != "every later error"):
            return REAL[name](*arguments, **options)
        if name == "write":
            REAL["write"](arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif name == "close" or self.failure == "late error":
            REAL[name](*arguments, **options)
        if self.failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.failure == "interrupt":
            raise KeyboardInterrupt
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reads(path: Any, flags: int, *_: object) -> bool:
    """Whether this call opens a file for reading; a folder is opened to flush it."""
    return not flags & (os.O_WRONLY | os.O_RDWR) and not os.path.isdir(path)


def prepared(folder: Path, action: str) -> Path:
    """Return a run folder with checkpoints 100 (the best), 150 and 200; without any for the first save."""
    if action != "first save":
        checkpoints = Checkpoints(folder)
        for step in (100, 150, 200):
            checkpoints.save(step, *content(step))
            if step == 100:
                checkpoints.mark_best(step)
    return folder


def copies(folder: Path, action: str) -> Iterator[tuple[int, Path]]:
    """Yield 0, 1, 2, ..., each with a prepared run folder of its own."""
    pattern = prepared(folder / "pattern", action)
    for number in range(1000):
        run = folder / str(number)
        if pattern.exists():
            shutil.copytree(pattern, run)
        yield number, run


def assert_usable(run: Path, action: str) -> None:
    """Assert that the latest checkpoint is complete, that none was skipped, and that another can be saved."""
    checkpoints = Checkpoints(run)
    latest = checkpoints.latest()
    assert (None if latest is None else identify(latest)) in LATEST[action]
    best = checkpoints.best()
    if action == "first save":
        assert best is None
        # Killed between the rename of the first checkpoint and the pointer: the checkpoint is found.
        assert [note for note in checkpoints.notes if "latest is missing" not in note] == []
    else:
        assert identify(best) == (100, 0) or (action, identify(best)) == ("mark best", (200, 0))
        assert checkpoints.notes == []
    checkpoints.save(400, *content(400))
    assert identify(Checkpoints(run).latest()) == (400, 0)
    known = {"best", "latest", *(f"step-{step:06d}" for step in (100, 150, 200, 300, 400))}
    assert set(names(run)) <= known


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("failure", FAILURES)
def test_latest_checkpoint_is_complete_whichever_call_fails(failure: str, action: str, tmp_path: Path):
    raised, failed = 0, set()
    for number, run in copies(tmp_path, action):
        checkpoints = Checkpoints(run)
        with FailingCalls(number, failure) as calls:
            try:
                ACTIONS[action](checkpoints)
            except (DataError, KeyboardInterrupt) as error:
                raised += 1
                if failure != "interrupt":
                    assert str(error).startswith(f"{run}: ") and os.strerror(errno.ENOSPC) in str(error)
                    assert mentions(error, "hint", "space")
            else:  # once the pointer is written, only cleaning up can fail, which leaves a note
                assert checkpoints.notes or number >= len(calls.names)
        if number >= len(calls.names):
            break
        failed.add(calls.names[number])
        left = list(run.glob(".*"))
        if left and failure not in ("every later error", "interrupt"):
            assert str(left[0]) in checkpoints.notes[0]
        assert_usable(run, action)
    assert 8 <= raised <= number and failed >= {"open", "write", "fsync", "close", "replace"}
    assert action == "mark best" or (raised > 30 and failed >= {"mkdir", "rename"})


def kill_at_every_call(folder: Path) -> None:
    """Run each action in processes that are killed at the first call, at the second, and so on."""
    for action in ACTIONS:
        for number, run in copies(folder / action, action):
            child = os.fork()
            if not child:
                with FailingCalls(number, "killed"):
                    ACTIONS[action](Checkpoints(run))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert_usable(run, action)
            if not os.WIFSIGNALED(status):
                print(json.dumps([action, number, os.waitstatus_to_exitcode(status)]))
                break
            assert os.WTERMSIG(status) == signal.SIGKILL


def test_latest_checkpoint_is_complete_wherever_the_process_is_killed(tmp_path: Path):
    code = (
        "import pathlib, sys, torch; from tests.files.test_atomic_io import kill_at_every_call;"
        "torch.set_num_threads(1); kill_at_every_call(pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT)])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    ends = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(action, code) for action, _, code in ends] == [(action, 0) for action in ACTIONS]
    assert all(kills >= (8 if action == "mark best" else 35) for action, kills, _ in ends)


def test_files_are_flushed_before_the_names_that_lead_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A power failure can undo what was not flushed, so the order of calls matters."""
    run = prepared(tmp_path / "run", "next save")
    events: list[str] = []
    opened: dict[int, str] = {}

    def plain(path: object) -> str:
        return re.sub(r"\.[0-9a-f]{8}\.", ".#.", Path(os.fsdecode(path)).name)  # type: ignore[arg-type]

    def follow(name: str, *arguments: Any, **options: Any) -> Any:
        result = REAL[name](*arguments, **options)
        if name == "open":
            opened[result] = plain(arguments[0])
        elif name == "fsync":
            events.append(f"flush {opened[arguments[0]]}")
        elif name in ("rename", "replace"):
            events.append(f"{plain(arguments[0])} -> {plain(arguments[1])}")
        elif name in ("unlink", "rmdir"):
            events.append(f"delete {plain(arguments[0])}")
        return result

    for name in CALLS:
        monkeypatch.setattr(os, name, functools.partial(follow, name))
    Checkpoints(run).save(300, *content(300))
    assert events[:10] == [
        "flush weights.safetensors",
        "flush optimizer.safetensors",
        "flush state.json",
        "flush manifest.json",
        "flush .step-000300.#.part",
        ".step-000300.#.part -> step-000300",
        "flush run",
        "flush .latest.#.part",
        ".latest.#.part -> latest",
        "flush run",
    ]
    assert events[10] == "step-000150 -> .step-000150.#.part"
    assert len(events) == 16 and all(event.startswith("delete ") for event in events[11:])


def test_reading_a_run_folder_writes_nothing(tmp_path: Path):
    run = prepared(tmp_path / "run", "next save")
    (run / ".step-000300.0a1b2c3d.part").mkdir()
    os.rename(run / "step-000200", run / ".step-000200.0a1b2c3d.earlier")  # killed while it was replaced
    os.truncate(run / "step-000100" / "state.json", 3)
    before = names(run)
    with FailingCalls() as calls:
        checkpoints = Checkpoints(run)
        assert identify(checkpoints.latest()) == (200, 0) and identify(checkpoints.best()) == (200, 0)
        assert [each.step for each in checkpoints.all()] == [100, 150, 200]
    assert calls.names == [] and names(run) == before


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "4 MB"),
        (errno.EROFS, "disk"),
        (errno.EACCES, "folder"),
        (errno.EIO, "another disk"),
    ],
)
def test_error_has_the_reason_and_a_hint(
    code: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepared(tmp_path / "run", "next save")

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", fail)
        with pytest.raises(DataError) as caught:
            Checkpoints(run).save(300, {"weights": {"a": torch.zeros(1_000_000)}}, {})
    problem, advice = str(caught.value).split("\nhint: ")
    assert problem.startswith(f"{run}: ") and "step 300" in problem and problem.endswith(os.strerror(code))
    assert hint in advice and mentions(advice, "step-000200", "latest")
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == code
    assert_usable(run, "next save")


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "write", lambda handle, block: REAL["write"](handle, block[:7]))
    checkpoint = Checkpoints(tmp_path).save(100, *content(100))
    checkpoint.verify()
    assert identify(checkpoint) == (100, 0)


def test_write_error_of_the_operating_system(tmp_path: Path):
    """The error comes from the operating system, which limits the size of files here."""
    run = prepared(tmp_path / "run", "next save")
    code = (
        "import pathlib, resource, signal, sys, torch;"
        "from regard.training.checkpoints.checkpoints import Checkpoints;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "Checkpoints(pathlib.Path(sys.argv[1])).save(300, {'weights': {'a': torch.zeros(1_000_000)}}, {})"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", code, str(run)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1 and mentions(ran.stderr, "step 300", os.strerror(errno.EFBIG))
    assert not list(run.glob(".*"))
    assert_usable(run, "next save")
