"""Failing writes at any moment: the error names a file, nothing is lost, and the same command works again."""

from __future__ import annotations

import builtins
import errno
import hashlib
import importlib
import io
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.data.fetch import SETS, Piece, PublicSet
from regard.errors import RegardError
from tests.cli.conftest import CommandResult, command, trained  # noqa: F401
from tests.reading import PACKAGE, import_path
from tests.training.toys import Toy, bits, trainer

CODES = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO)

LINES = "나는 학교에 간다 .\n그 개가 잔다 .\n"

ROWS = [f"sentence {number}\tSatz {number}" for number in range(40)]

COMMANDS: dict[str, list[str]] = {
    "translate": ["translate", "RUN", "a.ko", "--greedy", "--output", "new.en", "--alignments", "new.links"],
    "translate page": ["translate", "RUN", "a.ko", "--greedy", "--output", "-", "--page", "new.html"],
    "score": ["score", "RUN", "--source", "a.ko", "--target", "a.en", "--output", "new.txt"],
    "align": ["align", "RUN", "--source", "a.ko", "--target", "a.en", "--output", "new.links"],
    "view page": ["view", "RUN", "나는 학교에 간다 .", "--greedy", "--output", "new.html"],
    "view seen": ["view", "RUN", "나는 학교에 간다 .", "--greedy", "--output", "new.seen"],
    "view svg": ["view", "RUN", "나는 학교에 간다 .", "--greedy", "--output", "new.svg"],
    "korean": ["data", "korean", "--pairs", "50", "--output", "new", "--overwrite"],
    "split": ["data", "split", "--tsv", "a.tsv", "--held-out", "5", "--output", "new", "--overwrite"],
    "average": ["average", "RUN", "--last", "2", "--output", "new"],
    "export": ["export", "RUN", "--to", "safetensors", "--check-file", "a.ko", "--output", "new"],
    "evaluate page": [
        *("evaluate", "RUN", "--source", "a.ko", "--target", "a.en", "--greedy", "--page", "new.html")
    ],
    "fetch": ["data", "fetch", "test", "--from", ".", "--output", "new"],
    "demo": ["demo", "--quick", "--output", "new"],
}
"""Every command that writes files, except training. RUN is a trained run; output names begin with "new"."""

FRESH = ("average", "demo", "export")
"""Commands that refuse or continue an output that exists, so that they are not tried with an earlier one."""

TIMED = ("log.jsonl", "state.json", "manifest.json", "demo.html")
"""Files of the demo that contain times or depend on them; only their names are compared."""

PER_COMMAND, TRAININGS = 70, 300
"""Number of failed writes per command, and of training runs with a failed write, in `make test-all`."""


class Faults:
    """Counts the calls that write below a folder, and makes one of them fail."""

    def __init__(self, folder: Path, fail_at: int = 0, code: int = errno.ENOSPC):
        self.folder, self.fail_at, self.code, self.count = str(folder), fail_at, code, 0

    def strike(self, path: Any) -> None:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return
        if os.path.abspath(os.fsdecode(path)).startswith(self.folder):
            self.count += 1
            if self.count == self.fail_at:
                raise OSError(self.code, os.strerror(self.code))

    @contextmanager
    def injected(self) -> Iterator[Faults]:
        def failing(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Any, *arguments: Any, **options: Any) -> Any:
                self.strike(path)
                return real(path, *arguments, **options)

            return call

        def opening(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
                if set(mode) & set("wxa+") and not isinstance(path, int):
                    self.strike(path)
                return real(path, mode, *arguments, **options)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("write", "fsync", "replace", "rename", "mkdir"):
                patch.setattr(os, name, failing(getattr(os, name)))
            patch.setattr(io, "open", opening(io.open))
            patch.setattr(builtins, "open", opening(builtins.open))
            yield self


def prepare(folder: Path, run: Path) -> None:
    """Create a folder with the inputs of the commands."""
    folder.mkdir()
    (folder / "a.ko").write_text(LINES, encoding="utf-8")
    (folder / "a.en").write_text("I go to school .\nThe dog sleeps .\n", encoding="utf-8")
    (folder / "a.tsv").write_text("\n".join(ROWS) + "\n", encoding="utf-8")


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): b"" if path.name in TIMED else path.read_bytes() for path in files}


