"""Draw single-line mutants of src/regard and run the closest tests for each: python -m tests.mutants.

A mutant survives if no test fails: a user could meet this fault and no test would report it. The draw depends
on the seed and on each line alone: a change of one function leaves the mutants of all others as they are.
Rooms (folders of src/regard) have mutants by their numbers of lines; see tests/mutant_places.py.

The closest tests of a mutant are those of the nearest FILES files: the examples of the module itself, files
named after it, files that name the changed function, files that import the module, then files that are more
imports away from it; see Closeness. Mutants are written to copies of the project in a temporary folder, never
to the checkout.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  # processes that run tests are forks of this one, and need not import it again

from tests.mutant_places import Mutant, draw, room
from tests.reading import ROOT, files, short

__all__ = ["ACCEPTED", "Closeness", "main"]

THRESHOLD = 0.9
"""The share of mutants that must be caught; below it, the exit status is 1."""

ACCEPTED = {
    "src/regard/backends/fused.py _load: True -> False": "torch.compile needs any constant; nobody reads it",
    "src/regard/compare/layer_costs.py median_seconds: _wait(device) -> pass": "waits for a GPU only",
    "src/regard/cli/options.py CORPUS: 10_000_000 -> 10000001": "any large number serves as the limit",
    "src/regard/data/batching.py LabelledBatches.__init__: 4096 -> 4097": "every task gives its own number",
    "src/regard/decoding/active_rows.py start_decoding: 0 -> 1": "a model without source ignores the tokens",
    "src/regard/tasks/translation/task.py AT_ONCE: 32 -> 33": "any such number of lines serves",
    "src/regard/tasks/answering/settings.py AnsweringTraining.batch_size: 32 -> 33": "the plan sets it",
    "src/regard/kernels/looking/top.py inner_top_kernel: 3 -> 4": "equivalent: part 3 has no keys",
}
"""Why a mutant may survive, by what --list prints of it."""

NAMED_OTHERWISE = {
    "src/regard/checking.py": "tests/test_errors.py",
    "src/regard/tasks/language/run.py": "tests/tasks/test_text_generator.py",
}
"""Files of tests that are not named after the module whose behaviour they test."""

FILES = 6
"""Number of files of tests that run for a mutant, at most."""

FAR = (
    "tests/benchmarks", "tests/browser", "tests/docs", "tests/learning", "tests/reliability",
    "tests/kernels/test_interpreted.py", "tests/test_contributing.py", "tests/test_house.py",
    "tests/test_mutants.py", "tests/test_processors.py", "tests/test_readme.py",
)  # fmt: skip
"""Tests that are close to no function: of pages, of style, of damaged folders, and in other processes. Files
named _device.py run on a GPU only."""

LIMIT = 900
"""Seconds after which a mutant is caught: it may never end."""

PACKAGE = "src/regard/"
FOLDER = Path(tempfile.gettempdir(), f"mutants-{hashlib.sha256(bytes(ROOT)).hexdigest()[:8]}")


class Closeness:
    """How close the files of tests are to a mutant.

    sources: the text of each Python file of src/regard and tests.
    """

    def __init__(self, sources: dict[str, str]):
        self.sources = sources
        self.modules = {module_of(file): file for file in sources}
        self.imports = {file: self._imported(source) for file, source in sources.items()}
        self.tests = [
            file
            for file in sources
            if file.startswith("tests/") and Path(file).name.startswith(("test_", "interpreted"))
            if not file.startswith(FAR) and not file.endswith("_device.py")
        ]

    def _imported(self, source: str) -> set[str]:
        """Return the files that a file imports; without from-imports of names, which are no modules."""
        found = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        return {self.modules[name] for name in found if name in self.modules}

    @functools.cache  # noqa: B019  # there is one Closeness
    def distances(self, test: str) -> dict[str, int]:
        """Return how many imports away each file is from a file of tests."""
        distances, waiting = {test: 0}, deque([test])
        while waiting:
            file = waiting.popleft()
            for other in self.imports[file] - distances.keys():
                distances[other] = distances[file] + 1
                waiting.append(other)
        return distances

    def closest(self, mutant: Mutant) -> list[str]:
        """Return the closest files of tests, the closest first."""
        module = Path(mutant.file)
        stem = module.parent.name if module.name == "__init__.py" else module.stem
        names = {part for part in mutant.function.split(".") if len(part.strip("_")) > 7}
        words = [*re.split(r"[/_.]", mutant.file), *stem.split("_")]  # those of the name count twice

        def rank(test: str) -> tuple[float, ...]:
            text = self.sources[test]
            mirrors = (
                NAMED_OTHERWISE.get(mutant.file) == test
                or Path(test).stem.removeprefix("test_") == stem
                or f"_{stem}" in Path(test).stem
            )
            named = sum(bool(re.search(rf"\b{name}\b", text)) for name in names)
            away = self.distances(test).get(mutant.file, 9)
            own = re.split(r"[/_.]", test)
            common = sum(word in own for word in words) - 0.1 * len(own)
            return not mirrors, away - 2 * named - common, len(text)

        kernels = any(room(each) == "kernels" for each in (mutant.file, *self.imports[mutant.file]))
        ranked = sorted((test for test in self.tests if kernels or not needs_interpreter(test)), key=rank)
        if room(mutant.file) == "kernels":
            ranked.sort(key=lambda test: not needs_interpreter(test))
        examples = [mutant.file] if ">>> " in self.sources[mutant.file] else []
        return [*examples, *ranked][:FILES]


def module_of(file: str) -> str:
    """Return the name by which a file is imported."""
    return file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def needs_interpreter(test: str) -> bool:
    """Whether a file of tests runs under Triton's interpreter, in a process of its own."""
    return Path(test).name.startswith("interpreted")


