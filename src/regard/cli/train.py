"""regard train: from sentence pairs to a translator in a run folder."""

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


def _several(text: str, panel: str = DATA, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_default=False, **limits)


Files = Annotated[list[str] | None, _several("File of source sentences; may be repeated.")]
Targets = Annotated[list[str] | None, _several("File of target sentences, parallel to --source.")]
Tabbed = Annotated[list[str] | None, _several("TSV file of pairs, instead of --source and --target.")]
Lined = Annotated[list[str] | None, _several('JSON lines file with "source" and "target".')]
Columns = Annotated[str | None, _several("Columns of --tsv: two numbers from 1, or two names of its header.")]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        help="Fields of --jsonl: two names; a.b is field b inside field a.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
BuiltIn = Annotated[str | None, _several("Built-in corpus: korean.")]
Judged = Annotated[
    list[str] | None, _several("Source sentences for validation. Default: some training pairs are held out.")
]
Wanted = Annotated[list[str] | None, _several("Target sentences for validation.")]
Links = Annotated[list[str] | None, _several("Word alignments of the pairs, in Pharaoh format.")]
Pieces = Annotated[
    str | None, _several("unigram, bpe, word or character. Default: chosen from the data.", DATA)
]
Guided = Annotated[
    float | None,
    _several("Weight of the guided-alignment loss (0 disables it).", TRAINING, callback=bounds.finite),
]
Name = Annotated[str | None, _several("seq2seq, bahdanau (default), luong or transformer.", RUN)]
Out = Annotated[Path, typer.Option(help="Run folder.", rich_help_panel=RUN)]
Recipe = Annotated[Path | None, _several("TOML file of settings (a recipe); options override it.", RUN)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="One setting, e.g. training.rate=0.001; may be repeated. --dry-run lists all.",
        rich_help_panel=RUN,
    ),
]
Minutes = Annotated[
    float | None,
    _several(
        "Train for this many minutes; the learning rate decays to zero by then.",
        TRAINING,
        callback=bounds.finite,
    ),
]
Steps = Annotated[int | None, _several("Train for this many steps.", TRAINING)]
Epochs = Annotated[float | None, _several("Train for this many epochs.", TRAINING, callback=bounds.finite)]
Precision = Annotated[
    str | None,
    _several("float32, tf32, bfloat16 or auto (bfloat16 on GPUs that support it).", TRAINING),
]
Seed = Annotated[int | None, _several("Random seed.", TRAINING)]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.", rich_help_panel=RUN)]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Number of CPU threads. Default: the fastest.",
        rich_help_panel=RUN,
        min=1,
        max=bounds.THREADS,
        show_default=False,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.", rich_help_panel=RUN)]
