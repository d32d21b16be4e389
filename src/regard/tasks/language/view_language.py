"""`regard view` for language models: draw the self-attention while the model reads a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.errors import ArgumentError, message, shown
from regard.runs.run_commands import ChosenRun, LongTextView, ViewOptions, with_maps
from regard.runs.run_task import RunTask
from regard.tasks.language.language_run import LanguageRun
from regard.training.command_options import CommandOption

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
class LanguageView(LongTextView):
    """What `regard view` draws for a language model: the self-attention over one text."""


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
    return LanguageView(seen if seen.long or tokens <= MATRIX else with_maps(seen))
