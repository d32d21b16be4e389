"""The words of one side: the form of each word that is counted, its number, and its prefixes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LEVELS", "Vocabulary", "fold", "prefix_lengths", "word_form"]

LEVELS = 3
"""Number of prefixes of each word."""

LETTERS = 12
"""Number of letters by which words are compared with words of the other side."""

QUOTES = str.maketrans("‘’‚‛“”„‟«»", '\'\'\'\'""""""')


def word_form(word: str) -> str:
    """Return the form of a word that is counted: lower-cased, and without punctuation before and after it.

    Punctuation alone is kept. So text whose punctuation is attached to words can be aligned, too.

    >>> [word_form(word) for word in ("Haus", "Haus.", "...", "„Ja!“", "1,5")]
    ['haus', 'haus', '...', 'ja', '1,5']
    """
    form = word.lower().translate(QUOTES)
    if form[:1].isalnum() and form[-1:].isalnum():
        return form
    first = next((at for at, letter in enumerate(form) if letter.isalnum()), None)
    if first is None:
        return form
    last = next(at for at in range(len(form), 0, -1) if form[at - 1].isalnum())
    return form[first:last]


def fold(form: str) -> str:
    """Return a form without accents, to compare it with other forms.

    >>> fold("président"), fold("öl"), fold("안녕")
    ('president', 'ol', '안녕')
    """
    if form.isascii():
        return form
    letters = (each for each in unicodedata.normalize("NFD", form) if unicodedata.category(each) != "Mn")
    return unicodedata.normalize("NFC", "".join(letters))


def prefix_lengths(form: str) -> tuple[int, int, int]:
    """Return the lengths of the prefixes of a word, which depend on its script.

    A Korean syllable, and even more a Chinese character, has as much information as several letters.

    >>> prefix_lengths("freedom"), prefix_lengths("자유를"), prefix_lengths("自由")
    ((3, 4, 6), (1, 2, 3), (1, 1, 2))
    """
    letter = form[:1]
    if "\uac00" <= letter <= "\ud7a3":
        return 1, 2, 3
    return (1, 1, 2) if "\u3040" <= letter <= "\u30ff" or "\u4e00" <= letter <= "\u9fff" else (3, 4, 6)


class Vocabulary:
    """The words of one side, numbered in the order in which they occur first.

    frequency: (V,), how often each word occurs.
    aligned: (V,), the expected number of words of the other side that are aligned with each word.
    unaligned: (V,), the expected number of its occurrences without a link.

    >>> vocabulary = Vocabulary()
    >>> numbers, lengths = vocabulary.encode([["A", "b"], ["a"]])
    >>> numbers.tolist(), lengths.tolist(), vocabulary.forms, vocabulary.frequency.tolist()
    ([0, 1, 0], [2, 1], ['a', 'b'], [2.0, 1.0])
    """

    def __init__(self, forms: Iterable[str] = ()):
        self.forms: list[str] = []
        self._number: dict[str, int] = {}
        self._classes = tuple(dict[str, int]() for _ in range(LEVELS))
        self._prefixes: tuple[list[int], ...] = tuple([] for _ in range(LEVELS))
        self.frequency = self.aligned = self.unaligned = torch.zeros(0)
        for form in forms:
            self._add(form)
        self._grow()

    def __len__(self) -> int:
        return len(self.forms)

    def _add(self, form: str) -> int:
        number = self._number[form] = len(self.forms)
        self.forms.append(form)
        folded = fold(form)
        lengths = prefix_lengths(folded)
        for length, classes, prefixes in zip(lengths, self._classes, self._prefixes, strict=True):
            prefixes.append(classes.setdefault(folded[:length], len(classes)))
        return number

    def _grow(self) -> None:
        for name in ("frequency", "aligned", "unaligned"):
            old = getattr(self, name)
            setattr(self, name, torch.cat((old, torch.zeros(len(self.forms) - len(old)))))

    def encode(self, sentences: Iterable[Sequence[str]]) -> tuple[NDArray[numpy.int32], NDArray[numpy.int64]]:
        """Return the numbers of all words, and the length of each sentence. New words are added."""
        known, lengths = dict[str, int](), list[int]()

        def numbered(word: str) -> int:
            form = word_form(word)
            number = self._number.get(form)
            known[word] = self._add(form) if number is None else number
            return known[word]

        def numbers(words: Sequence[str]) -> list[int]:
            lengths.append(len(words))
            return [known[word] if word in known else numbered(word) for word in words]

        flat = numpy.fromiter(chain.from_iterable(map(numbers, sentences)), numpy.int32)
        self._grow()
        self.frequency += torch.bincount(torch.from_numpy(flat), minlength=len(self.forms))
        return flat, numpy.array(lengths, numpy.int64)

    def prefixes(self, level: int) -> tuple[Tensor, int]:
        """Return the number of the prefix of each word, (V,), and how many prefixes there are."""
        return torch.tensor(self._prefixes[level], dtype=torch.int64), len(self._classes[level])

    def letters(self) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32]]:
        """Return the first letters of each word without accents, (V, LETTERS), and its length, (V,)."""
        folded = [fold(form)[:LETTERS] for form in self.forms]
        padded = "".join(form.ljust(LETTERS, "\0") for form in folded)
        codes = numpy.frombuffer(padded.encode("utf-32-le", "surrogatepass"), numpy.int32)
        return codes.reshape(-1, LETTERS), numpy.array([len(form) for form in folded], numpy.int32)
