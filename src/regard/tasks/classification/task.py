"""The classification task: batches of labelled texts, loss, and evaluation with accuracy and macro F1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text
from torch import Tensor
from torch.nn import functional

from regard.data.batch import NO_LABEL, LabelledBatch
from regard.data.batching import LabelledBatches
from regard.data.labelled_text import LabelledText
from regard.errors import ArgumentError, Setting, list_item, message
from regard.evaluation.classification import Classification
from regard.evaluation.classification_report import ClassificationReport, classification_report
from regard.evaluation.text_classifier import TextClassifier
from regard.models.classifier import Classifier
from regard.named_models.classifiers import build_classifier
from regard.runs.run_commands import ChosenRun, RunReport, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun
from regard.tasks.classification.data import (
    LABELS,
    TOKENIZER,
    LabelledCorpus,
    LabelledSplit,
    check_files,
    check_header_lines,
    load_labels,
    load_text_tokenizer,
    read_labelled_split,
)
from regard.tasks.classification.evaluate import (
    EVALUATE_OPTIONS,
    evaluate_classification,
)
from regard.tasks.classification.run import (
    VIEW_OPTIONS,
    ClassificationRun,
    ClassificationView,
    classifier_of,
    view_classification,
)
from regard.tasks.classification.settings import ClassificationSettings
from regard.tasks.epoch_plan import EpochRules, plan_epochs
from regard.tasks.sample_texts import spread_by_length
from regard.training.distributed import Processes
from regard.training.estimators import Reinforce
from regard.training.length_buckets import Shapes, few_shapes
from regard.training.sampled_loss import (
    SAMPLED,
    RowLosses,
    add_estimator,
    embedding_features,
    features_size,
    sampled_loss,
)
from regard.training.settings import merged
from regard.training.task import Evaluation, Loss, Stopped

__all__ = ["ClassificationTask", "plan_classification"]


class ClassificationTask(RunTask):
    """Trains a classifier on labelled texts, or pairs of texts, and evaluates it on the validation texts."""

    model: Classifier
    settings_type = ClassificationSettings
    metrics = MappingProxyType({"loss": "lower", "accuracy": "higher", "macro_f1": "higher"})
    best = "accuracy"
    counted = "texts"
    files = (TOKENIZER, LABELS)
    smallest_sizes = MappingProxyType({"tokens": 8, "classes": 2})
    evaluate_options = EVALUATE_OPTIONS
    view_options = VIEW_OPTIONS

    def __init__(
        self,
        model: Classifier,
        corpus: LabelledCorpus,
        settings: ClassificationSettings,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        super().__init__(model, corpus, settings)
        processes, training = processes or Processes(), settings.training
        tables = [] if training.estimator is None else [model.embedding] * (2 if model.pairs else 1)
        self._estimator = add_estimator(model, training, features=features_size(*tables), processes=processes)
        reason = "" if self._estimator is None else SAMPLED
        rows, tokens, longest = training.batch_size, training.batch_tokens, settings.data.max_length + 1
        self.speed, self._shapes = few_shapes(model, training, device, processes.world, longest, reason)
        options: dict[str, Any] = {} if tokens is None else {"tokens": tokens}
        self._train = LabelledBatches(
            corpus.train,
            **options,
            sentences=rows,
            rounded=() if self._shapes is None else self._shapes.lengths,
            seed=settings.seed,
            rank=processes.rank,
            world=processes.world,
        )
        self._valid = LabelledBatches(corpus.valid, **options, sentences=rows, shuffle=False)
        balance = corpus.split.train.balance(corpus.labels)
        weighted = training.class_weights != "none"
        self._class_weights = balance.weights(training.class_weights) if weighted else None
        self._samples = spread_by_length(corpus.split.valid.firsts, settings.evaluation.samples)

    @classmethod
    def read_data(
        cls, settings: ClassificationSettings, fingerprints: Mapping[str, str] | None = None
    ) -> LabelledSplit:
        split = read_labelled_split(settings.data)
        if fingerprints is None:  # only for a new run: a resumed run keeps its classes
            check_header_lines(settings.data, split)
        return split

    @classmethod
    def encode_data(
        cls,
        data: LabelledSplit,
        settings: ClassificationSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> LabelledCorpus:
        return LabelledCorpus.prepared(data, settings.data, folder, lines)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: ClassificationSettings) -> tuple[int, ...]:
        return load_text_tokenizer(folder, settings.data).size, len(load_labels(folder))

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Classifier:
        vocabulary_size, classes = sizes
        return build_classifier(model.name, vocabulary_size, classes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> ClassificationRun:
        return classifier_of(run, device, **options)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
        return evaluate_classification(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> ClassificationView:
        return view_classification(cls, run, options, drawing)

    @classmethod
    def defaults(
        cls, settings: Mapping[str, Any], data: Any = None, other: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        pairs = settings.get("data", {}).get("second") is not None
        return merged({"model": {"pairs": True}} if pairs else {}, settings), ()

    @classmethod
    def check(cls, settings: ClassificationSettings, model: Classifier | None = None) -> None:
        check_files(settings.data)
        pairs, second = settings.model.options.get("pairs", False), settings.data.second
        if pairs is not (second is not None):
            problem = f"model.pairs is {pairs}, and data.second is {'not set' if second is None else second}"
            hint = (
                *("do not set model.pairs; for pairs, use ", Setting("data", "second")),
                ", the column of the second text",
            )
            raise ArgumentError(message("the settings", problem, hint=hint))
        longest = settings.data.max_length
        if model is not None and model.longest is not None and longest >= model.longest:
            # If the classifier puts BOS before each text, its table needs one more position.
            fewest = longest + 1 + model.begins
            problem = (
                f"data.max_length is {longest:,}, but the model has {model.longest:,} positions for a text, "
                "one of them for </s>"
            )
            most = model.longest - 1
            advice = "use ", Setting("data", "max_length", most), " or ", Setting("model", "longest", fewest)
            raise ArgumentError(message("the settings", problem, hint=advice))

    @classmethod
    def plan(
        cls,
        settings: Mapping[str, Any],
        corpus: LabelledCorpus,
        device: str,
        processes: Processes,
        timed: bool = False,
    ) -> Plan:
        return plan_classification(cls, settings, corpus, device, processes, timed=timed)

    def batches(self, epoch: int, start: int = 0) -> Iterator[LabelledBatch]:
        return self._train.epoch(epoch, start)

    def largest_batch(self) -> LabelledBatch:
        return next(self.batches(0, self._train.largest(0)))

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    def count(self, batch: LabelledBatch) -> int:
        return len(batch)

    def prepare(self, batch: LabelledBatch, device: Any) -> LabelledBatch:
        return (batch if self._shapes is None else self._padded(batch, self._shapes)).to(device)

    def _padded(self, batch: LabelledBatch, shapes: Shapes) -> LabelledBatch:
        """Pad a batch to one of a few shapes, because each shape needs its own CUDA graph.

        The texts are padded to the smallest sufficient length in shapes.lengths. Then empty texts are added,
        so that all batches of the same length have the same number of texts.
        """
        need = max(batch.first.shape[1], 0 if batch.second is None else batch.second.shape[1])
        length = next(each for each in shapes.lengths if each >= need)
        rows = shapes.sentences if shapes.tokens is None else -(-shapes.tokens // length)
        return batch.padded_to(max(rows, len(batch)), length)

    def loss(self, batch: LabelledBatch) -> Loss:
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(batch, self._estimator)
        logits_BC = self.model(batch).float()
        plain = functional.cross_entropy(logits_BC, batch.labels, reduction="sum")
        if self._class_weights is None and not self.settings.training.label_smoothing:
            return Loss(plain, {"loss": plain.detach()})
        return Loss(self._weighted(logits_BC, batch.labels, "sum"), {"loss": plain.detach()})

    def _weighted(self, logits_BC: Tensor, labels: Tensor, reduction: str) -> Tensor:
        """Return the cross-entropy with the class weights and the label smoothing of the settings.

        logits_BC: the logits of C classes.
        labels: (B,), the index of the true class of each text.
        reduction: "sum" or "none", see torch.nn.functional.cross_entropy().
        """
        weights_C = None if self._class_weights is None else self._class_weights.to(logits_BC.device)
        return functional.cross_entropy(
            logits_BC,
            labels,
            weight=weights_C,
            label_smoothing=self.settings.training.label_smoothing,
            reduction=reduction,
        )

    def _sampled_loss(self, batch: LabelledBatch, estimator: Reinforce) -> Loss:
        """Return the loss of a model with hard attention, with a gradient estimated from sampled keys.

        batch: labelled texts.
        estimator: the estimator of the gradient; each text is read estimator.samples times.
        """
        repeated = batch.repeat(estimator.samples)

        def row_losses() -> RowLosses:
            logits_RC = self.model(repeated).float()
            plain_R = functional.cross_entropy(logits_RC, repeated.labels, reduction="none")
            return RowLosses(self._weighted(logits_RC, repeated.labels, "none"), -plain_R)

        texts, lengths = [repeated.first], [repeated.first_lengths]
        if repeated.second is not None and repeated.second_lengths is not None:
            texts, lengths = [*texts, repeated.second], [*lengths, repeated.second_lengths]
        return sampled_loss(
            estimator,
            row_losses,
            len(batch),
            lengths={"source": [each + self.model.begins for each in lengths]},
            features=embedding_features(*((self.model.embedding, each) for each in texts)),
            counted=repeated.labels != NO_LABEL,
        )

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        total, true, predicted = 0.0, list[int](), list[int]()
        device = next(self.model.parameters()).device
        for batch in self._valid.epoch(0):
            if stopping():
                raise Stopped
            logits_BC = self.model(batch.to(device)).float().cpu()
            total += float(functional.cross_entropy(logits_BC, batch.labels, reduction="sum"))
            true += batch.labels.tolist()
            predicted += logits_BC.argmax(-1).tolist()
        report = classification_report(true, predicted, self.corpus.labels)
        scores = {"loss": total / len(true), "accuracy": report.accuracy, "macro_f1": report.macro_f1}
        return Evaluation(scores, [_Tables(report), *self._shown()])

    def _shown(self) -> list[RenderableType]:
        """Classify a few validation texts, and return them as rich renderables to print in the log.

        Each renderable shows the predicted class, the true class and the attention of one text.
        """
        texts = [self.corpus.split.valid[place] for place in self._samples]
        if not texts:
            return []
        classifier = TextClassifier(
            self.model,
            self.corpus.tokenizer,
            self.corpus.labels,
            longest=self.settings.data.max_length + 1,
        )
        lines = [text.first if text.second is None else (text.first, text.second) for text in texts]
        return [_Sample(*pair) for pair in zip(texts, classifier.classify(lines), strict=True)]


@dataclass(frozen=True)
class _Sample:
    """A validation text to print: its true class, its predicted class, and its attention."""

    text: LabelledText
    result: Classification

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"true class {list_item(self.text.label)}, predicted {self.result.summary()}")
        yield from self.result.body()


@dataclass(frozen=True)
class _Tables:
    """A rich renderable of a ClassificationReport: the scores of each class and the confusion matrix.

    The accuracy and macro F1 of the report are left out, because the log prints them already.
    """

    report: ClassificationReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.report.tables(options.max_width)


RULES = EpochRules("texts", batch_size=32, min_steps=400)

WIDTH = 128
"""The default width of recurrent models (size of their states). A Transformer has its own default size."""

RECURRENT = {False: (0.3, 4e-3), True: (0.2, 2e-3)}
"""Default dropout and learning rate of a recurrent model of width WIDTH: for single texts (False) and for
pairs of texts (True)."""

TRANSFORMER_RATE, TUNING_RATE = 1e-3, 3e-4
"""Learning rates. TRANSFORMER_RATE: for a Transformer with random initial weights. TUNING_RATE: for any model
that starts from the weights of another run."""


def plan_classification(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: LabelledCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set; see plan_epochs()."""
    model, rate = _model_and_rate(given)
    chosen = {"model": model, "training": {"learning_rate": rate}}
    counted = len(corpus.train)
    return plan_epochs(task, given, chosen, RULES, corpus, device, processes, counted=counted, timed=timed)


def _model_and_rate(given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the default options of the model as a dict, and the learning rate.

    The caller replaces these options by the options that the user has set. The learning rate depends on the
    width: on the width that the user has set, or else on the default width.

    In this example, the learning rate is chosen for the width 32:

    >>> _model_and_rate({"model": {"name": "gru", "width": 32}})
    ({'width': 128, 'dropout': 0.3}, 0.008)
    """
    model = given.get("model", {})
    if given.get("init_from") is not None:
        return {}, TUNING_RATE
    if model.get("name") == "transformer":
        return {}, TRANSFORMER_RATE
    dropout, rate = RECURRENT[bool(model.get("pairs"))]
    rate *= (WIDTH / max(model.get("width", WIDTH), 1)) ** 0.5
    return {"width": WIDTH, "dropout": dropout}, float(f"{rate:.2g}")
