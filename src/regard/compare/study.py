"""The frame of all studies: variants and claims, tables and figures, and verdicts from several seeds.

A study is data: the models to train, the claims about them, and functions that measure more than BLEU.
Study.measure() makes the tables, the figures and the verdicts over the seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.evaluation.confidence import interval

if TYPE_CHECKING:
    from regard.compare.study_context import StudyContext

SUPPORTED, CONTRADICTED, UNCLEAR = "supported", "contradicted", "not distinguishable"
NOT_MEASURED = "not measured"
"""The outcome of a claim whose runs are missing, because they failed or were stopped."""

NUMBERS = ("no", "one", "two")
SMALLEST = 1e-30
"""Smaller values are replaced by this one before their logarithm is taken."""

NOT_SCORES = ("model", "seed", "score", "width")
"""Columns that say which run a row is about."""

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
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    read: Any = None
    role: str = ""
    figure: str | None = ""


@dataclass(frozen=True)
class Run:
    """An ordinary training run of a comparison.

    variant, seed: what is trained.
    settings: the settings of the run, as in config.toml.
    folder: the run folder, for regard.load().
    seconds: how long its training took; None if it has not finished, or for a run given to compare_runs().
    error: the error message, if its training has failed.
    """

    variant: Variant
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    seconds: float | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """The name of the model in tables and figures."""
        return self.variant.label


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
    """A figure as data; regard.compare.comparison_page draws it.

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


