"""Means over seeds with confidence intervals, and the verdicts that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from regard.compare.study import CONTRADICTED, NOT_MEASURED, SUPPORTED, UNCLEAR, Claim, Row, Series, Verdict
from regard.evaluation.confidence import Interval, interval

__all__ = ["fitted_slope", "judge", "judge_near", "lines_of", "series_of", "summary"]

NUMBERS = ("no", "one", "two")
SMALLEST = 1e-30
"""Smaller values are replaced by this one before their logarithm is taken."""


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


def judge(claim: Claim, values: Sequence[float], what: str, unit: str = "seeds") -> Verdict:
    """Judge a claim that says that a statistic is greater than 0.

    values: the statistic, one value per seed.
    what: what the statistic is, as the beginning of a sentence: "BLEU of bahdanau minus BLEU of seq2seq".
    unit: what the values are of: "seeds", or "repetitions" of a measurement.

    >>> judge(Claim("a", "..."), [1.0, 1.1, 0.9], "difference").outcome
    'supported'
    >>> judge(Claim("a", "..."), [1.0], "difference").reason
    'difference: 1; not distinguishable: one seed'
    """
    return _judged(claim, values, what, 0.0, math.inf, unit)


def judge_near(
    claim: Claim, values: Sequence[float], what: str, expected: float, tolerance: float, unit: str = "seeds"
) -> Verdict:
    """Judge a claim that says that a statistic is `expected`, within the tolerance.

    The claim is supported if the whole confidence interval is within the tolerance, and contradicted if the
    whole interval is outside.
    """
    return _judged(claim, values, what, expected - tolerance, expected + tolerance, unit)


def _judged(
    claim: Claim, values: Sequence[float], what: str, least: float, most: float, unit: str
) -> Verdict:
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
