"""Lowercased: a tokenizer that converts all text to lower case first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Self

from regard.data.tokenizers.normalize import Sample
from regard.data.tokenizers.tokenizer import Tokenizer
from regard.errors import ArgumentError, message

__all__ = ["Lowercased"]


class Lowercased(Tokenizer):
    """A wrapper around another tokenizer that converts all text to lower case before encoding.

    save() writes only the inner tokenizer. To load it: Lowercased(load_tokenizer(path)).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> inner = train_tokenizer("word", ["the cat"])
    >>> inner.encode("The cat"), Lowercased(inner).encode("The cat")
    ([1, 4], [5, 4])
    """

    kind = "lowercased"

    def __init__(self, inner: Tokenizer):
        self.inner, self.size, self.unit = inner, inner.size, inner.unit
        self.fingerprint = f"lowercased {inner.fingerprint}"
        self.uncovered = inner.uncovered

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        return self.inner.encode(line.lower(), sample=sample, generator=generator)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return self.inner.encode_lines([line.lower() for line in lines])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return self.inner.pieces(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.inner.decode(tokens)

    def decode_lines(self, lines: Sequence[Sequence[int]]) -> list[str]:
        return self.inner.decode_lines(lines)

    def words(self, tokens: Sequence[int]) -> list[int]:
        return self.inner.words(tokens)

    def units(self, tokens: Sequence[int]) -> list[int]:
        return self.inner.units(tokens)

    def unknown(self, line: str) -> tuple[str, ...]:
        return self.inner.unknown(line.lower())

    def serialized(self) -> bytes:
        return self.inner.serialized()

    @classmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        raise ArgumentError(
            message(
                "Lowercased",
                "this class cannot be loaded from a file",
                hint="use Lowercased(load_tokenizer(path))",
            )
        )

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        raise ArgumentError(
            message(
                "Lowercased",
                "this class cannot be trained",
                hint="train a tokenizer, and pass it to Lowercased()",
            )
        )