Change = Annotated[
    bool,
    typer.Option("--change", help="Resume although settings or data have changed.", rich_help_panel=RUN),
]
Start = Annotated[Path | None, _several("Run folder whose weights and tokenizers this run starts from.", RUN)]
Dry = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the data report, the settings and the time, and exit.", rich_help_panel=RUN
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
    valid_source: Judged = None,
    valid_target: Wanted = None,
    alignments: Links = None,
    tokenizer: Pieces = None,
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
    speed of this machine, unless they are set. Ctrl-C, SIGTERM and SIGHUP save and stop; --resume
    continues: a run with --steps or --epochs ends with the same bits as one that was never stopped.

    Examples:

    * `regard train --source a.ko --target a.en --model bahdanau --out runs/x`

    * `regard train --tsv pairs.tsv --model transformer --minutes 30 --out runs/y`

    * `regard train --tsv pairs.tsv --columns 2,1 --out runs/w`

    * `regard train --out runs/x --resume`

    * `regard train --recipe recipes/multi30k-de-en-transformer.toml --set training.rate=0.001 --out runs/z`

    * `torchrun --nproc-per-node 2 -m regard train --source a.ko --target a.en --out runs/x`
    """
    _print_inputs(out, source, target, tsv, jsonl, built_in, resume)
    from regard.tasks.translation.estimate import estimate
    from regard.tasks.translation.train_run import Machine, train_translation
    from regard.training.settings import merged, override, without_length

    data: dict[str, Any] = {"source": source, "target": target, "tsv": tsv, "jsonl": jsonl}
    data |= {"built_in": built_in, "tokenizer": tokenizer}
    data |= {"valid_source": valid_source, "valid_target": valid_target, "alignments": alignments}
    fields = names and [*two_names("--fields", names)]
    data |= {"columns": columns and [*two_columns(columns)], "fields": fields}
    training = {"minutes": minutes, "steps": steps, "epochs": epochs, "precision": precision}
    said = {"data": data, "training": {**training, "guided": guided}, "model": {"name": model}, "seed": seed}
    _one_length(minutes=minutes, steps=steps, epochs=epochs)
    said = merged({}, said, override(assign or []))
    given = merged({} if recipe is None else without_length(_read(recipe), said), said)
    if init_from is not None:
        given["init_from"] = str(init_from)
    how: dict[str, Any] = {"resume": resume, "change": change, "machine": Machine(device, threads)}
    if dry_run:
        _print_estimate(estimate(given, out, **how))
        return 0
    console = Console(stderr=True, highlight=False)
    with _stopped_early(out):
        outcome = train_translation(given, out, **how, console=console)
    if outcome.warning and not outcome.interrupted:
        console.print(Text(f"{outcome.warning}: {_advice(given)}"))
    return _finished(_name(out), outcome.interrupted, console)


def _finished(out: str, interrupted: str | None, console: Console) -> int:
    """Print what to do next; the exit status."""
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
    """Print what is read, before torch is imported, so that the terminal is never silent for seconds."""
    if os.environ.get("RANK", "0") != "0":
        return
    files = [*(source or ()), *(target or ()), *(tsv or ()), *(jsonl or ())]
    if files:
        text = ", ".join(f"{_name(path)} ({_size(path)})" for path in files)
    elif built_in:
        text = f"the built-in corpus {built_in}"
    else:
        text = _name(out) if resume else "the settings"
    Console(stderr=True, highlight=False).print(Text(f"reading {text} ..."), soft_wrap=True)


def _name(path: str | Path) -> str:
    return printable(os.fsencode(path).decode("utf-8", "replace"))


def _size(path: str) -> str:
    try:
        size = os.path.getsize(path)
    except (OSError, ValueError):
        return "not found"
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


@contextmanager
def _stopped_early(out: Path) -> Iterator[None]:
    """Exit with status 130 after Ctrl-C before the first step: until then there is no run in the folder."""
    from regard.runs.run_folder import is_run

    try:
        yield
    except KeyboardInterrupt:
        if is_run(out):
            raise
        typer.echo("stopped before the first step; nothing is saved", err=True)
        raise typer.Exit(130) from None


def _read(recipe: Path) -> dict[str, Any]:
    from regard.tasks.translation.translation_settings import TranslationSettings
    from regard.training.settings import check_names, read_toml

    found = read_toml(recipe)
    check_names(TranslationSettings, found, str(recipe))
    return found


def _one_length(**given: float | None) -> None:
    named = [f"--{name}" for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ArgumentError(message("regard train", " and ".join(named), expected="one of them"))


def _advice(given: Mapping[str, Any]) -> str:
    """Advice after a run that was too short; it names only settings that the user gave."""
    model = given.get("model", {})
    size = next((f"model.{name}" for name in ("width", "size", "layers") if model.get(name) is not None), "")
    return f"give it more minutes, or leave out {size}" if size else "give it more minutes"


def _print_estimate(found: Estimate) -> None:
    """Print what would happen: the data, the settings, the size of it."""
    from regard.training.settings import to_toml

    console = Console(highlight=False)
    for note in found.notes:
        console.print(Text(note) if isinstance(note, str) else note, soft_wrap=isinstance(note, str))
    console.print(Text("\n" + to_toml(found.settings.model_dump()).strip() + "\n", style="dim"))
    table = Table(box=None, show_header=False)
    rows = {
        "parameters": f"about {found.parameters:,}",
        "vocabulary": f"about {found.vocabulary[0]:,} source, {found.vocabulary[1]:,} target",
        "batches per epoch": f"{found.epoch:,}",
        "steps": ""
        if found.steps is None
        else f"{'about ' * bool(found.settings.training.minutes)}{found.steps:,}",
        "memory": f"about {found.memory / 2**20:,.0f} MiB for weights, optimizer and the largest batch",
    }
    if found.seconds is not None:
        rows["time"] = f"about {_duration(found.seconds)} on this machine"
    for name, value in ((name, value) for name, value in rows.items() if value):
        table.add_row(Text(name, style="cyan"), Text(value))
    console.print(table)


def _duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> _duration(42), _duration(300), _duration(30_000)
    ('42 seconds', '5 minutes', '8.3 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
