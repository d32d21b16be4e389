"""Types that `regard evaluate` and `regard view` share with the tasks: the chosen run, reports and views."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, message, printable, shell_word, shown
from regard.runs.devices import choose_device
from regard.runs.run_folder import config_of, fingerprints_of
from regard.runs.run_task import RunTask
from regard.runs.stored_runs import open_stored
from regard.training.logs.live_table import Shown, metric_title

if TYPE_CHECKING:
    from regard.viewing import Picture, Seen

MAP_VIEW = "long"
"""The view that draws a map, in which each cell is the largest weight in a block of tokens."""


@dataclass(frozen=True)
class ChosenRun:
    """A run folder, with the checkpoint and the device that the user has chosen.

    folder: the run folder.
    checkpoint: "best", "latest", or the number of a training step, such as "500".
    device: "cpu", "cuda" (or "gpu"), "mps", or "auto" for the fastest available.
    """

    folder: Path
    checkpoint: str = "best"
    device: str = "auto"

    def load(self, task: type[RunTask], **options: Any) -> Any:
        """Load the trained model with regard.load(), and print which damaged checkpoints were skipped.

        task: the task class.
        options: the options of regard.load() for this task, such as search.
        """
        loaded = task.load(open_stored(task, self.folder, self.checkpoint), self.device, **options)
        for note in getattr(loaded, "notes", ()):
            say(note)
        return loaded


@dataclass(frozen=True, eq=False)
class RunReport:
    """The scores of a run on some data, as `regard evaluate` prints them or writes them as JSON.

    folder: the run folder. "": the outputs of a model were read from a file.
    step: the training step of the evaluated checkpoint.
    data: what the run was evaluated on, for the title, such as the name of a file.
    values: the scores and other results, as a dict that can be written as JSON.
    printed: tables and texts that are printed below the title. None: a table of the numbers in `values`.
    title: the title. "": the run folder, the step and the data.
    """

    folder: str
    step: int
    data: str
    values: Mapping[str, Any]
    printed: Sequence[RenderableType] | None = field(default=None, repr=False)
    title: str = ""

    @classmethod
    def of(cls, loaded: Any, data: str, values: Mapping[str, Any], *printed: RenderableType) -> RunReport:
        """Return the report of a loaded run. loaded: the result of RunTask.load(), such as a translator."""
        return cls(str(loaded.folder), loaded.checkpoint.step, data, values, printed or None)

    def with_faithfulness(self, erasure: Any, *more: str) -> RunReport:
        """Return a copy with a measurement of faithfulness, such as a RowErasure. more: further sentences."""
        values = {**self.values, "faithfulness": erasure.to_dict()}
        texts = [Text(), Text(f"Faithfulness: {erasure}."), *map(Text, more)]
        return replace(self, values=values, printed=[*(self.printed or ()), *texts])

    def to_dict(self) -> dict[str, Any]:
        """Return the data, the run ("folder" and "step") and the values as a dict for JSON."""
        run = {"run": {"folder": self.folder, "step": self.step}} if self.folder else {}
        return {"data": self.data, **run, **self.values}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        usual = f"Results of {shown(self.folder)}, step {self.step:,}: {self.data}"
        yield Text(self.title or usual, "bold")
        numbers = ((name, f"{value:.4f}") for name, value in self.values.items() if isinstance(value, float))
        yield from [score_table(numbers)] if self.printed is None else self.printed


def score_table(
    rows: Iterable[Sequence[str]], columns: Sequence[str] = ("metric", "value"), left: Sequence[int] = (0,)
) -> Table:
    """Return a rich table of scores.

    rows: the cells. A row may have one cell more than there are columns: an explanation.
    columns: the titles of the columns.
    left: the indices of the columns with text. The other columns have numbers.
    """
    cells = [list(row) for row in rows]
    table = Table(box=None, header_style="dim")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place in left else "right", no_wrap=True)
    if any(len(row) > len(columns) for row in cells):
        table.add_column("", style="dim")
    for first, *others in cells:
        table.add_row(Text(printable(first), "cyan"), *map(Text, others))
    return table


def evaluate_validation(task: type[RunTask], run: ChosenRun, files: Sequence[str] | None = None) -> RunReport:
    """Compute the scores of a trained run on its validation data, in the same way as during training.

    files: the files to evaluate on, instead of the setting data.valid_file.
    """
    from regard.runs.prepare_run import build_from

    stored = open_stored(task, run.folder, run.checkpoint)
    for note in stored.notes:
        say(note)
    settings, fingerprints = stored.settings, fingerprints_of(run.folder)
    if files:
        other = settings.data.model_copy(update={"valid_file": list(files)})
        settings = settings.model_copy(update={"data": other})
    data = task.read_data(settings, fingerprints)
    if not files:
        report_changed_data(run.folder, data.fingerprints)
    corpus = task.encode_data(data, settings, run.folder)
    device = choose_device(run.device)
    model = build_from(task, settings, corpus)
    model.load_state_dict(stored.checkpoint.tensors("weights"))
    model.to(torch.device(device)).eval()
    from regard.training.distributed import Processes

    evaluation = task(model, corpus, settings, Processes(), device).evaluate(lambda: False)
    scores, best = evaluation.scores, settings.training.best or task.best
    better = {name: task.metrics.get(name) for name in scores}
    rows = [
        (
            metric_title(name),
            f"{value:.4f}" if math.isfinite(value) else str(value),
            better[name] or "",
            "selects the best checkpoint" if name == best else "",
        )
        for name, value in scores.items()
    ]
    table = score_table(rows, ("metric", "value", "better"), left=(0, 2))
    values = {"scores": dict(scores), "better": better, "best": best}
    printed: list[RenderableType] = [table, *map(Shown, evaluation.shown)]
    data_name = ", ".join(map(shown, files)) if files else "the validation data of the run"
    step = stored.checkpoint.step
    return RunReport(str(run.folder), step, data_name, values, printed)


def report_changed_data(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """Print a message on standard error if the data of a run have changed since it was trained.

    Raises DataError if the run has only the names of its data files, as `regard average` writes them: then
    these are other files, with equal names, in the current folder.

    folder: the run folder.
    fingerprints: the hashes of the current data.
    """
    before = fingerprints_of(folder) or {}
    changed = [name for name, mark in fingerprints.items() if before.get(name, mark) != mark]
    if not changed:
        return
    data = config_of(folder).get("data", {})
    names = [name for key in ("valid_file", "train_file") for name in data.get(key) or []]
    if names and not any(map(os.path.isabs, names)):
        problem = "this file has the name of a data file of the run, but it has other text"
        hint = f"name the files to evaluate on: regard evaluate {shell_word(folder)} FILES"
        expected = "the file that the run was trained with"
        raise DataError(message(shown(names[0]), problem, expected=expected, hint=hint))
    say(f"{shown(folder)}: the data have changed since the training of this run ({', '.join(changed)})")


@dataclass(frozen=True)
class ViewOptions:
    """The drawing options of `regard view`: which part of the recorded attention to draw, and how.

    view: the name of a view. None: the default of the task.
    site: name of an attention layer (site), with * as wildcard. None: the default of the view.
    head: index of one head. None: the mean over heads.
    word: the word to draw, for views of a single word: its text or its index.
    subwords: whether to draw subword tokens. None: the user has not set this option.
    specials: what to do with special tokens such as EOS. "show": draw them. "hide": leave them out.
        "renormalise": leave them out, and renormalise the other weights.
    by_values: whether to multiply each weight by the norm of its value vector.
    """

    view: str | None = None
    site: str | None = None
    head: int | None = None
    word: str | None = None
    subwords: bool | None = None
    specials: str = "show"
    by_values: bool = False

    def prepared(self, seen: Seen) -> Seen:
        """Apply the options by_values, subwords and specials to recorded attention, and return the result."""
        if self.by_values and not any(site.values is not None for site in seen.sites):
            problem = "the norms of the value vectors were not recorded for this input"
            raise ArgumentError(message("--by-values", problem, hint="leave --by-values out"))
        seen = seen.weighted_by_values() if self.by_values else seen
        seen = seen if self.subwords else seen.words()
        return seen if self.specials == "show" else seen.without_specials(self.specials == "renormalise")


@dataclass(frozen=True, eq=False)
class Changeable:
    """One input of a run, whose attention `regard intervene` changes; see ChangeableTask.change_run().

    output: a function that runs the model, and returns its output as text; None if there is none besides
        `parts`, as for a language model that reads a text.
    parts: the parts of the output without changes, such as the words of a caption.
    scores: a function that runs the model, and returns the log-probability of each of these parts.
    rows: for each target of a link (a word, a step), the positions of its queries. Empty if all queries are
        changed together.
    keys: for each source of a link (a word, a sentence, a cell, a slot), the positions of its keys.
    what: the names of a target and of a source of a link, such as "word" and "cell".
    site: the attention layers (sites) that are changed if --site is not given.
    """

    output: Callable[[], str] | None
    parts: Sequence[str]
    scores: Callable[[], Sequence[float]]
    rows: Sequence[Sequence[int]]
    keys: Sequence[Sequence[int]]
    what: tuple[str, str]
    site: str


@dataclass(frozen=True, eq=False)
class RunView:
    """The attention of a run for one input, ready to be drawn: the result of RunTask.view_run().

    seen: the recorded attention of all sites (attention layers). write_page() writes all sites to a file.
        picture() draws the part that the options select.
    default_view: the view that is drawn if the user does not choose one.
    default_animation: the same for a GIF file. None: default_view.
    own: functions that draw the views that need more than `seen`, by the name of the view.
    page: a function that writes an HTML page. None: a page that shows `seen` in every view.
    """

    seen: Seen
    default_view: str = field(default="matrix", kw_only=True)
    default_animation: str | None = field(default=None, kw_only=True)
    own: Mapping[str, Callable[[], Picture]] = field(default_factory=dict, kw_only=True)
    page: Callable[[Path], Any] | None = field(default=None, kw_only=True)

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the attention with the view options.view, or with default_view if options.view is None."""
        from regard.viewing.picture import picture

        view = options.view or self.default_view
        if view in self.own:
            return self.own[view]()
        drawn = options.prepared(self.seen)
        return picture(drawn, view, site=options.site, head=options.head, word=options.word)

    def write_page(self, path: Path) -> None:
        """Write an HTML page that shows the recorded attention."""
        from regard.viewing.explorer import explore

        (partial(explore, self.seen) if self.page is None else self.page)(path)


