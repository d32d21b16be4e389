"""Convert weights to NumPy arrays and check them before they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message

HINTS = {
    ("HTS", True): "select one sentence of the batch: weights[sentence]",
    ("HTS", False): "draw one query with bars(), or pass weights[None]",
    ("TS", True): "select one head: weights[head]; or average the heads: weights.mean(0)",
    ("TS", False): "draw one query with bars(), or pass weights[None]",
    ("S", True): "select one query: weights[query]; or draw all queries with draw()",
    ("S", False): "pass a single weight as [weight]",
}
"""The hint of the error message for weights of the wrong shape.

A key of this dict is a pair. The first part is the expected shape, such as "HTS": H heads, T queries, S keys.
The second part is True if the array of the user has two or more dimensions."""


def checked_weights(
    call: str, weights: Any, letters: str, most: float | None
) -> tuple[NDArray[numpy.float64], float]:
    """Return the weights as a float64 array, and the weight at the top of the colour scale.

    call: the name of the public function, for error messages.
    weights: an array, a tensor or lists.
    letters: the expected dimensions, for example "HTS" for an array of shape (H, T, S).
    most: the weight at the top of the colour scale. None: the largest weight.

    Raises ArgumentError if the number of dimensions differs from `letters`, or if a weight is negative or
    infinite. NaN is allowed.
    """
    if weights is None or hasattr(weights, "weights"):
        problem = (
            "weights is None: they were not recorded"
            if weights is None
            else "got a whole attention result, not its weights"
        )
        hint = "record them: seen = attention(..., look=Look(weights=True)), then pass seen.weights"
        raise ArgumentError(message(call, problem, expected=f"weights, ({', '.join(letters)})", hint=hint))
    if hasattr(weights, "dense"):
        hint = "draw a mask as an array: mask.dense(queries, keys)[0, 0]"
        raise ArgumentError(
            message(call, "got a mask, not weights", expected=f"weights, ({', '.join(letters)})", hint=hint)
        )
    try:
        array = numpy.asarray(as_numpy(weights), dtype=numpy.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        problem = f"weights are not an array of real numbers: {error}"
        raise ArgumentError(message(call, problem, expected=f"numbers, ({', '.join(letters)})")) from None
    if array.ndim != len(letters):
        problem = f"weights have shape {tuple(array.shape)}"
        expected = f"({', '.join(letters)})"
        hint = HINTS.get((letters, array.ndim > 1), "")
        if letters == "TS" and array.ndim == 4:
            hint = "select one sentence of the batch and one head: weights[sentence, head]"
        raise ArgumentError(message(call, problem, expected=expected, hint=hint))
    if (array < -1e-6).any() or numpy.isinf(array).any():
        problem = f"weights range from {numpy.nanmin(array):g} to {numpy.nanmax(array):g}"
        hint = "pass weights instead of scores: attention(..., look=Look(weights=True)).weights"
        raise ArgumentError(message(call, problem, expected="finite numbers >= 0", hint=hint))
    if most is not None and not most > 0:
        raise ArgumentError(message(call, f"most is {most}", expected="a number greater than 0"))
    numbers = array[~numpy.isnan(array)]
    return array, float(most or numbers.max(initial=0.0) or 1.0)


def as_numpy(array: Any) -> NDArray[Any]:
    """Return a tensor, an array or lists as a NumPy array. Half precision becomes float32."""
    if not hasattr(array, "detach"):  # a tensor is recognised by its methods, so that torch is not imported
        return numpy.asarray(array)
    tensor = array.detach().cpu()
    halves = tensor.is_floating_point() and tensor.element_size() < 4
    return numpy.asarray((tensor.float() if halves else tensor).numpy())


def checked_matrix(
    call: str, weights: Any, rows: Sequence[object], columns: Sequence[object], most: float | None = None
) -> tuple[NDArray[numpy.float64], float]:
    """Return weights (T, S) and the top of the colour scale, as checked_weights(), and check their words."""
    array, top = checked_weights(call, weights, "TS", most)
    check_words(call, "rows", rows, array, axis=0)
    check_words(call, "columns", columns, array, axis=1)
    return array, top


def check_words(call: str, name: str, words: Sequence[object], weights: NDArray[Any], axis: int) -> None:
    """Raise ArgumentError if the number of words is not the number of rows (axis 0) or columns (axis 1).

    call: for error messages: the public function that the user called, for example "matrix()".
    name: for error messages: the argument of this function with the words, for example "rows".
    weights: (T, S), or (S,) for one row of weights.
    """
    letters, size = "TS"[-weights.ndim :], weights.shape[axis]
    if not isinstance(words, str) and len(words) == size:
        return
    received = f"one string, {words!r}" if isinstance(words, str) else f"{len(words)} words"
    sizes = " ".join(f"{letter}={count}" for letter, count in zip(letters, weights.shape, strict=True))
    problem = f"{name} do not match the weights\n  {'weights':7}  {sizes}\n  {name:7}  {received}"
    raise ArgumentError(message(call, problem, expected=f"a list of {letters[axis]} = {size} words"))
