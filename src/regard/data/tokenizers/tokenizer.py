"""Tokenizer: the base class of all tokenizers, and the normalization of text before it is encoded.

Words, ClosedWords and Characters are tokenizers with a plain list of tokens as vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple, Self

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.errors import ArgumentError, DataError, message
from regard.files.atomic_io import write_whole
from regard.files.untrusted import parse_json, read_limited

SPACE = "\u2581"
"""The character that represents a space in a subword, as in sentencepiece: "▁the"."""

SAMPLE_LINES = 50_000
SAMPLE_CHARACTERS = 20_000_000
"""A vocabulary is trained on at most SAMPLE_LINES lines with at most SAMPLE_CHARACTERS characters.

More text takes longer and hardly changes the vocabulary.
"""

_BLANKED = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), ord(SPACE)], " ")


def clean(line: str) -> str:
    """Normalize a string for encoding.

    - Control characters and the character ▁, which represents a space in subwords, become spaces.
    - Several spaces in a row become one space, and spaces at the beginning and the end are removed.
    - Characters are composed (Unicode NFC): Korean syllables from their letters, é from e and its accent. So
      two strings that look the same are the same. NFKC is not used: it would also change ½, … and full-width
      letters, and decoding could not restore them.
    - Lone surrogates, which come from decoding invalid bytes, become U+FFFD.

    >>> clean("  a\\x00b\\t\\u3000c \\udc80 e\\u0301 ")
    'a b c � é'
    """
    if not isinstance(line, str):
        raise ArgumentError(message("clean()", f"a line is of type {type(line).__name__}", expected="a str"))
    line = line.strip()
    if _is_clean(line):  # as most lines are; the code below takes ten times as long
        return line
    # Surrogate pairs, which JSON escapes can produce, become one character. Lone surrogates become U+FFFD.
    whole = line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return " ".join(unicodedata.normalize("NFC", whole.translate(_BLANKED)).split())


LINES_AT_ONCE = 64
"""Number of lines that are checked together. If one of them is not clean, clean() is called for each."""


def clean_lines(lines: Sequence[str]) -> list[str]:
    """Return clean() of each line, in about two thirds of the time if most lines are clean already.

    >>> clean_lines(["ein Haus", " zwei  Häuser "])
    ['ein Haus', 'zwei Häuser']
    """
    cleaned: list[str] = []
    for first in range(0, len(lines), LINES_AT_ONCE):
        some = lines[first : first + LINES_AT_ONCE]
        try:  # a space at the end of a line is next to another one here, and an empty line is between two
            together = _is_clean(" ".join(some))
        except TypeError:  # a line is not a str, so clean() raises an error
            together = False
        cleaned += some if together else map(clean, some)
    return cleaned


def _is_clean(text: str) -> bool:
    """Whether clean() certainly returns this text, which may be several lines, unchanged."""
    if not text.isprintable() or "  " in text or SPACE in text:
        return False
    return text[:1] != " " != text[-1:] and unicodedata.is_normalized("NFC", text)


ATTACHED = re.compile(r"(?<=\w)([.,!?])(?=\s|$)")
"""Matches a punctuation mark at the end of a word."""


def separate_marks(line: str) -> str:
    """Insert a space before each punctuation mark at the end of a word, as in the built-in corpus.

    >>> separate_marks("나는 고양이로소이다. 너는 3.5를 아니?")
    '나는 고양이로소이다 . 너는 3.5를 아니 ?'
    """
    return ATTACHED.sub(r" \1", line)


def sides(pair: Any) -> tuple[str, str]:
    """Return source and target of a sentence pair: its attributes `source` and `target`, or its two items."""
    return (pair.source, pair.target) if hasattr(pair, "source") else (pair[0], pair[1])


class Sample(NamedTuple):
    """A random sample of lines, on which a tokenizer is trained.

    lines: the lines, cleaned and not empty.
    scale: the number of all lines divided by the number of lines in the sample.
    """

    lines: list[str]
    scale: float


def draw_sample(lines: Iterable[str], call: str, most: int | None = None, *, whole: bool = False) -> Sample:
    """Return a random sample of lines, on which a tokenizer is trained.

    If the lines are the same, the sample is always the same.

    The method is reservoir sampling (Vitter 1985, algorithm R). Every line has the same probability, and only
    the sample is held in memory.

    most: maximum number of lines. Default: SAMPLE_LINES, or all lines if `whole` is True.
    whole: if True, the number of characters is not limited. If False, the limit is SAMPLE_CHARACTERS.
    call: the name of the calling function, for error messages.
    """
    if isinstance(lines, str):
        problem, hint = "lines is a str", "use a list of lines: [text]"
        raise ArgumentError(message(call, problem, expected="an iterable of strings", hint=hint))
    most = (sys.maxsize if whole else SAMPLE_LINES) if most is None else most
    most_characters = sys.maxsize if whole else SAMPLE_CHARACTERS
    generator = random.Random(0)
    reservoir: list[str] = []
    seen = 0
    for line in lines:
        seen += 1
        if len(reservoir) < most:
            reservoir.append(line)
        elif (place := int(generator.random() * seen)) < most:
            reservoir[place] = line
    if seen > len(reservoir):
        # The order in the reservoir depends on the order of the lines. Without this shuffle, the character
        # limit would remove some lines with a higher probability than others.
        generator.shuffle(reservoir)
    texts: list[str] = []
    taken = characters = 0
    for line in reservoir:
        if characters >= most_characters:
            break
        cleaned = clean(line)
        taken, characters = taken + 1, characters + len(cleaned)
        if cleaned:
            texts.append(cleaned)
    if not texts:
        problem = f"all {seen} lines are empty" if seen else "there are no lines"
        raise DataError(message(call, problem, expected="at least one line with text"))
    return Sample(texts, seen / taken)


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
    def deserialized(cls, content: bytes, place: str) -> Self:
        """Create a tokenizer from the content of the file that save() wrote.

        place: the file name, for error messages.
        """
        raise NotImplementedError

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        """Train a tokenizer on a sample of text.

        size: maximum vocabulary size. None: the default of this kind of tokenizer.
        call: the name of the public function, for error messages.
        """
        raise NotImplementedError

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
        tokens, words = self.encode(line), clean(line).split()
        numbers = zip(tokens, self.words(tokens), strict=True)
        spelled = {number for token, number in numbers if token in self.uncovered and number >= 0}
        return tuple(words[number] for number in sorted(spelled))

    def check_no_sampling(self, sample: float) -> None:
        """Raise ArgumentError if `sample`, an argument of encode(), is not 0."""
        if sample:
            problem = f"sample is {sample}, but a {self.kind} tokenizer has only one segmentation"
            hint = "set sample to 0, or train a tokenizer of kind 'unigram' or 'bpe'"
            raise ArgumentError(message(f"{type(self).__name__}.encode()", problem, hint=hint))

    @property
    def bytewise(self) -> bool:
        """Whether the tokenizer encodes characters outside its vocabulary as bytes, instead of UNK."""
        return self.uncovered > {UNK}

    def save(self, path: str | bytes | os.PathLike[str]) -> None:
        """Write the tokenizer to one file. The write is atomic: an interruption leaves no partial file."""
        write_whole(Path(os.fsdecode(path)), self.serialized())

    @classmethod
    def load(cls, path: str | bytes | os.PathLike[str]) -> Self:
        """Load a tokenizer of this class from a file that save() wrote. Raise DataError if it is damaged."""
        return cls.deserialized(read_bytes(path), os.fsdecode(path))

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


def read_bytes(path: str | bytes | os.PathLike[str], *, links: bool = True) -> bytes:
    """Return the content of a file that contains a tokenizer.

    links: whether the path may be a symbolic link.
    """
    name = os.fsdecode(path)
    try:
        return read_limited(name, "tokenizer", named=links)
    except OSError as error:
        raise DataError(message(name, f"cannot be read: {error.strerror}")) from None


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


def read_strings(saved: dict[str, Any], name: str, place: str) -> list[str]:
    """Return a list of different strings of a tokenizer file. Raise DataError if it is something else."""
    values = saved.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(message(place, f"'{name}' is not a list of strings", hint=DAMAGED))
    for value, count in Counter(values).items():
        if count > 1:
            raise DataError(message(place, f"{value!r} is in '{name}' {count} times", hint=DAMAGED))
    return values


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