class Bench:
    """Runs one command, with or without a failing write, and compares the files it leaves."""

    def __init__(self, name: str, folder: Path, run: Path, give: Callable[..., CommandResult]):
        self.arguments = [str(run) if each == "RUN" else each for each in COMMANDS[name]]
        self.name, self.folder, self.run, self.give = name, folder, run, give
        prepare(folder, run)
        self.inputs = content(folder)
        os.chdir(folder)
        with Faults(folder).injected() as counted:
            result = give(*self.arguments)
        assert result.status == 0, result.err
        self.calls, self.whole = counted.count, content(folder)
        assert self.calls and self.whole != self.inputs

    def fail(self, at: int, code: int, *, earlier: bool) -> str:
        """Let one write fail, and return what is wrong afterwards; "" if nothing is."""
        self._reset(earlier)
        before = content(self.folder)
        with Faults(self.folder, at, code).injected():
            result = self.give(*self.arguments)
        after = content(self.folder)
        if result.status == 0:
            return "" if after == self.whole else f"status 0, and other files: {sorted(after)}"
        problems = []
        if "REGARD_TRACEBACK" in result.err or "new" not in result.err or os.strerror(code) not in result.err:
            problems.append(f"error: {result.err}")
        for name, old in before.items():
            if after.get(name) not in (old, self.whole.get(name)):
                problems.append(f"{name} is damaged")
        parts = {f"{name}.part" for name in self.whole}
        left = set(after) - set(before) - set(self.whole) - parts
        problems += [f"{name} is left" for name in left]
        again = self.give(*self.arguments)
        files = {name: old for name, old in content(self.folder).items() if name not in parts}
        if again.status != 0 or files != self.whole:
            problems.append(f"again: {again.status} {again.err}")
        return "; ".join(problems)

    def _reset(self, earlier: bool) -> None:
        """Restore the inputs; if `earlier`, also create output files for the command to replace."""
        os.chdir(self.folder.parent)
        shutil.rmtree(self.folder)
        prepare(self.folder, self.run)
        os.chdir(self.folder)
        if earlier and self.name not in FRESH:
            for name in set(self.whole) - set(self.inputs):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(b"earlier\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder; a public dataset "test", which is the file a.tsv; and a demo of two steps."""
    text = "".join(f"{row}\n" for row in ROWS).encode()
    piece = Piece("b.tsv", "https://example.org/a.tsv", len(text), hashlib.sha256(text).hexdigest())
    dataset = PublicSet("a test", "CC0", "https://example.org", "sets", (piece,), {})
    monkeypatch.setitem(SETS, "test", dataset)
    demo = importlib.import_module("regard.cli.demo")
    monkeypatch.setitem(demo.SETTINGS["data"], "pairs", 60)
    monkeypatch.setitem(demo.SETTINGS["model"], "width", 8)
    monkeypatch.setitem(demo.QUICK, "training", {"steps": 2, "evaluate_every": 2})
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    before = Path.cwd()
    yield tmp_path
    os.chdir(before)


SLOW = ("demo",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in COMMANDS]
)
def test_failed_write_names_its_file_and_loses_nothing(name: str, here: Path, trained, command):  # noqa: F811
    bench, chosen = Bench(name, here / "work", trained, command), random.Random(name)
    for at in {1, bench.calls, chosen.randint(1, bench.calls)}:
        assert bench.fail(at, chosen.choice(CODES), earlier=chosen.random() < 0.5) == "", at


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_failed_write_at_any_moment_loses_nothing(name: str, here: Path, trained, command):  # noqa: F811
    bench, chosen = Bench(name, here / "work", trained, command), random.Random(name)
    for number in range(PER_COMMAND):
        at = 1 + number % bench.calls
        assert bench.fail(at, chosen.choice(CODES), earlier=bool(number % 2)) == "", at


