"""Scores of several seeds: mean, deviation and confidence interval, as text, as a table and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from regard.evaluation.confidence import Interval, interval
from regard.training.logs.live_table import in_words, metric_title

__all__ = ["keep_words", "mean_text", "scores_table", "summarised", "written_summary"]


def mean_text(name: str, score: Interval) -> str:
    """Return the mean and the standard deviation of a score over seeds as text.

    name: the name of the score. The number of digits depends on it.

    >>> mean_text("accuracy", interval([0.79, 0.81]))
    '0.800 ± 0.014'
    """
    deviation = "" if score.deviation is None else f" ± {in_words(name, score.deviation)}"
    return in_words(name, score.mean) + deviation


def summarised(scores: Iterable[Mapping[str, float]]) -> dict[str, Interval]:
    """Return mean, deviation and interval of each score over the seeds that have it."""
    rows = list(scores)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: interval(row[name] for row in rows if name in row) for name in names}


def written_summary(summary: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    """Return the mean, the sample standard deviation and the 95 % interval of each score, for JSON.

    The deviation is None for one seed, and the interval with fewer than three.
    """
    return {
        "mean": {name: each.mean for name, each in summary.items()},
        "deviation": {name: each.deviation for name, each in summary.items()},
        "interval": {
            name: None if each.low is None else [each.low, each.high] for name, each in summary.items()
        },
    }


def scores_table(
    scores: Mapping[int, Mapping[str, float]], others: Mapping[int, Mapping[str, str]] | None = None
) -> Table:
    """Return a table of scores with a row for each seed, and rows of their means and intervals.

    A mean is shown with its deviation, e.g. "0.800 ± 0.012". The 95 % confidence interval of the mean needs
    three seeds.

    scores: for each seed, the scores by name.
    others: for each seed, the cells of further columns as text, by column name.
    """
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    more = list(dict.fromkeys(name for row in (others or {}).values() for name in row))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("seed", *map(metric_title, names), *more):
        table.add_column(Text(name), justify="right", no_wrap=name == "seed")
    for seed in dict.fromkeys((*scores, *(others or {}))):
        row, other = scores.get(seed, {}), (others or {}).get(seed, {})
        cells = [in_words(name, row[name]) if name in row else "" for name in names]
        table.add_row(str(seed), *cells, *(Text(other.get(name, "")) for name in more))
    summary = summarised(scores.values())
    if len(scores) > 1:
        table.add_row("mean", *(mean_text(name, summary[name]) for name in names), style="bold")
    if any(each.low is not None for each in summary.values()):
        table.add_row("95 %", *(interval_text(name, summary[name]) for name in names), style="dim")
    keep_words(table.columns[1:])
    return table


def interval_text(name: str, score: Interval) -> str:
    """Return the 95 % confidence interval of the mean of a score; "" if it has none.

    >>> interval_text("accuracy", interval([0.79, 0.80, 0.81]))
    '0.775 to 0.825'
    """
    if score.low is None or score.high is None:
        return ""
    return f"{in_words(name, score.low)} to {in_words(name, score.high)}"


def keep_words(columns: Sequence[Column]) -> None:
    """Wrap the cells of table columns between words if the table is too wide, instead of cutting them.

    Call this after the rows are added. If even the longest words do not fit side by side, the last columns
    are cut.
    """
    for column in columns:
        column.overflow = "fold"
        words = [word for cell in column.cells for word in str(cell).split()]
        column.min_width = max(map(len, words), default=1)