class FirstFailure:
    """A plugin of pytest: remember the first test that fails, and stop after some seconds of CPU time."""

    def __init__(self, seconds: float):
        self.name, self.seconds = "", seconds

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.name = self.name or (report.nodeid if report.failed else "")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        item.session.shouldstop = time.process_time() > self.seconds and "the time is over"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.name = self.name or (report.nodeid if report.failed else "")


def first_failure(tests: Sequence[str], root: Path, seconds: float) -> str:
    """Return the first test that fails in this copy of the project, or "", with a forked process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    environment = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "REGARD_SEED": "0"}
    if needs_interpreter(tests[0]):
        environment["TRITON_INTERPRET"] = "1"

    def child() -> None:
        os.setsid()
        os.chdir(root)
        os.environ.update(environment)
        sys.dont_write_bytecode = False
        elsewhere = [each for each in sys.path if Path(each or ".").resolve() not in (ROOT, ROOT / "src")]
        sys.path[:] = [str(root / "src"), str(root), *elsewhere]
        for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
            del sys.modules[name]
        with Path(f"{root}.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        failure = FirstFailure(time.process_time() + seconds)
        options = "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu"
        status = pytest.main([*options, *tests], plugins=[failure])
        sender.send(failure.name or ("" if status in (0, 2, 5) else f"{tests[0]}, which cannot be collected"))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LIMIT) else f"the limit of {LIMIT} s"
    except EOFError:
        return "the end of the process"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


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


def tested(mutant: Mutant, tests: list[str], root: Path, seconds: float) -> str:
    """Return the first test that fails with a mutant in this copy of the project, or ""."""
    path = root / mutant.file
    times, source = path.stat(), path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(source), encoding="utf-8")
    os.utime(path, (times.st_atime, times.st_mtime + 1 + mutant.line))  # or Python takes the older bytecode
    interpreted = [test for test in tests if needs_interpreter(test)]
    try:
        for group in (interpreted, [test for test in tests if test not in interpreted]):
            if group and (failed := first_failure(group, root, seconds)):
                return failed
        return ""
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, (times.st_atime, times.st_mtime))


def work_through(
    share: int, mutants: dict[int, Mutant], closeness: Closeness, seconds: float, queue: Any
) -> None:
    """Test mutants one after the other in a copy of the project, and put the results into a queue."""
    root = copied(f"copy-{share}")
    for number, mutant in mutants.items():
        start, tests = time.monotonic(), closeness.closest(mutant)
        queue.put((number, tested(mutant, tests, root, seconds), tests, time.monotonic() - start))


def main(arguments: list[str]) -> int:
    """Draw mutants, run their closest tests, print the result of each; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the mutants to run")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of tests for a mutant")
    parser.add_argument("--workers", type=int, default=1, help="number of mutants to test at a time")
    parser.add_argument(
        "--list", action="store_true", help="print the mutants and their tests, and run nothing"
    )
    options = parser.parse_args(arguments)
    paths = [path for path in files() if short(path).startswith((PACKAGE, "tests/")) and path.suffix == ".py"]
    sources = {short(path): path.read_text(encoding="utf-8") for path in paths}
    package = {file: source for file, source in sources.items() if file.startswith(PACKAGE)}
    drawn = dict(enumerate(draw(package, options.seed, options.count), 1))
    drawn = {number: each for number, each in drawn.items() if number in (options.only or drawn)}
    closeness = Closeness(sources)
    if options.list:
        for number, mutant in drawn.items():
            print(f"{number}  {mutant}\n    {' '.join(closeness.closest(mutant))}")
        return 0
    fork = multiprocessing.get_context("fork")
    queue: Any = fork.SimpleQueue()
    for share in range(options.workers):
        part = {number: drawn[number] for number in list(drawn)[share :: options.workers]}
        work = share, part, closeness, options.seconds, queue
        fork.Process(target=work_through, args=work).start()
    survivors = []
    for done in range(1, len(drawn) + 1):
        number, failed, tests, seconds = queue.get()
        print(
            f"{done}/{len(drawn)}  {'caught  ' if failed else 'SURVIVED'}  {seconds:4.0f} s  {number}", end=""
        )
        print(f"  {drawn[number]}{f', by {failed}' if failed else ''}", flush=True)
        survivors += [] if failed else [(number, tests)]
    for number, tests in sorted(survivors):
        mutant = drawn[number]
        print(f"\n{number}  {mutant.file}:{mutant.line}  {ACCEPTED.get(str(mutant), 'no test fails')}")
        print(f"  - {mutant.text.strip()}\n  + {mutant.changed.strip()}\n  {' '.join(tests)}")
    caught = len(drawn) - len(survivors)
    print(f"\n{caught} of {len(drawn)} mutants are caught; {THRESHOLD:.0%} are required")
    return int(caught < THRESHOLD * len(drawn))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
