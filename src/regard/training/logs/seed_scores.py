"""Scores of several seeds: their mean and deviation, as text and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Column, Table
from rich.text import Text

from regard.training.logs.live_table import in_words, metric_title

__all__ = ["keep_words", "mean_and_deviation", "mean_text", "scores_table"]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (with n - 1) of n values.

    For a single value, the deviation is None.

    >>> mean_and_deviation([1.0, 2.0, 6.0]), mean_and_deviation([1.0])
    ((3.0, 2.6457513110645907), (1.0, None))
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def mean_text(name: str, both: tuple[float, float | None]) -> str:
    """Return the mean and the standard deviation of a score over seeds as text.

    name: the name of the score. The number of digits depends on it.
    both: the mean and the deviation. The deviation of a single seed is None.

    >>> mean_text("accuracy", (0.8, 0.012))
    '0.800 ± 0.012'
    """
    mean, deviation = both
    return in_words(name, mean) + ("" if deviation is None else f" ± {in_words(name, deviation)}")


def scores_table(
    scores: Mapping[int, Mapping[str, float]], others: Mapping[int, Mapping[str, str]] | None = None
) -> Table:
    """Return a table of scores with a row for each seed. If there are several seeds, the last row has means.

    A mean is shown with its deviation, e.g. "0.800 ± 0.012".

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
    if len(scores) > 1:
        last = []
        for name in names:
            last.append(
                mean_text(name, mean_and_deviation([row[name] for row in scores.values() if name in row]))
            )
        table.add_row("mean", *last, style="bold")
    keep_words(table.columns[1:])
    return table


def keep_words(columns: Sequence[Column]) -> None:
    """Wrap the cells of table columns between words if the table is too wide, instead of cutting them.

    Call this after the rows are added. If even the longest words do not fit side by side, the last columns
    are cut.
    """
    for column in columns:
        column.overflow = "fold"
        words = [word for cell in column.cells for word in str(cell).split()]
        column.min_width = max(map(len, words), default=1)
