"""Draw single-line mutants of src/regard and run the closest tests for each: python -m tests.mutants.

A mutant survives if no test fails: a user could meet this fault and no test would report it. The draw depends
on the seed and on each line alone: a change of one function leaves the mutants of all others as they are.
Rooms (folders of src/regard) have mutants by their numbers of lines; see tests/mutant_places.py.

The closest tests of a mutant are the quick tests that call the function of the changed line: those first
whose file is named after the module, then those that call the fewest functions, up to --seconds of tests. For
a line outside of functions they are the tests that call a function that names what the line defines. Which
functions each test calls is recorded once per file of tests, in a temporary folder; changed files of tests
are recorded again. Mutants are written to copies of the project in that folder, never to the checkout.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch  # noqa: F401  # processes that run tests are forks of this one, and need not import it again

from tests.mutant_places import Mutant, draw
from tests.reading import ROOT, files, short

__all__ = ["ACCEPTED", "Recorder", "Tests", "main"]

THRESHOLD = 0.9
"""The share of mutants that must be caught; below it, the exit status is 1."""

ACCEPTED: dict[str, str] = {}
"""Why a mutant may survive, by what --list prints of it."""

FAR = (
    "tests/benchmarks", "tests/browser", "tests/docs", "tests/learning", "tests/reliability",
    "tests/agreement/test_compile.py", "tests/agreement/test_flex.py", "tests/kernels/test_interpreted.py",
    "tests/test_contributing.py", "tests/test_house.py", "tests/test_mutants.py", "tests/test_processors.py",
    "tests/test_readme.py",
)  # fmt: skip
"""Tests close to no function: of pages, style, damaged folders, compilers, and in other processes."""

PACKAGE = "src/regard/"
FOLDER = Path(tempfile.gettempdir(), f"mutants-{hashlib.sha256(bytes(ROOT)).hexdigest()[:8]}")
LIMIT = 60.0
"""Seconds that a mutant may take beyond ten times the recorded seconds of its tests; then it is caught."""


@dataclass
class Test:
    """A recorded test: its file, name, seconds, and the functions of the package that it calls."""

    file: str
    name: str
    seconds: float
    functions: frozenset[str]


class Recorder:
    """A plugin of pytest that records which functions of a package each passed test calls."""

    def __init__(self, root: Path):
        self.package = f"{root / PACKAGE}/"
        self.root = f"{root}/"
        self.tests: list[dict[str, Any]] = []
        self._called: set[str] = set()
        self._of_fixture: dict[int, set[str]] = {}
        self._passed = True

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            name = code.co_qualname.partition(".<locals>.<")[0]  # a lambda, a comprehension
            self._called.add(f"{code.co_filename.removeprefix(self.root)} {name}")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """A fixture that several tests share belongs to each of them."""
        outer, self._called = self._called, set()
        try:
            return (yield)
        finally:
            self._of_fixture[id(fixturedef)] = self._called
            self._called = outer | self._called

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, object, object]:
        self._called, self._passed, start = set(), True, time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
            for each in (fixture for of_name in fixtures.values() for fixture in of_name):
                self._called |= self._of_fixture.get(id(each), set())
            file, _, name = item.nodeid.partition("::")
            seconds = round(time.perf_counter() - start, 3)
            if self._passed:
                test = {"file": file, "name": name, "seconds": seconds, "functions": sorted(self._called)}
                self.tests.append(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.passed


class Chosen:
    """A plugin of pytest that runs the tests of a list, in its order, and remembers the first that fails."""

    def __init__(self, names: list[str]):
        self.order = {name: number for number, name in enumerate(names)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (each for each in items if each.nodeid in self.order), key=lambda e: self.order[e.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def interpreted(file: str) -> bool:
    """Whether a file of tests runs under Triton's interpreter, in a process of its own."""
    return Path(file).name.startswith("interpreted")


