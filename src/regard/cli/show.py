"""regard show: print the settings, progress and scores of a run, or a table of several runs."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.open_runs import own_task, resume_command, task_of_run
from regard.cli.options import JSON, RUN, command
from regard.cli.printing import facts_table, print_json, printable_console
from regard.data.line_io import say
from regard.errors import DataError, RegardError, message, printable, shell_word, shown
from regard.runs.run_facts import (
    FittedTable,
    RunFacts,
    SeedFacts,
    facts_of,
    mean_text,
    scores_table,
    seed_facts_of,
)
from regard.training.logs.live_table import TITLES, best_title, in_time, in_words, metric_title

ROWS = 12
"""Maximum number of evaluations in the table: the last evaluations, and always the best evaluation."""

BARS, PLAIN = "▁▂▃▄▅▆▇█", ".:-=+*#%"


@command(
    replace(RUN, name="runs", help="Run folders, written by regard train --output.", kind=list[Path]),
    JSON,
    "task",
)
def show(runs: list[Path], json: bool, task: str | None) -> None:
    """Show the model, data, settings, progress, scores and checkpoints of a run.

    For several runs, a table compares them; folders that are not run folders are reported and skipped.

    Examples:

    * `regard show runs/x`

    * `regard show runs/*`

    * `regard show runs/x --json`
    """
    facts = [_facts(runs[0], task)] if len(runs) == 1 else list(_readable_runs(runs, task))
    if json:
        records = [each.written() for each in facts]
        print_json(records if len(runs) > 1 else records[0])
        return
    console = printable_console()
    if len(runs) > 1:
        console.print(compared(facts))
        return
    about = facts[0]
    parts = describe_run(about, console) if isinstance(about, RunFacts) else describe_seeds(about)
    for part in parts:
        console.print(part)


def _facts(run: Path, task: str | None) -> RunFacts | SeedFacts:
    kind = task_of_run(run, task)
    return seed_facts_of(kind, run) or facts_of(kind, run)


def _readable_runs(runs: Sequence[Path], task: str | None) -> Iterator[RunFacts | SeedFacts]:
    count = 0
    for each in runs:
        try:
            facts = _facts(each, task)
        except RegardError as error:
            say(str(error).splitlines()[0])
            continue
        count += 1
        yield facts
    if not count:
        raise DataError(
            message(
                "regard show",
                "none of these folders is a run folder",
                hint="regard train --output FOLDER creates a run folder",
            )
        )


def describe_run(facts: RunFacts, console: Console) -> Iterator[Table | Text]:
    """Yield what `regard show` prints for one run: tables and lines of text."""
    yield facts_table(dict(_about(facts)), shown(facts.folder))
    yield Text()
    validation = [(each["step"], each["loss"]) for each in facts.evaluations if {"step", "loss"} <= set(each)]
    curves = {"training loss": facts.losses, "validation loss": validation}
    for name, points in curves.items():
        if len(points) > 1:
            yield Text(name, style="cyan")
            yield _curve(points, console)
    if facts.evaluations:
        yield Text()
        yield _evaluations(facts, console)
        if len(facts.evaluations) > ROWS:
            yield Text(f"{len(facts.evaluations) - ROWS} earlier evaluations are in log.jsonl", style="dim")
    if facts.checkpoints:
        yield Text()
        yield _checkpoints(facts)
    for note in (facts.quality, *facts.notes):
        if note:
            yield Text(printable(note), style="yellow")
    if command := _next(facts):
        yield Text(f"\nnext: {command}", style="dim")


def describe_seeds(facts: SeedFacts) -> Iterator[Table | Text]:
    """Yield what `regard show` prints for a run with several seeds: tables and lines of text."""
    first = next(iter(facts.runs.values()), None)
    about = {} if first is None else dict(_about(first))
    about["progress"] = facts.status
    yield facts_table(about, shown(facts.folder))
    yield Text()
    if first is not None:
        others = {
            seed: {
                "best step": f"{run.best.get('step', 0):,}" if run.best else "",
                "status": printable(facts.failed.get(seed, run.status)),
            }
            for seed, run in facts.runs.items()
        }
        yield Text(f"scores of each seed at the {best_title(first.best_metric)}", style="dim")
        yield scores_table(facts.scores, others)
    for note in facts.notes:
        yield Text(printable(note), style="yellow")
    if first is not None:
        folder = shell_word(facts.folder)
        ended = all(each.progress and each.progress.ended for each in facts.runs.values())
        command = f"regard show {folder}/seed-*{own_task(first.task)}"
        command = command if ended else resume_command(first.task, facts.folder)
        yield Text(f"\nnext: {command}", style="dim")


def _about(facts: RunFacts) -> Iterator[tuple[str, str]]:
    options = ", ".join(f"{name} {_value(value)}" for name, value in facts.model.items() if name != "name")
    yield "model", f"{facts.model['name']}{f' ({options})' if options else ''}"
    if facts.parameters is not None:
        yield "parameters", f"{facts.parameters:,}"
    if facts.sizes:
        yield "sizes" if facts.task == "algorithms" else "vocabulary", facts.sizes
    yield "data", ", ".join(f"{name} {_value(value)}" for name, value in facts.data.items())
    if facts.fingerprints:
        yield "fingerprints", ", ".join(f"{name} {mark[:12]}" for name, mark in facts.fingerprints.items())
    if facts.changed:
        yield "settings", ", ".join(f"{name} {_value(value)}" for name, value in facts.changed.items())
    if facts.averaged is not None:
        yield "average", str(facts.averaged)
    yield "progress", _progress(facts)


def _progress(facts: RunFacts) -> str:
    """Return the progress of training as text: training steps, epochs, tokens, time and status."""
    at = facts.progress
    if at is None:
        return facts.status
    step = f"step {at.step:,}" + (f" of {at.total:,}" if at.total is not None else "")
    epochs = f"{at.epoch} complete epochs" if at.epoch != 1 else "1 complete epoch"
    return f"{step}, {epochs}, {at.tokens:,} {facts.kind.counted}, {in_time(at.seconds)}; {facts.status}"


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_value(inner)}" for key, inner in value.items()) + "}"
    return printable(f"{value:g}" if isinstance(value, float) else str(value))


def _next(facts: RunFacts) -> str:
    """Return what the user can do next with a run, usually a command such as "regard evaluate runs/x".

    If the next command is `regard show`, the result is "", because this command is already running.
    """
    folder = shell_word(facts.folder)
    if facts.damaged:
        return "restore the damaged files from a copy, or train again"
    if facts.progress is None or not facts.progress.ended:
        return resume_command(facts.task, facts.folder)
    if facts.data.get("built_in") and facts.task != "algorithms":  # algorithms has no test split
        return f"regard evaluate {folder} --split test"
    command = facts.kind.settings_type.next_command
    return "" if command.startswith("regard show") else command.format(run=folder)


def _curve(losses: list[tuple[int, float]], console: Console) -> Text:
    first, last = losses[0], losses[-1]
    ends = (
        f"{in_words('loss', first[1])} at step {first[0]:,} ",
        f" {in_words('loss', last[1])} at {last[0]:,}",
    )
    room = max(min(console.width - sum(map(len, ends)), 60), 4)
    bars = PLAIN if console.options.ascii_only else BARS
    return Text(ends[0]).append(sparkline([loss for _, loss in losses], room, bars), "cyan").append(ends[1])


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Draw numbers as a row of bars, at most `width` bars: neighbouring numbers are averaged if necessary.

    NaN and infinity are drawn as a space.

    >>> sparkline([8, 6, 4, 3, 2, 2], width=3)
    '█▃▁'
    """
    count = min(len(values), max(width, 1))
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    means = [sum(each / (b - a) for each in values[a:b]) for a, b in itertools.pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low if 0 < high - low < math.inf else 1.0
    heights = [min((mean - low) / span, 1.0) if math.isfinite(mean) else None for mean in means]
    return "".join(" " if height is None else bars[round(height * (len(bars) - 1))] for height in heights)


def _evaluations(facts: RunFacts, console: Console) -> Table:
    best, rows = facts.best, facts.evaluations
    shown_rows = rows[-ROWS:] if best is None or best in rows[-ROWS:] else [best, *rows[-ROWS + 1 :]]
    names = list(dict.fromkeys(name for each in shown_rows for name in each if name != "step"))
    best_name = facts.best_metric
    table = FittedTable(metric_title(name) for name in reversed(names) if name not in ("loss", best_name))
    for name in ("evaluation", *names, ""):
        table.add_column(Text(printable(metric_title(name))), justify="right")
    star = "*" if console.options.ascii_only else "★"
    for each in shown_rows:
        cells = [in_words(name, each[name]) if name in each else "" for name in names]
        mark = f"{star} {best_title(facts.best_metric)}" if each is best else ""
        table.add_row(f"{each.get('step', 0):,}", *cells, Text(mark, style="yellow"))
    return table


def _checkpoints(facts: RunFacts) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("checkpoint", "size", "", ""):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    for each in facts.checkpoints:
        state = Text(printable(each.damage), style="bold red") if each.damage else Text("intact")
        table.add_row(
            f"{each.step:,}",
            f"{each.size / 2**20:,.1f} MiB",
            state,
            Text(", ".join(each.marks), style="yellow"),
        )
    return table


def _briefly(count: int) -> str:
    """Return a number in a short form, with k for thousands and M for millions.

    >>> _briefly(950), _briefly(61_234), _briefly(3_450_000)
    ('950', '61k', '3.5M')
    """
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k" if count >= 1e3 else str(count)


def compared(facts: Sequence[RunFacts | SeedFacts]) -> Table:
    """Return a table that compares runs, with one row for each run.

    The table shows the scores of the best checkpoint, and by which score this checkpoint was chosen. For a
    run with several seeds, the mean and the standard deviation of each score are shown.
    """
    seeds = {each.folder: each for each in facts if isinstance(each, SeedFacts)}
    firsts = [next(iter(each.runs.values()), None) if isinstance(each, SeedFacts) else each for each in facts]
    folders = [each.folder for each, run in zip(facts, firsts, strict=True) if run is not None]
    runs = [run for run in firsts if run is not None]
    table = FittedTable(("weights", "time", "step", "model"))
    names = [min(shown(os.path.relpath(each)), shown(each), key=len) for each in folders]
    for name in ("run", "model"):
        table.add_column(name)
    criteria = sorted({each.best_metric for each in runs})
    # Runs of different tasks have different scores. So there is only one column of scores: the name and the
    # value of the score by which the best checkpoint of each run was chosen.
    several_tasks = len({each.task for each in runs}) > 1
    scored = list(dict.fromkeys(["loss", *(each.kind.best for each in runs), *criteria]))
    scored = [] if several_tasks else scored
    differ = ["best score"] if several_tasks else ["best by"] if len(criteria) > 1 else []
    titles = {**TITLES, "exact": "exact"}  # short, so that the table fits into 80 columns
    for name in ("weights", "step"):
        table.add_column(name, justify="right")
    for name in scored:
        table.add_column(Text(printable(titles.get(name, metric_title(name)))), justify="right")
    for name in (*differ, "time"):
        table.add_column(name, justify="right")
    if not differ:
        table.caption = Text(f"scores of the checkpoint with the {best_title(*criteria)}", style="dim")
        table.caption_justify = "left"
    table.add_column("status")
    for place, folder, each in zip(names, folders, runs, strict=True):
        best, at = each.best or {}, each.progress
        scores = [in_words(name, best[name]) if name in best else "" for name in scored]
        status = each.status
        if folder in seeds:
            summary, status = seeds[folder].summary, seeds[folder].status
            scores = [mean_text(name, summary[name]) if name in summary else "" for name in scored]
        step = "" if at is None else f"{at.step:,}"
        step += f"/{at.total:,}" if at is not None and at.total not in (None, at.step) else ""
        best_by = titles.get(each.best_metric, metric_title(each.best_metric))
        if several_tasks and folder in seeds and each.best_metric in seeds[folder].summary:
            best_by = f"{best_by} {mean_text(each.best_metric, seeds[folder].summary[each.best_metric])}"
        elif several_tasks and each.best_metric in best:
            best_by = f"{best_by} {in_words(each.best_metric, best[each.best_metric])}"
        table.add_row(
            Text(place),
            Text(printable(str(each.model["name"]))),
            "" if each.parameters is None else _briefly(each.parameters),
            step,
            *scores,
            *([Text(printable(best_by))] if differ else []),
            "" if at is None else in_time(at.seconds),
            Text(printable(status)),
        )
    return table
