"""Tokenizer: the base class of all tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Self

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.normalize import SPACE, Sample
from regard.errors import ArgumentError, DataError, message
from regard.files.atomic_io import write_whole
from regard.files.untrusted import read_limited

__all__ = ["Tokenizer"]

SPECIALS = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
UNKNOWN = "⁇"
"""The text that an unknown token is decoded to."""


class Tokenizer(ABC):
    """Converts text to token ids and back.

    size: vocabulary size, including the four special tokens. fingerprint: a hash of the vocabulary; two
    tokenizers with the same fingerprint encode in the same way. unit: the unit that alignments link and
    plots show, "word" or "character".

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
    """Whether it is trained on all lines by default, instead of a sample."""
    uncovered: frozenset[int] = frozenset({UNK})
    """The tokens for text that the vocabulary does not cover: UNK and, for subwords, the bytes."""

    @abstractmethod
    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        """Return the token ids of a line, normalized by clean(), without BOS and EOS.

        sample: if over 0, sample a new segmentation at each call, to regularise training. For unigram, it is
            the smoothing parameter alpha of Kudo (2018), usually 0.1 or 0.2, where lower is more random. For
            BPE, it is the merge dropout of Provilkov et al. (2020), usually 0.1, where higher is more random.
        generator: the random generator; the default is Python's global one (random.seed).
        """

    @abstractmethod
    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many lines, like encode() for each; uses several threads if that helps."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return one printable string per token; ▁ is a space."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; PAD, BOS and EOS are dropped, and UNK becomes ⁇."""

    @abstractmethod
    def serialized(self) -> bytes:
        """Return the content of the file that save() writes."""

    @classmethod
    @abstractmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        """Create the tokenizer from the content of its file. place: the file name, for messages."""

    @classmethod
    @abstractmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        """Train a tokenizer on a sample of text. call: the name of the calling function, for messages."""

    def words(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its word in decode(tokens).split().

        It is -1 for PAD, BOS and EOS. A space belongs to the word after it.
        """
        numbers: list[int] = []
        word, begun = 0, False
        for token, piece in zip(tokens, self.pieces(tokens), strict=True):
            if token in (PAD, BOS, EOS):
                numbers.append(-1)
                continue
            if piece.startswith(SPACE) and begun:
                word, begun = word + 1, False
            begun = begun or bool(piece.strip(SPACE))
            numbers.append(word)
        last = word if begun else max(word - 1, 0)
        return [min(number, last) for number in numbers]

    def units(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its unit (word or character), or -1 if it has none."""
        return self.words(tokens)

    def unknown(self, line: str) -> tuple[str, ...]:
        """Return the words or characters of a line that the vocabulary does not cover, in order.

        For subwords, these are the words with a character that is encoded as bytes.
        """
        return ()

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to one file, atomically."""
        write_whole(Path(path), self.serialized())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a tokenizer of this class from a file of save(); raise DataError if the file is damaged."""
        return cls.deserialized(read_bytes(path), str(path))

    def checked(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens as a list of int; raise ArgumentError if one is not in the vocabulary."""
        numbers = [int(token) for token in tokens]
        for number in numbers:
            if not 0 <= number < self.size:
                problem = f"token {number} is not in a vocabulary of {self.size}"
                hint = "decode with the same tokenizer that encoded the text"
                raise ArgumentError(message(f"{type(self).__name__}.decode()", problem, hint=hint))
        return numbers

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size})"


def read_bytes(path: str | Path, *, links: bool = True) -> bytes:
    """Return the content of a tokenizer's file. links: whether it may be a symbolic link."""
    try:
        return read_limited(path, "tokenizer", named=links)
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
