"""The data of a language model run: text files, split into training and validation, and encoded."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from regard.data.batch import UNK
from regard.data.encoded_text import EncodedText
from regard.data.line_io import table_note
from regard.data.read_text import read_lines
from regard.data.tokenizers import Tokenizer, load_tokenizer, train_tokenizer
from regard.data.tokenizers.tokenizer import SPECIALS, Lowercased
from regard.errors import DataError, message, naming_place, shown
from regard.tasks.language.settings import TextData

__all__ = ["TOKENIZER", "TextCorpus", "TextLines", "TextSplit", "load_text_tokenizer", "read_texts"]

TOKENIZER = "text.tokenizer"
"""Name of the tokenizer file in a run folder."""

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


@dataclass(frozen=True)
class TextScan:
    """The result of scan(): the hash of a text, and its numbers of lines and unknown words.

    fingerprint: a hash of the text.
    lines: number of lines.
    with_text: number of lines that are not blank.
    unknown: number of words in the text that are written as <unk>.
    """

    fingerprint: str
    lines: int
    with_text: int
    unknown: int


def scan(lines: TextLines) -> TextScan:
    """Read a text once, to count and hash its lines; raise DataError if all lines are blank."""
    digest, count, with_text, unknown = hashlib.blake2b(digest_size=16), 0, 0, 0
    for line in lines:
        digest.update(line.encode() + b"\n")
        count += 1
        with_text += bool(line.strip())
        unknown += line.split().count(SPECIALS[UNK]) if SPECIALS[UNK] in line else 0
    if not with_text:
        raise DataError(message(lines.name, "there is no text", expected="at least one line with text"))
    return TextScan(digest.hexdigest(), count, with_text, unknown)


@dataclass(frozen=True)
class TextSplit:
    """The training text and the validation text of a language model run.

    train: the lines of the training text.
    valid: the lines of the validation text.
    held_out: whether the validation text was held out from the training files.
    scans: a dict with the keys "train" and "valid": the hash and the number of lines of each text.
    """

    train: TextLines
    valid: TextLines
    held_out: bool = False
    scans: dict[str, TextScan] = field(default_factory=dict, repr=False)

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of the training and the validation text, as {"train": hash, "valid": hash}.

        They are saved in the run folder. When the run is resumed, they show whether the data has changed.
        """
        return {name: each.fingerprint for name, each in self.scans.items()}

    @property
    def notes(self) -> Sequence[str]:
        """Messages for the log: the number of training and validation lines, and tables read as text."""
        train, valid = self.scans["train"].lines, self.scans["valid"].lines
        held = ", held out from the end of the training text" if self.held_out else ""
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
        valid = TextLines(tuple(data.valid_file), encoding=data.encoding)
        return TextSplit(whole, valid, scans={"train": scan(whole), "valid": scan(valid)})
    numbers = [number for number, line in enumerate(whole) if line.strip()]
    count = data.held_out or max(min(HELD_OUT, len(numbers) // HELD_OUT_PART), 1)
    if not numbers:
        raise DataError(message(whole.name, "there is no text", expected="at least one line with text"))
    if count >= len(numbers):
        lines = f"{count:,} line{'s' * (count != 1)}"
        problem = f"{lines} cannot be held out for validation; lines with text: {len(numbers):,}"
        raise DataError(message(whole.name, problem, hint="set a validation file: --valid-file FILE"))
    first = numbers[-count]
    train, valid = replace(whole, stop=first), replace(whole, start=first)
    return TextSplit(train, valid, True, {"train": scan(train), "valid": scan(valid)})


@dataclass(frozen=True, eq=False)
class TextCorpus:
    """The data of a language model run: the training and the validation text as token ids.

    split: the texts before they were encoded.
    tokenizer: the tokenizer of the run.
    train: the training text as token ids.
    valid: the validation text as token ids.
    longest: maximum number of tokens of a document. Longer training documents are dropped.
    """

    split: TextSplit
    tokenizer: Tokenizer
    train: EncodedText
    valid: EncodedText
    longest: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The vocabulary size."""
        return (self.tokenizer.size,)

    @property
    def notes(self) -> tuple[str, ...]:
        """Log messages: the numbers of tokens, unknown validation tokens and dropped training documents."""
        notes = [f"{self.train.token_count:,} training tokens, {self.valid.token_count:,} validation tokens"]
        if (unknown := self._unknown_words()) > 0:
            notes.append(f"{unknown / self.valid.token_count:.1%} of the validation tokens are unknown words")
        if self.train.layout == "documents" and (dropped := self._too_long()):
            many = "1 training document is" if dropped == 1 else f"{dropped:,} training documents are"
            notes.append(f"{many} dropped: more than {self.longest:,} tokens")
        return tuple(notes)

    def _unknown_words(self) -> int:
        """Return the number of unknown tokens of the validation text.

        Words that are written as <unk> in the text do not count.
        """
        scan = self.split.scans.get("valid")
        literal = scan is not None and list(self.tokenizer.encode(SPECIALS[UNK])) == [UNK]
        return self.valid.unknown_count - (scan.unknown if scan is not None and literal else 0)

    def _too_long(self) -> int:
        offsets = self.train.lines.offsets
        return int(((offsets[1:] - offsets[:-1]) > self.longest).sum())

    @classmethod
    def encoded(cls, split: TextSplit, data: TextData, folder: Path, lines: int | None = None) -> TextCorpus:
        """Encode the training and the validation text with the tokenizer of the run folder.

        If the run folder has no tokenizer, train one on the training text and save it first.

        split: the training and the validation text.
        data: the data settings, with the kind and size of the tokenizer.
        folder: the run folder.
        lines: maximum number of lines to train the tokenizer on; None for all.
        """
        if not (folder / TOKENIZER).exists():
            text = (line.lower() for line in split.train) if data.lowercase else split.train
            kind = data.tokenizer or "unigram"
            # The vocabulary of "closed-word" contains all words of the text, so it must be trained on all
            # lines.
            sample = None if kind == "closed-word" else lines
            with naming_place("data.vocab_size (--vocab-size)"):
                tokenizer = train_tokenizer(kind, text, data.vocab_size, sample=sample)
            tokenizer.save(folder / TOKENIZER)
        tokenizer = load_text_tokenizer(folder, data)
        train, valid = (
            EncodedText.from_lines(text, tokenizer, layout=data.layout, name=text.name)
            for text in (split.train, split.valid)
        )
        return cls(split, tokenizer, train, valid, data.max_length)


def load_text_tokenizer(folder: Path, data: TextData) -> Tokenizer:
    """Load the tokenizer of a run folder; it converts to lower case if data.lowercase is set."""
    tokenizer = load_tokenizer(folder / TOKENIZER, links=False)
    return Lowercased(tokenizer) if data.lowercase else tokenizer
