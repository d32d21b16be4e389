"""Load the memory network of a run folder, to answer questions with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy
from rich.console import Group
from rich.text import Text

from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, message
from regard.evaluation.story_answer import StoryAnswer
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
    "AnsweringView",
    "StoredAnswerView",
    "VIEW_OPTIONS",
    "answerer_of",
    "view_answering",
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


@dataclass(frozen=True, eq=False)
class AnsweringView(RunView):
    """The attention of each hop of a memory network to one story, and the effect of hiding a sentence.

    result: the answer and the attention of each hop. It also has, for each sentence, the probability of the
        answer if this sentence is hidden.
    """

    result: StoryAnswer
    default_view: ClassVar[str] = HOPS

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view that `options` selects. By default, it is the attention of each hop to the sentences.

        In the terminal, a table follows. For each sentence, it shows the probability of the answer if this
        sentence is hidden.
        """
        view = options.view or self.default_view
        drawn = self.result.picture() if view == HOPS else None
        if drawn is None:
            return super().picture(options)
        if self.result.effects is not None and self.result.effects.sentences:
            drawn.terminal = Group(drawn.terminal, Text(), self.result.effects)
        return drawn

    def write_page(self, path: Path) -> None:
        self.result.save(path, "A memory network over a story")


@dataclass(frozen=True, eq=False)
class StoredAnswerView(RunView):
    """The attention of each hop of a memory network to one story, loaded from a .seen file."""

    default_view: ClassVar[str] = HOPS

    @staticmethod
    def fits(seen: Seen) -> bool:
        """Return whether recorded attention is that of a memory network to one story."""
        one_story = len({site.columns for site in seen.sites}) == 1
        return one_story and all(site.role == STORY_MEMORY and len(site.rows) == 1 for site in seen.sites)

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view that `options` selects; by default, the attention of each hop to the sentences."""
        if (options.view or self.default_view) != HOPS:
            return super().picture(options)
        weights_KS = numpy.concatenate([site.weights.mean(0) for site in self.seen.sites])
        drawn = hops(weights_KS, self.seen.sites[0].columns, title=self.seen.title)
        return noted(drawn, *self.seen.notes)


def view_answering(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> AnsweringView:
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
    return AnsweringView(result.seen(), result)
