"""The console output of a training run: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

ROWS = 5
"""Number of recent evaluations in the table. The best evaluation is shown too."""

GAP, BAR = 2, 40
"""Spaces between two columns, and the largest width of the progress bar."""

COLUMNS = ("loss", "perplexity", "norm", "learning rate", "left", "memory")
"""The titles of the columns that most runs have, besides the speed. The other columns are further losses."""

TITLES = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "macro_f1": "macro F1", "ter": "TER"}
TOKENS = "target tokens"
FORMATS = {"bleu": ".1f", "chrf": ".1f", "exact": ".1f", "loss": ".3f", "perplexity": ".2f", "ter": ".1f"}
FORMATS |= {"accuracy": ".3f", "macro_f1": ".3f"}

# Terminal control characters, characters that change the text direction, and unpaired surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def progress_line(step: int, total: int | None, cells: Mapping[str, str]) -> str:
    """Return the state of a training run, except the gradient norm, as one line without a live table.

    cells: mean losses over recent steps, the speed and so on as text, by the titles of the live table.

    >>> progress_line(1200, 10_000, {"loss": "2.314", "norm": "0.5", "target tokens/s": "14,200"})
    'step 1,200/10,000  loss 2.314  14,200 target tokens/s'
    """
    after = {"left": "{} left", "memory": "{}"}
    after |= {title: f"{{}} {title}" for title in cells if title.endswith("/s")}
    values = (after.get(name, f"{name} {{}}").format(text) for name, text in cells.items() if name != "norm")
    return "  ".join((f"step {step_of(step, total)}", *values))


def step_of(step: int, total: int | None) -> str:
    """Return the step and the number of steps of the run, if it is known, e.g. "1,200/10,000"."""
    return f"{step:,}" if total is None else f"{step:,}/{total:,}"


class Evaluated(NamedTuple):
    """The scores of the model at a training step.

    step: number of the training step.
    scores: the scores by name, such as "bleu".
    best: whether the evaluation is the best so far.

    >>> print(Evaluated(500, {"loss": 2.1, "bleu": 31.24}, best=True).line(best_by="bleu"))
    evaluation at step 500  loss 2.100  BLEU 31.2  best BLEU so far
    """

    step: int
    scores: Mapping[str, float]
    best: bool = False

    def line(self, best_by: str = "") -> str:
        """Return the scores as one line of text.

        best_by: name of the score that selects the best checkpoint, e.g. "bleu"; "" if it is not known.
        """
        scores = [f"{metric_title(name)} {in_words(name, value)}" for name, value in self.scores.items()]
        best = [f"{best_title(best_by)} so far"] * self.best
        return "  ".join((f"evaluation at step {self.step:,}", *scores, *best))


class Shown:
    """Text or a picture to print with rich. Rich markup in the text is not interpreted.

    Terminal control characters are replaced by U+FFFD, so that text from a file cannot change the terminal.

    >>> import io
    >>> page = io.StringIO()
    >>> Console(file=page).print(Shown("[bold]a[/bold] \\x1b[31mb"))
    >>> page.getvalue()
    '[bold]a[/bold] \ufffd[31mb\\n'
    """

    def __init__(self, inner: RenderableType):
        self.inner = Text(_CONTROL.sub("\ufffd", inner)) if isinstance(inner, str) else inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.inner, options.update(markup=False, highlight=False)):
            if control:
                yield Segment(text, style, control)
                continue
            text = _CONTROL.sub("\ufffd", text)
            if options.ascii_only:  # the console cannot encode all characters
                text = text.encode(options.encoding, "replace").decode(options.encoding)
            yield Segment(text, style)


class Display:
    """The console output of a training run: a live table from start() to stop(), and lines above the table.

    If writing to the console fails (a closed terminal, a broken pipe, a full disk), output stops, but
    training continues.

    >>> import io
    >>> page = io.StringIO()
    >>> Display(Console(file=page)).say("one line", "another one")
    >>> print(page.getvalue(), end="")
    one line
    another one

    step, total: number of steps so far, and of the run, for the live table.
    cells: mean losses over recent steps, the speed and so on as text, by column title, for the live table.
    best_by: the name of the score that selects the best checkpoint, or "" if it is not known.
    """

    def __init__(self, console: Console):
        self.console = console
        self.step = 0
        self.total: int | None = None
        self.cells: dict[str, str] = {}
        self.evaluations: list[Evaluated] = []
        self.best_by = ""
        self._live: Live | None = None
        self._gone = False

    @property
    def live(self) -> bool:
        """Whether the live table is shown."""
        return self._live is not None and not self._gone

    def start(self) -> None:
        """Show the live table, if the console is a terminal."""
        console = self.console
        # FORCE_COLOR requests colours, but does not make a pipe a terminal.
        forced = "FORCE_COLOR" in os.environ and not _is_terminal(console.file)
        if not console.is_interactive or console.is_jupyter or console.quiet or forced:
            return
        # Do not use a refresh thread: it could hold a lock while the process forks. refresh() updates the
        # table.
        self._live = Live(
            console=self.console,
            auto_refresh=False,
            get_renderable=self._table,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        try:
            with self._guarded():
                self._live.start(refresh=True)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop updating the live table, and restore the state of the terminal."""
        if self._live is not None:
            live, self._live = self._live, None
            with self._guarded():
                live.stop()

    def say(self, *things: RenderableType, style: str = "") -> None:
        """Print text lines and pictures, above the live table if it is shown."""
        if self._gone:
            return
        with self._guarded():
            for thing in things:
                shown = Shown(thing)
                lines = isinstance(shown.inner, Text) and not self.live
                # Without a terminal, a long line of a sample translation is not cut.
                crop = self.console.is_terminal
                self.console.print(shown, style=style or None, soft_wrap=lines, crop=crop)
            self.refresh()

    def keep(self, *evaluations: Evaluated) -> None:
        """Add evaluations to the live table, which shows the last ROWS evaluations and the best one."""
        rows = [*self.evaluations, *evaluations]
        best = [each for each in rows if each.best][-1:]
        self.evaluations = [each for each in best if each not in rows[-ROWS:]] + rows[-ROWS:]

    def refresh(self) -> None:
        """Draw the live table again with its current values, if it is shown."""
        if self._live is not None and not self._gone:
            with self._guarded():
                self._live.refresh()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """If the `with` block cannot write to the console, stop all further output, without an error."""
        try:
            yield
        except OSError:
            self._gone = True
        except ValueError:
            if not getattr(self.console.file, "closed", False):
                raise
            self._gone = True
        except SystemExit as error:
            if not isinstance(error.__context__, BrokenPipeError):  # rich raises SystemExit for a broken pipe
                raise
            self._gone = True

    def _table(self) -> RenderableType:
        place, width = step_of(self.step, self.total), self.console.width
        head = Table.grid(padding=(0, 2))
        cells: list[RenderableType] = [Text("step", style="bold"), Text(place)]
        if self.total:
            share = f"{math.floor(100 * min(self.step / self.total, 1.0))} %"
            room = min(width - sum(map(len, ("step", place, share))) - 3 * GAP, BAR)
            if room >= BAR // 4:
                cells.append(ProgressBar(total=self.total, completed=self.step, width=room))
            cells.append(Text(share))
        head.add_row(*cells)
        parts: list[RenderableType] = [head]
        if self.cells:
            others = (title for title in self.cells if title not in COLUMNS and not title.endswith("/s"))
            optional = ("norm", "memory", *others, "learning rate", *self.cells)
            parts.append(number_table({title: [text] for title, text in self.cells.items()}, optional, width))
        if self.evaluations:
            parts.append(self._evaluations())
        # The cursor stays on an empty line, where the progress bar of a translation can appear.
        return Shown(Group(*parts, Text("")))

    def _evaluations(self) -> Table:
        rows = self.evaluations
        best = next((each for each in reversed(rows) if each.best), None)
        names = list(dict.fromkeys(name for each in rows for name in each.scores))
        columns = {"evaluation": [f"{each.step:,}" for each in rows]}
        for name in names:
            columns[metric_title(name)] = [
                in_words(name, each.scores[name]) if name in each.scores else "" for each in rows
            ]
        star = "*" if self.console.options.ascii_only else "★"
        marks = [star if each is best else "" for each in rows]
        named = [f"{star} {best_title(self.best_by)}" if each is best else "" for each in rows]
        optional = [metric_title(name) for name in reversed(names) if name != self.best_by]
        for last in (named, marks):
            if table_width({**columns, "": last}) <= self.console.width:
                break
        return number_table({**columns, "": last}, optional, self.console.width)