SETTINGS = {"steps": 8, "evaluate_every": 4, "save_every": 2}


def fault_after_resume(folder: Path, at: int, code: int, whole: dict[str, bytes]) -> str:
    """Let one write of a training run fail and resume it; return what is wrong, "" if nothing is."""
    try:
        with Faults(folder, at, code).injected() as faults:
            trainer(folder, Toy(dropout=0.3), log=True, **SETTINGS).run()
    except RegardError as error:
        if not any(word in str(error) for word in (folder.name, "step-", "log.jsonl")):
            return f"error without a file: {error}"
    except OSError as error:
        return f"a bare {error!r}"
    if faults.count < at:
        return ""
    resumed = trainer(folder, Toy(dropout=0.3), log=True, **SETTINGS)
    resumed.resume()
    resumed.run()
    return "" if bits(folder) == whole else "other bits"


def test_run_with_a_failed_write_resumes_with_the_same_bits(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    with Faults(tmp_path).injected() as counted:
        trainer(tmp_path / "whole", Toy(dropout=0.3), log=True, **SETTINGS).run()
    chosen = random.Random(0)
    for at in (1, counted.count // 2, counted.count):
        folder = tmp_path / f"run-{at}"
        folder.mkdir()
        assert fault_after_resume(folder, at, chosen.choice(CODES), bits(tmp_path / "whole")) == "", at


@pytest.mark.slow
def test_run_with_a_failed_write_at_any_moment_resumes_with_the_same_bits(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    with Faults(tmp_path).injected() as counted:
        trainer(tmp_path / "whole", Toy(dropout=0.3), log=True, **SETTINGS).run()
    chosen = random.Random(0)
    for number in range(TRAININGS):
        folder, at = tmp_path / f"run-{number}", 1 + number % counted.count
        folder.mkdir()
        assert fault_after_resume(folder, at, chosen.choice(CODES), bits(tmp_path / "whole")) == "", at
        shutil.rmtree(folder)


def limited(folder: Path, limit: int, *arguments: str, out: str = os.devnull) -> tuple[int, str]:
    """Run a command with a limit on file sizes, in bytes; return its exit status and standard error."""
    environment = {**os.environ, "PYTHONPATH": import_path(PACKAGE.parent)}
    with open(out, "wb") as output:
        ran = subprocess.run(
            [sys.executable, "-m", "regard", *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
    return ran.returncode, ran.stderr


def test_file_size_limit_is_reported_with_the_file(tmp_path: Path):
    status, errors = limited(tmp_path, 4096, "data", "korean", "--pairs", "500", "--output", "new")
    assert status == 2 and "new/train." in errors and os.strerror(errno.EFBIG) in errors
    assert content(tmp_path) == {}


def test_full_disk_at_standard_output_is_reported(tmp_path: Path):
    status, errors = limited(tmp_path, 1 << 20, "data", "sample", out="/dev/full")
    assert status == 1 and "standard output" in errors and os.strerror(errno.ENOSPC) in errors
    assert "Traceback" not in errors and "Exception ignored" not in errors


def test_error_names_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch, command):  # noqa: F811
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    options = ["--built-in", "korean", "--set", "data.pairs=100", "--steps", "1"]
    result = command("train", *options, "--output", tmp_path / "run")
    assert (
        result.status == 2
        and str(tmp_path / "file") in result.err
        and os.strerror(errno.ENOTDIR) in result.err
    )
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    again = command("train", *options, "--set", "model.width=8", "--output", tmp_path / "run")
    assert again.status == 0, again.err
