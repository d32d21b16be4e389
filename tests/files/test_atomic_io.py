"""Trouble at every call that changes the disk: refusals, half a write, SIGKILL; a checkpoint stays whole."""

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
from tests.reading import PACKAGE, ROOT
from tests.training.test_checkpoints import content, kept, names

CALLS = ("mkdir", "open", "write", "fsync", "close", "rename", "replace", "unlink", "rmdir")
"""All the calls of os that save() and mark_best() change the disk with."""

REAL = {name: getattr(os, name) for name in CALLS}
REAL["fsync"] = lambda handle: None  # slow, and nothing that a test without a loss of power can see

DEEDS: dict[str, Callable[[Checkpoints], object]] = {
    "the first": lambda checkpoints: checkpoints.save(100, *content(100)),
    "the next": lambda checkpoints: checkpoints.save(300, *content(300)),
    "again": lambda checkpoints: checkpoints.save(200, *content(200, 1)),
    "the best": lambda checkpoints: checkpoints.mark_best(200),
}

WAYS = {
    "refused": "the call fails",
    "late": "the call is done, and fails",
    "dead": "the call fails, and so does every one after it",
    "interrupted": "the call is not done, for someone pressed Ctrl-C",
}
"""What may become of a call; and "killed", for which a process is needed."""

LEFT = {
    "the first": {None, (100, 0)},
    "the next": {(200, 0), (300, 0)},
    "again": {(200, 0), (200, 1)},
    "the best": {(200, 0)},
}
"""What may be the latest after each deed, whatever happened to it; None: no checkpoint."""


