"""compare(): train the models that the studies need, measure them, and write tables, figures and a page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.compare.gradient_flow import GRADIENT
from regard.compare.hard_study import HARD
from regard.compare.layer_costs import COST
from regard.compare.length_study import LENGTH
from regard.compare.part_study import PARTS
from regard.compare.position_study import POSITIONS
from regard.compare.score_study import SCORES
from regard.compare.softmax_study import SOFTMAX
from regard.compare.study import Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext, cpu_threads
from regard.errors import ArgumentError, RegardError, UnknownName, message

STUDIES: dict[str, Study] = {
    study.name: study for study in (LENGTH, GRADIENT, COST, SCORES, SOFTMAX, HARD, POSITIONS, PARTS)
}
"""The studies of `regard compare`. To add a study: write its file, and name it here."""

QUICK_STUDIES = ("length", "gradient", "cost")
"""The studies of --quick."""


@dataclass(frozen=True)
class Comparison:
    """The results of compare().

    results: the result of each study.
    failed: the error message of each training that has failed, by the name of the model and the seed.
    interrupted: the signal that stopped the comparison, or "time limit"; "" if it is complete.
    seconds: summed duration of all trainings that the results are based on.
    pages: the files that were written.
    """

    results: tuple[StudyResult, ...]
    failed: Mapping[str, str]
    interrupted: str = ""
    seconds: float = 0.0
    pages: tuple[Path, ...] = ()

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name."""
        return {table.name: table for result in self.results for table in result.tables}

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each claim, by the name of the claim."""
        return {each.claim.name: each for result in self.results for each in result.verdicts}

    @property
    def decision(self) -> str:
        """Which claims the comparison decides, and which ones it does not; "" without claims."""
        open_claims = [name for name, each in self.verdicts.items() if not each.decides]
        count = len(self.verdicts)
        if not count:
            return ""
        decided = f"This comparison decides {count - len(open_claims)} of {count} claims"
        rest = f"; it does not decide {', '.join(open_claims)}" if open_claims else ""
        return f"{decided}{rest}."


def compare(
    studies: str | Iterable[str] = (),
    *,
    models: Iterable[str] = (),
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    output: str | Path | None = None,
    cache: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    bins: Iterable[int] = (),
    sentences: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    widths: Iterable[int] = (),
    say: Callable[[str], None] = print,
) -> Comparison:
    """Compare models with and without attention: train them alike, measure them, and judge claims.

    studies: names in regard.compare.STUDIES; () for all of them (with quick=True, those of --quick).
    models: models of the studies that compare models, such as "luong-dot" or "luong:score=concat".
    seeds: number of random seeds, or the seeds; the default is 3. A claim is judged from at least three.
    quick: fewer and smaller models, shorter trainings and smaller measurements.
    output: folder for the page, the tables (CSV) and the figures; None to write none of them.
    cache: folder of the training runs and measurements, which later calls use again. Default: output/runs.
    settings: settings of the training runs, as in config.toml: {"data": {...}, "training": {...}}. The
        default data are the built-in Korean-English corpus.
    bins: upper bounds of the classes of source length, in words.
    sentences: number of test sentences in each class.
    device, threads: where to train and to measure.
    jobs: number of training runs to run in parallel.
    minutes: stop training after this many minutes, and report what is finished. Call it again to continue.
        0 trains nothing.
    widths: widths for the studies that compare widths. Default: half, one and two times the width.
    say: prints a line of progress.

    >>> try:
    ...     compare(["lenght"], output="comparison")
    ... except KeyError as error:
    ...     print(error)
    unknown study 'lenght'; did you mean 'length'? ...
    """
    from regard.compare.comparison_page import write_page

    names = (studies,) if isinstance(studies, str) else tuple(studies)
    for name in names:
        if name not in STUDIES:
            raise UnknownName("study", name, STUDIES)
    chosen = [STUDIES[name] for name in dict.fromkeys(names or (QUICK_STUDIES if quick else STUDIES))]
    if output is None and cache is None:
        raise ArgumentError(message("compare()", "neither output nor cache is set", hint="set output=FOLDER"))
    own: Any = (quick, tuple(bins), sentences or 0, tuple(widths), device, threads, jobs)
    place = Path(str(output)) / "runs" if cache is None else Path(cache)
    context = StudyContext(place, say, settings or {}, models, 3 if seeds is None else seeds, *own)
    with cpu_threads(context.device, threads):
        comparison = _compared(chosen, context, minutes)
    if output is None:
        return comparison
    return replace(comparison, pages=tuple(write_page(comparison, _about(comparison, context), Path(output))))


def _about(comparison: Comparison, context: StudyContext) -> str:
    """Return sentences about the data, the training and the seeds."""
    data = "the built-in Korean-English corpus" if context.built_in else "the given sentence pairs"
    training = ", ".join(f"{name} = {value}" for name, value in context.settings["training"].items())
    seeds = ", ".join(map(str, context.seeds))
    return (
        f"Trained on {data} with width {context.width}, {training}, seeds {seeds}, on {context.device} "
        f"with torch {torch.__version__}. "
        "Other settings are those that regard train chooses. Summed training time: "
        f"{comparison.seconds / 60:.1f} minutes. Every number is in the CSV files beside this page."
    )


def _compared(chosen: Sequence[Study], context: StudyContext, minutes: float | None) -> Comparison:
    """Train the runs that are missing, for at most `minutes`, and measure all finished runs."""
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    planned = [run for study in chosen for run in study.runs(context)]
    context.check(planned)
    if planned:
        _ = context.bins  # raise an error before training if the data are too short
        missing, needed = context.missing(planned), len(set(map(context.place, planned)))
        context.say(f"trainings: {needed} needed, {needed - len(missing)} finished")
        if minutes is None or minutes > 0:
            context.train(missing, until)
    late = bool(minutes) and time.monotonic() > until and bool(context.missing(planned))
    stopped = context.interrupted or ("time limit" if late else "")
    if stopped:
        context.say(f"stopped ({stopped}); measuring the finished trainings, Ctrl-C stops at once ...")
    results = []
    try:
        for study in chosen:
            results.append(_measured(study, context))
    except KeyboardInterrupt:  # report the studies that are measured
        stopped = "Ctrl-C"
    runs = list(map(context.stored, planned))
    failed = {f"{run.label}, seed {run.seed}": run.error for run in runs if run.error}
    seconds = sum({run.folder: run.seconds or 0.0 for run in runs}.values())
    return Comparison(tuple(results), failed, stopped, seconds)


def _measured(study: Study, context: StudyContext) -> StudyResult:
    """Measure a study. An error becomes a note of its result, so that the other studies go on."""
    context.say(f"measuring: {study.name}")
    try:
        return study.measure(context)
    except RegardError as error:
        context.say(f"the study {study.name} has failed: {error}")
        result = StudyResult(study.name, study.title)
        result.notes.append(f"The study has failed: {error}")
        return result
