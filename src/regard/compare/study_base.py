"""What all studies share: the tables, the figures and the verdicts of models trained over several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from regard.compare.study import (
    Claim,
    Figure,
    Row,
    Series,
    Study,
    StudyResult,
    Table,
    Variant,
    Verdict,
    judge,
    lines_of,
    series_of,
    summary,
)
from regard.compare.study_context import StudyContext, seeds_text
from regard.evaluation.confidence import interval

__all__ = ["bars_of_models", "differences", "line_figure", "measure_study", "share_lost"]

NOT_SCORES = ("model", "seed", "score", "width")
"""Columns that say which run a row is about."""


def measure_study(study: Study, context: StudyContext) -> StudyResult:
    """Measure the finished runs of a study, judge its claims, and return its tables, figures and verdicts.

    The table of the study has a row for each run: BLEU and exact match, mean over the classes of source
    length; the BLEU on sources longer than those of the training; the share of BLEU lost on long sources; and
    what study.each measures.
    """
    options, variants = context.options, {each.label: each for each in study.chosen(context.options)}
    planned = study.runs(options)
    rows, classes = [], []
    for run in context.finished(planned):
        variant, row = variants[run.label], {"model": run.label, "seed": run.seed}
        if study.quality:
            own = context.quality(run, variant.read)
            classes += [row | each for each in own]
            row |= _quality(context, own)
        row |= {"training_seconds": run.seconds} if study.quality else {}
        rows.append(row | (study.each(context, run, variant) if study.each else {}))
    tables, figures = _tables(study, context, rows, classes), _figures(study, context, rows, classes)
    verdicts = [verdict for claim in study.claims for verdict in _verdicts(claim, variants, rows)]
    notes = context.unfinished_notes(planned)
    if study.extra is not None:
        more = study.extra(context, rows)
        tables, figures = (*tables, *more.tables), (*figures, *more.figures)
        verdicts, notes = [*verdicts, *more.verdicts], (*notes, *more.notes)
    return StudyResult(study.name, study.title, tables, figures, tuple(verdicts), notes)


def _quality(context: StudyContext, classes: Sequence[Row]) -> Row:
    """Return the columns of the table of a study that come from the quality by source length."""
    bleu = [row["bleu"] for row in classes]
    beyond = [row["bleu"] for row in classes if context.beyond(row["length"])]
    return {
        "bleu": statistics.fmean(bleu),
        "exact": statistics.fmean(row["exact"] for row in classes),
        "bleu_beyond": statistics.fmean(beyond) if beyond else None,
        "share_lost": share_lost(bleu),
    }


def share_lost(bleu: Sequence[float]) -> float | None:
    """Return the share of BLEU that the longer half of the classes loses against the shorter half.

    It is a share, because a model with a low BLEU on short sources has less to lose. None without a value.
    """
    half = len(bleu) // 2
    short = sum(bleu[:half])
    return 1 - sum(bleu[-half:]) / short if short else None


def _verdicts(claim: Claim, variants: dict[str, Variant], rows: Sequence[Row]) -> list[Verdict]:
    """Judge a claim about two variants; [] if it is about something else, or the study does not have them."""
    labels = {name: label for label, each in variants.items() for name in (label, each.role)}
    missing = bool(rows) and not any(claim.of in row for row in rows)
    if not claim.first or missing or not {claim.first, claim.second} <= set(labels):
        return []
    first, second = labels[claim.first], labels[claim.second]
    what = f"{f'log of the {claim.what}' if claim.log else claim.what}, {first} minus {second}"
    return [judge(claim, differences(rows, first, second, claim.of, claim.log), what)]


def differences(rows: Sequence[Row], first: Any, second: Any, of: str, log: bool = False) -> list[float]:
    """Return a column of one model minus that of another model, for each seed that both have.

    log: whether the natural logarithms of the values are subtracted.
    """
    values: dict[tuple[Any, int], float] = {}
    for row in rows:
        value = math.nan if row.get(of) is None else float(row[of])
        if log:
            value = math.log(value) if value > 0 else math.nan
        values[row["model"], row["seed"]] = value
    seeds = [seed for model, seed in values if model == first and (second, seed) in values]
    return [values[first, seed] - values[second, seed] for seed in seeds]


def _tables(study: Study, context: StudyContext, rows: list[Row], classes: list[Row]) -> tuple[Table, ...]:
    if not study.quality:
        return ()
    where, name = _where(context, rows), study.table or study.name
    columns = dict.fromkeys(column for row in rows for column in row if column not in NOT_SCORES)
    mean = "Mean, standard deviation and 95 % interval of each score, over the seeds"
    unit = context.sentences.unit
    return (
        Table(f"{name}-summary", f"{mean}: {where}.", summary(rows, columns)),
        Table(name, f"BLEU and exact match, mean over the classes of source length: {where}.", rows),
        Table(
            study.by_length or f"{name}-length",
            f"BLEU and exact match by source length in {unit}: {where}.",
            classes,
        ),
    )


def _where(context: StudyContext, rows: Sequence[Row]) -> str:
    return f"{context.sentences.name}, greedy search, {seeds_text(len({row['seed'] for row in rows}))}"


def _figures(
    study: Study, context: StudyContext, rows: Sequence[Row], classes: Sequence[Row]
) -> tuple[Figure, ...]:
    if not classes:
        return ()
    where, figures = _where(context, rows), []
    for group in dict.fromkeys(variant.figure for variant in study.chosen(context.options)):
        labels = [each.label for each in study.chosen(context.options) if each.figure == group]
        own = [row for row in rows if row["model"] in labels]
        if group is None or not own:
            continue
        about = f"BLEU, mean over the classes of source length: {where}."
        figures.append(bars_of_models(f"{study.table or study.name}{group}", about, own, "bleu", "BLEU"))
        figures.append(
            line_figure(
                f"{study.by_length or f'{study.name}-length'}{group}",
                f"BLEU by source length in {context.sentences.unit}: {where}.",
                lines_of([row for row in classes if row["model"] in labels], "model", "length", "bleu"),
                f"source length ({context.sentences.unit})",
                "BLEU",
                marks=_training_mark(context),
            )
        )
    return tuple(figures)


def _training_mark(context: StudyContext) -> dict[float, str]:
    """Return the mark where the sources are longer than those of the training, for a figure by length."""
    beyond = [at for at, bin in enumerate(context.bins) if context.beyond(bin.name)]
    return {beyond[0] - 0.5: "longer than training"} if beyond else {}


def bars_of_models(name: str, caption: str, rows: Sequence[Row], column: str, text: str) -> Figure:
    """Return a figure with a bar for each model: the mean of a column, with its interval."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    stats = [interval(row[column] for row in rows if row["model"] == model) for model in models]
    listed = "; ".join(f"{model}: {each.mean:.3g}" for model, each in zip(models, stats, strict=True))
    return Figure(
        name, caption, f"Bars of {text}. {listed}.", [series_of(text, models, stats)], "bars", y=text
    )


def line_figure(
    name: str,
    caption: str,
    lines: Sequence[Series],
    x: str,
    y: str,
    log: str = "",
    marks: dict[float, str] | None = None,
) -> Figure:
    """Return a figure of lines, with an alternative text that names the ends of each line."""
    ends = "; ".join(f"{line.label}: {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in lines if len(line.y))
    alt = f"Lines of {y} from low to high values of {x}. {ends}."
    return Figure(name, caption, alt, lines, x=x, y=y, log=log, marks=marks or {})
