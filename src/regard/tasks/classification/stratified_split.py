"""Hold out labelled texts for validation, with the same share of each class."""

from __future__ import annotations

import hashlib
from collections import Counter

from regard.data.labelled_text import LabelledTexts
from regard.errors import DataError, message

__all__ = ["hold_out_texts"]

PART, MOST = 10, 2000
"""By default, 1 / PART of the texts is held out, but at most MOST texts."""


def hold_out_texts(texts: LabelledTexts, count: int | None = None) -> tuple[LabelledTexts, LabelledTexts]:
    """Split texts into a training set and a validation set, both with the same share of each class.

    The split does not depend on the order of the texts. Equal texts are always in the same set. Every class
    keeps at least one text for training. So the validation set can have fewer than `count` texts. A class
    with only one text is not in the validation set.

    count: about how many texts to hold out. Default: a tenth, but at most 2,000.

    >>> from regard.data.labelled_text import labelled_from_lists
    >>> words = [f"text {number}" for number in range(40)]
    >>> train, valid = hold_out_texts(labelled_from_lists(words, ["a"] * 30 + ["b"] * 10), 8)
    >>> len(train), sorted(valid.labels)
    (32, ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b'])
    """
    if count is not None and count >= len(texts):
        problem = f"data.held_out is {count:,}, but there are {len(texts):,} texts"
        raise DataError(message(texts.name, problem, expected="a smaller number, or data.valid_file"))
    wanted = max(min(len(texts) // PART, MOST), 1) if count is None else count
    totals = Counter(texts.labels)
    left = _quotas(totals, wanted)
    groups: dict[bytes, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(_digest(text.first, text.second), []).append(row)
    held: list[int] = []
    for _, rows in sorted(groups.items()):
        needed = Counter(texts.labels[row] for row in rows)
        if all(left[label] >= number for label, number in needed.items()):
            left.subtract(needed)
            held += rows
    if not held:
        problem = f"no text can be held out for validation: there are {len(texts):,} texts"
        hint = "add texts, or set data.valid_file"
        raise DataError(message(texts.name, problem, expected="two different texts of a class", hint=hint))
    chosen = set(held)
    return texts.select([row for row in range(len(texts)) if row not in chosen]), texts.select(sorted(held))


def _quotas(totals: Counter[str], wanted: int) -> Counter[str]:
    """Return how many texts of each class to hold out: the share of the class in `wanted`, rounded.

    If a class has two or more texts, at least one is held out, and at least one is kept for training.
    """
    whole = totals.total()
    quotas = Counter({label: total * wanted // whole for label, total in totals.items()})
    rest = sorted(totals, key=lambda label: (-(totals[label] * wanted % whole), label))
    for label in rest[: wanted - quotas.total()]:
        quotas[label] += 1
    return Counter({label: min(max(quotas[label], 1), totals[label] - 1) for label in totals})


def _digest(*texts: str | None) -> bytes:
    digest = hashlib.sha256()
    for text in texts:
        encoded = (text or "").encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(encoded) + encoded)
    return digest.digest()
