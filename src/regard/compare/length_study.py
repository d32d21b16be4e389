"""Study "length": translation quality by source length, for models with and without attention.

The figure is that of Bahdanau et al. (2014), figure 2, from our own runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regard.compare.comparison_options import Options
from regard.compare.confidence import interval, judge, series_of
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, PlannedRun, Series, Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext

__all__ = ["LENGTH", "SOURCE_LENGTH", "quality_series", "quality_table", "seeds_text", "training_mark"]

FIXED, ATTENTIVE = "seq2seq", "bahdanau"
SOURCE_LENGTH = "source length (words)"

CLAIMS = (
    Claim("length.attention", "Attention gives better translations than a fixed vector."),
    Claim(
        "length.bottleneck",
        "A fixed vector is a bottleneck: without attention, a larger share of the quality is lost on long "
        "sources.",
    ),
    Claim("length.reversed", "Reading the source in reverse order helps a model with a fixed vector."),
    Claim("length.width", "A wider fixed vector loses a smaller share of its quality on long sources."),
)


def _models(options: Options) -> list[PlannedRun]:
    return [run for model in options.compared for run in options.each(model)]


def _widths(options: Options) -> list[PlannedRun]:
    """Return the runs of the fixed vector at several widths."""
    if len(options.widths_compared) < 2 or FIXED not in options.compared:
        return []
    return [
        run
        for width in options.widths_compared
        for run in options.each(f"{FIXED}, width {width}", {"model": {"name": FIXED, "width": width}})
    ]


def _runs(options: Options) -> list[PlannedRun]:
    return [*_models(options), *_widths(options)]


def _measure(context: StudyContext) -> StudyResult:
    options = context.options
    planned = [run for run in _models(options) if _known(context, run)]
    widths = [run for run in _widths(options) if _known(context, run)]
    rows = quality_table(context, context.finished(planned))
    width_rows = quality_table(context, context.finished(widths))
    seeds = seeds_text(rows)
    where = f"{context.sentences.name}, greedy search, {seeds}"
    tables = [Table("length", f"BLEU and exact match by source length in words: {where}.", rows)]
    figures = [_figure(context, "length", rows, f"BLEU by source length in words: {where}.")] if rows else []
    if width_rows:
        title = f"BLEU of the fixed vector by source length and width: {where}."
        tables.append(Table("length-width", title, width_rows))
        figures.append(_figure(context, "length-width", width_rows, title))
    notes = context.unfinished_notes(_runs(options))
    verdicts = _verdicts(options, rows, width_rows)
    return StudyResult("length", LENGTH.title, tuple(tables), tuple(figures), verdicts, notes)


def _known(context: StudyContext, run: PlannedRun) -> bool:
    return context.cache.finished(run) is not None


def quality_table(
    context: StudyContext, runs: Iterable[TrainedRun], reads: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the quality of trained runs in each class of source length: one row per run and class.

    reads: the selection with which the runs of a label translate, if it is not that of the training.
    """
    return [
        {"model": run.label, "seed": run.seed, **row}
        for run in runs
        for row in context.quality(run, (reads or {}).get(run.label))
    ]


def seeds_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the number of seeds in the rows of a table, as text: "3 seeds"."""
    count = len({row["seed"] for row in rows})
    return f"{count} seed{'s' * (count != 1)}"


def quality_series(rows: Sequence[dict[str, Any]], metric: str = "bleu") -> list[Series]:
    """Return a line with its confidence band for each model: the metric by source length."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        bins = list(dict.fromkeys(row["length"] for row in own))
        stats = [interval([row[metric] for row in own if row["length"] == name]) for name in bins]
        lines.append(series_of(model, bins, stats))
    return lines


def _figure(context: StudyContext, name: str, rows: Sequence[dict[str, Any]], caption: str) -> Figure:
    series = quality_series(rows)
    ends = "; ".join(f"{line.label}: {line.y[0]:.0f} to {line.y[-1]:.0f}" for line in series)
    bins = context.bins
    alt = f"Lines of BLEU from sources of {bins[0]} words to sources of {bins[-1]} words. {ends}."
    return Figure(name, caption, alt, series, x=SOURCE_LENGTH, y="BLEU", marks=training_mark(context))


def training_mark(context: StudyContext) -> dict[float, str]:
    """Return the mark where the sources are longer than those of the training, for a figure by length."""
    longest = context.sentences.longest_trained
    beyond = [at for at, bin in enumerate(context.bins) if longest and int(bin.split("-")[0]) > longest]
    return {beyond[0] - 0.5: "longer than training"} if beyond else {}


def _verdicts(
    options: Options, rows: Sequence[dict[str, Any]], width_rows: Sequence[dict[str, Any]]
) -> tuple[Verdict, ...]:
    attention, bottleneck, reverse, wider = CLAIMS
    verdicts = []
    if {FIXED, ATTENTIVE} <= set(options.compared):
        what = f"mean BLEU of {ATTENTIVE} minus mean BLEU of {FIXED}"
        verdicts.append(judge(attention, _differences(rows, ATTENTIVE, FIXED, _mean), what))
        what = f"share of BLEU lost from short to long sources, {FIXED} minus {ATTENTIVE}"
        verdicts.append(judge(bottleneck, _differences(rows, FIXED, ATTENTIVE, _share_lost), what))
    if {FIXED, f"{FIXED}-reversed"} <= set(options.compared):
        what = f"mean BLEU of {FIXED}-reversed minus mean BLEU of {FIXED}"
        verdicts.append(judge(reverse, _differences(rows, f"{FIXED}-reversed", FIXED, _mean), what))
    names = list(dict.fromkeys(row["model"] for row in width_rows))
    if len(names) > 1:
        what = f"share of BLEU lost from short to long sources, {names[0]} minus {names[-1]}"
        verdicts.append(judge(wider, _differences(width_rows, names[0], names[-1], _share_lost), what))
    return tuple(verdicts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share_lost(values: Sequence[float]) -> float:
    """Return the share of BLEU that the longer half of the classes loses against the shorter half.

    It is a share, because a model with a low BLEU on short sources has less to lose.
    """
    half = len(values) // 2
    short = _mean(values[:half])
    return 1 - _mean(values[-half:]) / short if short else math.nan


def _differences(rows: Sequence[dict[str, Any]], first: str, second: str, statistic: Any) -> list[float]:
    """Return statistic(first model) - statistic(second model) of each seed that both models have."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        values.setdefault((row["model"], row["seed"]), []).append(row["bleu"])
    seeds = [seed for model, seed in values if model == first and (second, seed) in values]
    return [statistic(values[first, seed]) - statistic(values[second, seed]) for seed in seeds]


LENGTH = Study("length", "Quality by source length", CLAIMS, _runs, _measure, StudyContext.quality)
