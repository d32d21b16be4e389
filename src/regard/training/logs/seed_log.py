"""SeedLog: the log of a run with one model per random seed, with the mean and deviation of each score."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from regard.files.untrusted import open_regular, parse_json
from regard.training.logs.live_table import in_words, metric_title
from regard.training.logs.log import Log

__all__ = ["SeedLog", "keep_words", "mean_and_deviation", "mean_text", "scores_table"]

NEVER = 2**62


class SeedLog(Log):
    """The log of a run with one model per random seed: means over the seeds, in log.jsonl and on the console.

    path: the file log.jsonl of the run. None: no file is written.
    console: where lines are printed. Default: standard output.

    Each seed also has its own Log, which of_seed() creates. It writes to the folder of the seed, and prints
    nothing. The record of an evaluation contains the mean of each score, its sample standard deviation
    ("deviation") and the scores of each seed ("seeds").
    """

    def __init__(self, path: Path | None, *, console: Console | None = None):
        super().__init__(path, console=console, record=NEVER)
        self.path = path
        self._logs: dict[int, Log] = {}
        self._steps: dict[int, dict[str, Any]] = {}
        self._evaluated: set[int] = set()

    def of_seed(self, seed: int, path: Path, record: int, board: Path | None) -> Log:
        """Return a log for the model of one seed, which passes its losses and scores to this log.

        seed: the random seed.
        path: the file log.jsonl of this seed.
        record: number of steps between two training records in this file.
        board: folder for TensorBoard files. None: no TensorBoard files are written.
        """
        log = _OfSeed(self, seed, path, record, board)
        self._logs[seed] = log
        return log

    def end_step(self, step: int) -> None:
        """Log the means over the seeds: of the losses of this step, and of the scores of new evaluations.

        Call this after all seeds have done the step. Seeds that have not done the step do not count.
        """
        if self._steps:
            rows = list(self._steps.values())
            mean, deviation = mean_and_deviation([each["loss"] for each in rows])
            norms = [each["norm"] for each in rows if each["norm"] is not None]
            names = dict.fromkeys(name for each in rows for name in each["parts"])
            parts = {
                name: statistics.fmean(each["parts"][name] for each in rows if name in each["parts"])
                for name in names
            }
            self.step(
                step,
                loss=mean,
                tokens=sum(each["tokens"] for each in rows),
                rate=rows[0]["rate"],
                norm=statistics.fmean(norms) if norms else None,
                parts=parts | ({} if deviation is None else {"deviation": deviation}),
            )
            self._steps = {}
        for each in sorted(self._evaluated):
            self._log_evaluation(each)
        self._evaluated = set()

    def _log_evaluation(self, step: int) -> None:
        rows = {seed: log.scores_at(step) for seed, log in self._logs.items()}
        scores = {seed: row for seed, row in rows.items() if row is not None}
        names = list(dict.fromkeys(name for row in scores.values() for name in row))
        both = {
            name: mean_and_deviation([row[name] for row in scores.values() if name in row]) for name in names
        }
        self.evaluation(
            step,
            {name: mean for name, (mean, _) in both.items()},
            shown=[scores_table(scores)],
            deviation={name: deviation for name, (_, deviation) in both.items()},
            seeds={str(seed): dict(row) for seed, row in scores.items()},
        )

    def failed(self, seed: int, step: int, error: Exception) -> None:
        """Log that the training with this seed has failed at a step. The training is not continued."""
        text = f"seed {seed} has failed, training of the other seeds continues: {str(error).splitlines()[0]}"
        self.event("failed", text, seed=seed, step=step)

    def rewind_to_step(self, step: int) -> None:
        """Remove the records from log.jsonl that a run will write again after it is resumed at `step`.

        The file is truncated before the first record of a later step: of an evaluation, or of a failed seed.
        """
        position = 0
        if self.path is not None and self.path.is_file():
            with open(self.path, "rb", opener=open_regular) as file:
                for line in file:
                    try:
                        record = parse_json(line)
                    except ValueError:
                        break
                    at = record.get("step") if isinstance(record, dict) else None
                    if isinstance(at, int) and at > step and record.get("kind") in ("evaluation", "failed"):
                        break
                    position += len(line)
        self.rewind(position)


class _OfSeed(Log):
    """The log of one seed in a run with several seeds. It also passes losses and scores to the SeedLog.

    group: the log with the means over the seeds.
    path, record, board: see SeedLog.of_seed().
    """

    def __init__(self, group: SeedLog, seed: int, path: Path, record: int, board: Path | None):
        super().__init__(path, console=Console(quiet=True), record=record, board=board)
        self._group, self._seed = group, seed

    def step(
        self,
        step: int,
        *,
        loss: float,
        tokens: int,
        rate: float,
        norm: float | None = None,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        parts = parts or {}
        super().step(step, loss=loss, tokens=tokens, rate=rate, norm=norm, parts=parts)
        record = {"loss": loss, "tokens": tokens, "rate": rate, "norm": norm, "parts": parts}
        self._group._steps[self._seed] = record

    def evaluation(
        self,
        step: int,
        scores: Mapping[str, float],
        *,
        best: bool = False,
        shown: Sequence[RenderableType] = (),
        **fields: object,
    ) -> None:
        super().evaluation(step, scores, best=best, shown=shown, **fields)
        self._group._evaluated.add(step)


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
