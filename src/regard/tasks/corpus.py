"""Corpus: the encoded texts of a run; text_tokenizer() and stored_json() read the files of a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from regard.data.tokenizers import Tokenizer, load_tokenizer, train_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.errors import DataError, RegardError, message, naming_place
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited

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
