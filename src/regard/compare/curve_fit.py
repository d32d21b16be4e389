"""Slopes and crossing points of measured curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["crossing", "fitted_slope"]


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


def crossing(x: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the x at which the first curve becomes larger than the second; None if it never does.

    Between two points, both curves are straight lines on logarithmic scales.

    >>> round(crossing([1, 2, 4, 8], [1, 4, 16, 64], [8, 16, 32, 64]), 3)
    8.0
    """
    gaps = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    for at in range(1, len(gaps)):
        if gaps[at - 1] < 0 <= gaps[at]:
            share = -gaps[at - 1] / (gaps[at] - gaps[at - 1])
            low, high = math.log(x[at - 1]), math.log(x[at])
            return math.exp(low + share * (high - low))
    return None
