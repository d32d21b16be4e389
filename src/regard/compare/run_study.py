"""Compare runs that are already trained: `regard compare RUN RUN`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.compare.comparison import Comparison
from regard.compare.comparison_page import write_page
from regard.compare.study import (
    Claim,
    Row,
    Run,
    StudyResult,
    Variant,
    Verdict,
    differences,
    judge,
    seeds_text,
    summary,
)
from regard.compare.study_context import StudyContext
from regard.errors import ArgumentError, DataError, message, printable, shell_word, shown
from regard.runs.run_facts import facts_of
from regard.runs.run_folder import config_of, seed_folder, seeds_of
from regard.tasks.task_table import TASKS, find_task
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.logs.live_table import metric_title
from regard.training.settings import differences as settings_differences


def compare_runs(
    folders: Sequence[str | Path],
    *,
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    bins: Iterable[int] = (),
    sentences: int | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> Comparison:
    """Compare trained runs of one task.

    Translation runs are compared by source length, on the same test sentences: by BLEU, or by exact match if
    it selects the best checkpoint of the first run, as for targets of one word. Runs of other tasks are
    compared by the scores that they have stored, of their best checkpoint on their validation data.

    folders: the run folders. The seeds of a run of several seeds are one model, and so are runs whose
        settings differ only in the seed.
    settings: {"data": {...}} with the test pairs as validation files (valid_source and valid_target, or
        valid_tsv). Default: the data of the first run.
    The other arguments are those of regard.compare(). settings, bins and sentences: translation runs only.

    Each model is compared with the first one. The measurements are stored in the folder `runs` of output.
    """
    places, folder, call = [Path(each) for each in folders], Path(output), "regard compare RUN ..."
    if len(places) < 2:
        problem = f"{len(places)} run folder is given"
        raise ArgumentError(message(call, problem, expected="two or more run folders"))
    task = _task_of_all(places)
    runs = _runs_of(places)
    if task == "translation":
        data = (settings or {}).get("data") or config_of(runs[0].folder)["data"]
        own: Any = {"bounds": tuple(bins), "sentences_per_class": sentences or 0, "device": device}
        result, about = _by_length(StudyContext(folder / "runs", say, {"data": data}, **own), runs)
    else:
        own = {"--length-bins": tuple(bins), "--sentences": sentences, "options of the data": settings}
        for option in (name for name, value in own.items() if value):
            text = "can only be used for translation runs, but the task of these runs is"
            raise ArgumentError(message(call, f"{option} {text} {task!r}", hint=f"remove {option}"))
        result, about = _by_stored_scores(runs, task)
    comparison, end = Comparison((result,), {}), "Every number is in the CSV files beside this page."
    about = f"{about} with torch {torch.__version__}. {end}"
    return replace(comparison, pages=tuple(write_page(comparison, about, folder)))


def _by_length(context: StudyContext, runs: Sequence[Run]) -> tuple[StudyResult, str]:
    """Compare translation runs on the same test sentences."""
    configs = [config_of(run.folder) for run in runs]
    unit = _unit(configs, context.sentences.pairs)
    context.sentences = replace(context.sentences, unit=unit, fewest=1)
    metric = "exact" if configs[0].get("training", {}).get("best") == "exact" else "bleu"
    rows, classes = list[Row](), list[Row]()
    for run in runs:
        place, own = {"model": run.label, "seed": run.seed}, context.quality(run)
        classes += [place | row for row in own]
        means = {of: sum(row[of] for row in own) / len(own) for of in ("bleu", "exact")}
        rows.append(place | means)
    where = f"{context.sentences.name}, greedy search, {_seeds(rows)}"
    score, changes = metric_title(metric), _changes(runs)
    total, used = len(context.sentences.pairs), sum(map(len, context.bins.values()))
    left_out = f"; {total - used:,} pairs are left out (--sentences)" if used < total else ""
    notes = (
        f"the scores are means over the classes of source length: {used:,} {where}, last checkpoint of each "
        f"run{left_out}",
        *_data_note(changes, "and all are measured on the same sentences, which some may have trained on"),
    )
    caption = f"{score[:1].upper()}{score[1:]} by source length in {unit}: {where}."
    result = StudyResult("runs", "Comparison of trained runs")
    result.table("runs", f"BLEU and exact match by source length in {unit}: {where}.", classes)
    _add_summary(result, rows, ("bleu", "exact"), where)
    result.table("settings", "Settings that differ.", changes)
    axes = (f"source length ({unit})", score)
    result.lines("runs", caption, classes, ("model", "length", metric), axes)
    result.verdicts += _verdicts(rows, metric, f"mean {score}")
    result.notes += notes
    about = (
        f"Translation runs, compared on {context.sentences.name}, with greedy search and the last checkpoint "
        f"of each run, on {context.device}"
    )
    return result, about


def _by_stored_scores(runs: Sequence[Run], name: str) -> tuple[StudyResult, str]:
    """Compare runs of one task by the scores of their best checkpoint on their validation data."""
    task, rows, metric = find_task(name), [], ""
    for run in runs:
        facts = facts_of(task, run.folder)
        metric, best = metric or facts.best_metric, facts.best
        if best is None or metric not in best:
            problem = f"this run has no evaluation with the score {metric!r}"
            hint = "train it until its first evaluation, or set the same training.best for all runs"
            if facts.averaged is not None:
                problem = "a mean of checkpoints has no scores, because it was not evaluated"
                both = [f"regard evaluate {shell_word(each.folder)} FILES" for each in (runs[0], run)]
                hint = f"evaluate the runs on the same files: {'; '.join(both)}"
            raise DataError(message(shown(facts.folder), problem, hint=hint))
        place = {"model": run.label, "seed": run.seed, "step": best["step"]}
        rows.append({**place, "parameters": facts.parameters, **best})
    where = f"validation data of each run, best checkpoint, {_seeds(rows)}"
    result = StudyResult("runs", f"Comparison of trained runs: {name}")
    result.table("runs", f"Scores of runs of the task {name}: {where}.", rows)
    _add_summary(result, rows, [each for each in task.metrics if any(each in row for row in rows)], where)
    for row in result.tables[-1].rows:
        row["better"] = task.metrics[row["score"]]
    changes = _changes(runs)
    result.table("settings", "Settings that differ from those of the first run.", changes)
    result.bars("runs", f"{metric}: {where}.", rows, metric, metric)
    result.verdicts += _verdicts(rows, metric, metric, task.metrics.get(metric) == "lower")
    then = "so their validation data may differ too"
    result.notes += (f"the scores are of the {where}", *_data_note(changes, then))
    about = f"Runs of the task {name}, compared by the scores that they have stored,"
    return result, about


def _data_note(changes: Sequence[Row], then: str) -> tuple[str, ...]:
    """Return a note if runs have different settings [data]: "The runs have different ..., {then}."."""
    differ = any(str(row["setting"]).startswith("data.") for row in changes)
    return (f"The runs have different settings [data], {then}.",) * differ


def _add_summary(result: StudyResult, rows: Sequence[Row], scores: Sequence[str], where: str) -> None:
    title = f"Mean of each score with its 95 % interval: {where}."
    result.table("runs-summary", title, summary(rows, scores))


def _seeds(rows: Sequence[Row]) -> str:
    return seeds_text(len({row["seed"] for row in rows}))


def _verdicts(rows: Sequence[Row], metric: str, what: str, lower: bool = False) -> Iterator[Verdict]:
    """Judge, for each model but the first, the claim that the better one of it and the first one is better.

    Runs with the same seed are paired. If the models have no seed in common, they are paired in order.
    """
    first, *others = dict.fromkeys(row["model"] for row in rows)
    better = "lower" if lower else "higher"
    for other in others:
        sides = (first, other) if lower else (other, first)
        values = differences(rows, *sides, metric)
        if not values:
            both = [[row[metric] for row in rows if row["model"] == model] for model in sides]
            values = [a - b for a, b in zip(*both, strict=False)]
        one, two = other, first
        if sum(values) < 0:
            sides, values, one, two = sides[::-1], [-value for value in values], first, other
        text = f"{one} is better than {two}, by {what} ({better} is better)."
        claim = Claim(f"{other} against {first}", text)
        yield judge(claim, values, f"{what} of {sides[0]} minus {what} of {sides[1]}")


def _task_of_all(places: Sequence[Path]) -> str:
    """Return the task of all runs, or raise ArgumentError if it is not one task of Regard."""
    tasks = {place: str(config_of(place).get("task", "translation")) for place in places}
    names, problem = set(tasks.values()), ""
    if len(names) > 1:
        problem = f"the runs have different tasks: {', '.join(f'{shown(p)}: {t}' for p, t in tasks.items())}"
    elif names - set(TASKS):  # the code of other tasks is not imported
        problem = f"the task of these runs is {', '.join(names)!r}, which is not part of Regard"
    if problem:
        expected = f"runs of one task: {', '.join(TASKS)}"
        raise ArgumentError(message("regard compare RUN ...", printable(problem), expected=expected))
    return names.pop()


def _runs_of(places: Sequence[Path]) -> list[Run]:
    """Return the runs of all seeds. Runs that differ only in the seed have one label: the first folder."""
    models: dict[str, Variant] = {}
    runs: dict[tuple[str, int], Run] = {}
    for place in places:
        config, seeds = config_of(place), seeds_of(place)
        kept = {name: value for name, value in config.items() if name not in ("seed", "seeds")}
        kept["averaged"] = [each.state.get("averaged") for each in Checkpoints(place).all()[-1:]]
        key = json.dumps(kept, sort_keys=True, default=str)
        model = models.setdefault(key, Variant(shown(place)))
        for seed in [config.get("seed", 0)] if seeds is None else seeds:
            if (key, seed) in runs:
                problem = "this run has the same settings and seed as another given run"
                raise ArgumentError(message(shown(place), problem, hint="give runs that differ"))
            runs[key, seed] = Run(model, seed, config, place if seeds is None else seed_folder(place, seed))
    return [run for model in models for (key, _), run in runs.items() if key == model]


def _changes(runs: Sequence[Run]) -> list[Row]:
    """Return the settings in which each model differs from the first one."""
    firsts: dict[str, Run] = {}
    for run in runs:
        firsts.setdefault(run.label, run)
    first, *others = firsts.values()
    return [
        {"model": other.label, "setting": change}
        for other in others
        for change in settings_differences(config_of(first.folder), config_of(other.folder))
    ]


def _unit(configs: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the unit of the source length: "characters" or "words".

    It is "characters" if all runs have character tokenizers, or if most sources are single words.
    """
    characters = all(config["data"].get("tokenizer") == "character" for config in configs)
    single = sum(len(source.split()) == 1 for source, _ in pairs)
    return "characters" if characters or 2 * single > len(pairs) else "words"
