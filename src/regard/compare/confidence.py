"""Means over seeds with confidence intervals, and the verdicts that follow from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.compare.study import CONTRADICTED, NOT_MEASURED, SUPPORTED, UNCLEAR, Claim, Series, Verdict

__all__ = ["SEEDS_NEEDED", "Interval", "by_model", "interval", "judge", "judge_near", "series_of"]

SEEDS_NEEDED = 3
"""A verdict other than "not distinguishable" needs at least this many seeds."""

T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t distribution with 1 to 20 degrees of freedom."""

NUMBERS = ("no", "one", "two")


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval; low and high are None with fewer than 3 values."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} (95 % interval {self.low:.3g} to {self.high:.3g})"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of some values with the 95 % confidence interval of Student's t distribution.

    Values that are NaN or infinite are left out.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., seeds=3)
    """
    values = [value for value in values if math.isfinite(value)]
    count = len(values)
    mean = statistics.fmean(values) if values else math.nan
    if count < SEEDS_NEEDED:
        return Interval(mean, None, None, count)
    quantile = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 1.96
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def by_model(rows: Sequence[dict[str, Any]], column: str) -> dict[str, Interval]:
    """Return the mean of a column with its interval for each model; each row has one model and one seed."""
    models = dict.fromkeys(row["model"] for row in rows)
    return {model: interval([row[column] for row in rows if row["model"] == model]) for model in models}


def series_of(label: str, x: Sequence[Any], stats: Sequence[Interval]) -> Series:
    """Return means as a line or as bars, with a confidence band if all of them have an interval.

    >>> series_of("BLEU", ["luong"], [interval([1.0, 2.0])])
    Series(label='BLEU', x=['luong'], y=[1.5], low=(), high=(), cells=())
    """
    bounds = [(each.low, each.high) for each in stats if each.low is not None and each.high is not None]
    band = len(bounds) == len(stats)
    low, high = ([each[side] for each in bounds] if band else () for side in (0, 1))
    return Series(label, x, [each.mean for each in stats], low, high)


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
    claim: Claim,
    values: Sequence[float],
    what: str,
    expected: float,
    tolerance: float,
    unit: str = "seeds",
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
    mean, low, high, count = found.mean, found.low, found.high, found.seeds
    if not kept:
        return Verdict(claim, NOT_MEASURED, f"{what}: no finished training", kept)
    if low is None or high is None:
        reason = f"{what}: {mean:.3g}; {UNCLEAR}: {NUMBERS[count]} {unit[: -1 if count == 1 else None]}"
        return Verdict(claim, UNCLEAR, reason, kept)
    outcome = UNCLEAR
    if least < low and high < most:
        outcome = SUPPORTED
    elif high < least or low > most:
        outcome = CONTRADICTED
    return Verdict(claim, outcome, f"{what}: {found}, {count} {unit}", kept, low, high)
