"""Tokenizer: the base class of all tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.normalize import SPACE, Sample
from regard.errors import ArgumentError, DataError, message
from regard.files.atomic_io import write_whole
from regard.files.untrusted import parse_json, read_limited

__all__ = ["Tokenizer"]

SPECIALS = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
UNKNOWN = "⁇"
"""The text to which an unknown token is decoded."""

VOCABULARY_KINDS = ("word", "closed-word", "character", "morpheme")
"""The kinds of tokenizers that are saved as JSON. The others are saved as files of sentencepiece."""

DAMAGED = "the file is damaged, or not a tokenizer: restore it, or train the tokenizer again"
"""Hint for a file that is not a valid tokenizer."""


class Tokenizer(ABC):
    """Converts text to token ids and back. Base class of all tokenizers.

    kind: the name of the kind of tokenizer, for example "unigram".
    size: the vocabulary size, including the four special tokens.
    fingerprint: a hash of the vocabulary. Two tokenizers with the same fingerprint encode in the same way.
    unit: "word" or "character": the parts of a text that word alignments and pictures of attention use.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("word", ["to be or not to be"])
    >>> tokens = tokenizer.encode("to see or to be")
    >>> tokens, tokenizer.pieces(tokens), tokenizer.decode(tokens)
    ([5, 1, 7, 5, 4], ['to', '<unk>', 'or', 'to', 'be'], 'to ⁇ or to be')
    """

    kind: ClassVar[str]
    size: int
    fingerprint: str
    unit: str = "word"
    whole_text: ClassVar[bool] = False
    """Whether the tokenizer is trained on all lines by default, not only on a sample of the lines."""
    uncovered: frozenset[int] = frozenset({UNK})
    """The tokens for text that the vocabulary does not cover: UNK and, for subwords, the bytes."""

    @abstractmethod
    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        """Normalize a line with clean() and return its token ids, without BOS and EOS.

        sample: if above 0, each call samples a new segmentation, to regularise training. Unigram: the
            smoothing parameter alpha of Kudo (2018), usually 0.1 or 0.2; lower is more random. BPE: the
            merge dropout of Provilkov et al. (2020), usually 0.1; higher is more random.
        generator: the random generator. Default: Python's global generator, which random.seed() seeds.
        """

    @abstractmethod
    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each line, as encode() does. Many lines are encoded in several threads."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token. ▁ represents a space."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence. PAD, BOS and EOS are dropped, and UNK becomes ⁇."""

    @abstractmethod
    def serialized(self) -> bytes:
        """Return the content of the file that save() writes."""

    @classmethod
    @abstractmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        """Create a tokenizer from the content of the file that save() wrote.

        place: the file name, for error messages.
        """

    @classmethod
    @abstractmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        """Train a tokenizer on a sample of text.

        size: maximum vocabulary size. None: the default of this kind of tokenizer.
        call: the name of the public function, for error messages.
        """

    def decode_lines(self, lines: Sequence[Sequence[int]]) -> list[str]:
        """Return decode() of each line."""
        return [self.decode(line) for line in lines]

    def words(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its word in decode(tokens).split().

        The index of PAD, BOS and EOS is -1. A space belongs to the word after it.
        """
        numbers: list[int] = []
        word, begun = 0, False
        for token, (after_space, has_text) in zip(tokens, self.word_starts(tokens), strict=True):
            if token in (PAD, BOS, EOS):
                numbers.append(-1)
                continue
            if after_space and begun:
                word, begun = word + 1, False
            begun = begun or has_text
            numbers.append(word)
        return numbers if begun else [min(number, max(word - 1, 0)) for number in numbers]

    def word_starts(self, tokens: Sequence[int]) -> list[tuple[bool, bool]]:
        """Return, for each token, whether it begins with a space, and whether it has other characters."""
        return [(piece.startswith(SPACE), bool(piece.strip(SPACE))) for piece in self.pieces(tokens)]

    def units(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its word or character (see `unit`) in the text.

        The index of PAD, BOS and EOS is -1.
        """
        return self.words(tokens)

    def unknown(self, line: str) -> tuple[str, ...]:
        """Return the words or characters of a line that are not in the vocabulary, in the order of the line.

        For a subword tokenizer, these are the words with a character that is encoded as bytes.
        """
        return ()

    @property
    def bytewise(self) -> bool:
        """Whether the tokenizer encodes characters outside its vocabulary as bytes, instead of UNK."""
        return self.uncovered > {UNK}

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to one file. The write is atomic: an interruption leaves no partial file."""
        write_whole(Path(path), self.serialized())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a tokenizer of this class from a file that save() wrote. Raise DataError if it is damaged."""
        return cls.deserialized(read_bytes(path), str(path))

    def checked(self, tokens: Iterable[int]) -> list[int]:
        """Return the token ids as a list of int. Raise ArgumentError if one is not in the vocabulary."""
        numbers = [int(token) for token in tokens]
        if not numbers or (min(numbers) >= 0 and max(numbers) < self.size):
            return numbers
        for number in numbers:
            if not 0 <= number < self.size:
                problem = f"token {number} is not in the vocabulary of {self.size} tokens"
                hint = "decode with the same tokenizer that encoded the text"
                raise ArgumentError(message(f"{type(self).__name__}.decode()", problem, hint=hint))
        return numbers

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size})"


def read_bytes(path: str | Path, *, links: bool = True) -> bytes:
    """Return the content of a file that contains a tokenizer.

    links: whether the path may be a symbolic link.
    """
    try:
        return read_limited(path, "tokenizer", named=links)
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None


def read_vocabulary(content: bytes, place: str, kind: str | None = None) -> dict[str, Any]:
    """Return the JSON content of a tokenizer file. Raise DataError if it is not a tokenizer.

    place: the file name, for error messages.
    kind: the kind that the tokenizer must have. Default: any of VOCABULARY_KINDS.
    """
    try:
        saved = parse_json(content)
    except ValueError as error:
        raise DataError(message(place, f"not valid JSON: {error}", hint=DAMAGED)) from None
    if not isinstance(saved, dict) or saved.get("kind") not in VOCABULARY_KINDS or saved.get("version") != 1:
        expected = f"'kind' to be one of {', '.join(VOCABULARY_KINDS)}, and 'version' to be 1"
        raise DataError(message(place, "not a tokenizer", expected=expected, hint=DAMAGED))
    if kind not in (None, saved["kind"]):
        problem = f"this tokenizer is not of kind '{kind}'"
        raise DataError(message(place, problem, hint="use load_tokenizer(path), which loads any kind"))
    return saved
