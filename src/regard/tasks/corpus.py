"""Split and Corpus: the data of a run, read and encoded; text_tokenizer() and stored_json() read files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard.data.tokenizers import Tokenizer, load_tokenizer, train_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.errors import DataError, RegardError, message, naming_place
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited

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


TOKENIZER = "text.tokenizer"
"""Name of the tokenizer file in a run folder."""

Stored = TypeVar("Stored")


@dataclass(frozen=True, eq=False)
class Corpus:
    """The data of a run whose examples have texts: the training and the validation set as token ids.

    split: the data before they were encoded.
    tokenizer: the tokenizer of the run.
    train, valid: the encoded data.
    """

    split: Any
    tokenizer: Tokenizer
    train: Any
    valid: Any

    @property
    def sizes(self) -> tuple[int, ...]:
        """The vocabulary size."""
        return (self.tokenizer.size,)


def text_tokenizer(
    folder: Path, data: Any, texts: Iterable[str] | None = None, sample: int | None = None
) -> Tokenizer:
    """Load the tokenizer of a run folder; it converts to lower case if data.lowercase is set.

    data: the data settings, with the kind and size of the tokenizer.
    texts: if the run folder has no tokenizer, one is trained on these texts and saved first.
    sample: maximum number of texts to train the tokenizer on; None for all.
    """
    path = folder / TOKENIZER
    if texts is not None and not path.exists():
        lines = (text.lower() for text in texts) if data.lowercase else texts
        with naming_place("data.vocab_size (--vocab-size)"):
            train_tokenizer(data.tokenizer or "unigram", lines, data.vocab_size, sample=sample).save(path)
    tokenizer = load_tokenizer(path, links=False)
    return Lowercased(tokenizer) if data.lowercase else tokenizer


def store_json(path: Path, content: Any) -> None:
    """Write values as a JSON file."""
    replace(path, json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n")


def stored_json(path: Path, name: str, build: Callable[[Any], Stored]) -> Stored:
    """Read a JSON file of a run folder; raise DataError if it is missing or damaged.

    name: what the file contains, such as "vocabulary", for the error message.
    build: converts the values of the file to the result.
    """
    try:
        return build(parse_json(read_limited(path, "json")))
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    except (ValueError, TypeError, KeyError, RegardError):
        hint = "restore it from a copy of the run"
        raise DataError(message(str(path), f"the {name} is damaged", hint=hint)) from None
