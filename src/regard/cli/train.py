"""regard train: train a translator on sentence pairs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli import bounds
from regard.cli.column_options import two_columns, two_names
from regard.errors import ArgumentError, message, printable

if TYPE_CHECKING:
    from regard.tasks.translation.estimate import Estimate

__all__ = ["train"]

DATA, TRAINING, RUN = "Data", "Training", "Run"


def _option(metavar: str, text: str, panel: str = DATA, **limits: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, show_default=False, **limits)


Files = Annotated[list[str] | None, _option("FILE", "File of source sentences; may be repeated.")]
Targets = Annotated[list[str] | None, _option("FILE", "File of target sentences, parallel to --source.")]
Tabbed = Annotated[list[str] | None, _option("FILE", "TSV file of pairs, instead of --source and --target.")]
Lined = Annotated[list[str] | None, _option("FILE", 'JSON lines file with the fields "source" and "target".')]
Columns = Annotated[
    str | None, _option("A,B", "Columns of --tsv: two numbers from 1, or two names of its header.")
]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        metavar="A,B",
        help="Fields of --jsonl: two names; a.b is field b inside field a.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
BuiltIn = Annotated[str | None, _option("NAME", "Built-in corpus: korean.")]
ValidSource = Annotated[
    list[str] | None,
    _option("FILE", "Source sentences of the validation set. Default: some training pairs are held out."),
]
ValidTarget = Annotated[list[str] | None, _option("FILE", "Target sentences of the validation set.")]
Links = Annotated[list[str] | None, _option("FILE", "Word alignments of the pairs, in Pharaoh format.")]
Tokenizer = Annotated[
    str | None,
    _option("NAME", "Tokenizer: unigram, bpe, word or character. Default: chosen from the data."),
]
Guided = Annotated[
    float | None,
    _option(
        "FLOAT", "Weight of the guided-alignment loss (0 disables it).", TRAINING, callback=bounds.finite
    ),
]
Name = Annotated[
    str | None, _option("NAME", "Model: seq2seq, bahdanau (default), luong or transformer.", RUN)
]
Out = Annotated[Path, typer.Option(metavar="RUN", help="Run folder to write.", rich_help_panel=RUN)]
Recipe = Annotated[
    Path | None, _option("FILE", "TOML file of settings (a recipe); options override it.", RUN)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set one setting, e.g. training.rate=0.001; may be repeated. --dry-run lists all settings.",
        rich_help_panel=RUN,
    ),
]
Minutes = Annotated[
    float | None,
    _option(
        "FLOAT",
        "Train for this many minutes; the learning rate decays to zero by then.",
        TRAINING,
        callback=bounds.finite,
    ),
]
Steps = Annotated[int | None, _option("INT", "Train for this many steps.", TRAINING)]
Epochs = Annotated[
    float | None, _option("FLOAT", "Train for this many epochs.", TRAINING, callback=bounds.finite)
]
Precision = Annotated[
    str | None,
    _option(
        "NAME", "Precision: float32, tf32, bfloat16 or auto (bfloat16 on GPUs that support it).", TRAINING
    ),
]
Seed = Annotated[int | None, _option("INT", "Random seed.", TRAINING)]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Device: cpu, cuda, mps or auto.", rich_help_panel=RUN)
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="INT",
        help="Number of CPU threads. Default: the fastest number, measured.",
        rich_help_panel=RUN,
        min=1,
        max=bounds.THREADS,
        callback=bounds.threads,
        show_default=False,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.", rich_help_panel=RUN)]
Change = Annotated[
    bool,
    typer.Option("--change", help="Resume although settings or data have changed.", rich_help_panel=RUN),
]
Start = Annotated[
    Path | None, _option("RUN", "Run folder whose weights and tokenizers this run starts from.", RUN)
]
Dry = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the data report, the settings and the estimated time, and exit.",
        rich_help_panel=RUN,
    ),
]


def train(
    out: Out,
    source: Files = None,
    target: Targets = None,
    tsv: Tabbed = None,
    jsonl: Lined = None,
    columns: Columns = None,
    names: Fields = None,
    built_in: BuiltIn = None,
    valid_source: ValidSource = None,
    valid_target: ValidTarget = None,
    alignments: Links = None,
    tokenizer: Tokenizer = None,
    guided: Guided = None,
    model: Name = None,
    recipe: Recipe = None,
    assign: Set = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    precision: Precision = None,
    seed: Seed = None,
    device: Device = "auto",
    threads: Threads = None,
    resume: Resume = False,
    change: Change = False,
    init_from: Start = None,
    dry_run: Dry = False,
) -> int:
    """Train a translator on sentence pairs and write it to a run folder.

    Model size, batch size, learning rate, dropout and tokenizer are chosen from the data, the budget and the
    speed of this machine, unless they are set. Ctrl-C, SIGTERM and SIGHUP save a checkpoint and stop;
    --resume continues. With --steps or --epochs, a resumed run gives the same bits as an uninterrupted one.

    Examples:

    * `regard train --source a.ko --target a.en --model bahdanau --out runs/x`

    * `regard train --tsv pairs.tsv --model transformer --minutes 30 --out runs/y`

    * `regard train --tsv pairs.tsv --columns 2,1 --out runs/w`

    * `regard train --out runs/x --resume`

    * `regard train --recipe recipes/multi30k-de-en-transformer.toml --set training.rate=0.001 --out runs/z`

    * `torchrun --nproc-per-node 2 -m regard train --source a.ko --target a.en --out runs/x`
    """
    _one_length(minutes=minutes, steps=steps, epochs=epochs)
    _print_inputs(out, source, target, tsv, jsonl, built_in, resume)
    from regard.tasks.translation import Machine, train_translation
    from regard.tasks.translation.estimate import estimate
    from regard.training.settings import merged, override, without_length

    data: dict[str, Any] = {"source": source, "target": target, "tsv": tsv, "jsonl": jsonl}
    data |= {"built_in": built_in, "tokenizer": tokenizer}
    data |= {"valid_source": valid_source, "valid_target": valid_target, "alignments": alignments}
    fields = names and [*two_names("--fields", names)]
    data |= {"columns": columns and [*two_columns(columns)], "fields": fields}
    training = {"minutes": minutes, "steps": steps, "epochs": epochs, "precision": precision}
    options = {
        "data": data,
        "training": {**training, "guided": guided},
        "model": {"name": model},
        "seed": seed,
    }
    options = merged({}, options, override(assign or []))
    settings = merged({} if recipe is None else without_length(_read(recipe), options), options)
    settings |= {} if init_from is None else {"init_from": str(init_from)}
    how: dict[str, Any] = {"resume": resume, "change": change, "machine": Machine(device, threads)}
    if dry_run:
        _print_estimate(estimate(settings, out, **how))
        return 0
    console = Console(stderr=True, highlight=False)
    with _stopped_early(out):
        outcome = train_translation(settings, out, **how, console=console)
    if outcome.warning and not outcome.interrupted:
        console.print(Text(f"{outcome.warning}: {_advice(settings)}"))
    return _finished(_name(out), outcome.interrupted, console)


def _finished(out: str, interrupted: str | None, console: Console) -> int:
    """Print what to do next; return the exit status."""
    from regard.training.interrupts import EXIT_STATUS

    text = f'Finished training {out}. Next: regard translate {out} --text "..." --draw'
    if interrupted:
        text = f"Saved a checkpoint. To continue: regard train --out {out} --resume"
    with suppress(OSError):  # after SIGHUP there may be no terminal
        console.print(Text(text), soft_wrap=True)
    return EXIT_STATUS[interrupted] if interrupted else 0


def _print_inputs(
    out: Path,
    source: list[str] | None,
    target: list[str] | None,
    tsv: list[str] | None,
    jsonl: list[str] | None,
    built_in: str | None,
    resume: bool,
) -> None:
    """Print the input files before torch is imported, which takes seconds; nothing if one does not exist."""
    if os.environ.get("RANK", "0") != "0":
        return
    files = [*(source or ()), *(target or ()), *(tsv or ()), *(jsonl or ())]
    if files:
        sizes = _sizes(files)
        if not sizes:  # reported as an error later
            return
        text = ", ".join(f"{_name(path)} ({size})" for path, size in zip(files, sizes, strict=True))
    elif built_in:
        text = f"the built-in corpus {built_in}"
    else:
        text = _name(out) if resume else "the settings"
    Console(stderr=True, highlight=False).print(Text(f"reading {text} ..."), soft_wrap=True)


def _name(path: str | Path) -> str:
    return printable(os.fsencode(path).decode("utf-8", "replace"))


def _sizes(paths: list[str]) -> list[str]:
    """Return the sizes of files as text, all in one unit; [] if a file cannot be read."""
    try:
        sizes = [os.path.getsize(path) for path in paths]
    except (OSError, ValueError):
        return []
    unit, name = (1e6, "MB") if max(sizes) >= 1e6 else (1e3, "kB")
    return [f"{size / unit:,.1f} {name}" for size in sizes]


@contextmanager
def _stopped_early(out: Path) -> Iterator[None]:
    """Exit with status 130 after Ctrl-C before the first step: there is no run folder yet."""
    from regard.runs.run_folder import is_run

    try:
        yield
    except KeyboardInterrupt:
        if is_run(out):
            raise
        typer.echo("stopped before the first step; nothing was saved", err=True)
        raise typer.Exit(130) from None


def _read(recipe: Path) -> dict[str, Any]:
    from regard.tasks.translation.translation_settings import TranslationSettings
    from regard.training.settings import check_names, read_toml

    settings = read_toml(recipe)
    check_names(TranslationSettings, settings, str(recipe))
    return settings


def _one_length(**lengths: float | None) -> None:
    options = [f"--{name}" for name, value in lengths.items() if value is not None]
    if len(options) > 1:
        problem = f"{' and '.join(options)} cannot be combined"
        raise ArgumentError(message("regard train", problem, expected=f"only one of {', '.join(options)}"))


def _advice(settings: Mapping[str, Any]) -> str:
    """Return advice after a run that was too short; it names only settings that the user set."""
    model = settings.get("model", {})
    size = next((f"model.{name}" for name in ("width", "size", "layers") if model.get(name) is not None), "")
    return f"train for more minutes, or do not set {size}" if size else "train for more minutes"


def _print_estimate(run: Estimate) -> None:
    """Print the data report, the settings, the model size and the time of a run."""
    from regard.training.settings import to_toml

    console = Console(highlight=False)
    for note in run.notes:
        console.print(Text(note) if isinstance(note, str) else note, soft_wrap=isinstance(note, str))
    console.print(Text("\n" + to_toml(run.settings.model_dump()).strip() + "\n", style="dim"))
    table = Table(box=None, show_header=False)
    rows = {
        "parameters": f"about {run.parameters:,}",
        "vocabulary": f"about {run.vocabulary[0]:,} source, {run.vocabulary[1]:,} target",
        "batches per epoch": f"{run.epoch:,}",
        "steps": ""
        if run.steps is None
        else f"{'about ' * bool(run.settings.training.minutes)}{run.steps:,}",
        "memory": f"about {run.memory / 2**20:,.0f} MiB for weights, optimizer and the largest batch",
    }
    if run.seconds is not None:
        rows["time"] = f"about {_duration(run.seconds)} on this machine"
    for name, value in ((name, value) for name, value in rows.items() if value):
        table.add_row(Text(name, style="cyan"), Text(value))
    console.print(table)


def _duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> _duration(42), _duration(300), _duration(30_000)
    ('42 seconds', '5 minutes', '8.3 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
