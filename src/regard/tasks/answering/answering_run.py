"""Load the memory network of a run folder, to answer questions with it."""

from __future__ import annotations

from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.evaluation.story_answerer import StoryAnswerer
from regard.named_models.memory_networks import build_memory_network
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_task import StoredRun
from regard.tasks.answering.answering_data import load_words
from regard.tasks.answering.answering_settings import AnsweringSettings

__all__ = ["AnsweringRun", "answerer_of"]


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
