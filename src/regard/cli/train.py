"""regard train: train a translator, a language model, a classifier or a captioner."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from regard.cli.open_runs import import_from_here, next_command, resume_command, task_of_run
from regard.cli.options import REQUIRED, but, command
from regard.cli.printing import facts_table, printable_console
from regard.cli.train_settings import TRAINING_MACHINE, check_exclusive, setting_options, settings_of
from regard.errors import DataError, message, printable, shell_word, shown
from regard.training.command_options import LOGS, RUN, CommandOption, flag, several

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask
    from regard.runs.train_run import Estimate

TRAINING_FILES = ("train_file", "source", "target", "tsv", "jsonl")
"""The settings in [data], and parameters of options, that name training files."""


@command(
    but("output", "Run folder to write.", metavar="RUN", default=REQUIRED, panel=RUN),
    *setting_options(),
    CommandOption(
        "--recipe",
        "TOML file of settings (a recipe). Options override its settings.",
        "FILE",
        Path,
        panel=RUN,
    ),
    CommandOption(
        "--set",
        "Change one setting, e.g. training.ema=0.999. May be repeated. --dry-run prints all settings, "
        "except model options with their default value.",
        "NAME=VALUE",
        list[str],
        panel=RUN,
    ),
    *TRAINING_MACHINE,
    flag("--resume", "Resume the run in --output.", panel=RUN),
    flag("--change", "With --resume: accept changed settings or data.", panel=RUN),
    flag("--dry-run", "Print the data report, the settings and the estimated time, and exit.", panel=RUN),
    several(
        "--logger",
        "Call this function of yours, as module:function, for every event of the run, for example "
        "to log to Weights & Biases.",
        "NAME",
        panel=LOGS,
    ),
)
def train(**options: Any) -> int:
    """Train a translator or a model of another task (--task), and write it to a run folder.

    Unset settings are chosen from the data, --minutes and the speed of this machine. Ctrl-C and SIGTERM save
    a checkpoint and stop. With --steps or --epochs, resumed and uninterrupted runs end with equal weights.

    Examples:

    * `regard train --source a.ko --target a.en --model bahdanau --output runs/x`

    * `regard train --output runs/x --resume`

    * `regard train --tsv pairs.tsv --columns 2,1 --select hard --estimator reinforce --output runs/w`

    * `regard train --task language --train-file a.txt --valid-file b.txt --minutes 30 --output runs/v`

    * `regard train --task classification --tsv reviews.tsv --columns label,text --output runs/u`

    * `regard train --task captioning --train-file captions.tsv --images images --output runs/t`

    * `regard train --task algorithms --built-in copy --output runs/s`

    * `regard train --recipe recipes/multi30k-de-en-transformer.toml --seed 2 --output runs/z`

    * `torchrun --nproc-per-node 2 -m regard train --source a.ko --target a.en --output runs/x`
    """
    check_exclusive(options)
    _print_inputs(options)
    kind, settings = _task_and_settings(options)
    return _train(kind, settings, options["output"], options)


def _train(kind: type[RunTask], settings: dict[str, Any], output: Path, arguments: Mapping[str, Any]) -> int:
    """Train the run, or estimate the time with --dry-run; print what to do next; return the exit status."""
    from regard.runs.prepare_run import Machine
    from regard.runs.train_run import estimate, train_run
    from regard.training.logs.log import import_logger

    machine = Machine(arguments["device"], arguments["threads"], jobs=None)
    how: dict[str, Any] = {"resume": arguments["resume"], "change": arguments["change"], "machine": machine}
    if arguments["dry_run"]:
        _print_estimate(estimate(kind, settings, output, **how))
        return 0

    loggers = list(map(import_logger, arguments["logger"] or ()))
    # Of several processes (torchrun), only the first one prints.
    console = printable_console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
    with _stopped_early(output):
        outcome = train_run(kind, settings, output, **how, console=console, loggers=loggers)
    if outcome.warning and not outcome.interrupted:
        model = settings.get("model", {})  # without these settings, the size suits the length of the run
        size = next((each for each in ("width", "size", "layers") if model.get(each) is not None), "")
        advice = "train for more minutes" + (f", or do not set model.{size}" if size else "")
        console.print(Text(f"{outcome.warning}: {advice}"))
    if outcome.failed:
        return _failed(output, outcome.failed, console)
    return _finished(kind, output, outcome.interrupted, console)


def _task_and_settings(arguments: Mapping[str, Any]) -> tuple[type[RunTask], dict[str, Any]]:
    """Return the task and its settings. Options and --set override the settings of --recipe."""
    from regard.runs.run_folder import is_run
    from regard.tasks.task_table import DEFAULT, find_task
    from regard.training.settings import (
        check_names,
        check_types,
        merged,
        override,
        read_toml,
        without_alternatives,
    )

    assigned = override(arguments["set"] or [])
    recipe = {} if arguments["recipe"] is None else read_toml(arguments["recipe"])
    name = assigned.get("task") or arguments["task"] or recipe.get("task")
    import_from_here(name)
    if arguments["resume"] and is_run(arguments["output"]):
        kind = task_of_run(arguments["output"], name)
    else:
        kind = find_task(name or DEFAULT)
    options = settings_of(arguments, kind)
    settings = merged({}, options, assigned)
    check_names(kind.settings_type, recipe, str(arguments["recipe"]))
    _note_validation_files(recipe.get("data") or {}, settings.get("data") or {})
    recipe = without_alternatives(recipe, settings)
    settings = merged(recipe, settings)
    check_types(
        kind.settings_type, {"--set": assigned, "the settings": options, str(arguments["recipe"]): recipe}
    )
    _check_public_files(settings.get("data") or {})
    return kind, settings


def _check_public_files(data: Mapping[str, Any]) -> None:
    """Raise DataError if files of a public dataset are missing; name the command that downloads them.

    data: the data settings.
    """
    files = [
        file
        for name, value in data.items()
        if name.removeprefix("valid_") in TRAINING_FILES
        for file in (value if isinstance(value, list) else [value])
    ]
    missing = [Path(file) for file in files if isinstance(file, str) and not os.path.exists(file)]
    if not missing:
        return
    from regard.data.fetch import SETS

    for name, each in SETS.items():
        pieces = {piece.name for piece in each.pieces}
        if all(path.parent.name == each.folder and path.name in pieces for path in missing):
            folder = missing[0].parent.parent
            hint = f"to download it: regard data fetch {name} --output {shell_word(folder)}"
            raise DataError(message(shown(missing[0]), "there is no such file", hint=hint))


def _note_validation_files(recipe: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Print a note if the training files are those of the user, but the validation files those of the recipe.

    recipe, own: the data settings of the recipe, and those of the options.
    """
    from regard.data.line_io import say

    if os.environ.get("RANK", "0") != "0" or not any(name in TRAINING_FILES for name in own):
        return
    valid = [name for name in recipe if name.startswith("valid_")]
    if valid and not any(name.startswith("valid_") for name in own):
        values = [recipe[name] if isinstance(recipe[name], list) else [recipe[name]] for name in valid]
        files = ", ".join(shown(str(file)) for each in values for file in each)
        options = " and ".join(f"--{name.replace('_', '-')}" for name in valid)
        say(f"note: the validation set is that of the recipe: {files}; to use yours: {options}")


