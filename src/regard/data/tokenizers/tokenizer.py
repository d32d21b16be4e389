"""Tokenizer: what all kinds share; text to token numbers and back."""

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
"""What an unknown token is decoded to."""


class Tokenizer(ABC):
    """Text to token numbers and back; each kind says what a token is.

    size: how many tokens there are, the four specials included. fingerprint: a hash of the whole vocabulary,
    equal where two tokenizers encode alike. unit: what alignments link and pictures show, "word" or
    "character".

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
    uncovered: frozenset[int] = frozenset({UNK})
    """The tokens that stand for what the vocabulary does not cover: UNK, and the bytes of subwords."""

    @abstractmethod
    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        """The tokens of a line, without BOS and EOS; of any string, as text.clean() leaves it.

        sample: over 0, draw a segmentation anew at each call, to regularise training. For unigram, the
        smoothing alpha of Kudo (2018), 0.1 or 0.2, where less is more random; for BPE, the probability of
        leaving out a merge of Provilkov et al. (2020), 0.1, where more is more random. generator: what is
        drawn from, Python's own (random.seed) unless given.
        """

    @abstractmethod
    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The tokens of many lines, one list a line, as encode() gives them; on all cores where it helps."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """One string a token to show; a space is ▁."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; PAD, BOS and EOS are dropped, and UNK is ⁇."""

    @abstractmethod
    def serialized(self) -> bytes:
        """The content of the file that save() writes."""

    @classmethod
    @abstractmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        """The tokenizer in the content of a file; place names it in messages."""

    @classmethod
    @abstractmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        """A tokenizer for text like the sample; call names who asks in messages."""

    def words(self, tokens: Sequence[int]) -> list[int]:
        """The number of the word each token is part of, counted from 0 as decode(tokens).split() has them.

        PAD, BOS and EOS are part of none: -1. A space belongs to the word after it.
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
        """The number of the unit each token is part of, a word or a character; -1 for none."""
        return self.words(tokens)

    def unknown(self, line: str) -> tuple[str, ...]:
        """The words or characters of a line that the vocabulary does not cover, in their order.

        For subwords: the words with a character that is no piece and is spelled in bytes.
        """
        return ()

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to one file, which is there whole or not at all."""
        write_whole(Path(path), self.serialized())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The tokenizer that save() wrote, or an error that says what is wrong with the file."""
        return cls.deserialized(read_bytes(path), str(path))

    def checked(self, tokens: Iterable[int]) -> list[int]:
        """Tokens as plain numbers, all of them in the vocabulary."""
        numbers = [int(token) for token in tokens]
        for number in numbers:
            if not 0 <= number < self.size:
                problem = f"token {number} is not in a vocabulary of {self.size}"
                hint = "decode with the tokenizer that encoded"
                raise ArgumentError(message(f"{type(self).__name__}.decode()", problem, hint=hint))
        return numbers

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size})"


def read_bytes(path: str | Path, *, links: bool = True) -> bytes:
    """The content of a tokenizer's file. links: whether it may be a symbolic link."""
    try:
        return read_limited(path, "tokenizer", named=links)
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
