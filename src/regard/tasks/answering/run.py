"""Load the memory network of a run folder, to answer questions with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy
from rich.console import Group
from rich.text import Text

from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, message
from regard.evaluation.story_answerer import StoryAnswerer
from regard.layers.memory_hop import STORY_MEMORY
from regard.named_models.memory_networks import build_memory_network
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask, StoredRun
from regard.tasks.answering.data import load_words, read_story
from regard.tasks.answering.settings import AnsweringSettings
from regard.training.command_options import CommandOption
from regard.viewing import Picture, Seen, hops
from regard.viewing.picture import noted

__all__ = [
    "AnsweringRun",
    "VIEW_OPTIONS",
    "answerer_of",
    "view_answering",
    "view_stored_answer",
]


class AnsweringRun(LoadedRun, StoryAnswerer):
    """A StoryAnswerer that was loaded from a run folder, with the settings and the folder of its run."""

    settings: AnsweringSettings

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "answers": len(self.words.answers)}


def answerer_of(run: StoredRun, device: str, **options: Any) -> AnsweringRun:
    """Load the memory network of a run and its vocabulary.

    run: the run folder, with its settings and the chosen checkpoint.
    device: where the network runs.
    options: further arguments of StoryAnswerer, such as batch_size.
    """
    check_load_keywords(StoryAnswerer, options)
    settings, words = run.settings, load_words(run.folder)
    sizes = words.size, len(words.answers), settings.data.max_sentences
    model = build_memory_network(settings.model.name, *sizes, **settings.model.options)
    return AnsweringRun(with_weights(model, run, device), words, **options).from_run(run)


HOPS = "hops"

VIEW_OPTIONS: tuple[CommandOption | str, ...] = (
    CommandOption("--story", "Answering: file with the story, one sentence per line.", "FILE"),
    CommandOption("--question", "Answering: the question about the story.", "TEXT"),
    CommandOption("--encoding", "Answering: the encoding of --story.", "NAME", shown_default="utf-8"),
)
"""The options of `regard view` for answering, besides the drawing options, which all tasks have."""


def view_stored_answer(seen: Seen) -> RunView | None:
    """Return the view of a .seen file with the attention of each hop to one story; None for other files."""
    one_story = len({site.columns for site in seen.sites}) == 1
    if not one_story or not all(site.role == STORY_MEMORY and len(site.rows) == 1 for site in seen.sites):
        return None

    def drawn() -> Picture:
        weights_KS = numpy.concatenate([site.weights.mean(0) for site in seen.sites])
        return noted(hops(weights_KS, seen.sites[0].columns, title=seen.title), *seen.notes)

    return RunView(seen, default_view=HOPS, own={HOPS: drawn})


def view_answering(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> RunView:
    """Answer one question, record the attention of every hop, and measure the effect of hiding a sentence.

    options: the values of the command-line options VIEW_OPTIONS.
    """
    for name in ("story", "question"):
        if not options[name]:
            hint = 'regard view RUN --story FILE --question "..."'
            raise ArgumentError(message("regard view", f"no {name} is given", hint=hint))
    sentences = read_story(options["story"], options.get("encoding"))
    answerer: AnsweringRun = run.load(task)
    result = answerer.ask(sentences, options["question"], hide=True)

    def drawn() -> Picture:
        """Draw the hops. In the terminal, a table of the effects of hiding each sentence follows."""
        picture = result.picture()
        assert picture is not None
        if result.effects is not None and result.effects.sentences:
            picture.terminal = Group(picture.terminal, Text(), result.effects)
        return picture

    own = {} if result.picture() is None else {HOPS: drawn}
    page = partial(result.save, title="A memory network over a story")
    return RunView(result.seen(), default_view=HOPS, own=own, page=page)
