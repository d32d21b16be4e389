"""The mean of a score over seeds, with its deviation and its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

SEEDS_NEEDED = 3
"""Smallest number of seeds for which an interval is computed."""

T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t distribution with 1 to 20 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its standard deviation and its 95 % confidence interval.

    deviation is None for a single value; low and high are None with fewer than 3 values.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    deviation: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} (95 % interval {self.low:.3g} to {self.high:.3g})"


def interval(values: Iterable[float]) -> Interval:
    """Return the mean of some values with the 95 % confidence interval of Student's t distribution.

    Values that are NaN or infinite are left out.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., seeds=3, deviation=1.0)
    """
    values = [value for value in values if math.isfinite(value)]
    count = len(values)
    mean = statistics.fmean(values) if values else math.nan
    deviation = statistics.stdev(values) if count > 1 else None
    if deviation is None or count < SEEDS_NEEDED:
        return Interval(mean, None, None, count, deviation)
    quantile = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 1.96
    half = quantile * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count, deviation)
