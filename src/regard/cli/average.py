"""regard average: a new run, whose weights are the mean of several checkpoints of another."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from regard.cli import bounds
from regard.cli.run_options import RunFolder
from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.files.atomic_io import Leftover, beside, failed, flush_folder, leftover, remove
from regard.files.folder_lock import NAME as LOCK
from regard.files.folder_lock import locked
from regard.files.untrusted import open_regular
from regard.runs.run_folder import made_folder
from regard.tasks.translation.load_run import checked_settings
from regard.training.checkpoints.averaging import mean_weights
from regard.training.checkpoints.checkpoint_files import folder_name
from regard.training.checkpoints.checkpoints import POINTERS, Checkpoint, Checkpoints

__all__ = ["average", "average_run"]

LEFT = ("log.jsonl", LOCK, *POINTERS)
"""Files of a run that are about its training, and not about what came of it."""

Last = Annotated[int | None, typer.Option(help="Average the last N checkpoints.", min=1, max=bounds.COUNT)]
Steps = Annotated[str | None, typer.Option(metavar="A,B,C", help="Average the checkpoints of these steps.")]
Out = Annotated[Path, typer.Option(metavar="NEWRUN", help="Folder of the new run.")]


def average(run: RunFolder, out: Out, last: Last = None, steps: Steps = None) -> None:
    """Write a run folder whose weights are the mean of several checkpoints of another run.

    It cannot be trained further, but another can start from it: regard train --init-from. How many
    checkpoints a run keeps is its setting training.keep, 2 unless said otherwise.

    Examples:

    * `regard average runs/x --last 5 --out runs/x-mean`

    * `regard average runs/x --steps 8000,9000,10000 --out runs/x-mean`
    """
    checked_settings(run)
    if (last is None) == (steps is None):
        raise ArgumentError(message("regard average", "which checkpoints?", expected="--last or --steps"))
    chosen = last_whole(run, last) if last is not None else of_steps(run, steps or "")
    made = average_run(run, chosen, out)
    named = ", ".join(f"{each.step:,}" for each in chosen)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{shown(out)}: the mean of {len(chosen)} checkpoints, of steps {named}"))
    console.print(Text(f"try: regard evaluate {shown(made.path.parent)} --source FILE --target FILE", "dim"))


def average_run(run: Path, chosen: list[Checkpoint], out: Path) -> Checkpoint:
    """Write a run folder with the mean of checkpoints, and whatever the run has beside its checkpoints.

    It is written into a temporary folder and renamed: an average that was broken off leaves nothing in its
    place, and the next one removes what is left of it.
    """
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        hint = "name a folder that is not there yet"
        raise ArgumentError(message(f"--out {shown(out)}", "there is something already", hint=hint))
    weights = mean_weights(chosen)
    newest = chosen[-1].state
    about = {"run": run.resolve().name, "steps": [each.step for each in chosen]}
    kept = {key: value for key, value in newest.items() if key not in ("log", "best", "best_step")}
    state = {**kept, "averaged": about, "ended": f"the mean of {len(chosen)} checkpoints"}
    place = Path(os.path.abspath(out))
    made_folder(place.parent)
    _remove_broken_off(place)
    made = beside(place, "part")
    try:
        with locked(made_folder(made)):
            Checkpoints(made).save(chosen[-1].step, {"weights": weights}, state)
            for path in _regular_files(run):
                _copy(path, made / path.name)
            (made / LOCK).unlink(missing_ok=True)
            flush_folder(made)
            checked_settings(made)
            if place.is_dir():
                place.rmdir()  # it is empty
            os.rename(made, place)
        try:
            flush_folder(place.parent)
        except OSError:
            remove(place)  # so that the same command can be given again
            raise
    except OSError as error:
        raise failed(str(out), "the new run could not be written", error) from None
    finally:
        with suppress(OSError):
            remove(made)
    return Checkpoint(chosen[-1].step, out / folder_name(chosen[-1].step))


def _is_copied(name: str) -> bool:
    return name not in LEFT and leftover(name) is None


def _remove_broken_off(place: Path) -> None:
    """Remove what averages into this folder left that were killed; one that is at work holds its lock."""
    for path in place.parent.iterdir():
        left = leftover(path.name)
        if left == Leftover(place.name, "part") and path.is_dir() and not path.is_symlink():
            with suppress(DataError, OSError):
                with locked(path):
                    pass
                remove(path)


def _regular_files(run: Path) -> list[Path]:
    """The files of a run to copy; symbolic links, FIFOs and the like are left out, and reported."""
    copied = []
    for path in sorted(run.iterdir()):
        mode = path.lstat().st_mode
        if not _is_copied(path.name) or stat.S_ISDIR(mode):
            continue
        if stat.S_ISREG(mode):
            copied.append(path)
        else:
            say(f"{shown(path)} is not a regular file, and is not copied")
    return copied


def _copy(path: Path, to: Path) -> None:
    with open(path, "rb", opener=open_regular) as source, open(to, "xb") as target:
        shutil.copyfileobj(source, target)


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
