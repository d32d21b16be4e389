"""Load the classifier of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.decoding.input_checks import check_load_keywords
from regard.evaluation.text_classifier import TextClassifier
from regard.models.classifiers import build_classifier
from regard.runs.devices import choose_device
from regard.runs.run_task import StoredRun
from regard.tasks.classification.classification_data import load_labels, load_text_tokenizer
from regard.tasks.classification.classification_settings import ClassificationSettings
from regard.training.checkpoints.checkpoints import Checkpoint

__all__ = ["ClassificationRun", "check_classifier_options", "classifier_of"]


class ClassificationRun(TextClassifier):
    """A text classifier with the run that it comes from.

    folder: the run folder. settings: its settings. checkpoint: the checkpoint of the weights. notes: messages
    about checkpoints that were skipped because they are damaged.
    """

    folder: Path
    settings: ClassificationSettings
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        named = f"{str(self.folder)!r}, step={self.checkpoint.step}, model={self.settings.model.name!r}"
        return f"{type(self).__name__}({named}, labels={list(self.labels)})"


def check_classifier_options(options: Mapping[str, Any]) -> None:
    """Raise if an option is not one of TextClassifier's; the error suggests the nearest."""
    check_load_keywords(TextClassifier, options)


def classifier_of(run: StoredRun, device: str, **options: Any) -> ClassificationRun:
    """Load the classifier of a run.

    options: those of TextClassifier. By default, texts are truncated to as many tokens as in training.
    """
    settings = run.settings
    tokenizer, labels = load_text_tokenizer(run.folder, settings.data), load_labels(run.folder)
    model = build_classifier(settings.model.name, tokenizer.size, len(labels), **settings.model.options)
    model.load_state_dict(run.checkpoint.model_weights())
    model.to(torch.device(choose_device(device))).eval()
    options = {"longest": settings.data.max_length + 1, **options}
    classifier = ClassificationRun(model, tokenizer, labels, **options)
    classifier.folder, classifier.settings = run.folder, settings
    classifier.checkpoint, classifier.notes = run.checkpoint, run.notes
    return classifier