def number_table(columns: Mapping[str, Sequence[str]], optional: Iterable[str], width: int) -> Table:
    """Return a table of numbers that fits a width. Numbers are never truncated.

    If the table is too wide, first the words of each title are written below each other. Then columns are
    left out, one after another.

    columns: title of each column -> its cells.
    optional: the titles of columns that can be left out, the least important first. The first column stays.
    width: the width of the terminal.
    """
    shown, first = dict(columns), next(iter(columns))
    for title in optional:
        if table_width(shown) <= width:
            break
        if title != first:
            shown.pop(title, None)
    titles = {title: title for title in shown}
    if table_width(shown, whole=True) > width:
        titles = {title: "\n".join(title.split()) for title in shown}
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for title in shown:
        table.add_column(Text(titles[title]), justify="right", no_wrap=True)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(
            *(Text(cell, style="" if title else "yellow") for title, cell in zip(shown, cells, strict=True))
        )
    return table


def table_width(columns: Mapping[str, Sequence[str]], whole: bool = False) -> int:
    """Return the width of a table of numbers, without the space at its right end.

    whole: whether each title is on one line; by default, its words are below each other.
    """
    titles = {title: [title] if whole else title.split() for title in columns}
    widths = [max(map(cell_len, (*titles[title], *cells))) for title, cells in columns.items()]
    return sum(widths) + GAP * (len(widths) - 1)


