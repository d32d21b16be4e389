"""Classification report: accuracy, macro F1, confusion matrix, and precision, recall and F1 of each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.data.labelled_text import Labels
from regard.errors import ArgumentError, DataError, message, printable
from regard.viewing.terminal import Shown

SHOWN = 20
"""The confusion matrix is printed only for up to this many classes."""

WIDEST = 12
"""If the confusion matrix is too wide for the terminal, its column labels are wrapped at this width."""

SCORES = ("precision", "recall", "F1", "support", "share")
"""The titles of the columns with the scores of a class.

Support is the number of texts of the class; share is the support divided by the number of all texts."""

UNLIMITED = 10_000
"""A console width, in characters, that is larger than every table, so that no column is wrapped."""

FOLDED = 4
"""Maximum number of lines of a wrapped column label. The rest of the label is not printed."""


@dataclass(frozen=True)
class ClassScore:
    """The precision, recall and F1 of one class, 0 to 1.

    precision = TP / (TP + FP),  recall = TP / (TP + FN),  F1 = 2 TP / (2 TP + FP + FN)

    TP  number of texts of this class that were predicted as this class
    FP  number of texts of other classes that were predicted as this class
    FN  number of texts of this class that were predicted as another class

    A score is 0 if its denominator is 0.

    label: the name of the class.
    support: number of texts of this class, TP + FN.
    predicted: number of texts that were predicted as this class, TP + FP.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True, eq=False)
class ClassificationReport(Shown):
    """The comparison of predicted classes with true classes; print() shows it as tables.

    labels: the names of the C classes.
    confusion: (C, C), the number of texts for each true class (row) and predicted class (column).

    >>> report = classification_report(["a", "a", "a", "b"], ["a", "a", "b", "b"])
    >>> report.accuracy, round(report.macro_f1, 4), report.confusion.tolist()
    (0.75, 0.7333, [[2, 1], [0, 1]])
    >>> print(report)
    accuracy 0.750   macro F1 0.733   texts 4
    true \\ predicted  a  b  precision  recall     F1  support  share
    a                 2  1      1.000   0.667  0.800        3  75.0%
    b                 0  1      0.500   1.000  0.667        1  25.0%
    """

    labels: Labels
    confusion: NDArray[numpy.int64]

    @property
    def count(self) -> int:
        """The number of texts whose predicted class was compared with the true class."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The fraction of texts whose predicted class is the true class."""
        return float(numpy.trace(self.confusion)) / self.count

    def means(self) -> dict[str, float]:
        """Return the unweighted means of precision, recall and F1 over the classes that occur."""
        present = [each for each in self.classes if each.support or each.predicted]
        names = ("precision", "recall", "f1")
        return {name: sum(getattr(each, name) for each in present) / len(present) for name in names}

    @property
    def macro_f1(self) -> float:
        """The unweighted mean of F1 over the classes that occur among the true or the predicted classes.

        It equals f1_score(y_true, y_pred, average="macro") of scikit-learn with its defaults. The F1 of a
        class is 0 if it has texts but no predictions, or predictions but no texts. A class with neither is
        not part of the mean.
        """
        return self.means()["f1"]

    @property
    def classes(self) -> tuple[ClassScore, ...]:
        """The precision, recall and F1 of each class, in the order of `labels`."""
        scores = []
        for index, label in enumerate(self.labels):
            correct = int(self.confusion[index, index])
            support, predicted = int(self.confusion[index].sum()), int(self.confusion[:, index].sum())
            wholes = predicted, support, (support + predicted) / 2
            precision, recall, f1 = (correct / each if each else 0.0 for each in wholes)
            scores.append(ClassScore(label, precision, recall, f1, support, predicted))
        return tuple(scores)

    def to_dict(self) -> dict[str, Any]:
        """Return accuracy, macro F1, the scores of each class and the confusion matrix as a dict for JSON."""
        classes = {each.label: asdict(each) for each in self.classes}
        for scores in classes.values():
            del scores["label"]
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "count": self.count,
            "classes": classes,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(self.summary("   "))
        yield from self.tables(options.max_width)

    def summary(self, between: str = ", ") -> str:
        """Return accuracy, macro F1 and the number of texts as one line of text."""
        scores = f"accuracy {self.accuracy:.3f}", f"macro F1 {self.macro_f1:.3f}", f"texts {self.count:,}"
        return between.join(scores)

    def tables(self, width: int) -> Iterator[RenderableType]:
        """Yield the confusion matrix and the scores of each class as rich tables.

        If one table for both fits into `width`, there is only one table; otherwise, there are two tables. If
        there are many classes, a note replaces the confusion matrix.

        width: the number of characters of a line on the terminal.
        """
        corner, names = "true \\ predicted", [printable(label) for label in self.labels]
        if len(names) <= SHOWN:
            both = self._table(corner, names)
            if Console(width=UNLIMITED).measure(both).maximum <= width:
                yield both
                return
        yield self._table("class", ())
        if len(names) > SHOWN:
            yield Text(f"the confusion matrix of {len(names)} classes is not printed", "dim")
            return
        yield Text()
        needed = max(map(cell_len, (corner, *names))) + sum(cell_len(name) + 2 for name in names)
        if needed > width:
            names = ["\n".join(chop_cells(name, WIDEST)[:FOLDED]) for name in names]
        yield self._table(corner, names, scores=False)

    def _table(self, first: str, predicted: Sequence[str], scores: bool = True) -> Table:
        """Return a table with a row for each true class.

        first: the title of the first column.
        predicted: the titles of the columns of the confusion matrix. If it is empty, the table has no such
            columns.
        scores: whether the table has columns for precision, recall, F1 and the number of texts.
        """
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(Text(first), overflow="fold")
        for name in (*predicted, *(SCORES if scores else ())):
            table.add_column(Text(name), justify="right", no_wrap=True)
        for each, counts in zip(self.classes, self.confusion.tolist(), strict=True):
            cells = [f"{count:,}" for count in counts] if predicted else []
            if scores:
                cells += [f"{score:.3f}" for score in (each.precision, each.recall, each.f1)]
                cells += [f"{each.support:,}", f"{each.support / self.count:.1%}"]
            table.add_row(Text(printable(each.label)), *cells)
        return table


