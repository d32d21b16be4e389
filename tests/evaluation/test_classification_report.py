"""Accuracy, F1 and the confusion matrix against values worked out by hand."""

from __future__ import annotations

import io
import json

import numpy
import pytest
import torch
from rich.console import Console

from regard.data import Labels
from regard.errors import ArgumentError, DataError, UnknownName
from regard.evaluation import classification_report
from tests.facts import facts

#             true  predicted
PREDICTIONS = [
    *[("cat", "cat")] * 4,
    *[("cat", "dog")] * 1,
    *[("dog", "dog")] * 2,
    *[("dog", "cat")] * 1,
    *[("dog", "owl")] * 1,
    *[("owl", "owl")] * 1,
]
"""Of 10 texts, 7 are correct."""


def test_values_worked_out_by_hand():
    report = classification_report(*zip(*PREDICTIONS, strict=True))
    assert report.labels.names == ("cat", "dog", "owl")
    assert report.confusion.tolist() == [[4, 1, 0], [1, 2, 1], [0, 0, 1]]
    assert (report.count, report.accuracy) == (10, 0.7)
    cat, dog, owl = report.classes
    assert (cat.precision, cat.recall, cat.f1) == pytest.approx((4 / 5, 4 / 5, 8 / 10))
    assert (dog.precision, dog.recall, dog.f1) == pytest.approx((2 / 3, 2 / 4, 4 / 7))
    assert (owl.precision, owl.recall, owl.f1) == pytest.approx((1 / 2, 1 / 1, 2 / 3))
    assert (dog.support, dog.predicted) == (4, 3)
    assert report.macro_f1 == pytest.approx((8 / 10 + 4 / 7 + 2 / 3) / 3)


def test_classes_without_predictions_count_and_absent_classes_do_not():
    """The definition of scikit-learn: f1_score(..., average="macro") averages over the labels that occur."""
    labels = ["a", "b", "c", "d"]
    # b has texts and no predictions, c has predictions and no texts, d has neither.
    report = classification_report(["a", "a", "b"], ["a", "c", "a"], labels)
    assert [each.f1 for each in report.classes] == [0.5, 0.0, 0.0, 0.0]
    assert [each.precision for each in report.classes] == [0.5, 0.0, 0.0, 0.0]
    assert [each.recall for each in report.classes] == [0.5, 0.0, 0.0, 0.0]
    assert report.macro_f1 == pytest.approx(0.5 / 3) and report.accuracy == pytest.approx(1 / 3)
    only = classification_report(["a"], ["a"], labels)
    assert only.macro_f1 == only.accuracy == 1


@pytest.mark.parametrize("kind", [list, numpy.array, torch.tensor])
def test_indices_and_labels_give_the_same(kind):
    labels = Labels(("cat", "dog", "owl"))
    true, predicted = zip(*PREDICTIONS, strict=True)
    indices = [kind([labels.index(label) for label in side]) for side in (true, predicted)]
    report = classification_report(*indices, labels)
    assert report.to_dict() == classification_report(true, predicted).to_dict()


def test_written_and_printed():
    report = classification_report(*zip(*PREDICTIONS, strict=True))
    written = json.loads(json.dumps(report.to_dict()))
    assert written["classes"]["owl"]["recall"] == 1 and written["confusion"][1] == [1, 2, 1]
    assert written["accuracy"] == 0.7 and written["labels"] == ["cat", "dog", "owl"]
    lines = [line.split() for line in str(report).splitlines()]
    assert lines[0][:5] == ["accuracy", "0.700", "macro", "F1", "0.679"]
    scores = ["0.667", "0.500", "0.571", "4", "40.0%"]
    assert ["dog", "1", "2", "1", *scores] in lines and len(lines) == 2 + 3
    narrow = io.StringIO()
    Console(file=narrow, width=50).print(report)
    lines = [line.split() for line in narrow.getvalue().splitlines()]
    assert ["dog", *scores] in lines and ["dog", "1", "2", "1"] in lines  # two tables
    many = classification_report([0], [1], [f"class {number}" for number in range(21)])
    assert "21 classes is not printed" in str(many)
    odd = classification_report([0], [1], ["[red]", "a\x1bb"])
    assert "[red]" in str(odd) and "\x1b" not in str(odd)


def test_long_labels_are_widened_or_folded_but_not_cut():
    labels = ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"]
    report = classification_report([0, 1, 2], [0, 1, 1], labels)
    (heading,) = [line for line in str(report).splitlines() if "predicted" in line]
    assert heading.split()[3:6] == labels
    narrow = io.StringIO()
    Console(file=narrow, width=51).print(report)
    folded = narrow.getvalue().split("\n\n")[1].replace("true \\ predicted", "").splitlines()[:2]
    assert all(len(line) <= 51 for line in narrow.getvalue().splitlines())
    assert sorted("".join(folded).replace(" ", "")) == sorted("".join(labels))


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=facts("true", 2, "predicted", 1)):
        classification_report(["a", "b"], ["a"])
    with pytest.raises(DataError, match="texts"):
        classification_report([], [])
    with pytest.raises(ArgumentError, match="labels"):
        classification_report([0], [1])
    with pytest.raises(ArgumentError, match=facts("text 1", "class 2")):
        classification_report([0, 0], [1, 2], ["a", "b"])
    with pytest.raises(UnknownName, match="known: a, b"):
        classification_report(["a"], ["c"], ["a", "b"])
