"""Load the classifier of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text

from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, list_item, message, printable, shown
from regard.evaluation.classification import DRAWN, SIDES, Classification
from regard.evaluation.text_classifier import TextClassifier
from regard.evaluation.word_effects import WordEffects, hide_each_word
from regard.named_models.classifiers import build_classifier
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask, StoredRun
from regard.tasks.classification.data import load_labels, load_text_tokenizer
from regard.tasks.classification.settings import ClassificationSettings
from regard.training.command_options import CommandOption
from regard.viewing import Picture, shaded
from regard.viewing.picture import noted

__all__ = ["ClassificationRun", "ClassificationView", "VIEW_OPTIONS", "classifier_of", "view_classification"]


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


ERASURE = "erasure"
LEAST_SCALE = 0.01
"""Minimum of the colour scale of the view "erasure". The shade of a word shows how much the probability
decreases without the word. The darkest shade is the largest decrease, or LEAST_SCALE if this is larger. So no
word looks important if all decreases are small."""

VIEW_OPTIONS: tuple[CommandOption | str, ...] = (
    "text",
    CommandOption("--second", "Classification of pairs: the second text.", "TEXT"),
)
"""The options of `regard view` for classification. All tasks also have the drawing options. A str is the name
of an option that several commands share."""


@dataclass(frozen=True, eq=False)
class ClassificationView(RunView):
    """What `regard view` draws for a classifier: the attention for one text or pair of texts.

    result: the predicted class of the text, with the attention.
    effects: how much the probability of the predicted class decreases without each word.
    """

    result: Classification
    effects: WordEffects
    default_view: str = field(default="shaded", kw_only=True)

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. In the terminal, also show the effect of hiding each word."""
        view = options.view or self.default_view
        if view == ERASURE or (view == "shaded" and options == ViewOptions(options.view)):
            drawn = self._texts(view)
        else:
            self._check_site(view, options.site)
            drawn = super().picture(options)
        drawn.terminal = Group(drawn.terminal, Text(), self.effects)
        return drawn

    def _check_site(self, view: str, site: str | None) -> None:
        """Raise ArgumentError if the input is a pair of texts, but --site does not select one of them."""
        if len(self.result.texts) > 1 and site is None:
            sites = ", ".join(each.name for each in self.seen.sites)
            problem = "a pair has two texts, each with its own attention"
            expected = f"the option --site with one of {sites}"
            raise ArgumentError(message(f"--view {view}", problem, expected=expected))

    def _texts(self, view: str) -> Picture:
        """Draw each text with shaded words.

        If `view` is ERASURE, the shade of a word shows the effect of hiding the word. Otherwise, the shade
        shows the attention weight of the word.
        """
        label, parts = printable(str(self.result.label)), []
        for side, read in zip(SIDES, self.result.texts, strict=False):
            words = read.words[:DRAWN]
            values = read.weights if view != ERASURE else self.effects.decreases(side, len(words))
            if values is not None and words:
                name = side if len(self.result.texts) > 1 else label
                most = max(LEAST_SCALE, *values[:DRAWN]) if view == ERASURE else None
                parts.append(shaded([values[:DRAWN]], [name], words, most=most))
        drawn = parts[0]
        bottom = drawn.frames[0].bounds[3]
        for part in parts[1:]:
            bounds = part.frames[0].bounds
            drawn.frames[0].put(part.frames[0], 0.0, bottom + BETWEEN - bounds[1])
            bottom += BETWEEN + bounds[3] - bounds[1]
        drawn.terminal = Group(*(part.terminal for part in parts))
        chances = ", ".join(f"{list_item(name)} {chance:.3f}" for name, chance in self.result.ranked[:5])
        about = "shaded by the weights of the pooling"
        if view == ERASURE:
            about = "shaded by how much the probability decreases without the word"
        drawn.frames[0].head(chances, about)
        drawn.terminal = Group(Text(chances, "bold"), drawn.terminal)
        return noted(drawn, *self.seen.notes)


BETWEEN = 12.0
"""Distance between the two texts of a pair, in points."""


def view_classification(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> ClassificationView:
    """Classify one text, or one pair of texts; record the attention, and measure the effect of each word.

    task: the task class.
    run: the run folder and the checkpoint to load.
    options: the values of VIEW_OPTIONS.
    drawing: the drawing options, of which only the view is used here.
    """
    classifier: ClassificationRun = run.load(task)
    text, second, pairs = options["text"], options["second"], classifier.model.pairs
    if pairs and second is None:
        problem = "this run classifies pairs of texts"
        raise ArgumentError(message("regard view", problem, expected="--text and --second"))
    if not pairs and second is not None:
        raise ArgumentError(message("--second", "this run classifies single texts, not pairs"))
    line = (text, second) if pairs else text
    if classifier.model.pool_site is None and drawing.view != ERASURE:
        problem = "the pooling of this classifier is not attention"
        hint = f"use --view {ERASURE}, or choose a run with model.pooling=attention"
        raise ArgumentError(message(shown(run.folder), problem, hint=hint))
    result = classifier.classify(line, look="*")
    if not isinstance(result, Classification) or result.label is None:
        problem = "the tokenizer finds no tokens in the text"
        raise ArgumentError(message("--text", problem, expected="at least one word"))
    effects = hide_each_word(classifier, line)
    return ClassificationView(result.seen().noted(effects.sentence()), result, effects)
