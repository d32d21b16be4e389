"""Compare runs that are already trained: `regard compare RUN RUN`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.compare.comparison import Comparison, make_options
from regard.compare.comparison_options import Options
from regard.compare.comparison_page import write_page
from regard.compare.confidence import judge
from regard.compare.length_study import quality_series, quality_table, seeds_text
from regard.compare.run_cache import RunCache, TrainedRun
from regard.compare.study import Claim, Figure, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext
from regard.compare.task_runs import Group, compare_scores
from regard.errors import ArgumentError, message, printable, shown
from regard.runs.run_folder import config_of
from regard.runs.seed_folders import seed_folder, seeds_of
from regard.tasks.task_table import TASKS
from regard.training.logs.live_table import metric_title
from regard.training.settings import differences

__all__ = ["compare_runs"]


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
    places = [Path(folder) for folder in folders]
    if len(places) < 2:
        problem = f"{len(places)} run folder is given"
        raise ArgumentError(message("regard compare RUN ...", problem, expected="two or more run folders"))
    task = _task_of_all(places)
    groups = _groups(places)
    first = config_of(groups[0][1][0][1])
    if task != "translation":
        _check_translation_only(task, settings, tuple(bins), sentences)
        result, about = compare_scores(groups, task, _changes(groups))
        return _written(result, Path(output), about)
    data = (settings or {}).get("data") or first["data"]
    plain = make_options((), 1, False, {"data": data}, bins, sentences, device, None, 1)
    cache = _MeasurementCache(Path(output) / "runs", plain, say)
    context = StudyContext(plain, cache, say)
    runs = [TrainedRun(name, seed, folder, 0.0) for name, members in groups for seed, folder in members]
    unit = _unit([config_of(run.folder) for run in runs], context.sentences.pairs)
    context.sentences = replace(context.sentences, unit=unit, fewest=1)
    metric = "exact" if first.get("training", {}).get("best") == "exact" else "bleu"
    rows = quality_table(context, runs)
    where = f"{context.sentences.name}, greedy search, {seeds_text(rows)}"
    title = f"BLEU and exact match by source length in {unit}: {where}."
    lines, score = quality_series(rows, metric), metric_title(metric)
    alt = "; ".join(f"{line.label}: {line.y[0]:.0f} to {line.y[-1]:.0f}" for line in lines)
    figure = Figure(
        "runs",
        f"{score[:1].upper()}{score[1:]} by source length in {unit}: {where}.",
        f"Lines of {score} from short to long sources. {alt}.",
        lines,
        x=f"source length ({unit})",
        y=score,
    )
    tables = (Table("runs", title, rows), Table("settings", "Settings that differ.", _changes(groups)))
    verdicts = tuple(_verdict(rows, metric, groups[0][0], name) for name, _ in groups[1:])
    result = StudyResult("runs", "Comparison of trained runs", tables, (figure,), verdicts)
    about = (
        f"Translation runs, compared on {context.sentences.name}, with greedy search and the last checkpoint "
        f"of each run, on {cache.device} with torch {torch.__version__}. Every number is in the CSV files "
        "beside this page."
    )
    return _written(result, Path(output), about)


def _written(result: StudyResult, folder: Path, about: str) -> Comparison:
    comparison = Comparison((result,), {})
    return replace(comparison, pages=tuple(write_page(comparison, Options(), folder, about)))


class _MeasurementCache(RunCache):
    """A cache whose measurements are beside each other, since a given run folder is not changed."""

    def measured(self, run: TrainedRun | None, name: str, parameters: Any, measure: Callable[[], Any]) -> Any:
        about = None if run is None else [str(run.folder.absolute()), _state(run.folder)]
        return super().measured(None, name, [parameters, about], measure)


def _state(folder: Path) -> list[str]:
    """Return the names of the checkpoints of a run, which change when its training goes on."""
    return sorted(path.name for path in folder.glob("step-*"))


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


def _check_translation_only(
    task: str, settings: Mapping[str, Any] | None, bins: tuple[int, ...], sentences: int | None
) -> None:
    given = {"--length-bins": bins, "--sentences": sentences, "options of the data": settings}
    for option, value in given.items():
        if value:
            problem = (
                f"{option} can only be used for translation runs, but the task of these runs is {task!r}"
            )
            raise ArgumentError(message("regard compare RUN ...", problem, hint=f"remove {option}"))


def _groups(places: Sequence[Path]) -> list[Group]:
    """Return the models, each with its seeds and their run folders."""
    groups: dict[str, Group] = {}
    for place in places:
        config = config_of(place)
        seeds = seeds_of(place)
        members = (
            [(config.get("seed", 0), place)]
            if seeds is None
            else [(seed, seed_folder(place, seed)) for seed in seeds]
        )
        kept = {name: value for name, value in config.items() if name not in ("seed", "seeds")}
        key = json.dumps(kept, sort_keys=True, default=str)
        group = groups.setdefault(key, (shown(place), []))
        known = {seed for seed, _ in group[1]}
        if known & {seed for seed, _ in members}:
            problem = "this run has the same settings and seed as another given run"
            raise ArgumentError(message(shown(place), problem, hint="give runs that differ"))
        group[1].extend(members)
    return list(groups.values())


def _changes(groups: Sequence[Group]) -> list[dict[str, Any]]:
    first = config_of(groups[0][1][0][1])
    return [
        {"model": name, "setting": change}
        for name, members in groups[1:]
        for change in differences(first, config_of(members[0][1]))
    ]


def _unit(configs: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the unit of the source length: "characters" or "words".

    It is "characters" if all runs have character tokenizers, or if most sources are single words.
    """
    characters = all(config["data"].get("tokenizer") == "character" for config in configs)
    single = sum(len(source.split()) == 1 for source, _ in pairs)
    return "characters" if characters or 2 * single > len(pairs) else "words"


def _verdict(rows: Sequence[dict[str, Any]], metric: str, first: str, other: str) -> Verdict:
    """Judge the claim that a model is better than the first one."""

    def means(model: str) -> dict[int, float]:
        seeds: dict[int, list[float]] = {}
        for row in rows:
            if row["model"] == model:
                seeds.setdefault(row["seed"], []).append(row[metric])
        return {seed: sum(values) / len(values) for seed, values in seeds.items()}

    base, new = means(first), means(other)
    values = [new[seed] - base[seed] for seed in new if seed in base]
    claim = Claim(f"runs.{other}", f"{other} translates better than {first}.")
    score = metric_title(metric)
    return judge(claim, values, f"mean {score} of {other} minus mean {score} of {first}")
