"""The parts of a study: its variants and claims, its tables and figures, and verdicts from several seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regard.evaluation.confidence import Interval, interval

if TYPE_CHECKING:
    from regard.compare.comparison_options import Options
    from regard.compare.run_cache import TrainedRun
    from regard.compare.study_context import StudyContext

__all__ = [
    "CONTRADICTED",
    "NOT_MEASURED",
    "SUPPORTED",
    "UNCLEAR",
    "Claim",
    "Figure",
    "PlannedRun",
    "Row",
    "Series",
    "Study",
    "StudyResult",
    "Table",
    "Variant",
    "Verdict",
    "fitted_slope",
    "judge",
    "lines_of",
    "series_of",
    "summary",
]

SUPPORTED, CONTRADICTED, UNCLEAR = "supported", "contradicted", "not distinguishable"
NOT_MEASURED = "not measured"
"""The outcome of a claim whose runs are missing, because they failed or were stopped."""

NUMBERS = ("no", "one", "two")
SMALLEST = 1e-30
"""Smaller values are replaced by this one before their logarithm is taken."""

Row = dict[str, Any]
"""A row of a table: from column to a number, a text or None."""


@dataclass(frozen=True)
class Variant:
    """One of the models that a study trains.

    label: its name in tables and figures.
    model: the settings [model].
    training: settings [training] that differ from those of the other variants.
    read: the selection with which the trained model translates, as in a configuration file; None for that of
        the training.
    role: another name, with which claims can refer to it, such as "widest".
    figure: the end of the name of the figures that show it; None if only the tables have it.
    """

    label: str
    model: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    read: Any = None
    role: str = ""
    figure: str | None = ""


@dataclass(frozen=True)
class Claim:
    """A sentence that a study tests.

    name: a short name, for the tables: "length.bottleneck".
    text: the sentence.
    first, second: the labels (or roles) of two variants. The claim says that the first one has the higher
        value. Both are empty for a claim that the study judges in another way.
    of: the column of the table of the study that is compared.
    what: what this column is, as the beginning of a sentence.
    log: whether the natural logarithms of the values are compared.
    """

    name: str
    text: str
    first: str = ""
    second: str = ""
    of: str = "bleu"
    what: str = "mean BLEU"
    log: bool = False


@dataclass(frozen=True)
class Verdict:
    """The result of a study for one of its claims.

    claim: the claim.
    outcome: SUPPORTED, CONTRADICTED, UNCLEAR or NOT_MEASURED.
    reason: what was measured, with the mean over seeds and its confidence interval, as a sentence.
    values: the measured statistic, one value per seed (or per repetition of a measurement).
    low, high: the 95 % confidence interval of the mean; None with fewer than three values.
    """

    claim: Claim
    outcome: str
    reason: str
    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def decides(self) -> bool:
        """Whether the measurement decides the claim: the whole interval supports or contradicts it."""
        return self.outcome in (SUPPORTED, CONTRADICTED)


@dataclass(frozen=True)
class Table:
    """Measurements as rows of plain data.

    name: the name of the CSV file, without its ending.
    title: a sentence that says what was measured, on what, and over how many seeds.
    rows: the rows; every row is a dict from column to a number, a text or None.
    shown: whether the page shows the table; every table is written as CSV.
    """

    name: str
    title: str
    rows: list[Row]
    shown: bool = True


@dataclass(frozen=True)
class Series:
    """One line of a figure, or its bars.

    label: the name in the legend.
    x, y: the points of the line, or the names and heights of the bars.
    low, high: a confidence band around y; empty without a band.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Figure:
    """A figure as data; regard.compare.figures draws it.

    name: the name of the image files, without their ending.
    caption: a sentence that says what was measured, on what, and over how many seeds.
    alt: a text that describes the figure, for readers who cannot see it.
    kind: "lines" or "bars".
    x, y: the labels of the axes.
    log: which axes are logarithmic: "", "x", "y" or "xy".
    marks: vertical lines, from their x to their label.
    """

    name: str
    caption: str
    alt: str
    series: Sequence[Series]
    kind: str = "lines"
    x: str = ""
    y: str = ""
    log: str = ""
    marks: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """An ordinary training run that a study needs.

    label: the name of the model in tables and figures.
    seed: the random seed.
    settings: the settings of the run, as in config.toml.
    """

    label: str
    seed: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StudyResult:
    """What a study has measured.

    name, title: those of the study.
    tables, figures, verdicts: the results.
    notes: sentences about what could not be measured, and why.
    """

    name: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """A study: claims about attention, and how to measure them; measure_study() does so.

    name: the name for --study.
    title: the heading on the page.
    claims: the claims that it tests. Those with two variants are judged by measure_study().
    variants: the models to train, or a function that returns them, given the options of the comparison.
    quality: whether the BLEU of the trained models is measured.
    each: measures more of one trained run; its results are columns of the table of the study.
    extra: measures what the table does not have, given the rows of the table. Its tables, figures, verdicts
        and notes are added.
    table: the name of the table with one row per run. Default: `name`.
    by_length: the name of the table of BLEU by source length. Default: `name`-length.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    variants: Sequence[Variant] | Callable[[Options], Sequence[Variant]] = ()
    quality: bool = True
    each: Callable[[StudyContext, TrainedRun, Variant], Row] | None = None
    extra: Callable[[StudyContext, list[Row]], StudyResult] | None = None
    table: str = ""
    by_length: str = ""

    def chosen(self, options: Options) -> list[Variant]:
        """Return the variants, given the options of the comparison."""
        return list(self.variants(options) if callable(self.variants) else self.variants)

    def runs(self, options: Options) -> list[PlannedRun]:
        """Return the training runs that the study needs: each variant, once for each seed."""
        return [options.run(variant, seed) for variant in self.chosen(options) for seed in options.seeds]


def summary(rows: Sequence[Row], columns: Iterable[str]) -> list[Row]:
    """Return the mean, the deviation and the interval over seeds of columns, for each model of a table."""
    table = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for column in columns:
            values = [row[column] for row in rows if row["model"] == model and row.get(column) is not None]
            if values:
                found = interval(values)
                bounds = {"low": found.low, "high": found.high, "seeds": found.seeds}
                place = {"model": model, "score": column}
                table.append(place | {"mean": found.mean, "deviation": found.deviation} | bounds)
    return table


def series_of(label: str, x: Sequence[Any], stats: Sequence[Interval]) -> Series:
    """Return means as a line or as bars, with a confidence band if all of them have an interval.

    >>> series_of("BLEU", ["luong"], [interval([1.0, 2.0])])
    Series(label='BLEU', x=['luong'], y=[1.5], low=(), high=())
    """
    bounds = [(each.low, each.high) for each in stats if each.low is not None and each.high is not None]
    band = len(bounds) == len(stats)
    low, high = ([each[side] for each in bounds] if band else () for side in (0, 1))
    return Series(label, x, [each.mean for each in stats], low, high)


def lines_of(
    rows: Sequence[Row], by: str, x: str, y: str, *, geometric: bool = False, band: bool = True
) -> list[Series]:
    """Return a line for each value of the column `by`: the mean of column y against column x.

    geometric: whether the mean is the geometric one.
    band: whether the lines have a confidence band.
    """
    lines = []
    for label in dict.fromkeys(row[by] for row in rows):
        points: dict[Any, list[float]] = {}
        for row in rows:
            if row[by] == label:
                value = float(row[y])
                value = math.log(max(value, SMALLEST)) if geometric else value
                points.setdefault(row[x], []).append(value)
        line = series_of(str(label), list(points), [interval(values) for values in points.values()])
        if geometric:
            parts = ([math.exp(value) for value in part] for part in (line.y, line.low, line.high))
            line = Series(line.label, line.x, *parts)
        lines.append(line if band else Series(line.label, line.x, line.y))
    return lines


def fitted_slope(x: Sequence[float], y: Sequence[float], log: str = "") -> float:
    """Return the slope of the straight line with the least squared error.

    log: the axes whose logarithm is taken: "", "y" (a decay rate) or "xy" (an exponent). Points that have no
        logarithm are left out.

    >>> fitted_slope([1, 2, 4, 8], [3, 12, 48, 192], log="xy")
    2.0
    """
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    if "x" in log:
        points = [(math.log(a), b) for a, b in points if a > 0]
    if "y" in log:
        points = [(a, math.log(b)) for a, b in points if b > 0 and math.isfinite(b)]
    if len(points) < 2:
        return math.nan
    mean_x = sum(a for a, _ in points) / len(points)
    mean_y = sum(b for _, b in points) / len(points)
    spread = sum((a - mean_x) ** 2 for a, _ in points)
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / spread if spread else math.nan


def judge(
    claim: Claim,
    values: Sequence[float],
    what: str,
    unit: str = "seeds",
    *,
    least: float = 0.0,
    most: float = math.inf,
) -> Verdict:
    """Judge a claim that says that a statistic is greater than `least` and smaller than `most`.

    The claim is supported if the whole confidence interval is between them, and contradicted if the whole
    interval is outside.

    values: the statistic, one value per seed.
    what: what the statistic is, as the beginning of a sentence: "BLEU of bahdanau minus BLEU of seq2seq".
    unit: what the values are of: "seeds", or "repetitions" of a measurement.

    >>> judge(Claim("a", "..."), [1.0, 1.1, 0.9], "difference").outcome
    'supported'
    >>> judge(Claim("a", "..."), [1.0], "difference").reason
    'difference: 1; not distinguishable: one seed'
    """
    kept = tuple(value for value in values if math.isfinite(value))
    found = interval(kept)
    low, high, count = found.low, found.high, found.seeds
    if not kept:
        return Verdict(claim, NOT_MEASURED, f"{what}: no finished training", kept)
    if low is None or high is None:
        reason = f"{what}: {found}; {UNCLEAR}: {NUMBERS[count]} {unit[: -1 if count == 1 else None]}"
        return Verdict(claim, UNCLEAR, reason, kept)
    outcome = UNCLEAR
    if least < low and high < most:
        outcome = SUPPORTED
    elif high < least or low > most:
        outcome = CONTRADICTED
    return Verdict(claim, outcome, f"{what}: {found}, {count} {unit}", kept, low, high)