def best_title(name: str) -> str:
    """Return the label of the best evaluation in the live table.

    name: the score that selects the best checkpoint, or "" if it is not known.

    >>> best_title("exact"), best_title("loss"), best_title("")
    ('best exact match', 'lowest loss', 'best')
    """
    return "lowest loss" if name == "loss" else f"best {metric_title(name)}".strip()


def metric_title(name: str) -> str:
    """Return the name of a metric as it is printed.

    >>> metric_title("bleu"), metric_title("bits_per_character")
    ('BLEU', 'bits per character')
    """
    return TITLES.get(name, name.replace("_", " "))


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if it overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def in_words(name: str, value: float) -> str:
    """Format the value of a score or loss. Its name decides the number of digits (see FORMATS).

    >>> in_words("bleu", 31.24), in_words("loss", 2.1), in_words("loss", 1e7)
    ('31.2', '2.100', '1.0e+07')
    """
    return f"{value:.1e}" if 1e6 <= abs(value) < math.inf else f"{value:{FORMATS.get(name, '.4g')}}"


def in_time(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, e.g. "00:12:31"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def in_bytes(size: int) -> str:
    """Format a number of bytes as MiB, e.g. "812 MiB", or as GiB if it is 10,000 MiB or more."""
    mebi = size / 2**20
    return f"{mebi:.0f} MiB" if mebi < 10_000 else f"{mebi / 1024:.1f} GiB"


def _is_terminal(file: object) -> bool:
    isatty = getattr(file, "isatty", None)
    return isatty is not None and not getattr(file, "closed", False) and bool(isatty())
