"""Load the classifier of a run folder."""

from __future__ import annotations

from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.evaluation.text_classifier import TextClassifier
from regard.named_models.classifiers import build_classifier
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_task import StoredRun
from regard.tasks.classification.classification_data import load_labels, load_text_tokenizer
from regard.tasks.classification.classification_settings import ClassificationSettings

__all__ = ["ClassificationRun", "classifier_of"]


class ClassificationRun(LoadedRun, TextClassifier):
    """A TextClassifier that was loaded from a run folder, with the settings and the folder of its run."""

    settings: ClassificationSettings

    @property
    def json_fields(self) -> tuple[str, ...]:
        """The names of the JSON fields with the text and, for pairs, the second text.

        The settings data.text and data.second are used if they are names (not numbers). Otherwise, the names
        are "text" and "second".
        """
        data = self.settings.data
        columns = {"text": data.text, "second": data.second} if self.model.pairs else {"text": data.text}
        return tuple(column if isinstance(column, str) else name for name, column in columns.items())

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "labels": list(self.labels)}


def classifier_of(run: StoredRun, device: str, **options: Any) -> ClassificationRun:
    """Load the trained classifier of a run.

    run: the run folder with its settings and a checkpoint.
    device: the device of the model, for example "cpu".
    options: further arguments of TextClassifier(). By default, texts are truncated to as many tokens as in
        training.
    """
    check_load_keywords(TextClassifier, options)
    settings = run.settings
    tokenizer, labels = load_text_tokenizer(run.folder, settings.data), load_labels(run.folder)
    model = build_classifier(settings.model.name, tokenizer.size, len(labels), **settings.model.options)
    model = with_weights(model, run, device)
    options = {"longest": settings.data.max_length + 1, **options}
    return ClassificationRun(model, tokenizer, labels, **options).from_run(run)
