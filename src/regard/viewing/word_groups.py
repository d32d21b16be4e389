"""Group subwords into words, and join their text and their weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

SPACE = "\u2581"
"""The character for a space inside a subword, as in SentencePiece: ▁."""

SHOWN_SPACE = "\u2423"
"""The character that is shown for a token that is only a space: ␣."""

_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")
"""Matches byte tokens such as <0xEC>, which SentencePiece uses for characters outside the vocabulary."""


def grouped(numbers: Sequence[int]) -> list[list[int]]:
    """Return the positions of the subwords of each word, as one list for each word, in order.

    numbers: the word index of each subword. A special token has the index -1, and a separate list in the
        result.

    >>> grouped([0, 0, 1, -1, -1])
    [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    by_word: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        if number >= 0 and number in by_word:
            by_word[number].append(place)
            continue
        groups.append([place])
        if number >= 0:
            by_word[number] = groups[-1]
    return groups


def spelled(pieces: Iterable[str]) -> str:
    """Return the text of the subwords of one word, without space marks and with byte tokens decoded.

    >>> spelled(["▁고", "양", "<0xEC>", "<0x9D>", "<0xB4>"])
    '고양이'
    """
    return _BYTES.sub(_decoded, "".join(pieces)).replace(SPACE, " ").strip()


def spelled_or_space(pieces: Sequence[str]) -> str:
    """Return the text of the subwords of one word. If the word is only a space, return ␣.

    >>> spelled_or_space(["▁a", "t"]), spelled_or_space(["▁"])
    ('at', '␣')
    """
    return spelled(pieces) or "".join(pieces).replace(SPACE, SHOWN_SPACE)


def joined(
    weights: NDArray[numpy.float32], groups: Sequence[Sequence[int]], axis: int
) -> NDArray[numpy.float32]:
    """Sum weights over the subwords of each word, along one axis.

    weights: an array with one entry for each subword along `axis`. The result has one entry for each word.
    groups: the positions of the subwords of each word, from grouped().
    """
    if not groups:
        return weights
    order = [place for group in groups for place in group]
    lengths = [len(group) for group in groups]
    starts = numpy.cumsum([0, *lengths[:-1]])
    return numpy.add.reduceat(weights.take(order, axis), starts, axis=axis)


def _decoded(match: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("<0x|>", "", match[0])).decode(errors="replace")
