"""Labels in a fixed order, the balance of classes, and class weights with hand-computed values."""

from __future__ import annotations

import pytest
import torch

from regard.data.labelled_text import CLASS_WEIGHTS, ClassBalance, Labels, class_weights
from regard.errors import ArgumentError, UnknownName
from tests.facts import facts


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1", "01", "0"], ("0", "01", "1")),
    ],
)
def test_labels_are_sorted(given: list[str], names: tuple[str, ...]):
    labels = Labels.of(given)
    assert labels.names == names == tuple(labels)
    assert [labels.index(name) for name in names] == list(range(len(names)))
    assert labels[0] == names[0] and names[0] in labels and "other" not in labels
    assert labels == Labels(names) and hash(labels) == hash(Labels(names))


def test_labels_with_a_comma_are_quoted_in_lists():
    labels = Labels(("bad", "good, very"))
    assert labels.listed() == 'bad, "good, very"'
    with pytest.raises(UnknownName, match=facts("known", "bad, ", '"good, very"')):
        labels.index("good")


def test_labels_must_be_different_strings_and_at_least_two():
    for names in ((), ("a",), ("a", "b", "a"), ("a", 1), "ab"):
        with pytest.raises(ArgumentError):
            Labels(names)
    with pytest.raises(UnknownName, match="known: a, b"):
        Labels(("a", "b")).index("c")


def test_balance_counts_every_class():
    labels = Labels(("a", "b", "c"))
    balance = ClassBalance.of(["a", "c", "c", "c"], labels)
    assert balance.counts == (1, 0, 3) and balance.shares == (0.25, 0.0, 0.75) and balance.majority == 0.75
    assert balance.to_dict() == {"a": 1, "b": 0, "c": 3}
    assert [line.split() for line in str(balance).splitlines()[1:]] == [
        ["a", "1", "25.0%"],
        ["b", "0", "0.0%"],
        ["c", "3", "75.0%"],
    ]
    with pytest.raises(UnknownName):
        ClassBalance.of(["d"], labels)
    assert ClassBalance.of([], labels).majority == 0


def test_class_weights():
    # n = 8 texts of k = 3 classes: 8 / (3 * 1), none, 8 / (3 * 7).
    torch.testing.assert_close(class_weights("balanced", [1, 0, 7]), torch.tensor([8 / 3, 0.0, 8 / 21]))
    assert class_weights("none", [1, 0, 7]).tolist() == [1, 1, 1]
    balance = ClassBalance(Labels(("a", "b")), (30, 10))
    weights = balance.weights()
    assert weights.dtype == torch.float32
    # Every class has the same total weight, and the mean weight of the texts is 1.
    assert (weights * torch.tensor(balance.counts)).tolist() == [20, 20]
    with pytest.raises(UnknownName) as caught:
        class_weights("inverse", [1, 2])
    assert all(kind in str(caught.value) for kind in CLASS_WEIGHTS)
