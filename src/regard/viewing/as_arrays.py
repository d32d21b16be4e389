"""Arrays in: weights from whatever holds numbers, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message

__all__ = ["check_words", "checked_weights"]

HINTS = {
    ("HTS", True): "one sentence of a batch: weights[sentence]",
    ("HTS", False): "one query is drawn by bars(), or as weights[None]",
    ("TS", True): "one head: weights[head]; all heads together: weights.mean(0)",
    ("TS", False): "one query is drawn by bars(), or as weights[None]",
    ("S", True): "one query of many: weights[query]; all of them: draw()",
    ("S", False): "one query: weights[None]",
}
"""What to give instead, by the sizes that were asked for and whether what was given has at least two."""


def checked_weights(
    call: str, weights: Any, letters: str, most: float | None
) -> tuple[NDArray[numpy.float64], float]:
    """The weights as numbers, of as many sizes as there are letters, and `most` or the largest of them."""
    if weights is None or hasattr(weights, "weights"):
        problem = (
            "weights are None: nobody asked to see them" if weights is None else "this is a whole result"
        )
        hint = "seen = attention(..., look=Look(weights=True)), then seen.weights"
        raise ArgumentError(message(call, problem, expected=f"weights, ({', '.join(letters)})", hint=hint))
    if hasattr(weights, "dense"):
        hint = "mask.dense(queries, keys)[0, 0] is its table"
        raise ArgumentError(
            message(call, "this is a mask", expected=f"weights, ({', '.join(letters)})", hint=hint)
        )
    try:
        # A tensor is known by what it can do: torch is not needed to draw.
        given = weights.detach().cpu().double().numpy() if hasattr(weights, "detach") else weights
        array = numpy.asarray(given, dtype=numpy.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        problem = f"weights are not an array of real numbers: {error}"
        raise ArgumentError(message(call, problem, expected=f"numbers, ({', '.join(letters)})")) from None
    if array.ndim != len(letters):
        problem = f"weights have the sizes {tuple(array.shape)}"
        expected = f"({', '.join(letters)})"
        hint = HINTS[letters, array.ndim > 1]
        raise ArgumentError(message(call, problem, expected=expected, hint=hint))
    if (array < -1e-6).any() or numpy.isinf(array).any():
        problem = f"weights go from {numpy.nanmin(array):g} to {numpy.nanmax(array):g}"
        hint = "scores become weights in attention(..., look=Look(weights=True))"
        raise ArgumentError(message(call, problem, expected="finite numbers, 0 or more", hint=hint))
    if most is not None and not most > 0:
        raise ArgumentError(message(call, f"most is {most}", expected="more than 0"))
    known = array[~numpy.isnan(array)]
    return array, float(most or known.max(initial=0.0) or 1.0)


def check_words(call: str, name: str, words: Sequence[object], weights: NDArray[Any], axis: int) -> None:
    """Raise where there is not one word for each row or column of the weights."""
    letters, size = "TS"[-weights.ndim :], weights.shape[axis]
    if not isinstance(words, str) and len(words) == size:
        return
    held = f"the text {words!r}" if isinstance(words, str) else f"{len(words)} words"
    sizes = " ".join(f"{letter}={count}" for letter, count in zip(letters, weights.shape, strict=True))
    problem = f"{name} and weights do not fit\n  {'weights':7}  {sizes}\n  {name:7}  {held}"
    raise ArgumentError(message(call, problem, expected=f"a list of {letters[axis]} = {size} words"))
