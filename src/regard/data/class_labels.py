"""Labels: the classes of a dataset in a fixed order; ClassBalance: how many texts each class has."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName, list_item, message, printable

__all__ = ["CLASS_WEIGHTS", "ClassBalance", "Labels", "class_weights"]

LISTED = 20
"""Maximum number of labels that an error message lists."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True)
class Labels:
    """The classes that a classifier distinguishes, as strings, in the order of its outputs.

    names: the labels, at least two, all different.

    >>> labels = Labels.of(["pos", "neg", "pos"])
    >>> labels.names, labels.index("pos"), len(labels)
    (('neg', 'pos'), 1, 2)
    """

    names: tuple[str, ...]
    _indices: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            problem = f"names is {self.names!r}"
            raise ArgumentError(message("Labels()", problem, expected="a list of strings"))
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "_indices", {name: index for index, name in enumerate(self.names)})
        if len(self._indices) != len(self.names):
            repeated = next(name for name, count in Counter(self.names).items() if count > 1)
            problem = f"the label {repeated!r} occurs more than once"
            raise ArgumentError(message("Labels()", problem, expected="different labels"))
        if len(self.names) < 2:
            problem = f"the only label is {self.names[0]!r}" if self.names else "there are no labels"
            raise ArgumentError(message("Labels()", problem, expected="at least two labels"))

    @classmethod
    def of(cls, labels: Iterable[str]) -> Labels:
        """Collect the different labels and sort them: as numbers if all are integers, else as text."""
        names = set(labels)
        if all(_INTEGER.fullmatch(name) for name in names):
            return cls(tuple(sorted(names, key=lambda name: (int(name), name))))
        return cls(tuple(sorted(names)))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, label: object) -> bool:
        return label in self._indices

    def __getitem__(self, index: int) -> str:
        return self.names[index]

    def index(self, label: str) -> int:
        """Return the index of a label.

        For an unknown label, raise UnknownName, which lists the known labels.
        """
        if label not in self._indices:
            raise UnknownName("label", label, self.names)
        return self._indices[label]

    def indices(self, labels: Iterable[str], place: Callable[[int], str]) -> list[int]:
        """Return the index of each label; raise DataError for an unknown label.

        place: function that takes the position of a label in `labels`, from 0, and returns its file and line
            for the error message.
        """
        found = []
        for position, label in enumerate(labels):
            if label not in self._indices:
                problem = f"the label {printable(label)[:80]!r} does not occur in the training data"
                raise DataError(message(place(position), problem, expected=f"one of {self.listed()}"))
            found.append(self._indices[label])
        return found

    def listed(self) -> str:
        """Return the labels as text for a message, for example "neg, pos".

        If there are more than LISTED labels, the text ends for example with " and 40 more".
        """
        names = [list_item(name[:80]) for name in self.names[:LISTED]]
        more = f" and {len(self) - LISTED} more" if len(self) > LISTED else ""
        return ", ".join(names) + more


def _balanced(counts: Tensor) -> Tensor:
    present = counts > 0
    return torch.where(present, counts.sum() / (len(counts) * counts.clamp(min=1)), 0.0)


CLASS_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": torch.ones_like,
    "balanced": _balanced,
}
"""Name -> function that computes class weights.

Each function takes the number of texts of each of the C classes, (C,), and returns the weight of each class
in the loss, (C,). To add a function, add a line."""


def class_weights(kind: str, counts: Sequence[int]) -> Tensor:
    """Return the weight of each class in the loss, float32 (C,).

    balanced:  w_c = n / (k n_c), with n texts, k classes and n_c texts of class c, as in scikit-learn
    none:      w_c = 1

    kind: "balanced" or "none".
    counts: the number of texts of each class.

    With "balanced", the texts of every class have the same total weight. A class without texts has weight 0.

    >>> class_weights("balanced", [30, 10])
    tensor([0.6667, 2.0000])
    """
    if kind not in CLASS_WEIGHTS:
        raise UnknownName("kind of class weights", kind, CLASS_WEIGHTS)
    return CLASS_WEIGHTS[kind](torch.tensor(counts, dtype=torch.float64)).float()


@dataclass(frozen=True)
class ClassBalance:
    """The number of texts of each class; prints as a table.

    labels: the classes.
    counts: the number of texts of each class.

    >>> balance = ClassBalance.of(["a", "b", "a"], Labels(("a", "b", "c")))
    >>> balance.counts, balance.shares[0].__round__(3), balance.majority.__round__(3)
    ((2, 1, 0), 0.667, 0.667)
    >>> print(balance)
    class  texts  share
    a          2  66.7%
    b          1  33.3%
    c          0   0.0%
    """

    labels: Labels
    counts: tuple[int, ...]

    @classmethod
    def of(cls, texts: Iterable[str], labels: Labels) -> ClassBalance:
        """Count the texts of each class.

        texts: the label of each text. All of them must be in `labels`.
        labels: the classes.
        """
        counts = Counter(texts)
        for label in counts:
            labels.index(label)
        return cls(labels, tuple(counts[name] for name in labels))

    @property
    def shares(self) -> tuple[float, ...]:
        """For each class, the fraction of the texts that belong to it, from 0 to 1."""
        total = sum(self.counts)
        return tuple(count / total if total else 0.0 for count in self.counts)

    @property
    def majority(self) -> float:
        """The fraction of the texts that belong to the most frequent class.

        This is the accuracy of a classifier that always predicts this class.
        """
        return max(self.shares)

    def weights(self, kind: str = "balanced") -> Tensor:
        """Return the weight in the loss of each of the C classes, (C,), computed by class_weights()."""
        return class_weights(kind, self.counts)

    def to_dict(self) -> dict[str, int]:
        """Return a dict from each label to its number of texts."""
        return dict(zip(self.labels, self.counts, strict=True))

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("class", overflow="fold")
        table.add_column("texts", justify="right")
        table.add_column("share", justify="right")
        for label, count, share in zip(self.labels, self.counts, self.shares, strict=True):
            table.add_row(Text(printable(label)), f"{count:,}", f"{share:.1%}")
        return table

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=100).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
