"""regard compare: train models alike, measure them, and judge claims about attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from regard.cli import bounds
from regard.cli.pair_file_options import Files, pair_option
from regard.cli.printable_console import printable_console
from regard.cli.train import Device, Threads
from regard.cli.train_settings import settings_of, with_settings
from regard.errors import ArgumentError, message, printable
from regard.training.command_options import DATA

__all__ = ["compare"]

RUNS = "runs"
"""The name of the study that compares trained runs."""

SETTINGS = (
    *("source", "target", "tsv", "jsonl", "columns", "fields", "encoding"),
    *("valid_source", "valid_target", "valid_tsv", "valid_jsonl"),
    *("tokenizer", "vocab_size", "width", "steps", "batch_tokens"),
)
"""Parameters of compare() that are settings of the trainings, as in regard train."""

STUDIES, MODELS, OUTPUT = "Studies", "Models and trainings", "Output and machine"


def _option(name: str, metavar: str, text: str, panel: str, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


StudyNames = Annotated[
    list[str] | None,
    _option(
        "--study",
        "NAME",
        "Study to make: length, gradient, cost, scores, softmax, hard, positions or parts. May be repeated.",
        STUDIES,
        show_default="all studies; with --quick, length, gradient and cost",
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Only seq2seq and bahdanau, smaller models and short trainings, three seeds: less than ten "
        "minutes on two CPU cores.",
        rich_help_panel=STUDIES,
    ),
]
Bins = Annotated[
    str | None,
    _option(
        "--length-bins",
        "A,B,...",
        "Upper bounds of the classes of source length, in words; in characters for runs with character "
        "tokenizers.",
        STUDIES,
        show_default="chosen automatically",
    ),
]
Sentences = Annotated[
    int | None,
    _option(
        "--sentences",
        "INT",
        "Test sentences in each class.",
        STUDIES,
        show_default="100; with --quick, 60",
        min=1,
        max=10_000,
    ),
]
Models = Annotated[
    list[str] | None,
    _option(
        "--models",
        "NAME,...",
        "Models to compare, separated by commas. Options of a model follow after colons: "
        "luong:score=concat. May be repeated.",
        MODELS,
        show_default="the models of each study",
    ),
]
Seeds = Annotated[
    str | None,
    _option(
        "--seeds",
        "N",
        "Number of random seeds, or a list such as 1,2,3. A claim is judged from at least three seeds.",
        MODELS,
        show_default="3 seeds",
    ),
]
Tsv = Annotated[Files, pair_option("--tsv", DATA)]
Jsonl = Annotated[Files, pair_option("--jsonl", DATA)]
Columns = Annotated[str | None, pair_option("--columns", DATA, show_default="1,2")]
Fields = Annotated[str | None, pair_option("--fields", DATA, show_default="source,target")]
Width = Annotated[
    int | None,
    _option(
        "--width",
        "INT",
        "Width of all models.",
        MODELS,
        show_default="128; with --quick, 96",
        min=4,
        max=10_000,
    ),
]
Widths = Annotated[
    str | None,
    _option(
        "--widths",
        "A,B,...",
        "Widths to compare in the studies length and scores.",
        MODELS,
        show_default="half, one and two times --width; with --quick, --width",
    ),
]
Steps = Annotated[
    int | None,
    _option(
        "--steps",
        "INT",
        "Training steps of each model.",
        MODELS,
        show_default="2000; with --quick, 800",
        min=1,
        max=100_000_000,
    ),
]
BatchTokens = Annotated[
    int | None,
    _option(
        "--batch-tokens",
        "INT",
        "Batch size in tokens, including padding.",
        MODELS,
        show_default="2048; with --quick, 1024",
        min=1,
        max=bounds.TOKENS,
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option("--set", "NAME=VALUE", "Change one setting of all trainings. May be repeated.", MODELS),
]
Output = Annotated[
    Path, _option("--output", "FOLDER", "Folder to write: index.html, tables and figures.", OUTPUT)
]
Cache = Annotated[
    Path | None,
    _option(
        "--cache",
        "FOLDER",
        "Folder of the trainings, which later comparisons use again.",
        OUTPUT,
        show_default="the folder runs in --output",
    ),
]
Jobs = Annotated[
    int,
    _option(
        "--jobs",
        "INT",
        "Number of training runs to run in parallel.",
        OUTPUT,
        min=1,
        max=256,
    ),
]
StopAfter = Annotated[
    float | None,
    _option(
        "--stop-after",
        "MINUTES",
        "Stop training after this many minutes, and report the finished runs. The same command resumes. "
        "0 trains nothing.",
        OUTPUT,
        min=0.0,
        max=bounds.MINUTES,
        callback=bounds.finite,
    ),
]


@with_settings(
    *("source", "target", "encoding", "valid_source", "valid_target", "valid_tsv", "valid_jsonl"),
    *("tokenizer", "vocab_size"),
)
def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders to compare, already trained, all of one task."),
    ] = None,
    output: Output = Path("comparison"),
    study: StudyNames = None,
    quick: Quick = False,
    length_bins: Bins = None,
    sentences: Sentences = None,
    models: Models = None,
    seeds: Seeds = None,
    width: Width = None,
    widths: Widths = None,
    steps: Steps = None,
    batch_tokens: BatchTokens = None,
    assignments: Assignments = None,
    tsv: Tsv = None,
    jsonl: Jsonl = None,
    columns: Columns = None,
    fields: Fields = None,
    cache: Cache = None,
    device: Device = "auto",
    threads: Threads = None,
    jobs: Jobs = 1,
    stop_after: StopAfter = None,
    **settings: Any,
) -> int:
    """Compare models with and without attention: train them alike, measure them, and judge claims.

    The default data are the built-in Korean-English corpus. Trainings are ordinary runs; they are stored,
    so that an interrupted comparison continues, and an added model costs only its own training. A claim is
    judged as supported, contradicted or not distinguishable, from at least three seeds.

    Examples:

    * `regard compare --quick --output comparison`

    * `regard compare --study length --models seq2seq,bahdanau,transformer --output comparison`

    * `regard compare --study length --source a.ko --target a.en --seeds 3 --output comparison`

    * `regard compare runs/a runs/b --output comparison`
    """
    arguments = {**locals(), **settings}
    from regard.compare.comparison import compare as compare_models
    from regard.compare.run_study import compare_runs

    console = printable_console(stderr=True)

    def say(text: str) -> None:
        console.print(Text(printable(text)), soft_wrap=True)

    bins = _numbers("--length-bins", length_bins)
    settings = _settings(arguments)
    shared: dict[str, Any] = {"output": output, "settings": settings, "bins": bins, "say": say}
    shared |= {"sentences": sentences, "device": device}
    if runs:
        _check_no_study(arguments)
        return _printed(compare_runs(runs, **shared), say)
    names = [name.strip() for part in models or () for name in part.split(",") if name.strip()]
    shared |= {
        "widths": _numbers("--widths", widths),
        "quick": quick,
        "cache": cache,
        "threads": threads,
        "jobs": jobs,
        "minutes": stop_after,
    }
    return _printed(compare_models(study or (), models=names, seeds=_seeds(seeds), **shared), say)


def _settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the training settings that the command line sets."""
    from regard.tasks.task_table import find_task
    from regard.training.settings import merged
    from regard.training.settings_toml import override

    settings = settings_of({name: arguments[name] for name in SETTINGS}, find_task("translation"))
    data = settings.get("data", {})
    for name in ("source", "target", "tsv", "jsonl", *(key for key in data if key.startswith("valid_"))):
        if data.get(name):
            data[name] = [str(Path(path).absolute()) for path in data[name]]
    return merged(settings, override(arguments["assignments"] or []))


