"""Words, ClosedWords and Characters: tokenizers with a plain list of tokens as vocabulary."""

from __future__ import annotations

import hashlib
import json
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import ClassVar, Self

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.tokenizer import (
    DAMAGED,
    SPACE,
    SPECIALS,
    UNKNOWN,
    Sample,
    Tokenizer,
    clean,
    read_strings,
    read_vocabulary,
)
from regard.errors import ArgumentError, DataError, message

__all__ = ["Characters", "ClosedWords", "Words"]


class Listed(Tokenizer):
    """A tokenizer with a list of words or characters as vocabulary.

    Words or characters that are not in the list become UNK. This is the base class of Words, ClosedWords and
    Characters.

    tokens: the vocabulary without special tokens, the most frequent token first.
    most: the maximum vocabulary size if train_tokenizer() gets no size.
    """

    most: ClassVar[int]

    def __init__(self, tokens: Iterable[str]):
        self.tokens = list(tokens)
        self.size = len(SPECIALS) + len(self.tokens)
        self._numbers = {token: number for number, token in enumerate(self.tokens, len(SPECIALS))}
        self.fingerprint = hashlib.sha256(self.serialized()).hexdigest()

    @staticmethod
    @abstractmethod
    def split(line: str) -> Sequence[str]:
        """Split a line into words or characters. The line has been normalized by clean()."""

    @staticmethod
    @abstractmethod
    def join(pieces: Sequence[str]) -> str:
        """Join words or characters into a text: the inverse of split()."""

    @classmethod
    def is_token(cls, token: str) -> bool:
        """Return whether `token` can be in the vocabulary: clean() and split() must return it unchanged."""
        return list(cls.split(clean(token))) == [token]

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        if size is not None and (not isinstance(size, int) or size <= len(SPECIALS)):
            problem, expected = f"size is {size!r}", "5 or more, including the four special tokens"
            raise ArgumentError(message(call, problem, expected=expected))
        counts = Counter(token for line in sample.lines for token in cls.split(line))
        # Tokens with equal counts are sorted alphabetically, so that the result is independent of line order.
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return cls(ranked[: (cls.most if size is None else size) - len(SPECIALS)])

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        self.check_no_sampling(sample)
        return [self._numbers.get(token, UNK) for token in self.split(clean(line))]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        first = len(SPECIALS)
        return [
            SPECIALS[token] if token < first else self.tokens[token - first] for token in self.checked(tokens)
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        visible = [token for token in self.checked(tokens) if token not in (PAD, BOS, EOS)]
        pieces = self.pieces(visible)
        return self.join(
            [UNKNOWN if token == UNK else piece for token, piece in zip(visible, pieces, strict=True)]
        )

    def unknown(self, line: str) -> tuple[str, ...]:
        return tuple(token for token in self.split(clean(line)) if token not in self._numbers)

    def serialized(self) -> bytes:
        content = {"kind": self.kind, "version": 1, "tokens": self.tokens}
        return (json.dumps(content, ensure_ascii=False, indent=0) + "\n").encode()

    @classmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        tokens = read_strings(read_vocabulary(content, place, cls.kind), "tokens", place)
        for token in tokens:
            if not cls.is_token(token):
                raise DataError(message(place, f"{token!r} is not a {cls.kind}", hint=DAMAGED))
        return cls(tokens)


class Words(Listed):
    """A tokenizer that splits text at spaces, with a vocabulary of words (default: the 30,000 most frequent).

    Such a vocabulary is called shortlist in Bahdanau et al. (2015, section 4.2). Punctuation is not separated
    from words. So use this tokenizer for text in which spaces already separate words and punctuation.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> train_tokenizer("word", ["a rose is a rose"]).pieces([4, 5, 6])
    ['a', 'rose', 'is']
    """

    kind = "word"
    most = 30_000

    @staticmethod
    def split(line: str) -> Sequence[str]:
        return line.split()

    @staticmethod
    def join(pieces: Sequence[str]) -> str:
        return " ".join(pieces)

    def words(self, tokens: Sequence[int]) -> list[int]:
        numbers, word = [], 0
        for token in self.checked(tokens):
            visible = token not in (PAD, BOS, EOS)
            numbers.append(word if visible else -1)
            word += visible
        return numbers


class ClosedWords(Words):
    """A tokenizer like Words, with all words of the training text as vocabulary. The word <unk> becomes UNK.

    Use this tokenizer for text in which rare words have already been replaced by <unk>, such as the published
    Penn Treebank (Mikolov et al. 2010). It is trained on all lines, not on a sample.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("closed-word", ["a <unk> is chairman of <unk>"])
    >>> tokenizer.encode("<unk> is chairman"), tokenizer.size, tokenizer.decode([1, 6, 5])
    ([1, 6, 5], 8, '<unk> is chairman')
    """

    kind = "closed-word"
    most = sys.maxsize
    whole_text = True

    @classmethod
    def is_token(cls, token: str) -> bool:
        return token != SPECIALS[UNK] and super().is_token(token)

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        known = (" ".join(word for word in line.split() if word != SPECIALS[UNK]) for line in sample.lines)
        return super().learned(Sample(list(known), sample.scale), size, call)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence. PAD, BOS and EOS are dropped, and UNK becomes <unk>."""
        return self.join(self.pieces([token for token in tokens if token not in (PAD, BOS, EOS)]))

    def unknown(self, line: str) -> tuple[str, ...]:
        return tuple(word for word in super().unknown(line) if word != SPECIALS[UNK])


class Characters(Listed):
    """A tokenizer for single characters, with ▁ for a space (default: the 10,000 most frequent characters).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("character", ["a rose is a rose"])
    >>> tokenizer.pieces(tokenizer.encode("so be")), tokenizer.words(tokenizer.encode("so be"))
    (['s', 'o', '▁', '<unk>', 'e'], [0, 0, 1, 1, 1])
    >>> tokenizer.units(tokenizer.encode("so be")), tokenizer.unknown("so be")
    ([0, 1, 2, 3, 4], ('b',))
    """

    kind = "character"
    unit = "character"
    most = 10_000

    @staticmethod
    def split(line: str) -> Sequence[str]:
        return list(line.replace(" ", SPACE))

    @classmethod
    def is_token(cls, token: str) -> bool:
        return token == SPACE or super().is_token(token)

    @staticmethod
    def join(pieces: Sequence[str]) -> str:
        return " ".join("".join(pieces).replace(SPACE, " ").split())

    def units(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its character in decode(tokens).

        The index is -1 for a space that decode() drops, and for PAD, BOS and EOS.
        """
        visible = [token not in (PAD, BOS, EOS) for token in self.checked(tokens)]
        spaces = [piece == SPACE for piece in self.pieces(tokens)]
        last = max((i for i, shown in enumerate(visible) if shown and not spaces[i]), default=-1)
        numbers, number, after_space = [], 0, True
        for place, shown in enumerate(visible):
            dropped = not shown or place > last or (spaces[place] and after_space)
            numbers.append(-1 if dropped else number)
            number += not dropped
            after_space = spaces[place] if shown else after_space
        return numbers
