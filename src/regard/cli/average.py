"""regard average: a new run, whose weights are the mean of several checkpoints of another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from torch import Tensor

from regard.cli import bounds
from regard.cli.lines import say
from regard.cli.searching import RunFolder
from regard.data.reading import shown
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.tasks.run_folder import CONFIG, config_of, made_folder
from regard.training.averaging import mean_weights
from regard.training.checkpoint import POINTERS, Checkpoint, Checkpoints
from regard.training.durable import failed, flush_folder, leftover, remove

__all__ = ["average", "average_run"]

LEFT = ("log.jsonl", *POINTERS)
"""Files of a run that are about its training, and not about what came of it."""

Last = Annotated[
    int | None, typer.Option(help="The last so many checkpoints that are there.", min=1, max=bounds.COUNT)
]
Steps = Annotated[str | None, typer.Option(metavar="A,B,C", help="The checkpoints of these steps.")]
Out = Annotated[Path, typer.Option(metavar="NEWRUN", help="The folder of the new run.")]


def average(run: RunFolder, out: Out, last: Last = None, steps: Steps = None) -> None:
    """Make a run whose weights are the mean of several checkpoints of another; it translates as any run does.

    It cannot be trained further, but another can start from it: regard train --init-from. How many
    checkpoints a run keeps is its setting training.keep, 2 unless said otherwise.

    Examples:

    * `regard average runs/x --last 5 --out runs/x-mean`

    * `regard average runs/x --steps 8000,9000,10000 --out runs/x-mean`
    """
    config_of(run)
    if (last is None) == (steps is None):
        raise ArgumentError(message("regard average", "which checkpoints?", expected="--last or --steps"))
    chosen = last_whole(run, last) if last is not None else of_steps(run, steps or "")
    made = average_run(run, chosen, out)
    named = ", ".join(f"{each.step:,}" for each in chosen)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{shown(out)}: the mean of {len(chosen)} checkpoints, of steps {named}"))
    console.print(Text(f"try: regard evaluate {shown(made.path.parent)} --source FILE --target FILE", "dim"))


def average_run(run: Path, chosen: list[Checkpoint], out: Path) -> Checkpoint:
    """Write a run folder with the mean of checkpoints, and whatever the run has beside its checkpoints."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "name a folder that is not there yet"
        raise ArgumentError(message(f"--out {shown(out)}", "there is something already", hint=hint))
    weights = mean_weights(chosen)
    newest = chosen[-1].state
    about = {"run": run.resolve().name, "steps": [each.step for each in chosen]}
    kept = {key: value for key, value in newest.items() if key not in ("log", "best", "best_step")}
    state = {**kept, "averaged": about, "ended": f"the mean of {len(chosen)} checkpoints"}
    new = not out.exists()
    made_folder(out)
    with _removed_after_errors(out, new):
        return _write_run(run, out, chosen[-1].step, weights, state)


@contextmanager
def _removed_after_errors(out: Path, new: bool) -> Iterator[None]:
    """Empty the new folder after an error or Ctrl-C, so that the same command can be given again."""
    try:
        yield
    except BaseException:
        for path in out.iterdir() if out.is_dir() else ():
            with suppress(OSError):
                remove(path)
        if new:
            with suppress(OSError):
                out.rmdir()
        raise


def _write_run(run: Path, out: Path, step: int, weights: dict[str, Tensor], state: Any) -> Checkpoint:
    made = Checkpoints(out).save(step, {"weights": weights}, state)
    files = [path for path in sorted(run.iterdir()) if path.is_file() and path.name not in LEFT]
    # The settings come last: with them, the folder is a run, and it is whole.
    files.sort(key=lambda path: path.name == CONFIG)
    try:
        for path in files:
            if leftover(path.name) is None:
                shutil.copyfile(path, out / path.name)
        flush_folder(out)
    except OSError as error:
        raise failed(str(out), "the new run could not be written", error) from None
    return made


def last_whole(run: Path, count: int) -> list[Checkpoint]:
    """The last so many checkpoints of a run that are whole, by step; those passed over are said."""
    found: list[Checkpoint] = []
    for each in reversed(Checkpoints(run).all()):
        if len(found) == count:
            break
        try:
            each.verify()
            found.append(each)
        except DataError as error:
            say(f"a damaged checkpoint is passed over: {error}")
    if len(found) < count:
        problem = f"{len(found)} whole checkpoints are there"
        hint = "a run keeps more of them with --set training.keep=N"
        raise DataError(message(shown(run), problem, expected=f"{count} for --last {count}", hint=hint))
    return found[::-1]


def of_steps(run: Path, steps: str) -> list[Checkpoint]:
    """The checkpoints of a run of these steps, by step; raises where one is missing or damaged."""
    there = {str(each.step): each for each in Checkpoints(run).all()}
    found: dict[int, Checkpoint] = {}
    for step in (part.strip() for part in steps.split(",")):
        if step not in there:
            raise UnknownName("step", step, there)
        there[step].verify()
        found[there[step].step] = there[step]
    return [found[step] for step in sorted(found)]