def _check_no_study(arguments: dict[str, Any]) -> None:
    options = {"study": "--study", "models": "--models", "seeds": "--seeds", "quick": "--quick"}
    options |= {
        "width": "--width",
        "widths": "--widths",
        "steps": "--steps",
        "stop_after": "--stop-after",
        "cache": "--cache",
    }
    for name, option in options.items():
        if arguments[name]:
            problem = f"{option} is an option for models that are trained, but run folders are given"
            raise ArgumentError(message("regard compare RUN ...", problem, hint=f"remove {option}"))


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Return the integers of an option such as 5,10,20."""
    try:
        return tuple(int(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        expected = "integers, separated by commas: 5,10,20"
        if option == "--seeds":
            expected = "a number of seeds, such as 3, or a list of seeds, such as 1,2,3"
        raise ArgumentError(message(option, f"{text!r}", expected=expected)) from None


def _seeds(text: str | None) -> int | tuple[int, ...] | None:
    """Return the value of --seeds: a number of seeds, or the seeds of a list."""
    if text is None:
        return None
    numbers = _numbers("--seeds", text)
    return numbers if "," in text else (numbers or (0,))[0]


def _scores(study: Any) -> Any:
    """Return a table with the mean of each score of each compared run, and its deviation over the seeds."""
    from regard.evaluation.confidence import Interval
    from regard.runs.seed_scores import FittedTable, mean_text
    from regard.training.logs.live_table import metric_title

    rows = next(each.rows for each in study.tables if each.name == f"{RUNS}-summary")
    names = list(dict.fromkeys(row["score"] for row in rows))
    table = FittedTable()
    for title in ("run", "seeds", *map(metric_title, names)):
        table.add_column(title, justify="left" if title == "run" else "right")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = {row["score"]: row for row in rows if row["model"] == model}
        means = {
            name: mean_text(name, Interval(row["mean"], None, None, row["seeds"], row["deviation"]))
            for name, row in own.items()
        }
        seeds = max(row["seeds"] for row in own.values())
        table.add_row(Text(model), str(seeds), *(means.get(name, "") for name in names))
    return table


def _printed(result: Any, say: Any) -> int:
    """Print the verdicts and what was written; return the exit status."""
    for study in result.results:
        if study.name == RUNS:
            printable_console().print(_scores(study), "")
            for note in study.notes:
                say(f"note: {note}")
    table = Table(box=None, header_style="dim")
    for column in ("result", "claim"):
        table.add_column(column, no_wrap=column == "result")
    for verdict in result.verdicts.values():
        table.add_row(Text(verdict.outcome), Text(f"{verdict.claim.text} {verdict.reason}."))
    if result.verdicts:
        printable_console().print(table)
        say(result.decision)
    for name, error in result.failed.items():
        say(f"failed: {name}: {error}")
    if result.seconds:
        say(f"summed training time: {result.seconds / 60:.1f} minutes")
    if result.pages:
        say(f"Wrote {result.pages[0]} and {len(result.pages) - 1} files beside it")
    if result.interrupted:
        say(f"stopped ({result.interrupted}); the same command continues")
        from regard.training.interrupts import EXIT_STATUS

        return EXIT_STATUS.get(result.interrupted, 0)
    return 1 if result.failed else 0
