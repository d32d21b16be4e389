"""regard compare: train models alike, measure them, and judge claims about attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from regard.cli.options import MOST_MINUTES, batch_tokens, but, command, finite, under
from regard.cli.printing import printable_console
from regard.cli.train_settings import TRAINING_MACHINE, setting_options, settings_of
from regard.errors import ArgumentError, message, printable
from regard.training.command_options import CHOSEN, DATA, CommandOption, flag, integer, number, several

RUNS = "runs"
"""The name of the study that compares trained runs."""

SETTINGS = (
    *("source", "target", "tsv", "jsonl", "columns", "fields", "encoding"),
    *("valid_source", "valid_target", "valid_tsv", "valid_jsonl"),
    *("tokenizer", "vocab_size", "width", "steps", "batch_tokens"),
)
"""Options of compare that are settings of the trainings, as in regard train."""

STUDIES, MODELS, OUTPUT = "Studies", "Models and trainings", "Output and machine"


@command(
    CommandOption("runs", "Run folders to compare, already trained, all of one task.", "RUN", list[Path]),
    *under(
        OUTPUT,
        CommandOption(
            "--output",
            "Folder to write: index.html, tables and figures.",
            "FOLDER",
            Path,
            Path("comparison"),
        ),
        CommandOption(
            "--cache",
            "Folder of the trainings, which later comparisons use again.",
            "FOLDER",
            Path,
            shown_default="the folder runs in --output",
        ),
        integer("--jobs", "Number of training runs to run in parallel.", 1, 256, default=1),
        number(
            "--stop-after",
            "Stop training after this many minutes, and report the finished runs. The same command resumes. "
            "0 trains nothing.",
            0.0,
            MOST_MINUTES,
            metavar="MINUTES",
            check=finite,
        ),
    ),
    *under(
        STUDIES,
        several(
            "--study",
            "Study to make: length, gradient, cost, scores, softmax, hard, positions or parts.",
            "NAME",
            shown_default="all studies; with --quick, length, gradient and cost",
        ),
        flag(
            "--quick",
            "Only seq2seq and bahdanau, smaller models and short trainings, three seeds: less than ten "
            "minutes on two CPU cores.",
        ),
        CommandOption(
            "--length-bins",
            "Upper bounds of the classes of source length, in words; in characters for runs with character "
            "tokenizers.",
            "A,B,...",
            shown_default=CHOSEN,
        ),
        integer(
            "--sentences",
            "Test sentences in each class.",
            1,
            10_000,
            shown_default="100; with --quick, 60",
        ),
    ),
    *under(
        MODELS,
        several(
            "--models",
            "Models to compare, separated by commas. Options of a model follow after colons: "
            "luong:score=concat.",
            "NAME,...",
            shown_default="the models of each study",
        ),
        CommandOption(
            "--seeds",
            "Number of random seeds, or a list such as 1,2,3. A claim is judged from at least three seeds.",
            "N",
            shown_default="3 seeds",
        ),
        integer("--width", "Width of all models.", 4, 10_000, shown_default="128; with --quick, 96"),
        CommandOption(
            "--widths",
            "Widths to compare in the studies length and scores.",
            "A,B,...",
            shown_default="half, one and two times --width; with --quick, --width",
        ),
        integer(
            "--steps",
            "Training steps of each model.",
            1,
            100_000_000,
            shown_default="2000; with --quick, 800",
        ),
        batch_tokens("Batch size in tokens, including padding.", None, "2048; with --quick, 1024"),
        several("--set", "Change one setting of all trainings.", "NAME=VALUE"),
    ),
    *under(DATA, "tsv", "jsonl", but("columns", given=True), but("fields", given=True)),
    *TRAINING_MACHINE,
    *setting_options(
        *("source", "target", "encoding", "valid_source", "valid_target", "valid_tsv", "valid_jsonl"),
        *("tokenizer", "vocab_size"),
    ),
)
def compare(runs: list[Path] | None, **options: Any) -> int:
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
    from regard.compare.comparison import compare as compare_models
    from regard.compare.run_study import compare_runs

    console = printable_console(stderr=True)

    def say(text: str) -> None:
        console.print(Text(printable(text)), soft_wrap=True)

    shared: dict[str, Any] = {"settings": _settings(options), "say": say}
    shared["bins"] = _numbers("--length-bins", options["length_bins"])
    shared |= {name: options[name] for name in ("output", "sentences", "device")}
    if runs:
        _check_no_study(options)
        return _printed(compare_runs(runs, **shared), say)
    names = [name.strip() for part in options["models"] or () for name in part.split(",") if name.strip()]
    shared |= {name: options[name] for name in ("quick", "cache", "threads", "jobs")}
    shared |= {"widths": _numbers("--widths", options["widths"]), "minutes": options["stop_after"]}
    seeds = _seeds(options["seeds"])
    return _printed(compare_models(options["study"] or (), models=names, seeds=seeds, **shared), say)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the training settings that the command line sets."""
    from regard.tasks.task_table import find_task
    from regard.training.settings import merged, override

    settings = settings_of({name: options[name] for name in SETTINGS}, find_task("translation"))
    data = settings.get("data", {})
    for name in ("source", "target", "tsv", "jsonl", *(key for key in data if key.startswith("valid_"))):
        if data.get(name):
            data[name] = [str(Path(path).absolute()) for path in data[name]]
    return merged(settings, override(options["set"] or []))


def _check_no_study(options: dict[str, Any]) -> None:
    for name in ("study", "models", "seeds", "quick", "width", "widths", "steps", "stop_after", "cache"):
        if options[name]:
            option = f"--{name.replace('_', '-')}"
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
    from regard.runs.run_facts import FittedTable, mean_text
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
