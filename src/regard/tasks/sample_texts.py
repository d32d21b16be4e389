"""spread_by_length(): choose the validation texts that are printed after each evaluation."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["spread_by_length"]


def spread_by_length(texts: Sequence[str], count: int) -> list[int]:
    """Return the indices of `count` texts of different lengths, from short to long. The choice is not random.

    The texts are sorted by length and divided into `count` equal parts. The middle text of each part is
    chosen. So unusually short and long texts are left out. Here, texts of 2, 4 and 6 characters are chosen:

    >>> spread_by_length(["aaa", "aaaaa", "a", "aaaaaa", "aa", "aaaa"], 3)
    [4, 5, 3]
    """
    count = min(count, len(texts))
    order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), place))
    return [order[(2 * part + 1) * len(texts) // (2 * count)] for part in range(count)]
