"""`regard evaluate` for classification: accuracy, macro F1, confusion matrix, and faithfulness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from regard.data.labelled_text import LabelledTexts, Labels, read_labelled
from regard.data.line_io import say
from regard.errors import ArgumentError, message, shown
from regard.evaluation.classification import Classification
from regard.evaluation.classification_report import ClassificationReport
from regard.evaluation.classifier_erasure import ClassifierErasure, erase_words
from regard.runs.run_commands import ChosenRun, RunReport, report_changed_data
from regard.runs.run_task import RunTask
from regard.tasks.classification.data import check_unknown_header, read_labelled_split
from regard.tasks.classification.run import ClassificationRun
from regard.tasks.classification.settings import FILE_OPTIONS, ClassificationData, labelled_columns
from regard.tasks.file_options import (
    COLUMNS,
    ENCODING,
    FAITHFULNESS,
    FIELDS,
    JSONL,
    PAGE,
    TEST_FILE,
    TSV,
    evaluated_files,
)
from regard.tasks.picture_outputs import check_page
from regard.training.command_options import CommandOption

__all__ = ["EVALUATE_OPTIONS", "evaluate_classification"]

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (
    TEST_FILE,
    TSV,
    JSONL,
    COLUMNS,
    FIELDS,
    ENCODING,
    PAGE,
    FAITHFULNESS,
    "batch_tokens",
)
"""The options of `regard evaluate` for classification. A str is the name of an option that several commands
share."""

TOKENS_PER_BATCH = 4096
"""Default of --batch-tokens."""

MOST_TEXTS = 1000
"""Maximum number of texts, or pairs, for which faithfulness is measured. This is slow: each text is
classified 9 times."""

MOST_ENTRIES = 300
"""Maximum number of texts on an HTML page."""


def _sentences(erasure: ClassifierErasure) -> Iterator[str]:
    """Yield sentences that explain how much the predictions depend on the attended words (faithfulness)."""
    yield f"Faithfulness: {erasure}."
    if not erasure.texts:
        return
    unknown, random = erasure.mean("unknown"), erasure.mean("unknown_random")
    yield (
        f"If the word is replaced by the unknown token instead, the decrease is {unknown:.2f} nats, and "
        f"{random:.2f} for a random word."
    )
    yield (
        f"In {erasure.better:.0%} of the texts, hiding the most attended word has a larger effect than "
        "hiding a random word. See docs/faithfulness.md."
    )


def evaluate_classification(
    task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]
) -> RunReport:
    """Classify texts with the model of a run, and compare the predicted classes with the labels.

    task: the task class.
    run: the run folder and the checkpoint to load; not None.
    options: the values of EVALUATE_OPTIONS. Without files, the texts are the validation texts of the run.
    """
    assert run is not None
    page: Path | None = options["page"]
    check_page(page)
    tokens = options["batch_tokens"] or TOKENS_PER_BATCH
    classifier: ClassificationRun = run.load(task, tokens_per_batch=tokens)
    if options["faithfulness"] and classifier.model.pool_site is None:
        problem = "this classifier has no attention: its pooling is not attention"
        hint = "choose a run of a classifier with model.pooling=attention (the default)"
        raise ArgumentError(message("--faithfulness", problem, hint=hint))
    data = classifier.settings.data
    texts = _read(data, classifier.labels, options)
    name = "" if texts is None else texts.name
    if texts is None:
        split = read_labelled_split(data)
        report_changed_data(run.folder, split.fingerprints)
        texts, name = split.valid, "the validation texts of the run"
    if left_out := texts.empty + texts.ignored:
        many = "1 text is" if left_out == 1 else f"{left_out:,} texts are"
        say(f"{many} left out: {texts.empty:,} empty, {texts.ignored:,} of ignored classes")
    report = classifier.evaluate(texts)
    lines = [each.first if each.second is None else (each.first, each.second) for each in texts]
    if page is not None:
        _write_page(page, classifier, lines, texts, report, name)
    balance = texts.balance(classifier.labels)
    values = {**report.to_dict(), "balance": balance.to_dict(), "majority": balance.majority}
    always = f"always predicting the most frequent class has accuracy {balance.majority:.3f}"
    printed: list[RenderableType] = [report, Text(always, "dim")]
    if options["faithfulness"]:
        erasure = _erasure(classifier, lines)
        values["faithfulness"] = erasure.to_dict()
        printed += [Text(), *map(Text, _sentences(erasure))]
    return RunReport.of(classifier, name, values, *printed)


def _read(data: ClassificationData, labels: Labels, options: Mapping[str, Any]) -> LabelledTexts | None:
    """Read the labelled texts of --test-file, --tsv or --jsonl. Return None if none of these options is set.

    data: the data settings of the run. They give the columns or fields, unless --columns or --fields is set.
    labels: the classes of the run.
    options: the values of the options.
    """
    files, kind = evaluated_files(options, data.format)
    for way, option in FILE_OPTIONS.items():
        if options[option] is not None and not options[way]:
            raise ArgumentError(message(f"--{option}", f"--{option} requires --{way}"))
    if not files:
        return None
    named = next(
        (way for way in FILE_OPTIONS if options[way] and options[FILE_OPTIONS[way]] is not None), None
    )
    columns: dict[str, Any] = {"label": data.label, "text": data.text, "second": data.second}
    if named is not None:
        option = FILE_OPTIONS[named]
        columns = labelled_columns(f"--{option}", options[option], 2 if data.second is None else 3)
    texts = read_labelled(files, kind, **columns, ignore=data.ignore, encoding=options.get("encoding"))
    check_unknown_header(texts, labels, kind)
    return texts


def _write_page(
    page: Path,
    classifier: ClassificationRun,
    lines: Sequence[Any],
    texts: LabelledTexts,
    report: ClassificationReport,
    name: str,
) -> None:
    labels, found = texts.labels[:MOST_ENTRIES], classifier.classify(lines[:MOST_ENTRIES])
    results = [replace(each, true_label=label) for each, label in zip(found, labels, strict=True)]
    cut = f", the first {len(results)} of {len(lines):,} texts" if len(lines) > len(results) else ""
    title = f"Classifications by {classifier.folder.name}"
    Classification.write_page(page, results, title, f"{report.summary()}; {name}{cut}")
    say(f"Wrote {shown(page)}")


def _erasure(classifier: ClassificationRun, lines: Sequence[Any]) -> ClassifierErasure:
    count = f"the first {MOST_TEXTS:,}" if len(lines) > MOST_TEXTS else f"{len(lines):,}"
    texts_or_pairs = "pairs" if classifier.model.pairs else "texts"
    say(f"measuring faithfulness on {count} {texts_or_pairs}")
    return erase_words(classifier, lines[:MOST_TEXTS])
