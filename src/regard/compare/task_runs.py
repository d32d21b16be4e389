"""Compare trained runs of one task by the scores that they have stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.compare.confidence import by_model, interval, judge, series_of
from regard.compare.study import Claim, Figure, StudyResult, Table, Verdict
from regard.errors import DataError, message, shown
from regard.runs.run_facts import RunFacts, facts_of
from regard.runs.run_task import RunTask
from regard.tasks.task_table import find_task

__all__ = ["Group", "compare_scores"]

Group = tuple[str, list[tuple[int, Path]]]
"""The name of a model, and the seed and the run folder of each of its runs."""


def compare_scores(
    groups: Sequence[Group], task_name: str, changes: Sequence[Mapping[str, Any]]
) -> tuple[StudyResult, str]:
    """Compare runs of one task by the scores of their best checkpoint on their validation data.

    groups: the models, each with its seeds; the others are compared with the first one.
    task_name: the task of all runs.
    changes: the settings in which the models differ from the first one, as rows of a table.

    Returns the result, and a sentence about the comparison for the page.
    """
    task = find_task(task_name)
    rows, metric = [], ""
    for name, members in groups:
        for seed, folder in members:
            facts = facts_of(task, folder)
            metric = metric or facts.best_metric
            rows.append({"model": name, "seed": seed, **_scores(facts, metric)})
    count = max(len(members) for _, members in groups)
    where = f"validation data of each run, best checkpoint, {count} seed{'s' * (count != 1)}"
    tables = (
        Table("runs", f"Scores of runs of the task {task_name}: {where}.", rows),
        Table("runs-summary", f"Mean of each score with its 95 % interval: {where}.", _summary(task, rows)),
        Table(
            "settings", "Settings that differ from those of the first run.", [dict(row) for row in changes]
        ),
    )
    first, *others = [name for name, _ in groups]
    verdicts = tuple(_verdict(task, rows, metric, first, other) for other in others)
    result = StudyResult(
        "runs",
        f"Comparison of trained runs: {task_name}",
        tables,
        (_figure(rows, metric, where),),
        verdicts,
        _notes(changes),
    )
    about = (
        f"Runs of the task {task_name}, compared by the scores that they have stored, with torch "
        f"{torch.__version__}. Every number is in the CSV files beside this page."
    )
    return result, about


def _scores(facts: RunFacts, metric: str) -> dict[str, Any]:
    best = facts.best
    if best is None or metric not in best:
        problem = f"this run has no evaluation with the score {metric!r}"
        hint = "train it until its first evaluation, or set the same training.best for all runs"
        raise DataError(message(shown(facts.folder), problem, hint=hint))
    return {"step": best["step"], "parameters": facts.parameters, **best}


def _summary(task: type[RunTask], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = [name for name in task.metrics if any(name in row for row in rows)]
    table = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for name in names:
            found = interval([row[name] for row in rows if row["model"] == model and name in row])
            scores = {"mean": found.mean, "low": found.low, "high": found.high, "seeds": found.seeds}
            table.append({"model": model, "score": name, "better": task.metrics[name], **scores})
    return table


def _figure(rows: Sequence[dict[str, Any]], metric: str, where: str) -> Figure:
    stats = by_model(rows, metric)
    listed = "; ".join(f"{model}: {each.mean:.4g}" for model, each in stats.items())
    series = [series_of(metric, list(stats), list(stats.values()))]
    return Figure("runs", f"{metric}: {where}.", f"Bars of {metric}. {listed}.", series, "bars", y=metric)


def _verdict(
    task: type[RunTask], rows: Sequence[dict[str, Any]], metric: str, first: str, other: str
) -> Verdict:
    """Judge the claim that a model is better than the first one.

    Runs with the same seed are paired. If the models have no seed in common, they are paired in order.
    """
    lower = task.metrics.get(metric) == "lower"
    scores = {
        name: {row["seed"]: row[metric] for row in rows if row["model"] == name} for name in (first, other)
    }
    base, new = scores[first], scores[other]
    pairs = [(new[seed], base[seed]) for seed in new if seed in base]
    pairs = pairs or list(zip(new.values(), base.values(), strict=False))
    values = [(b - a) if lower else (a - b) for a, b in pairs]
    text = f"{other} is better than {first}, by {metric} ({'lower' if lower else 'higher'} is better)."
    claim = Claim(f"runs.{other}", text)
    sides = (first, other) if lower else (other, first)
    return judge(claim, values, f"{metric} of {sides[0]} minus {metric} of {sides[1]}")


def _notes(changes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if any(str(row["setting"]).startswith("data.") for row in changes):
        return ("The runs have different settings [data], so their validation data may differ too.",)
    return ()
