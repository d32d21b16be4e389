"""Words of pieces: which pieces belong together, and what they spell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

__all__ = ["SHOWN_SPACE", "SPACE", "grouped", "joined", "spelled", "spelled_or_space"]

SPACE = "\u2581"
"""What stands for a space inside a piece, as in sentencepiece."""

SHOWN_SPACE = "\u2423"
"""How a space is shown where it is a unit of its own: ␣."""

_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")
"""How sentencepiece shows bytes, of which characters are made that have no piece."""


def grouped(numbers: Sequence[int]) -> list[list[int]]:
    """The places of the pieces of each word, in the order in which words begin; -1 is of no word, and alone.

    >>> grouped([0, 0, 1, -1, -1])
    [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    begun: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        if number >= 0 and number in begun:
            begun[number].append(place)
            continue
        groups.append([place])
        if number >= 0:
            begun[number] = groups[-1]
    return groups


def spelled(pieces: Iterable[str]) -> str:
    """What pieces of one word spell, without the mark for the space before it, their bytes made characters.

    >>> spelled(["▁고", "양", "<0xEC>", "<0x9D>", "<0xB4>"])
    '고양이'
    """
    return _BYTES.sub(_decoded, "".join(pieces)).replace(SPACE, " ").strip()


def spelled_or_space(pieces: Sequence[str]) -> str:
    """What pieces of one word spell; ␣ for a space by itself; what spells nothing else, as it is.

    >>> spelled_or_space(["▁a", "t"]), spelled_or_space(["▁"])
    ('at', '␣')
    """
    return spelled(pieces) or "".join(pieces).replace(SPACE, SHOWN_SPACE)


def joined(
    weights: NDArray[numpy.float32], groups: Sequence[Sequence[int]], axis: int
) -> NDArray[numpy.float32]:
    """Weights summed over the pieces of each word, along one axis."""
    if not groups:
        return weights
    order = [place for group in groups for place in group]
    lengths = [len(group) for group in groups]
    starts = numpy.cumsum([0, *lengths[:-1]])
    return numpy.add.reduceat(weights.take(order, axis), starts, axis=axis)


def _decoded(found: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("<0x|>", "", found[0])).decode(errors="replace")