@dataclass(frozen=True, eq=False)
class LongTextView(RunView):
    """What `regard view` draws for a model that reads one text, such as a language model.

    If the text is long, `seen` has only maps (see with_maps()), and MAP_VIEW is the only view.
    """

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Without an encoder, rollout follows the layers of the decoder."""
        if options.view is not None and options.view in self.own:
            return self.own[options.view]()
        if self.seen.long and options.view not in (None, MAP_VIEW):
            problem = f"the text has {len(self.seen.long[0].rows):,} tokens, which are drawn as a map"
            expected = f"--view {MAP_VIEW}, or a shorter text"
            raise ArgumentError(message(f"--view {options.view}", problem, expected=expected))
        if self.seen.long or options.view == MAP_VIEW:
            drawn = self.seen if self.seen.long else with_maps(self.seen)
            return drawn.picture(MAP_VIEW, site=options.site, head=options.head)
        encodes = any(site.kind == "encoder" for site in self.seen.sites)
        if options.view == "rollout" and options.site is None and not encodes:
            options = replace(options, site="decoder")
        return super().picture(options)


def with_maps(seen: Seen) -> Seen:
    """Return a copy of `seen` with a map for each attention layer (site) instead of all attention weights.

    Each cell of a map is the largest weight in a block of tokens.
    """
    from regard.viewing.pooled_attention import pooled

    maps = [pooled(each.name, each.weights, each.rows, each.columns) for each in seen.sites]
    return replace(seen, sites=(), long=tuple(maps))