class Trouble:
    """Stands before the calls, counts them, and makes trouble at one: see WAYS."""

    def __init__(self, at: int | None = None, way: str = "refused"):
        self.at, self.way = at, way
        self.made: list[str] = []

    def __enter__(self) -> Trouble:
        for name in CALLS:
            setattr(os, name, functools.partial(self.call, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name in CALLS:
            setattr(os, name, REAL[name])

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "open" and _reads(*arguments):
            return REAL[name](*arguments, **options)
        number = len(self.made)
        self.made.append(name)
        if self.at is None or number < self.at or (number > self.at and self.way != "dead"):
            return REAL[name](*arguments, **options)
        if name == "write":
            REAL["write"](arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif name == "close" or self.way == "late":
            REAL[name](*arguments, **options)
        if self.way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "interrupted":
            raise KeyboardInterrupt
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reads(path: Any, flags: int, *_: object) -> bool:
    """Whether this opens a file only to read it; a folder is opened to be flushed."""
    return not flags & (os.O_WRONLY | os.O_RDWR) and not os.path.isdir(path)


def prepared(folder: Path, deed: str) -> Path:
    """A run folder with the checkpoints 100, the best, 150 and 200; or none yet, for the first."""
    if deed != "the first":
        checkpoints = Checkpoints(folder)
        for step in (100, 150, 200):
            checkpoints.save(step, *content(step))
            if step == 100:
                checkpoints.mark_best(step)
    return folder


def copies(folder: Path, deed: str) -> Iterator[tuple[int, Path]]:
    """Numbers without an end, and a prepared run folder for each."""
    pattern = prepared(folder / "pattern", deed)
    for number in range(1000):
        run = folder / str(number)
        if pattern.exists():
            shutil.copytree(pattern, run)
        yield number, run


def sound(run: Path, deed: str) -> None:
    """Something whole is the latest, nothing had to be passed over, and saving goes on."""
    checkpoints = Checkpoints(run)
    latest = checkpoints.latest()
    assert (None if latest is None else kept(latest)) in LEFT[deed]
    best = checkpoints.best()
    if deed == "the first":
        assert best is None
        # Killed after the first checkpoint got its place and before a pointer led to it: it is found.
        assert [note for note in checkpoints.notes if "latest is missing" not in note] == []
    else:
        assert kept(best) == (100, 0) or (deed, kept(best)) == ("the best", (200, 0))
        assert checkpoints.notes == []
    checkpoints.save(400, *content(400))
    assert kept(Checkpoints(run).latest()) == (400, 0)
    known = {"best", "latest", *(f"step-{step:06d}" for step in (100, 150, 200, 300, 400))}
    assert set(names(run)) <= known


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_call_fails_a_whole_checkpoint_is_the_latest(way: str, deed: str, tmp_path: Path):
    raised, failed = 0, set()
    for number, run in copies(tmp_path, deed):
        checkpoints = Checkpoints(run)
        with Trouble(number, way) as trouble:
            try:
                DEEDS[deed](checkpoints)
            except (DataError, KeyboardInterrupt) as error:
                raised += 1
                if way != "interrupted":
                    assert str(error).startswith(f"{run}: ") and "No space left on device" in str(error)
                    assert "hint: free some space" in str(error)
            else:  # after the pointer is there, only tidying up can fail, and then this is said
                assert checkpoints.notes or number >= len(trouble.made)
        if number >= len(trouble.made):
            break
        failed.add(trouble.made[number])
        left = list(run.glob(".*"))
        assert way in ("dead", "interrupted") or not left or str(left[0]) in checkpoints.notes[0]
        sound(run, deed)
    assert 8 <= raised <= number and failed >= {"open", "write", "fsync", "close", "replace"}
    assert deed == "the best" or (raised > 30 and failed >= {"mkdir", "rename"})


def die_everywhere(folder: Path) -> None:
    """Do each deed over and over in processes that are killed at the first call, the second, and so on."""
    for deed in DEEDS:
        for number, run in copies(folder / deed, deed):
            child = os.fork()
            if not child:
                with Trouble(number, "killed"):
                    DEEDS[deed](Checkpoints(run))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            sound(run, deed)
            if not os.WIFSIGNALED(status):
                print(json.dumps([deed, number, os.waitstatus_to_exitcode(status)]))
                break
            assert os.WTERMSIG(status) == signal.SIGKILL


def test_killed_at_whatever_call_a_whole_checkpoint_is_the_latest(tmp_path: Path):
    code = (
        "import pathlib, sys, torch; from tests.files.test_atomic_io import die_everywhere;"
        "torch.set_num_threads(1); die_everywhere(pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT)])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    ends = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(deed, code) for deed, _, code in ends] == [(deed, 0) for deed in DEEDS]
    assert all(kills >= (8 if deed == "the best" else 35) for deed, kills, _ in ends)


def test_everything_is_on_the_disk_before_something_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a loss of power may undo is what was not flushed: the order of calls is the promise."""
    run = prepared(tmp_path / "run", "the next")
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


def test_reading_writes_nothing_so_a_folder_may_be_read_only(tmp_path: Path):
    run = prepared(tmp_path / "run", "the next")
    (run / ".step-000300.0a1b2c3d.part").mkdir()
    os.rename(run / "step-000200", run / ".step-000200.0a1b2c3d.earlier")  # killed while it was replaced
    os.truncate(run / "step-000100" / "state.json", 3)
    before = names(run)
    with Trouble() as trouble:
        checkpoints = Checkpoints(run)
        assert kept(checkpoints.latest()) == (200, 0) and kept(checkpoints.best()) == (200, 0)
        assert [each.step for each in checkpoints.all()] == [100, 150, 200]
    assert trouble.made == [] and names(run) == before


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "4 MB"),
        (errno.EROFS, "disk"),
        (errno.EACCES, "folder"),
        (errno.EIO, "another disk"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(
    code: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = prepared(tmp_path / "run", "the next")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", refuse)
        with pytest.raises(DataError) as caught:
            Checkpoints(run).save(300, {"weights": {"a": torch.zeros(1_000_000)}}, {})
    problem, advice = str(caught.value).split("\nhint: ")
    assert problem.startswith(f"{run}: ") and "step 300" in problem and problem.endswith(os.strerror(code))
    assert hint in advice and "step-000200 is still the latest" in advice
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == code
    sound(run, "the next")


def test_a_disk_that_takes_a_little_at_a_time_gets_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "write", lambda handle, block: REAL["write"](handle, block[:7]))
    made = Checkpoints(tmp_path).save(100, *content(100))
    made.verify()
    assert kept(made) == (100, 0)


def test_a_disk_that_is_full_in_earnest(tmp_path: Path):
    """The system itself refuses here, by a limit on the size of files."""
    run = prepared(tmp_path / "run", "the next")
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
    assert ran.returncode == 1 and "step 300 could not be saved: File too large" in ran.stderr
    assert not list(run.glob(".*"))
    sound(run, "the next")
