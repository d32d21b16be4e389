"""The data of a language model run: text files, split into training and validation, and encoded."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from regard.data.batch import UNK
from regard.data.line_io import table_note
from regard.data.read_text import read_lines
from regard.data.tokenizers.tokenizer import SPECIALS
from regard.errors import DataError, message, shown
from regard.tasks.corpus import Corpus
from regard.tasks.language.settings import TextData
from regard.tasks.split import Split

HELD_OUT, HELD_OUT_PART = 5000, 20
"""By default, HELD_OUT lines are held out for validation, but at most 1 / HELD_OUT_PART of all lines.

Blank lines are not counted."""


@dataclass(frozen=True)
class TextLines:
    """A range of lines of text files. Each iteration reads the files again.

    files: the files, read one after the other. Lines are counted from 0, and the count continues over all
        files.
    start: the first line.
    stop: the line after the last line; None reads to the end of the last file.
    encoding: the encoding of the files; None is UTF-8.
    """

    files: tuple[str, ...]
    start: int = 0
    stop: int | None = None
    encoding: str | None = None

    def __iter__(self) -> Iterator[str]:
        lines = itertools.chain.from_iterable(read_lines(file, self.encoding) for file in self.files)
        return itertools.islice(lines, self.start, self.stop)

    @property
    def name(self) -> str:
        """The files as text for messages, for example "a.txt and 2 more files"."""
        more = len(self.files) - 1
        return shown(self.files[0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")

    @cached_property
    def scan(self) -> tuple[str, int, int]:
        """A hash of the text, its number of lines, and its number of words that are written as <unk>.

        The text is read once. Raise DataError if all lines are blank.
        """
        digest, count, with_text, unknown = hashlib.blake2b(digest_size=16), 0, 0, 0
        for line in self:
            digest.update(line.encode() + b"\n")
            count += 1
            with_text += bool(line.strip())
            unknown += line.split().count(SPECIALS[UNK]) if SPECIALS[UNK] in line else 0
        if not with_text:
            raise DataError(message(self.name, "there is no text", expected="at least one line with text"))
        return digest.hexdigest(), count, unknown

    @property
    def fingerprint(self) -> str:
        return self.scan[0]


@dataclass(frozen=True, eq=False)
class TextSplit(Split[TextLines]):
    """The training text and the validation text of a language model run."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the log: the number of training and validation lines, and tables read as text."""
        train, valid = self.train.scan[1], self.valid.scan[1]
        held = ", held out from the end of the training text" if self.is_held_out else ""
        training = f"{train:,} training line{'s' * (train != 1)}"
        tables = [note for file in self.train.files if (note := table_note(file))]
        return (f"{training}, {valid:,} validation line{'s' * (valid != 1)}{held}", *tables)


def read_texts(data: TextData) -> TextSplit:
    """Return which lines of which files are the training text and the validation text.

    Without valid_file, the last lines of the training files are the validation text. All files are read once,
    to count and hash their lines.
    """
    whole = TextLines(tuple(data.train_file), encoding=data.encoding)
    if data.valid_file:
        split = TextSplit(whole, TextLines(tuple(data.valid_file), encoding=data.encoding))
        split.fingerprints  # noqa: B018 - reads the files, and raises the error for a text without words
        return split
    numbers = [number for number, line in enumerate(whole) if line.strip()]
    count = data.held_out or max(min(HELD_OUT, len(numbers) // HELD_OUT_PART), 1)
    if not numbers:
        raise DataError(message(whole.name, "there is no text", expected="at least one line with text"))
    if count >= len(numbers):
        lines = f"{count:,} line{'s' * (count != 1)}"
        problem = f"{lines} cannot be held out for validation; lines with text: {len(numbers):,}"
        raise DataError(message(whole.name, problem, hint="set a validation file: --valid-file FILE"))
    first = numbers[-count]
    return TextSplit(replace(whole, stop=first), replace(whole, start=first), is_held_out=True)


FEW_TOKENS = 10_000
"""With fewer training tokens, a log message says that more text is needed."""


@dataclass(frozen=True, eq=False)
class TextCorpus(Corpus):
    """The data of a language model run: the training and the validation text as token ids.

    longest: maximum number of tokens of a document. Longer training documents are dropped.
    """

    longest: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Log messages: the numbers of tokens, unknown validation tokens and dropped training documents."""
        notes = [f"{self.train.token_count:,} training tokens, {self.valid.token_count:,} validation tokens"]
        unknown = self.valid.unknown_count
        if list(self.tokenizer.encode(SPECIALS[UNK])) == [UNK]:
            unknown -= self.split.valid.scan[2]  # words that are written as <unk> in the text do not count
        if unknown > 0:
            notes.append(f"{unknown / self.valid.token_count:.1%} of the validation tokens are unknown words")
        offsets = self.train.lines.offsets
        dropped = int(((offsets[1:] - offsets[:-1]) > self.longest).sum())
        if self.train.layout == "documents" and dropped:
            many = "1 training document is" if dropped == 1 else f"{dropped:,} training documents are"
            notes.append(f"{many} dropped: more than {self.longest:,} tokens")
        if self.train.token_count < FEW_TOKENS:
            few = f"little text: {self.train.token_count:,} training tokens, which the model learns by heart"
            notes.append(f"{few}. More text helps, and longer training does not")
        return tuple(notes)
