"""Split: the training set and the validation set of a run, read but not yet encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Part = TypeVar("Part", bound=Any)


@dataclass(frozen=True, eq=False)
class Split(Generic[Part]):
    """The training set and the validation set of a run: the result of RunTask.read_data() of most tasks.

    train, valid: the examples of each set.
    unit: what the examples are, such as "sentences".
    is_held_out: whether the validation set was held out from the training files.

    >>> Split(["a", "b"], ["c"], "sentences").notes
    ('2 training sentences, 1 validation sentences',)
    """

    train: Part
    valid: Part
    unit: str = "examples"
    is_held_out: bool = False

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation set, as {"train": hash, "valid": hash}.

        They are saved in the run folder. When the run is resumed, they show whether the data has changed.
        """
        return {"train": _fingerprint(self.train), "valid": _fingerprint(self.valid)}

    @property
    def notes(self) -> tuple[Any, ...]:
        """Messages for the log: the number of examples of each set."""
        held = f", held out from the training {self.unit}" if self.is_held_out else ""
        counts = f"{len(self.train):,} training {self.unit}, {len(self.valid):,} validation {self.unit}"
        return (f"{counts}{held}",)


def _fingerprint(part: Any) -> str:
    """Return the attribute `fingerprint` of the examples, or a hash of their representation."""
    known = getattr(part, "fingerprint", None)
    return str(known) if known is not None else hashlib.sha256(repr(part).encode()).hexdigest()


def spread_by_length(texts: Sequence[str], count: int) -> list[int]:
    """Return the indices of `count` texts of different lengths, from short to long. The choice is not random.

    The texts are sorted by length and divided into `count` equal parts. The middle text of each part is
    chosen. So unusually short and long texts are left out. Here, texts of 2, 4 and 6 characters are chosen:

    >>> spread_by_length(["aaa", "aaaaa", "a", "aaaaaa", "aa", "aaaa"], 3)
    [4, 5, 3]
    """
    order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), place))
    return [order[place] for place in evenly(count, len(texts))]


def evenly(count: int, total: int) -> list[int]:
    """Return `count` of the indices below `total`, at most all, at equal distances.

    >>> evenly(2, 9), evenly(5, 2)
    ([2, 6], [0, 1])
    """
    count = min(count, total)
    return [(2 * part + 1) * total // (2 * count) for part in range(count)]
