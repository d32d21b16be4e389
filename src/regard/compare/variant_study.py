"""Studies that train variants of one model, which differ in one option, and compare their quality."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.compare.comparison_options import Options
from regard.compare.confidence import interval, judge, series_of
from regard.compare.length_study import (
    SOURCE_LENGTH,
    quality_series,
    quality_table,
    seeds_text,
    training_mark,
)
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, PlannedRun, Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext

__all__ = ["Better", "Extra", "Variant", "variant_study"]


@dataclass(frozen=True)
class Variant:
    """One of the trained variants.

    label: its name in tables and figures.
    model: the settings [model].
    training: settings [training] that differ from those of the other variants.
    read: the selection with which the trained model translates, as in a configuration file; None for that of
        the training.
    drawn: whether the figures of the quality show it. The tables have all variants.
    """

    label: str
    model: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    read: Any = None
    drawn: bool = True


@dataclass(frozen=True)
class Better:
    """A claim that one variant translates better than another.

    claim: the claim.
    first, second: the labels of the variants; the claim says that the first one is better.
    where: "all" classes of source length, or "beyond" the longest training sentence.
    """

    claim: Claim
    first: str
    second: str
    where: str = "all"


Variants = Sequence[Variant] | Callable[[Options], Sequence[Variant]]
"""The variants of a study, or a function that returns them, given the options of the comparison."""

Each = Callable[[StudyContext, TrainedRun], dict[str, Any]]
"""A function that measures one trained run. Its results are columns of the table of the study."""

Extra = Callable[[StudyContext, Sequence[TrainedRun]], StudyResult]
"""A function that measures more than the quality. Its tables, figures and verdicts are added."""


def variant_study(
    name: str,
    title: str,
    variants: Variants,
    claims: Sequence[Better] | Callable[[Options], Sequence[Better]],
    *,
    each: Each | None = None,
    extra: Extra | None = None,
    more_claims: Sequence[Claim] = (),
) -> Study:
    """Return a study that trains variants of a model and compares their BLEU.

    each: measures one trained run; its results are added to the table.
    extra: measures more than the quality; its claims are `more_claims`.
    """

    def chosen(options: Options) -> Sequence[Variant]:
        return variants(options) if callable(variants) else variants

    def judged(options: Options) -> Sequence[Better]:
        return claims(options) if callable(claims) else claims

    def runs(options: Options) -> list[PlannedRun]:
        return [
            run
            for variant in chosen(options)
            for run in options.each(variant.label, {"model": variant.model, "training": variant.training})
        ]

    def measure_run(context: StudyContext, run: TrainedRun) -> dict[str, Any]:
        read = next(variant.read for variant in chosen(context.options) if variant.label == run.label)
        context.quality(run, read)
        return {} if each is None else each(context, run)

    def measure(context: StudyContext) -> StudyResult:
        planned = runs(context.options)
        trained = list(context.finished(planned))
        more_columns = {(run.label, run.seed): measure_run(context, run) for run in trained}
        reads = {variant.label: variant.read for variant in chosen(context.options)}
        drawn = {variant.label for variant in chosen(context.options) if variant.drawn}
        rows = quality_table(context, trained, reads)
        tables = _tables(context, name, rows, trained, more_columns)
        figures = _figures(context, name, [row for row in rows if row["model"] in drawn])
        verdicts = [_verdict(context, rows, better) for better in judged(context.options)]
        notes = context.unfinished_notes(planned)
        if extra is not None:
            more = extra(context, trained)
            tables, figures = (*tables, *more.tables), (*figures, *more.figures)
            verdicts += more.verdicts
            notes = (*notes, *more.notes)
        return StudyResult(name, title, tables, figures, tuple(verdicts), notes)

    own = tuple(better.claim for better in judged(Options()))
    return Study(name, title, (*own, *more_claims), runs, measure, measure_run)


def _where(context: StudyContext, rows: Sequence[dict[str, Any]]) -> str:
    return f"{context.sentences.name}, greedy search, {seeds_text(rows)}"


def _tables(
    context: StudyContext,
    name: str,
    rows: list[dict[str, Any]],
    trained: Sequence[TrainedRun],
    more_columns: Mapping[tuple[str, int], dict[str, Any]],
) -> tuple[Table, ...]:
    where = _where(context, rows)
    seconds = {(run.label, run.seed): run.seconds for run in trained}
    totals = [
        {
            "model": model,
            "seed": seed,
            "bleu": statistics.fmean(_values(rows, model, seed, "bleu")),
            "exact": statistics.fmean(_values(rows, model, seed, "exact")),
            "training_seconds": seconds[model, seed],
            **more_columns[model, seed],
        }
        for model, seed in dict.fromkeys((row["model"], row["seed"]) for row in rows)
    ]
    return (
        Table(name, f"BLEU and exact match, mean over the classes of source length: {where}.", totals),
        Table(f"{name}-length", f"BLEU and exact match by source length in words: {where}.", rows),
    )


def _figures(context: StudyContext, name: str, rows: list[dict[str, Any]]) -> tuple[Figure, ...]:
    if not rows:
        return ()
    where = _where(context, rows)
    models = list(dict.fromkeys(row["model"] for row in rows))
    stats = []
    for model in models:
        seeds = dict.fromkeys(row["seed"] for row in rows if row["model"] == model)
        stats.append(interval([statistics.fmean(_values(rows, model, seed, "bleu")) for seed in seeds]))
    listed = "; ".join(f"{model}: {each.mean:.1f}" for model, each in zip(models, stats, strict=True))
    return (
        Figure(
            name,
            f"BLEU, mean over the classes of source length: {where}.",
            f"Bars of BLEU. {listed}.",
            [series_of("BLEU", models, stats)],
            "bars",
            y="BLEU",
        ),
        Figure(
            f"{name}-length",
            f"BLEU by source length in words: {where}.",
            f"Lines of BLEU from short to long sources. Means: {listed}.",
            quality_series(rows),
            x=SOURCE_LENGTH,
            y="BLEU",
            marks=training_mark(context),
        ),
    )


def _values(rows: Sequence[dict[str, Any]], model: str, seed: int, metric: str) -> list[float]:
    return [row[metric] for row in rows if (row["model"], row["seed"]) == (model, seed)]


def _verdict(context: StudyContext, rows: Sequence[dict[str, Any]], better: Better) -> Verdict:
    kept, text = rows, "mean BLEU"
    if better.where == "beyond":
        longest = context.sentences.longest_trained or 0
        kept = [row for row in rows if int(row["length"].split("-")[0]) > longest]
        text = f"mean BLEU on sources of more than {longest} words"
    values = []
    for seed in dict.fromkeys(row["seed"] for row in kept):
        both = [_values(kept, model, seed, "bleu") for model in (better.first, better.second)]
        if all(both):
            values.append(statistics.fmean(both[0]) - statistics.fmean(both[1]))
    return judge(better.claim, values, f"{text}, {better.first} minus {better.second}")
