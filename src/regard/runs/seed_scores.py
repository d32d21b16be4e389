"""Scores of several seeds: mean, deviation and confidence interval, as text, as a table and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from regard.evaluation.confidence import Interval, interval
from regard.training.logs.live_table import GAP, in_words, metric_title

__all__ = ["FittedTable", "mean_text", "scores_table", "summarised", "written_summary"]

LONGEST_WORD = 24
"""Longer words, such as paths, may be wrapped in a FittedTable."""


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
    table = FittedTable(("best step", *map(metric_title, names[:0:-1])))
    for name in ("seed", *map(metric_title, names), *more):
        table.add_column(Text(name), justify="right")
    for seed in dict.fromkeys((*scores, *(others or {}))):
        row, other = scores.get(seed, {}), (others or {}).get(seed, {})
        cells = [in_words(name, row[name]) if name in row else "" for name in names]
        table.add_row(str(seed), *cells, *(Text(other.get(name, "")) for name in more))
    summary = summarised(scores.values())
    if len(scores) > 1:
        table.add_row("mean", *(mean_text(name, summary[name]) for name in names), style="bold")
    if any(each.low is not None for each in summary.values()):
        table.add_row("95 %", *(interval_text(name, summary[name]) for name in names), style="dim")
    return table


def interval_text(name: str, score: Interval) -> str:
    """Return the 95 % confidence interval of the mean of a score; "" if it has none.

    >>> interval_text("accuracy", interval([0.79, 0.80, 0.81]))
    '0.775 to 0.825'
    """
    if score.low is None or score.high is None:
        return ""
    return f"{in_words(name, score.low)} to {in_words(name, score.high)}"


class FittedTable(Table):
    """A table whose words and numbers are not cut.

    If the table is too wide, cells and titles are wrapped between words. If that is not enough, columns are
    left out, and at last, long words are wrapped.

    optional: the titles of columns that can be left out, the least important first.
    """

    def __init__(self, optional: Iterable[str] = ()):
        super().__init__(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        self.optional = tuple(optional)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        texts = [[str(text) for text in (column.header, *column.cells)] for column in self.columns]
        words = [max((cell_len(word) for text in each for word in text.split()), default=1) for each in texts]
        least = [min(each, LONGEST_WORD) for each in words]
        most = [max(map(cell_len, each)) for each in texts]
        chosen = list(range(len(self.columns)))
        room = options.max_width
        for title in self.optional:
            if sum(least[at] for at in chosen) + GAP * (len(chosen) - 1) > room:
                chosen = [at for at in chosen if texts[at][0] != title]
        room -= GAP * (len(chosen) - 1)
        widths = {at: least[at] for at in chosen}
        while sum(widths.values()) > max(room, len(chosen)):
            widths[max(widths, key=lambda at: widths[at])] -= 1
        spare = room - sum(widths.values())
        for left, at in enumerate(sorted(chosen, key=lambda at: most[at] - least[at]), 1 - len(chosen)):
            more = min(max(most[at] - widths[at], 0), max(spare, 0) // (1 - left))
            widths[at], spare = widths[at] + more, spare - more
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        table.caption, table.caption_justify = self.caption, self.caption_justify
        for at in chosen:
            column = self.columns[at]
            table.add_column(column.header, justify=column.justify, width=widths[at], overflow="fold")
        columns = [list(self.columns[at].cells) for at in chosen]
        for row, cells in zip(self.rows, zip(*columns, strict=True), strict=True):
            table.add_row(*cells, style=row.style)
        yield table