def in_fork(work: Callable[[], object], root: Path, log: Path, limit: float, **environment: str) -> Any:
    """Return the result of a function in a forked process whose package is that of root; None: over time."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        os.setsid()
        os.chdir(root)
        os.environ.update(environment, PYTHONPATH=str(root / "src"), OMP_NUM_THREADS="1", REGARD_SEED="0")
        os.environ["PYTHONDONTWRITEBYTECODE"] = ""
        sys.dont_write_bytecode = False
        kept = [each for each in sys.path if Path(each or ".").resolve() not in (ROOT, ROOT / "src")]
        sys.path[:] = [str(root / "src"), str(root), *kept]
        for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
            del sys.modules[name]
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sender.send(work())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(limit) else None
    except EOFError:  # the process has ended without a result: the mutant kills Python
        return "", 3
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def run_pytest(files: Iterable[str], plugin: object, *options: str) -> int:
    quick = "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu"
    return int(pytest.main([*quick, *options, *files], plugins=[plugin]))


class Tests:
    """The recorded tests, and which of them are closest to a mutant."""

    def __init__(self, tests: list[Test], sources: dict[str, str]):
        self.tests = tests
        self.naming = functools.cache(functools.partial(functions_naming, sources))

    def closest(self, mutant: Mutant, seconds: float) -> list[Test]:
        """Return the closest tests, those of one file together, up to this many seconds of tests."""
        function = f"{mutant.file} {mutant.function}"
        callers = [each for each in self.tests if function in each.functions]
        if not callers:
            names = self.naming(mutant.function.rpartition(".")[2]) | self.naming(
                mutant.function.partition(".")[0]
            )
            callers = [each for each in self.tests if names & each.functions]
        mirrors = {each.file for each in self.tests if is_mirror(each.file, mutant.file)}
        callers += [each for each in self.tests if each.file in mirrors and each not in callers]
        ranks = {
            id(each): (each.file not in mirrors, function not in each.functions, len(each.functions))
            for each in callers
        }
        of_file: dict[str, tuple[Any, ...]] = {}
        for each in callers:
            of_file[each.file] = min(
                ranks[id(each)], of_file.get(each.file, (True, True, len(of_file) + 10**9))
            )
        chosen, total = [], 0.0
        for each in sorted(callers, key=lambda test: ranks[id(test)]):
            if not chosen or total + each.seconds <= seconds:
                chosen.append(each)
                total += each.seconds
        return sorted(chosen, key=lambda test: (of_file[test.file], test.file, ranks[id(test)]))


def is_mirror(file: str, module: str) -> bool:
    """Whether a file of tests is named after a module, or is the module itself, with its examples."""
    stem = Path(module).parent.name if module.endswith("__init__.py") else Path(module).stem
    return file == module or Path(file).stem == f"test_{stem}"


def functions_naming(sources: dict[str, str], name: str) -> set[str]:
    """Return the functions of the package whose code names this, as a variable, attribute or argument."""
    found = set()
    for file, source in sources.items():
        if name in source:
            for qualified, node in functions(ast.parse(source)):
                fields = ((each, ("id", "attr", "arg")) for each in ast.walk(node))
                if any(getattr(each, field, None) == name for each, of in fields for field in of):
                    found.add(f"{file} {qualified}")
    return found


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every function below a node with its qualified name."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{outer}{each.name}", each
            yield from functions(each, f"{outer}{each.name}.<locals>.")
        else:
            yield from functions(each, f"{outer}{each.name}." if isinstance(each, ast.ClassDef) else outer)


def copied(name: str) -> Path:
    """Make the copy of the project of this name equal to the checkout; unchanged files keep bytecode."""
    root = FOLDER / name
    wanted = {short(path): path for path in files()}
    for path in [each for each in root.rglob("*") if each.is_file() and each.suffix != ".pyc"]:
        if path.relative_to(root).as_posix() not in wanted:
            path.unlink()
    for relative, path in wanted.items():
        copy = root / relative
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    return root


def recorded(root: Path) -> list[Test]:
    """Return the calls of every test, from the temporary folder or by running the tests."""
    folders: dict[tuple[str, bool], list[Path]] = defaultdict(list)
    kept, tests = FOLDER / "recorded", []
    kept.mkdir(exist_ok=True)
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        is_test = file.startswith("tests/") and path.name.startswith(("test_", "interpreted"))
        if file.startswith(FAR) or not (is_test or (file.startswith(PACKAGE) and ">>> " in path.read_text())):
            continue
        key = hashlib.sha256(file.encode() + (path.read_bytes() if is_test else b"")).hexdigest()
        if not (kept / key).exists():
            room = "/".join(file.split("/")[:2]) if is_test and file.count("/") > 1 else file.split("/")[0]
            folders[room, interpreted(file)].append(path)
        tests.append((file, kept / key))
    for (room, _), paths in folders.items():
        names = [path.relative_to(root).as_posix() for path in paths]
        print(f"recording {len(names)} files of {room}", flush=True)

        def work(names: list[str] = names) -> list[dict[str, Any]]:
            recorder = Recorder(root)
            run_pytest(names, recorder)
            return recorder.tests

        environment = {"TRITON_INTERPRET": "1"} if interpreted(names[0]) else {}
        ran = in_fork(work, root, FOLDER / "recording.log", 7200, **environment)
        by_file = defaultdict(list)
        for test in ran:
            by_file[test["file"]].append(test)
        for file, path in tests:
            if file in names:
                path.write_text(json.dumps(by_file[file]))
    return [
        Test(each["file"], each["name"], each["seconds"], frozenset(map(sys.intern, each["functions"])))
        for _, path in tests
        for each in json.loads(path.read_text())
    ]


def run(mutant: Mutant, tests: list[Test], root: Path, source: str) -> tuple[str, float]:
    """Return the first test that fails with a mutant in this copy of the project, or ""; and the seconds."""
    path, start = root / mutant.file, time.perf_counter()
    times = path.stat()
    path.write_text(mutant.applied(source), encoding="utf-8")
    os.utime(path, (times.st_atime, times.st_mtime + 1 + mutant.line))  # or Python takes the older bytecode
    failed = ""
    try:
        for apart in (False, True):
            names = [test for test in tests if interpreted(test.file) == apart]
            if not names or failed:
                continue
            chosen = Chosen([f"{test.file}::{test.name}" for test in names])

            def work(names: list[Test] = names, chosen: Chosen = chosen) -> tuple[str, int]:
                status = run_pytest(dict.fromkeys(test.file for test in names), chosen, "-x")
                return chosen.failed, status

            limit = LIMIT + 10 * sum(test.seconds for test in names)
            environment = {"TRITON_INTERPRET": "1"} if apart else {}
            result = in_fork(work, root, FOLDER / "tests.log", limit, **environment)
            test, status = result or ("over the time limit", 1)
            failed = test or ("" if status in (0, 5) else "the tests cannot be collected")
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, (times.st_atime, times.st_mtime))
    return failed, time.perf_counter() - start


def main(arguments: list[str]) -> int:
    """Draw mutants, run their closest tests, print the result of each; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the mutants to run")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of tests for each mutant, at most"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of mutants to run at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args(arguments)
    paths = [path for path in files() if short(path).startswith(PACKAGE) and path.suffix == ".py"]
    sources = {short(path): path.read_text(encoding="utf-8") for path in paths}
    drawn = list(enumerate(draw(sources, options.seed, options.count), 1))
    drawn = [(number, each) for number, each in drawn if number in (options.only or range(1, len(drawn) + 1))]
    if options.list:
        for number, mutant in drawn:
            print(number, mutant, ACCEPTED.get(str(mutant), ""), sep="  ")
        return 0
    FOLDER.mkdir(exist_ok=True)
    recording = Tests(recorded(copied("original")), sources)
    queue: Any = multiprocessing.get_context("fork").SimpleQueue()
    workers = [
        multiprocessing.get_context("fork").Process(
            target=work_through,
            args=(drawn[share :: options.workers], share, recording, sources, options.seconds, queue),
        )
        for share in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    survivors = 0
    for done in range(1, len(drawn) + 1):
        number, failed, count, seconds = queue.get()
        mutant = dict(drawn)[number]
        survivors += not failed
        verdict = f"caught by {failed}" if failed else f"SURVIVED {count} tests"
        reason = "" if failed else ACCEPTED.get(str(mutant), "")
        print(
            f"{done}/{len(drawn)}  {number}  {mutant} (line {mutant.line})\n    {verdict}  {reason}", end=""
        )
        print(f"  {seconds:.0f} s", flush=True)
    caught = len(drawn) - survivors
    print(f"{caught} of {len(drawn)} mutants are caught; {THRESHOLD:.0%} are required")
    return int(caught < THRESHOLD * len(drawn))


def work_through(
    drawn: list[tuple[int, Mutant]],
    share: int,
    recording: Tests,
    sources: dict[str, str],
    seconds: float,
    queue: Any,
) -> None:
    """Run mutants one after the other in a copy of the project."""
    root = copied(f"copy-{share}")
    for number, mutant in drawn:
        tests = recording.closest(mutant, seconds)
        failed, taken = run(mutant, tests, root, sources[mutant.file]) if tests else ("", 0.0)
        queue.put((number, failed, len(tests), taken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
