"""compare(): train the models that the studies need, measure them, and write tables, figures and a page."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.compare.comparison_options import Options, model_options
from regard.compare.cost_estimate import estimated_seconds, run_seconds
from regard.compare.measurement_workers import measure_in_processes
from regard.compare.run_cache import RunCache
from regard.compare.run_checks import check_runs, checked_width, checked_widths
from regard.compare.studies import QUICK_STUDIES, STUDIES
from regard.compare.study import PlannedRun, Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext, cpu_threads
from regard.errors import ArgumentError, RegardError, UnknownName, message
from regard.runs.estimate import duration_text
from regard.tasks.translation.translation_settings import Data, TranslationSettings, ways_named
from regard.training.settings import build, check_names, merged, without_alternatives

__all__ = ["Comparison", "compare"]

TRAINING = {"steps": 2000, "batch_tokens": 2048}
QUICK_TRAINING = {"steps": 1000, "batch_tokens": 1024}
QUICK_WIDTH, WIDTH = 96, 128

LONG = 3600
"""If the estimated time is longer, in seconds, a message says how to shorten it."""


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
    seeds: number of random seeds, or the seeds; the default is 3, with quick=True 1. A claim is judged from
        at least three.
    quick: fewer models, shorter trainings and smaller measurements.
    output: folder for the page, the tables (CSV) and the figures; None to write none of them.
    cache: folder of the training runs and measurements, which later calls use again. Default: output/runs.
    settings: settings of the training runs, as in config.toml: {"data": {...}, "training": {...}}. The
        default data are the built-in Korean-English corpus.
    bins: upper bounds of the classes of source length, in words.
    sentences: number of test sentences in each class.
    device, threads: where to train and to measure.
    jobs: number of training runs, and of measurement processes, to run in parallel.
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
    chosen = _chosen(studies, quick)
    options = make_options(models, seeds, quick, settings, bins, sentences, device, threads, jobs, widths)
    if output is None and cache is None:
        raise ArgumentError(message("compare()", "neither output nor cache is set", hint="set output=FOLDER"))
    place = Path(str(output)) / "runs" if cache is None else Path(cache)
    runs_cache = RunCache(place, options, say)
    context = StudyContext(options, runs_cache, say)
    with cpu_threads(runs_cache.device, threads):
        comparison = _compared(chosen, context, minutes)
    return comparison if output is None else write_comparison(comparison, context, Path(output))


def _compared(chosen: Sequence[Study], context: StudyContext, minutes: float | None) -> Comparison:
    """Train the runs that are missing, for at most `minutes`, and measure all finished runs."""
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    cache, options = context.cache, context.options
    planned = [run for study in chosen for run in study.runs(options)]
    check_runs(planned)
    if planned:
        _ = context.bins  # raise an error before training if the data are too short
    if minutes is None or minutes > 0:
        cache.train(_missing_runs(cache, planned, context.say), until)
    late = bool(minutes) and time.monotonic() > until and bool(cache.missing(planned))
    stopped = cache.interrupted or ("time limit" if late else "")
    results = []
    try:
        measure_in_processes(chosen, context)
        for study in chosen:
            results.append(_measured(study, context))
    except KeyboardInterrupt:  # report the studies that are measured
        stopped = "Ctrl-C"
    failed, seconds = _failures(cache, planned), _seconds(cache, planned)
    return Comparison(tuple(results), failed, stopped, seconds)


def make_options(
    models: Iterable[str],
    seeds: int | Iterable[int] | None,
    quick: bool,
    settings: Mapping[str, Any] | None,
    bins: Iterable[int],
    sentences: int | None,
    device: str,
    threads: int | None,
    jobs: int,
    widths: Iterable[int] = (),
) -> Options:
    """Check the arguments of compare(), and return them as Options."""
    names = (models,) if isinstance(models, str) else tuple(models)
    for name in names:
        model_options(name)
    whole = merged({}, settings or {})
    check_names(TranslationSettings, whole, "the settings")
    count = (1 if quick else 3) if seeds is None else seeds
    numbers = tuple(range(count)) if isinstance(count, int) else tuple(count)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ArgumentError(message("compare()", f"seeds is {seeds!r}", expected="1 or more different seeds"))
    if jobs < 1:
        raise ArgumentError(message("compare()", f"jobs is {jobs}", expected="1 or more"))
    data = dict(whole.get("data") or {})
    if not ways_named(data):
        data["built_in"] = "korean"
    build(Data, data, "regard compare")  # raise an error if they are not valid
    default = {"training": QUICK_TRAINING if quick else TRAINING}
    training = merged(without_alternatives(default, whole), whole).get("training", {})
    width = checked_width((whole.get("model") or {}).get("width", QUICK_WIDTH if quick else WIDTH))
    count = (40 if quick else 100) if sentences is None else sentences
    others = {name: value for name, value in whole.items() if name not in ("data", "training", "seed")}
    checked = (tuple(bins), count, device, threads, jobs, others, checked_widths(widths))
    return Options(names, numbers, data, training, width, quick, *checked)


def _chosen(studies: str | Iterable[str], quick: bool) -> list[Study]:
    names = (studies,) if isinstance(studies, str) else tuple(studies)
    for name in names:
        if name not in STUDIES:
            raise UnknownName("study", name, STUDIES)
    return [STUDIES[name] for name in dict.fromkeys(names or (QUICK_STUDIES if quick else STUDIES))]


def _missing_runs(
    cache: RunCache, planned: Sequence[PlannedRun], say: Callable[[str], None]
) -> list[PlannedRun]:
    """Return the runs that are not trained yet, in the order of training, and print how long they will take.

    With several trainings at a time, runs that several studies or labels use come first, and then the longest
    ones, so that the last ones end at about the same time.
    """
    missing = cache.missing(planned)
    total = len({cache.place(run) for run in planned})
    if total:
        say(f"trainings: {total} needed, {total - len(missing)} finished")
    if not missing:
        return []
    say("estimating the time ...")
    seconds = run_seconds(missing, cache.device)
    whole = estimated_seconds(seconds, cache.options, cache.device)
    say(f"estimated time: about {duration_text(whole)} of training, then the measurements")
    if whole > LONG and not cache.options.quick:
        say("to shorten it: --quick, --study NAME, --models NAME, or --stop-after MINUTES")
    if cache.options.jobs == 1:
        return missing
    uses = Counter(cache.place(run) for run in planned)
    alone = [uses[cache.place(run)] == 1 for run in missing]
    order = sorted(range(len(missing)), key=lambda at: (alone[at], -seconds[at]))
    return [missing[at] for at in order]


def _measured(study: Study, context: StudyContext) -> StudyResult:
    """Measure a study. An error becomes a note of its result, so that the other studies go on."""
    context.say(f"measuring: {study.name}")
    try:
        return study.measure(context)
    except RegardError as error:
        context.say(f"the study {study.name} has failed: {error}")
        return StudyResult(study.name, study.title, notes=(f"The study has failed: {error}",))


def _failures(cache: RunCache, planned: Sequence[PlannedRun]) -> dict[str, str]:
    names = {f"{run.label}, seed {run.seed}": cache.failure(run) for run in planned}
    return {name: error for name, error in names.items() if error}


def _seconds(cache: RunCache, planned: Sequence[PlannedRun]) -> float:
    """Return the summed duration of the finished trainings."""
    finished = {cache.place(run): cache.finished(run) for run in planned}
    return sum(run.seconds for run in finished.values() if run is not None)


def write_comparison(comparison: Comparison, context: StudyContext, folder: Path) -> Comparison:
    """Write the page, the tables and the figures of a comparison, and return it with their paths."""
    from regard.compare.comparison_page import write_page

    options = replace(context.options, device=context.cache.device)
    return replace(comparison, pages=tuple(write_page(comparison, options, folder)))
