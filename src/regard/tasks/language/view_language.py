"""`regard view` for language models: draw the self-attention while the model reads a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import ArgumentError, message, shown
from regard.runs.command_options import CommandOption
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask
from regard.tasks.language.language_run import LanguageRun
from regard.viewing import Picture, Seen, pooled

__all__ = ["VIEW_OPTIONS", "LanguageView", "view_language"]

VIEW_OPTIONS: tuple[CommandOption | str, ...] = ("text",)
"""The options of `regard view` for language models. All tasks also have the drawing options. A str is the
name of an option that several commands share."""

MATRIX = 256
"""Maximum number of tokens for a picture of the attention as a matrix, with a row for each token.

A longer text is drawn as a map, in which each cell is the largest weight in a block of tokens.
"""

LONGEST = 2048
"""Maximum number of tokens of a text to view."""


@dataclass(frozen=True, eq=False)
class LanguageView(RunView):
    """What `regard view` draws for a language model: the self-attention over one text."""

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view.

        A text of more than MATRIX tokens can only be drawn with the view "long". Each cell of this view is
        the largest weight in a block of tokens.
        """
        if self.seen.long:
            options = replace(options, view=options.view or "long")
            if options.view != "long":
                problem = f"the text has {len(self.seen.long[0].rows):,} tokens"
                expected = f"at most {MATRIX} tokens, or --view long"
                raise ArgumentError(message(f"--view {options.view}", problem, expected=expected))
            return self.seen.picture("long", site=options.site, head=options.head)
        if options.view == "long":
            return _long(self.seen).picture("long", site=options.site, head=options.head)
        if options.view == "rollout" and options.site is None:
            options = replace(options, site="decoder")
        return super().picture(options)


def view_language(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> LanguageView:
    """Record the self-attention of every layer while a language model reads a text, for `regard view`.

    task: the task class.
    run: the run folder and the checkpoint to load.
    options: the values of VIEW_OPTIONS.
    drawing: the drawing options.
    """
    model: LanguageRun = run.load(task)
    tokens = len(model.tokenizer.encode(options["text"])) + 1
    if tokens > LONGEST:
        problem = f"the text has {tokens:,} tokens"
        raise ArgumentError(message("--text", problem, expected=f"at most {LONGEST:,}"))
    seen = model.score(options["text"], look="*").seen()
    if not seen.sites and not seen.long:
        name = model.settings.model.name
        problem = f"the model {name} has no attention to view"
        hint = "choose a run of a model with attention, such as a transformer"
        raise ArgumentError(message(shown(run.folder), problem, hint=hint))
    return LanguageView(seen if seen.long or tokens <= MATRIX else _long(seen))


def _long(seen: Seen) -> Seen:
    """Return a copy of `seen` with a map for each attention layer (site) instead of all attention weights.

    Each cell of a map is the largest weight in a block of tokens.
    """
    maps = [pooled(each.name, each.weights, each.rows, each.columns) for each in seen.sites]
    return replace(seen, sites=(), long=tuple(maps))
