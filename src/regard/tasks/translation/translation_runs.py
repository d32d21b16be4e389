"""train_translation() and load_translator(): train_run() and regard.load() for the translation task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.runs.stored_runs import open_stored
from regard.runs.train_run import Outcome, train_run
from regard.tasks.task_table import task_of
from regard.tasks.translation.load_run import TranslationRun, translator_of
from regard.tasks.translation.translation_task import TranslationTask

__all__ = ["load_translator", "train_translation"]


def train_translation(settings: Mapping[str, Any], folder: str | Path, **options: Any) -> Outcome:
    """Train a translator in a run folder.

    settings: the settings, by section: {"data": {"source": ["a.ko"], "target": ["a.en"]}}.
    folder: the run folder.
    options: further arguments of train_run(), such as resume=True.
    """
    return train_run(TranslationTask, settings, folder, **options)


def load_translator(
    folder: str | Path, *, checkpoint: str | int = "best", device: str = "auto", **options: Any
) -> TranslationRun:
    """Load the translator of a run. For the arguments, see regard.load()."""
    task_of(folder, "translation")  # raises an error if the run has another task
    return translator_of(open_stored(TranslationTask, Path(folder), checkpoint), device, **options)
