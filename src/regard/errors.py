"""The errors Regard raises, and the shape of their messages.

A message says which call failed, what is wrong, the shapes with their letters in aligned rows, what was
expected, and one hint. Nothing here imports the rest of the library.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:  # the command line prints its help without torch
    from torch import Tensor

__all__ = [
    "ArgumentError",
    "BackendError",
    "DataError",
    "LookError",
    "RegardError",
    "RegardWarning",
    "TORCH_KEYWORDS",
    "UnknownName",
    "answer_torch_keywords",
    "install_command",
    "lettered",
    "message",
    "positive",
    "printable",
    "shown",
]

P = ParamSpec("P")
R = TypeVar("R")

TORCH_KEYWORDS = {
    "add_bias_kv": "nothing: append a learned key and value yourself",
    "add_zero_attn": "nothing: append a zero key and value yourself",
    "attn_mask": "mask=..., a bool tensor that is True where a query may see a key (nn.MultiheadAttention "
    "means the opposite: mask=~attn_mask); a float mask is added to the scores: bias=attn_mask",
    "average_attn_weights": "look=Look(weights=True) gives the weights of each head, (B, H, T, S); "
    "their average is weights.mean(1)",
    "dropout_p": "dropout=...",
    "embed_dim": "width=...",
    "enable_gqa": "nothing: give key and value fewer heads than query (MultiHead: key_heads=...)",
    "is_causal": "mask=causal()",
    "kdim": "key_width=...",
    "key_padding_mask": "mask=padding(lengths), or mask=~key_padding_mask[:, None, None, :], "
    "True for the keys that are not padding",
    "need_weights": "look=Look(weights=True); the result has the field weights",
    "num_heads": "heads=...",
    "scale": "score=Dot() and scale * query; ScaledDot(), the default, divides by the square root of D",
    "vdim": "value_width=...",
}
"""What to write for the keywords of nn.MultiheadAttention and scaled_dot_product_attention."""

INSIDE_TORCH = (
    "inside nn.TransformerEncoderLayer or nn.TransformerDecoderLayer, a MultiHead works without masks only"
)


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


class RegardWarning(UserWarning):
    """Something ran that probably does not do what was wanted, such as a record() that recorded nothing.

    >>> import regard, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     with regard.record():
    ...         pass  # no attention here
    >>> issubclass(caught[0].category, RegardWarning)
    True
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

    def __init__(self, kind: str, name: object, known: Iterable[str], *, guess: str = "", hint: str = ""):
        """guess: the name that was probably meant. Default: the most similar known name."""
        names = sorted(known)
        close = [guess] if guess else difflib.get_close_matches(str(name), names, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        self.text = f"unknown {kind} {name!r}{meant}\nknown: {', '.join(names)}" + f"\nhint: {hint}" * bool(
            hint
        )
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


def install_command(extra: str) -> str:
    """The command that installs an extra, in a clone of the repository: Regard is on no package index.

    >>> install_command("view")
    'pip install ".[view]"'
    """
    return f'pip install ".[{extra}]"'


def printable(text: str, kept: str = "") -> str:
    """Replace every character that a terminal would interpret; kept: characters to leave as they are.

    >>> printable("red: \\x1b[31m")
    'red: �[31m'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else "�" for c in text)


def shown(path: str | os.PathLike[str]) -> str:
    """A path as text that can always be printed."""
    return printable(os.fsencode(path).decode("utf-8", "replace"))


def positive(call: str, dropout: float = 0.0, **sizes: object) -> None:
    """Refuse sizes that are not whole numbers of 1 or more, and a dropout that is no probability below 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | Integral) or size < 1:
            raise ArgumentError(message(call, f"{name} is {size!r}", expected="a whole number, 1 or more"))
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ArgumentError(message(call, f"dropout is {dropout!r}", expected="0 <= dropout < 1"))


def answer_torch_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise an ArgumentError for torch's keywords that names ours.

    A torch keyword with its default, such as attn_mask=None or need_weights=False, is ignored:
    nn.TransformerEncoderLayer passes those to its attention. Any other unexpected keyword gives Python's own
    TypeError.

    >>> import regard
    >>> try:
    ...     regard.MultiHead(embed_dim=8, num_heads=2)
    ... except ArgumentError as error:
    ...     print(error)
    MultiHead(): embed_dim, num_heads are keywords of torch
    hint: instead of embed_dim write width=...
    hint: instead of num_heads write heads=...
    """
    name = function.__qualname__.removesuffix(".__init__").removesuffix(".forward")

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for keyword in keywords:
            if keyword in TORCH_KEYWORDS:
                return function(*args, **_without_torch_keywords(f"{name}()", keywords))  # type: ignore
        return function(*args, **keywords)

    # functools.wraps does not copy them, and docs/ makes its table of defaults from them.
    checked.__kwdefaults__ = getattr(function, "__kwdefaults__", None)  # type: ignore[attr-defined]
    return checked


def _without_torch_keywords(call: str, keywords: Mapping[str, object]) -> dict[str, object]:
    """The keywords without torch's; raises if one of those has a value that requests something."""
    torch_keywords = {name: value for name, value in keywords.items() if name in TORCH_KEYWORDS}
    if any(_requests(name, value) for name, value in torch_keywords.items()):
        raise _torch_keywords(call, torch_keywords)
    return {name: value for name, value in keywords.items() if name not in TORCH_KEYWORDS}


def _requests(name: str, value: object) -> bool:
    """Whether a torch keyword has another value than torch's default."""
    return value is not None and value is not (name == "average_attn_weights")


def _torch_keywords(call: str, keywords: Mapping[str, object]) -> ArgumentError:
    found = [name for name, value in keywords.items() if _requests(name, value)]
    are = "is a keyword" if len(found) == 1 else "are keywords"
    hints = [f"hint: instead of {keyword} write {TORCH_KEYWORDS[keyword]}" for keyword in found]
    if call == "MultiHead()" and not {"attn_mask", "key_padding_mask", "is_causal"}.isdisjoint(found):
        hints.append(f"hint: {INSIDE_TORCH}")
    return ArgumentError("\n".join((f"{call}: {', '.join(found)} {are} of torch", *hints)))
