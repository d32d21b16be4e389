"""Load, show, translate with and resume mutated run folders, and return what goes wrong.

A mutation must be detected, by a RegardError or a note that names a file, or must not change any output.
Anything else is a fault: another exception, a different output, a hang, or unbounded memory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.cli.show import describe_run
from regard.decoding import Choice, Greedy, Rules
from regard.errors import RegardError
from regard.runs.run_facts import facts_of
from regard.tasks.translation import load_translator
from regard.tasks.translation.alignment import write_choice
from regard.tasks.translation.task import TranslationTask
from regard.viewing import Seen
from tests.reliability.mutations import Mutation
from tests.tasks.small import settings, train, written

LOOK = "look.seen"
"""A .seen file; not part of a run, but stored in its folder here so that it is mutated too."""

SECONDS = 30.0
"""Time limit of one use of a mutated run; typical uses take less than 0.1 seconds."""

DIFFERENT = "resume: different weights at the end"

ROOM = 1 << 30
"""Additional address space, in bytes, for a process that uses mutated runs."""

KINDS: dict[str, dict[str, Any]] = {
    "words": {},
    "subwords": {
        "data": {"tokenizer": "unigram"},
        "model": {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1, "feeding": None},
        "training": {"ema": 0.5},
    },
}
"""The runs that are mutated: changes to the settings of tests.tasks.small."""


class Hang(BaseException):
    """Raised at the time limit; a BaseException, so that no `except Exception` catches it."""


@dataclass
class Original:
    """A small undamaged run and its outputs.

    place: contains the folders run (completed), killed (stopped after step 2), cache and data.
    outputs: translations by step. best: the step that load_translator() loads. final: the last weights file.
    """

    place: Path
    outputs: dict[int, list[str]] = field(default_factory=dict)
    best: int = 0
    final: bytes = b""

    @classmethod
    def made(cls, place: Path, kind: str) -> Original:
        """Train a run of this kind; store it completed, and as if it had been killed halfway."""
        sections = KINDS[kind]
        model = sections.get("model", {})
        given = settings(written(place / "data", pairs=60), **sections)
        given["model"] = {
            name: value for name, value in {**given["model"], **model}.items() if value is not None
        }
        with environment(place):
            train(given, place / "run")
            original = cls(place)
            site = "decoder.0.cross" if kind == "subwords" else "decoder.cross"
            write_choice(place / "run", Choice(site, None, False))
            run = load_translator(place / "run", search=Greedy(), look="*", device="cpu")
            run.translate(original.sentences[0]).seen().save(place / "run" / LOOK)
            for step in (2, 4):
                original.outputs[step] = original.translated(
                    load_translator(place / "run", checkpoint=str(step), device="cpu")
                )
            original.best = run.checkpoint.step
        original.final = (place / "run" / "step-000004" / "weights.safetensors").read_bytes()
        shutil.copytree(place / "run", place / "killed", ignore=shutil.ignore_patterns("step-000004", LOOK))
        for pointer in ("latest", "best"):
            (place / "killed" / pointer).write_text("step-000002\n")
        return original

    @property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        lines = (self.place / "data" / "a.ko").read_text(encoding="utf-8").splitlines()
        return sorted(lines, key=len)[-2:]

    def translated(self, run: Any) -> list[str]:
        """Return the translations of a run, with scores and alignments."""
        run.search = Greedy(rules=Rules(maximum=6))
        return [f"{each.text} {each.score!r} {each.alignment!r}" for each in run.translate(self.sentences)]


@contextlib.contextmanager
def environment(place: Path) -> Iterator[None]:
    """Set the cache folder inside a `with` block."""
    before = os.environ.get("REGARD_CACHE")
    os.environ["REGARD_CACHE"] = str(place / "cache")
    try:
        yield
    finally:
        if before is None:
            del os.environ["REGARD_CACHE"]
        else:
            os.environ["REGARD_CACHE"] = before


def warm_up(original: Original) -> None:
    """Use the original run once without a time limit: the first use imports modules, which may take long."""
    original.translated(load_translator(original.place / "run", device="cpu"))


def fault(original: Original, mutation: Mutation, work: Path, resumed: bool = False) -> str:
    """Return what goes wrong when a mutated run is used; "" if nothing does.

    work: an empty folder. resumed: resume the killed run instead of loading the completed one.
    """
    shutil.copytree(original.place / ("killed" if resumed else "run"), work / "run")
    shutil.copytree(original.place / "cache", work / "cache")
    try:
        mutation.apply(work / "run" / mutation.file)
        uses = (_resume,) if resumed else (_look,) if mutation.file == LOOK else (_load, _show)
        with environment(work):
            faults = [_used(use, original, work) for use in uses]
        if mutation.moves_the_position:
            faults = [each for each in faults if each != DIFFERENT]
        return "; ".join(each for each in faults if each)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _used(use: Callable[[Original, Path], str], original: Original, work: Path) -> str:
    """Return the fault of one use, with a time limit; a RegardError that names a file is no fault."""
    name = use.__name__.lstrip("_")
    before = signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = use(original, work)
        return f"{name}: {problem}" if problem else ""
    except RegardError as error:
        named = re.search(r"/\S|config\.toml", str(error))
        return "" if named else f"{name}: names no file: {error}"
    except Hang:
        return f"{name}: hangs"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hang(*_: object) -> None:
    raise Hang


def _load(original: Original, work: Path) -> str:
    run = load_translator(work / "run", device="cpu")
    step = run.checkpoint.step
    if step != original.best and not any(str(work) in note for note in run.notes):
        return f"step {step} is loaded instead of the best, without a note"
    outputs = original.translated(run)
    return "" if outputs == original.outputs[step] else f"different output: {outputs}"


def _show(original: Original, work: Path) -> str:
    page = io.StringIO()
    console = Console(file=page, width=100, highlight=False)
    facts = facts_of(TranslationTask, work / "run")
    for part in describe_run(facts, console):
        console.print(part)
    facts.written()
    control = [
        character for character in page.getvalue() if not character.isprintable() and character != "\n"
    ]
    return f"prints {control[:3]}" if control else ""


def _look(original: Original, work: Path) -> str:
    if os.path.lexists(work / "run" / LOOK):
        Console(file=io.StringIO(), width=100).print(Seen.load(work / "run" / LOOK))
    return ""


def _resume(original: Original, work: Path) -> str:
    train({}, work / "run", resume=True)
    weights = (work / "run" / "step-000004" / "weights.safetensors").read_bytes()
    return "" if weights == original.final else DIFFERENT.removeprefix("resume: ")


def limit_memory() -> None:
    """Limit the address space of this process, so that unbounded allocations raise MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.getrlimit(resource.RLIMIT_AS)[1]))