def _finished(kind: type[RunTask], folder: Path, interrupted: str | None, console: Console) -> int:
    """Print that training has finished or was interrupted, and the next command; return the exit status."""
    from regard.runs.run_folder import config_of
    from regard.training.interrupts import EXIT_STATUS

    command = "regard show {run}" if config_of(folder).get("seeds") else None
    text = f"Finished training {shown(folder)}. Next: {next_command(kind, folder, command)}"
    if interrupted:
        text = f"Saved a checkpoint. To continue: {resume_command(kind, folder)}"
    with suppress(OSError):  # after SIGHUP, the terminal may be closed
        console.print(Text(text), soft_wrap=True)
    return EXIT_STATUS[interrupted] if interrupted else 0


def _failed(output: Path, failed: Mapping[int, str], console: Console) -> int:
    """Print which seeds of a run have failed; return the exit status."""
    for seed, text in failed.items():
        console.print(Text(f"seed {seed} has failed: {printable(text)}"), soft_wrap=True)
    hint = (
        "The other seeds were saved. To train the failed seeds again with other settings: "
        f"regard train --output {shell_word(output)} --resume --change ..."
    )
    console.print(Text(hint), soft_wrap=True)
    return 1


def _print_inputs(arguments: Mapping[str, Any]) -> None:
    """Print the names of the input files, or nothing if one of them does not exist.

    This function is called before torch is imported. The import takes seconds, and the user sees at once
    which files are read.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    files = [path for name in TRAINING_FILES for path in arguments[name] or ()]
    if files:
        sizes = _sizes(files)
        if not sizes:  # a file cannot be read; the error is raised later
            return
        text = ", ".join(f"{shown(path)} ({size})" for path, size in zip(files, sizes, strict=True))
    elif arguments["built_in"]:
        text = f"the built-in corpus {arguments['built_in']}"
    else:
        text = shown(arguments["output"]) if arguments["resume"] else "the settings"
    printable_console(stderr=True).print(Text(f"reading {text} ..."), soft_wrap=True)


def _sizes(paths: list[str]) -> list[str]:
    """Return the sizes of files as text, in MB or kB; [] if a file cannot be read."""
    try:
        sizes = [os.path.getsize(path) for path in paths]
    except (OSError, ValueError):
        return []
    return [f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB" for size in sizes]


@contextmanager
def _stopped_early(folder: Path) -> Iterator[None]:
    """Context manager: if the user presses Ctrl-C before the run folder exists, exit with status 130."""
    from regard.runs.run_folder import is_run

    try:
        yield
    except KeyboardInterrupt:
        if is_run(folder):
            raise
        typer.echo("stopped before the first step; nothing was saved", err=True)
        raise typer.Exit(130) from None


def _print_estimate(run: Estimate) -> None:
    """Print the result of --dry-run: the data report, the settings, the model size and the estimated time."""
    from regard.training.progress import duration_text
    from regard.training.settings import to_toml

    console = printable_console()
    for note in run.notes:
        console.print(Text(note) if isinstance(note, str) else note, soft_wrap=isinstance(note, str))
    console.print(Text("\n" + to_toml(run.settings.model_dump()).strip() + "\n", style="dim"))
    about = "about " * bool(run.settings.training.minutes)
    rows = {
        "parameters": f"about {run.parameters:,}",
        "vocabulary": run.sizes and f"about {run.sizes}",
        "batches per epoch": f"{run.epoch:,}",
        "steps": "" if run.steps is None else f"{about}{run.steps:,}",
        "memory": f"about {run.memory / 2**20:,.0f} MiB for weights, optimizer and the largest batch",
        "time": "" if run.seconds is None else f"about {duration_text(run.seconds)} on this machine",
        "precision": run.precision,
        **{f"{name} code": value for name, value in run.code.items()},
    }
    console.print(facts_table({name: value for name, value in rows.items() if value}))