class StudyResult:
    """What a study has measured. Its methods add a table, a figure or a verdict.

    name, title: those of the study.

    tables, figures, verdicts: the results.
    notes: sentences about what could not be measured, and why.
    """

    def __init__(self, name: str, title: str):
        self.name, self.title = name, title
        self.tables: list[Table] = []
        self.figures: list[Figure] = []
        self.verdicts: list[Verdict] = []
        self.notes: list[str] = []

    def table(self, name: str, title: str, rows: list[Row], shown: bool = True) -> None:
        """Add a table; see Table."""
        self.tables.append(Table(name, title, rows, shown))

    def bars(self, name: str, caption: str, rows: Sequence[Row], column: str, text: str) -> None:
        """Add a figure with a bar for each model: the mean of a column, with its interval."""
        models: dict[str, list[float]] = {}
        for row in rows:
            models.setdefault(row["model"], []).append(row[column])
        bars = _series(text, models)
        listed = "; ".join(f"{model}: {mean:.3g}" for model, mean in zip(bars.x, bars.y, strict=True))
        self.figures.append(Figure(name, caption, f"Bars of {text}. {listed}.", [bars], "bars", y=text))

    def lines(
        self,
        name: str,
        caption: str,
        rows: Sequence[Row],
        columns: tuple[str, str, str],
        axes: tuple[str, str],
        log: str = "",
        marks: Mapping[float, str] | None = None,
        **how: Any,
    ) -> None:
        """Add a figure of lines, with an alternative text that names the ends of each line.

        columns, how: the arguments of lines_of().
        axes: the labels of the axes.
        """
        (x, y), lines = axes, lines_of(rows, *columns, **how)
        ends = "; ".join(f"{line.label}: {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in lines)
        alt = f"Lines of {y} from low to high values of {x}. {ends}."
        self.figures.append(Figure(name, caption, alt, lines, x=x, y=y, log=log, marks=marks or {}))

    def judge(
        self, name: str, text: str, values: Sequence[float], what: str, *how: Any, **bounds: Any
    ) -> None:
        """Add the verdict of judge() about the claim `text`."""
        self.verdicts.append(judge(Claim(name, text), values, what, *how, **bounds))


@dataclass(frozen=True)
class Study:
    """A study: claims about attention, and how to measure them.

    name: the name for --study.
    title: the heading on the page.
    claims: the claims about two variants each, which measure() judges.
    variants: the models to train, or a function that returns them, given the comparison.
    quality: whether the BLEU of the trained models is measured.
    each: measures more of one trained run; its results are columns of the table of the study.
    extra: given the rows of the table, adds to the result what it does not have: tables, figures, verdicts.
    table: the name of the table with one row per run. Default: `name`.
    by_length: the name of the table of BLEU by source length. Default: `name`-length.
    """

    name: str
    title: str
    claims: tuple[Claim, ...] = ()
    variants: Sequence[Variant] | Callable[[StudyContext], Sequence[Variant]] = ()
    quality: bool = True
    each: Callable[[StudyContext, Run], Row] | None = None
    extra: Callable[[StudyContext, list[Row], StudyResult], None] | None = None
    table: str = ""
    by_length: str = ""

    def chosen(self, context: StudyContext) -> list[Variant]:
        """Return the variants, given the comparison."""
        return list(self.variants(context) if callable(self.variants) else self.variants)

    def runs(self, context: StudyContext) -> list[Run]:
        """Return the training runs that the study needs: each variant, once for each seed."""
        return [context.run(variant, seed) for variant in self.chosen(context) for seed in context.seeds]

    def measure(self, context: StudyContext) -> StudyResult:
        """Measure the finished runs, judge the claims, and return tables, figures and verdicts.

        The table of the study has a row for each run: BLEU and exact match, mean over the classes of source
        length; the BLEU on sources longer than those of the training; the share of BLEU lost on long sources;
        and what `each` measures.
        """
        runs, variants = list(map(context.stored, self.runs(context))), self.chosen(context)
        rows: list[Row] = []
        classes: list[Row] = []
        for run in (each for each in runs if each.seconds is not None):
            row: Row = {"model": run.label, "seed": run.seed}
            if self.quality:
                own = context.quality(run)
                classes += [row | each for each in own]
                row |= _means(context, own) | {"training_seconds": run.seconds}
            rows.append(row | (self.each(context, run) if self.each else {}))
        result, waiting = StudyResult(self.name, self.title), []
        if self.quality:
            self._add_quality(result, context, rows, classes)
        for claim in self.claims:
            result.verdicts += _verdicts(claim, variants, rows)
        if self.extra:
            self.extra(context, rows, result)
        for run in (each for each in runs if each.seconds is None):
            if run.error:
                result.notes.append(f"The training of {run.label}, seed {run.seed}, failed: {run.error}")
            else:
                waiting.append(f"{run.label} (seed {run.seed})")
        result.notes += [f"Not trained yet: {', '.join(waiting)}."] if waiting else []
        return result

    def _add_quality(
        self, result: StudyResult, context: StudyContext, rows: list[Row], classes: list[Row]
    ) -> None:
        """Add the tables and figures of BLEU."""
        name, by_length = self.table or self.name, self.by_length or f"{self.name}-length"
        unit, seeds = context.sentences.unit, seeds_text(len({row["seed"] for row in rows}))
        where = f"{context.sentences.name}, greedy search, {seeds}"
        columns = dict.fromkeys(column for row in rows for column in row if column not in NOT_SCORES)
        mean = "Mean, standard deviation and 95 % interval of each score, over the seeds"
        result.table(f"{name}-summary", f"{mean}: {where}.", summary(rows, columns))
        mean = "mean over the classes of source length"
        result.table(name, f"BLEU and exact match, {mean}: {where}.", rows)
        result.table(by_length, f"BLEU and exact match by source length in {unit}: {where}.", classes)
        beyond = [at for at, length in enumerate(context.bins) if context.beyond(length)]
        marks = {beyond[0] - 0.5: "longer than training"} if beyond else {}
        variants = self.chosen(context)
        for group in dict.fromkeys(variant.figure for variant in variants):
            labels = [variant.label for variant in variants if variant.figure == group]
            own, lengths = ([row for row in table if row["model"] in labels] for table in (rows, classes))
            if group is None or not own:
                continue
            result.bars(f"{name}{group}", f"BLEU, {mean}: {where}.", own, "bleu", "BLEU")
            caption, axes = f"BLEU by source length in {unit}: {where}.", (f"source length ({unit})", "BLEU")
            chosen = ("model", "length", "bleu")
            result.lines(f"{by_length}{group}", caption, lengths, chosen, axes, marks=marks)


def seeds_text(count: int) -> str:
    """Return a number of seeds as text: "3 seeds"."""
    return f"{count} seed{'s' * (count != 1)}"


def _means(context: StudyContext, classes: Sequence[Row]) -> Row:
    """Return the columns of the table of a study that come from the quality by source length.

    share_lost: the share of BLEU that the longer half of the classes loses against the shorter half. It is a
        share, because a model with a low BLEU on short sources has less to lose. None without a value.
    """
    bleu = [row["bleu"] for row in classes]
    beyond = [row["bleu"] for row in classes if context.beyond(row["length"])]
    half = len(bleu) // 2
    short = sum(bleu[:half])
    return {
        "bleu": statistics.fmean(bleu),
        "exact": statistics.fmean(row["exact"] for row in classes),
        "bleu_beyond": statistics.fmean(beyond) if beyond else None,
        "share_lost": 1 - sum(bleu[-half:]) / short if short else None,
    }


def _verdicts(claim: Claim, variants: Sequence[Variant], rows: Sequence[Row]) -> Iterator[Verdict]:
    """Judge a claim about two variants, if the study has them and their column."""
    labels = {name: each.label for each in variants for name in (each.label, each.role)}
    missing = bool(rows) and not any(claim.of in row for row in rows)
    if not missing and {claim.first, claim.second} <= set(labels):
        first, second = labels[claim.first], labels[claim.second]
        what = f"{f'log of the {claim.what}' if claim.log else claim.what}, {first} minus {second}"
        yield judge(claim, differences(rows, first, second, claim.of, claim.log), what)


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


def summary(rows: Sequence[Row], columns: Iterable[str]) -> list[Row]:
    """Return the mean, the deviation and the interval over seeds of columns, for each model of a table."""
    table = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for column in columns:
            values = [row[column] for row in rows if row["model"] == model and row.get(column) is not None]
            if values:
                found = interval(values)
                row = {"model": model, "score": column, "mean": found.mean, "deviation": found.deviation}
                table.append(row | {"low": found.low, "high": found.high, "seeds": found.seeds})
    return table


def _series(label: str, points: Mapping[Any, list[float]], geometric: bool = False) -> Series:
    """Return the mean of the values at each x, with a confidence band if all of them have an interval."""
    values = list(points.values())
    if geometric:
        values = [[math.log(max(value, SMALLEST)) for value in each] for each in values]
    stats = [interval(each) for each in values]
    bounds = [(each.low, each.high) for each in stats if each.low is not None and each.high is not None]
    band = bounds if len(bounds) == len(stats) else []
    parts = [each.mean for each in stats], [low for low, _ in band], [high for _, high in band]
    return Series(label, list(points), *([math.exp(y) if geometric else y for y in part] for part in parts))


def lines_of(
    rows: Sequence[Row], by: str, x: str, y: str, *, geometric: bool = False, band: bool = True
) -> list[Series]:
    """Return a line for each value of the column `by`: the mean of column y against column x.

    geometric: whether the mean is the geometric one.
    band: whether the lines have a confidence band.
    """
    lines: dict[Any, dict[Any, list[float]]] = {}
    for row in rows:
        lines.setdefault(row[by], {}).setdefault(row[x], []).append(float(row[y]))
    series = [_series(str(label), points, geometric) for label, points in lines.items()]
    return series if band else [Series(line.label, line.x, line.y) for line in series]


def fitted_slope(x: Sequence[float], y: Sequence[float], log: str = "") -> float:
    """Return the slope of the straight line with the least squared error.

    log: the axes whose logarithm is taken: "", "y" (a decay rate) or "xy" (an exponent). Points that have no
        logarithm are left out.

    >>> round(fitted_slope([1, 2, 4, 8], [3, 12, 48, 192], log="xy"), 6)
    2.0
    """
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    if "x" in log:
        points = [(math.log(a), b) for a, b in points if a > 0]
    if "y" in log:
        points = [(a, math.log(b)) for a, b in points if b > 0 and math.isfinite(b)]
    if len({a for a, _ in points}) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*points, strict=True)).slope


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
