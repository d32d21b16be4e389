"""regard average: write a new run with the weights of one checkpoint of a run, or the mean of several."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from regard.cli.open_runs import next_command, task_of_run
from regard.cli.options import COUNT, REQUIRED, RUN, but, command
from regard.cli.printing import printable_console
from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, UnknownName, message, shell_word, shown
from regard.files.new_folder import check_new, new_folder
from regard.files.untrusted import open_regular
from regard.runs.run_folder import ALIGNMENT, DATA, check_one_seed, write_config_and_manifest
from regard.runs.run_settings import RunSettings
from regard.runs.run_task import RunTask
from regard.runs.stored_runs import checked_settings, find_checkpoint, stored_scores
from regard.training.checkpoints.checkpoints import (
    POINTERS,
    Averaged,
    Checkpoint,
    Checkpoints,
    folder_name,
    mean_weights,
)
from regard.training.command_options import CommandOption, integer


@command(
    RUN,
    but("output", "Run folder to write.", metavar="RUN", default=REQUIRED),
    integer("--last", "Average the last INT checkpoints of the run.", 1, COUNT),
    CommandOption(
        "--steps",
        "Average the checkpoints with these step numbers; best and latest are accepted too.",
        "INT,INT,...",
    ),
    "task",
)
def average(run: Path, output: Path, last: int | None, steps: str | None, task: str | None) -> None:
    """Write a run folder whose weights are the mean of several checkpoints of another run.

    The new folder has only what translate, evaluate, view and other commands need: weights, tokenizers and
    settings. It has no optimizer state, no log and no paths of this machine, so it is also the way to share a
    run: with --steps best, it is a copy of the best checkpoint.

    The new run cannot be resumed, but another run can start from its weights: regard train --init-from.

    A run keeps only its last 2 checkpoints and the best one. To keep the last 5, train it with --set
    training.keep=5.

    Examples:

    * `regard average runs/x --last 5 --output runs/x-mean`

    * `regard average runs/x --steps 8000,9000,10000 --output runs/x-mean`

    * `regard average runs/x --steps best --output x-to-share`
    """
    kind = task_of_run(run, task)
    check_one_seed(run)
    settings = checked_settings(kind, run)
    if (last is None) == (steps is None):
        raise ArgumentError(
            message("regard average", "no checkpoints are selected", expected="either --last or --steps")
        )
    chosen = last_intact(run, last) if last is not None else checkpoints_at(run, steps or "")
    named = ", ".join(f"{each.step:,}" for each in chosen)
    averaged = average_run(kind, run, settings, chosen, output)
    if 2 * chosen[0].step < chosen[-1].step:
        say(
            f"warning: the checkpoints (steps {named}) are far apart, so their mean may be worse than the "
            f"last checkpoint (step {chosen[-1].step:,}); regard show {shell_word(run)} lists all checkpoints"
        )
    console = printable_console(soft_wrap=True)
    several = f"the mean of {len(chosen)} checkpoints (steps {named})"
    about = several if len(chosen) > 1 else f"the weights of step {named}"
    console.print(Text(f"Wrote {shown(output)}: {about}"))
    if quality := settings.describe_quality(stored_scores(chosen[-1])):
        say(f"step {chosen[-1].step:,}: {quality}" if len(chosen) > 1 else quality)
    console.print(Text(f"Next: {next_command(kind, averaged.path.parent)}", "dim"))


def average_run(
    task: type[RunTask], run: Path, settings: RunSettings, chosen: list[Checkpoint], out: Path
) -> Checkpoint:
    """Write a new run folder with the mean weights of checkpoints, the settings and the files of the task.

    The files are written to a temporary folder, which is renamed at the end. If the command is interrupted,
    no run folder is written; the next `regard average` deletes the temporary folder.

    run: the old run folder.
    settings: its settings. The folders of data files are left out in the new run.
    chosen: the checkpoints of the old run.
    out: the new run folder.
    """
    check_new(out)
    weights = mean_weights(chosen)
    newest = chosen[-1].state
    about = Averaged(run.resolve().name, [each.step for each in chosen])
    copied = {key: value for key, value in newest.items() if key not in ("log", "best", "best_step")}
    scores = {"scores": stored_scores(chosen[0])} if len(chosen) == 1 else {}  # a mean was not evaluated
    state = {**copied, **scores, "averaged": asdict(about), "ended": str(about)}
    sizes = {name: weight.nbytes for name, weight in weights.items()}
    with new_folder(out, "the new run could not be written", sizes) as temporary:
        Checkpoints(temporary).save(chosen[-1].step, {"weights": weights}, state)
        for name in (DATA, *task.files, ALIGNMENT):
            if os.path.lexists(run / name):
                with (
                    open(run / name, "rb", opener=open_regular) as source,
                    open(temporary / name, "xb") as target,
                ):
                    shutil.copyfileobj(source, target)
        write_config_and_manifest(task, temporary, task.settings_type.without_folders(settings.model_dump()))
        checked_settings(task, temporary)
    return Checkpoint(chosen[-1].step, out / folder_name(chosen[-1].step))


def last_intact(run: Path, count: int) -> list[Checkpoint]:
    """Return the last `count` checkpoints of a run that are not damaged, ordered by training step.

    For each damaged checkpoint that is skipped, a message is printed. If fewer than `count` checkpoints are
    left, DataError is raised.
    """
    intact: list[Checkpoint] = []
    for each in reversed(Checkpoints(run).all()):
        if len(intact) == count:
            break
        try:
            each.verify()
            intact.append(each)
        except DataError as error:
            say(f"skipped a damaged checkpoint: {error}")
    if len(intact) < count:
        problem = f"the run has only {len(intact)} intact checkpoints"
        hint = "regard train --set training.keep=N keeps more checkpoints"
        raise DataError(message(shown(run), problem, expected=f"{count} checkpoints (--last)", hint=hint))
    return intact[::-1]


def checkpoints_at(run: Path, steps: str) -> list[Checkpoint]:
    """Return the checkpoints of the named training steps, in ascending order.

    Raise an error if one of them is missing or damaged.

    steps: the value of --steps, such as "8000,9000,10000" or "best".
    """
    by_step = {str(each.step): each for each in Checkpoints(run).all()}
    chosen: dict[int, Checkpoint] = {}
    for step in (part.strip() for part in steps.split(",")):
        if step in POINTERS:
            each, notes = find_checkpoint(run, step)
            for note in notes:
                say(note)
        elif step in by_step:
            each = by_step[step]
        else:
            raise UnknownName("step", step, (*by_step, *POINTERS))
        each.verify()
        chosen[each.step] = each
    return [chosen[step] for step in sorted(chosen)]
