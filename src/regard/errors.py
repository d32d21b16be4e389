"""The errors Regard raises, and the shape of their messages.

A message says which call failed, what is wrong, the shapes with their letters in aligned rows, what was
expected, and one hint. Nothing here imports the rest of the library.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from torch import Tensor

__all__ = [
    "ArgumentError",
    "BackendError",
    "DataError",
    "LookError",
    "RegardError",
    "UnknownName",
    "lettered",
    "message",
    "positive",
]


class RegardError(Exception):
    """Anything Regard refuses to do; catch this to catch them all.

    >>> issubclass(ArgumentError, RegardError) and issubclass(ArgumentError, ValueError)
    True
    """


class ArgumentError(RegardError, ValueError):
    """Arguments that do not fit each other: sizes, dtypes, devices, kinds.

    >>> import regard, torch
    >>> try:
    ...     regard.attention(torch.ones(2, 8), torch.ones(3, 4), torch.ones(3, 4))
    ... except ArgumentError as error:
    ...     print(error)
    attention(): query and key have different widths, and ScaledDot compares them as they are
      query  T=2 D=8  float32 cpu
      key    S=3 D=4  float32 cpu
      value  S=3 E=4  float32 cpu
    expected: D of query = D of key
    hint: General(query_size=8, key_size=4) learns to compare different widths
    """


class BackendError(RegardError, ValueError):
    """A backend or looking pass asked for by name that cannot run this call; it says why.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, select=regard.Sparse(), backend="blocked")
    ... except BackendError as error:
    ...     print(error)
    attention(): backend 'blocked' cannot run this call
      blocked: Sparse needs whole rows of scores; only Soft can be read block by block
    hint: backend="auto" takes 'reference' here
    """


class DataError(RegardError, ValueError):
    """Data that cannot be used as it is; the message says which file, which line, and what to do.

    >>> print(DataError(message("a.ko, line 3", "the source is empty", hint="give both sides, or drop it")))
    a.ko, line 3: the source is empty
    hint: give both sides, or drop it
    """


class LookError(RegardError, ValueError):
    """A look that this selection cannot give.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, select=regard.Gate(), look=regard.Look(entropy=True))
    ... except LookError as error:
    ...     print(error)
    attention(): Gate cannot give the look 'entropy'
    expected: one of alignment, mass, rows, top, weights
    hint: its weights do not sum to 1, so they have no entropy
    """


class UnknownName(RegardError, KeyError):
    """A name that is not in the table it was looked up in; the message lists the known ones.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, backend="spda")
    ... except UnknownName as error:
    ...     print(error)  # doctest: +ELLIPSIS
    unknown backend 'spda'; did you mean 'sdpa'?
    known: auto, blocked, ...
    """

    def __init__(self, kind: str, name: object, known: Iterable[str]):
        names = sorted(known)
        close = difflib.get_close_matches(str(name), names, n=1)
        guess = f"; did you mean '{close[0]}'?" if close else ""
        self.text = f"unknown {kind} {name!r}{guess}\nknown: {', '.join(names)}"
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text


def lettered(tensor: Tensor, letters: str) -> str:
    """The shape with a letter to each size, then dtype and device: "B=2 T=5 D=64  float32 cpu"."""
    letters = letters.rjust(tensor.dim(), "?")[-tensor.dim() :] if tensor.dim() else ""
    shape = " ".join(f"{letter}={size}" for letter, size in zip(letters, tensor.shape, strict=True))
    return f"{shape or 'a single number'}  {str(tensor.dtype).removeprefix('torch.')} {tensor.device}"


def message(
    call: str,
    problem: str,
    tensors: Mapping[str, tuple[Tensor, str]] | None = None,
    expected: str = "",
    hint: str = "",
) -> str:
    """Lay out one error: the call and the problem, the tensors in aligned rows, what was expected, a hint."""
    lines = [f"{call}: {problem}"]
    rows = {name: lettered(tensor, letters) for name, (tensor, letters) in (tensors or {}).items()}
    width = max([0, *map(len, rows)])
    shape_width = max([0, *(len(row.split("  ")[0]) for row in rows.values())])
    for name, row in rows.items():
        shape, kind = row.split("  ")
        lines.append(f"  {name.ljust(width)}  {shape.ljust(shape_width)}  {kind}")
    if expected:
        lines.append(f"expected: {expected}")
    if hint:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


def positive(call: str, dropout: float = 0.0, **sizes: object) -> None:
    """Refuse sizes that are not whole numbers of 1 or more, and a dropout that is no probability below 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(message(call, f"{name} is {size!r}", expected="a whole number, 1 or more"))
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ArgumentError(message(call, f"dropout is {dropout!r}", expected="0 <= dropout < 1"))
