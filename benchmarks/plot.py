"""Plot a case: one dot per pass on an axis of milliseconds, or curves of time and memory by length.

It uses the SVG writer of regard.viewing, so the same record gives the same bytes on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.report import number
from regard.viewing.pictures.canvas import DARK, FAINT, LINK, QUIET, WHITE, Canvas, width_of
from regard.viewing.pictures.svg_writer import svg_of

__all__ = ["Plot", "plot_of"]

Found = dict[str, Any]
OTHERS = ("#b0591f", "#69707f", "#7a320c")
"""Colours of the peers, in order; Regard has the colour of links."""

WIDE, HIGH, ROW, RADIUS = 300.0, 200.0, 17.0, 3.5


@dataclass(frozen=True)
class Plot:
    """A plot that to_svg() can write."""

    paper: Canvas

    def svg(self, title: str = "") -> str:
        """Return the plot as SVG text."""
        return svg_of(self.paper, title)


def plot_of(name: str, case: Found) -> Plot | None:
    """Return the plot of a case, or None if nothing was measured."""
    lengths = any("length" in row for row in case["rows"])
    measured = [row for row in case["rows"] if "forward" in row or "both" in row]
    if not measured:
        return None
    return Plot(_curves(name, case, measured) if lengths else _dots(name, case, measured))


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of length `room`, from `low` to `high`, both powers of its base."""

    low: float
    high: float
    room: float

    @classmethod
    def around(cls, values: list[float], room: float, base: float = 10) -> Axis:
        least, most = (math.log(each, base) for each in (min(values), max(values)))
        low, high = math.floor(least + 1e-9), math.ceil(most - 1e-9)
        return cls(base**low, base ** max(high, low + 1), room)

    def at(self, value: float) -> float:
        return self.room * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, base: float = 10) -> list[float]:
        steps = round(math.log(self.high / self.low, base))
        return [self.low * base**step for step in range(steps + 1)]


def _dots(name: str, case: Found, rows: list[Found]) -> Canvas:
    """Draw one line per peer: a ring for forward, a dot for forward + backward, and the limit."""
    paper = Canvas(name, about=case["about"])
    limit = [case["limit"]] if case.get("limit") else []
    times = [row[each]["median"] for row in rows for each in ("forward", "both") if each in row]
    axis = Axis.around(times + limit, WIDE)
    bottom = len(rows) * ROW
    for tick in axis.ticks():
        paper.line(axis.at(tick), 0, axis.at(tick), bottom, color=FAINT)
        paper.words(axis.at(tick), bottom + 10, f"{tick:g} ms", 8, color=QUIET, anchor="middle")
    for at in limit:
        paper.line(axis.at(at), -4, axis.at(at), bottom, color=OTHERS[0], width=1.2)
        said = f"limit of {case['limited by']}"
        paper.words(axis.at(at), -10, said, 8, color=OTHERS[0], anchor="middle")
    several = len({row["dtype"] for row in rows}) > 1
    for line, row in enumerate(rows):
        y, ink = (line + 0.5) * ROW, LINK if row.get("ours") else DARK
        label = f"{row['peer']}, {row['dtype']}" if several else row["peer"]
        paper.words(-8, y, label, 9, color=ink, anchor="end")
        for each in ("forward", "both"):
            if each in row:
                x = axis.at(row[each]["median"])
                fill, edge = (WHITE, ink) if each == "forward" else (ink, ink)
                _dot(paper, x, y, fill, edge)
        last = max(row[each]["median"] for each in ("forward", "both") if each in row)
        numbers = " / ".join(number(row[each]["median"]) for each in ("forward", "both") if each in row)
        paper.words(max(axis.at(last) + 7, 0), y, numbers, 8, color=QUIET)
    trains = any("both" in row for row in rows)
    paper.foot(
        "ring: forward" + (", dot: forward and backward; median milliseconds" if trains else ", median")
    )
    paper.head(name)
    return paper


def _curves(name: str, case: Found, rows: list[Found]) -> Canvas:
    """Draw time and memory by length, on logarithmic axes, one curve per peer."""
    paper = Canvas(name, about=case["about"])
    panels: dict[str, Callable[[Found], float | None]] = {
        "milliseconds": lambda row: row["both"]["median"] if "both" in row else None,
        "MiB at the peak": lambda row: row.get("peak_mib") or None,
    }
    for place, (title, value) in enumerate(panels.items()):
        found = [(row, value(row)) for row in rows]
        points = {
            peer: [(row["length"], float(v)) for row, v in found if v is not None and row["peer"] == peer]
            for peer in dict.fromkeys(row["peer"] for row in rows)
        }
        paper.put(_panel(title, {peer: each for peer, each in points.items() if each}), place * 420, 0)
    paper.foot(
        "both axes logarithmic; forward and backward; a curve ends where its peer does not fit or is slow"
    )
    paper.head(name)
    return paper


def _panel(title: str, points: dict[str, list[tuple[int, float]]]) -> Canvas:
    paper = Canvas(title)
    if not points:
        return paper
    across = Axis.around([float(length) for each in points.values() for length, _ in each], WIDE, 2)
    up = Axis.around([value for each in points.values() for _, value in each], HIGH)
    for tick in across.ticks(4):
        paper.line(across.at(tick), 0, across.at(tick), HIGH, color=FAINT)
        paper.words(across.at(tick), HIGH + 10, f"{tick:,.0f}", 8, color=QUIET, anchor="middle")
    for tick in up.ticks():
        paper.line(0, HIGH - up.at(tick), WIDE, HIGH - up.at(tick), color=FAINT)
        paper.words(-6, HIGH - up.at(tick), f"{tick:,g}", 8, color=QUIET, anchor="end")
    paper.words(0, -10, title, 9, color=QUIET)
    taken: list[float] = []
    others = iter(OTHERS)
    for peer, each in points.items():
        ink = LINK if peer == "regard" else next(others, QUIET)
        places = [(across.at(length), HIGH - up.at(value)) for length, value in sorted(each)]
        for (x, y), (to_x, to_y) in itertools.pairwise(places):
            paper.line(x, y, to_x, to_y, color=ink, width=1.6)
        for x, y in places:
            _dot(paper, x, y, ink, ink, 2.4)
        x, y = places[-1]
        while any(abs(y - other) < 11 for other in taken):
            y -= 11  # labels of curves that end at the same height are stacked
        taken.append(y)
        room = width_of(peer, 9) + 10
        paper.words(min(x + 7, WIDE + 100 - room), y, peer, 9, color=ink)
    return paper


def _dot(paper: Canvas, x: float, y: float, fill: str, edge: str, radius: float = RADIUS) -> None:
    paper.box(x - radius, y - radius, 2 * radius, 2 * radius, fill, edge=edge, round=radius)
