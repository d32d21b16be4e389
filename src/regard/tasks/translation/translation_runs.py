"""Train a translator in a run folder, and load it: the frame of runs/ with the translation task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.runs.prepare_run import Machine
from regard.runs.stored_runs import open_stored
from regard.runs.train_run import Outcome, train_run
from regard.tasks.task_table import task_of
from regard.tasks.translation.load_run import TranslationRun, check_options, translator_of
from regard.tasks.translation.translation_task import TranslationTask

__all__ = ["load_translator", "train_translation"]


def train_translation(
    settings: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    init_from: str | Path | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train a translator and write it to a run folder; the arguments are those of regard.runs.train_run()."""
    return train_run(
        TranslationTask,
        settings,
        folder,
        resume=resume,
        change=change,
        init_from=init_from,
        machine=machine,
        console=console,
    )


def load_translator(
    folder: str | Path, *, checkpoint: str = "best", device: str = "auto", **options: Any
) -> TranslationRun:
    """Load the translator of a run; the arguments are those of regard.load()."""
    check_options(options)
    task_of(folder, "translation")  # raises for a run of another task
    return translator_of(open_stored(TranslationTask, Path(folder), checkpoint), device, **options)