def classification_report(
    true: Iterable[str] | Iterable[int],
    predicted: Iterable[str] | Iterable[int],
    labels: Labels | Sequence[str] | None = None,
) -> ClassificationReport:
    """Compare predicted classes with true classes, and return the scores as a report.

    true, predicted: the true and the predicted class of each text, as labels (str) or as indices into
        `labels`. Lists, arrays and tensors are accepted.
    labels: the classes, in the order of the rows of the confusion matrix. Default: the labels that occur,
        sorted.

    >>> report = classification_report([0, 1, 2], [0, 2, 2], labels=["no", "yes", "maybe"])
    >>> [each.f1.__round__(3) for each in report.classes]
    [1.0, 0.0, 0.667]
    """
    call = "classification_report()"
    rows: list[Any] = list(true)
    columns: list[Any] = list(predicted)
    if len(rows) != len(columns):
        problem = f"true has {len(rows)} classes, predicted has {len(columns)}"
        raise ArgumentError(
            message(call, problem, expected="one true class and one predicted class for each text")
        )
    if not rows:
        raise DataError(message(call, "there are no texts", expected="at least one text"))
    if labels is None:
        if not all(isinstance(value, str) for value in (*rows, *columns)):
            problem = "some classes are not strings, but labels is not set"
            raise ArgumentError(message(call, problem, expected="labels=[...], the name of each class"))
        labels = Labels.of((*rows, *columns))
    labels = labels if isinstance(labels, Labels) else Labels(tuple(labels))
    confusion = numpy.zeros((len(labels), len(labels)), numpy.int64)
    numpy.add.at(confusion, (_indices(call, rows, labels), _indices(call, columns, labels)), 1)
    return ClassificationReport(labels, confusion)


def _indices(call: str, values: Sequence[Any], labels: Labels) -> list[int]:
    indices = [labels.index(value) if isinstance(value, str) else int(value) for value in values]
    for place, index in enumerate(indices):
        if not 0 <= index < len(labels):
            problem = f"text {place} has class {index}, which is not an index into labels"
            raise ArgumentError(message(call, problem, expected=f"a class index from 0 to {len(labels) - 1}"))
    return indices
