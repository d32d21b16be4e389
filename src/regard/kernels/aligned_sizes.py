"""Tell Triton that sizes and strides are multiples of 8 or 4, so that kernels load 16 or 8 bytes at once."""

from __future__ import annotations

__all__ = ["units"]


def units(sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes divided by 8, 4 or 1, and then this number: the largest that divides all of them.

    The kernel multiplies the sizes by the last number, a compile-time argument. The compiler then knows that
    rows begin at a multiple of 16 bytes, for example. It does not know it for a size such as 1,000, because
    it tests only whether an argument is a multiple of 16.

    >>> units((1000, 24)), units((1000, 620)), units((1000, 7))
    ([125, 3, 8], [250, 155, 4], [1000, 7, 1])
    """
    unit = next(each for each in (8, 4, 1) if not any(size % each for size in sizes))
    return [*(size // unit for size in sizes), unit]
