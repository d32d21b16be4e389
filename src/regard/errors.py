"""The errors that Regard raises, and the layout of their messages.

A message contains the call that failed, the problem, the shapes of the tensors in aligned rows, what was
expected, and a hint. This module does not import the rest of the library.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:  # no import at run time: the command line prints its help without importing torch
    from torch import Tensor

__all__ = [
    "ArgumentError",
    "BackendError",
    "DataError",
    "LookError",
    "LostProcess",
    "Message",
    "RegardError",
    "RegardWarning",
    "Setting",
    "TORCH_KEYWORDS",
    "UnknownKeyword",
    "UnknownName",
    "answer_torch_keywords",
    "check_keywords",
    "lettered",
    "list_item",
    "message",
    "naming_place",
    "positive",
    "printable",
    "shell_word",
    "shown",
    "similar_path",
]

P = ParamSpec("P")
R = TypeVar("R")

TORCH_KEYWORDS = {
    "add_bias_kv": "nothing; append a learned key and value yourself",
    "add_zero_attn": "nothing; append a zero key and value yourself",
    "attn_mask": "mask=..., a bool tensor that is True where a query may see a key (in nn.MultiheadAttention "
    "True means the opposite: mask=~attn_mask); a float mask is added to the scores: bias=attn_mask",
    "average_attn_weights": "look=Look(weights=True), which returns the weights of each head, (B, H, T, S); "
    "their average is weights.mean(1)",
    "dropout_p": "dropout=...",
    "embed_dim": "width=...",
    "enable_gqa": "nothing; pass key and value with fewer heads than query (MultiHead: key_heads=...)",
    "is_causal": "mask=causal()",
    "kdim": "key_width=...",
    "key_padding_mask": "mask=padding(lengths), or mask=~key_padding_mask[:, None, None, :], "
    "which is True for the keys that are not padding",
    "need_weights": "look=Look(weights=True); the result then has the weights in its field `weights`",
    "num_heads": "heads=...",
    "scale": "score=Dot() and pass scale * query; the default score, ScaledDot(), divides by the square root "
    "of D",
    "vdim": "value_width=...",
}
"""For each keyword of nn.MultiheadAttention and scaled_dot_product_attention, what to write instead.

The text follows "instead of <keyword> write" in a hint."""

ATTENTION_KEYWORDS = {
    "num_heads": "nothing; the heads are dimension 1 of query, key and value, (B, H, T, D): "
    "query.unflatten(-1, (heads, -1)).transpose(1, 2)",
} | dict.fromkeys(("embed_dim", "kdim", "vdim"), "nothing; the widths are those of query, key and value")
"""For keywords of nn.MultiheadAttention, what to write instead in attention(), which has no parameters."""

INSIDE_TORCH = (
    "inside nn.TransformerEncoderLayer or nn.TransformerDecoderLayer, a MultiHead works only without masks"
)


@dataclass(frozen=True)
class Setting:
    """An argument or a setting of a run that the hint of an error message recommends.

    str(setting) returns the argument as Python code. Message.spelled() can write it in another form, such as
    a command-line option.

    owner: the class or function that has this argument, or the section of config.toml that has the setting.
        The options of a model, which are arguments of its class, have the owner "build_model".
    name: name of the argument or setting.
    value: the recommended value, or several values separated by commas; "" if the user must choose one. A
        dict sets several options.

    >>> print(Setting("Choices", "invalid", "replace"), Setting("read_pairs", "columns"))
    Choices(invalid="replace") columns=
    >>> print(Setting("read_pairs", "fields", "ko,en"))
    fields=("ko", "en")
    >>> str(Setting("build_model", "feeding", False)), str(Setting("training", "compile", False))
    ('feeding=False', 'training.compile=false')
    """

    owner: str
    name: str
    value: str | float | Mapping[str, str | float] = ""

    def __str__(self) -> str:
        if self.owner in ("data", "model", "training", "evaluation"):
            return f"{self.owner}.{self.name}={json.dumps(self.value) if self.value != '' else '...'}"
        value = str(self.value)
        if (self.owner, self.name) == ("read_labelled", "columns"):  # it has one argument for each column
            named = zip(("label", "text", "second"), value.split(","), strict=False)
            return ", ".join(f"{name}={each if each.isdecimal() else repr(each)}" for name, each in named)
        if value and isinstance(self.value, str):
            value = ", ".join(f'"{each}"' for each in self.value.split(","))
            value = f"({value})" if "," in value else value
        assignment = f"{self.name}={value}"
        return f"{self.owner}({assignment})" if self.owner[:1].isupper() else assignment


Hint = str | tuple[str | Setting, ...]
"""The hint of an error message: a text, or a sequence of texts and Settings."""


class Message(str):
    """The text of an error message, and its fields. message() returns it.

    call: where the problem is: the call, the option, or the file and line.
    problem: what is wrong.
    rows: one text per tensor, with its name, shape, dtype and device.
    expected: what is valid.
    hint: what the user can change.
    """

    call: str = ""
    problem: str = ""
    rows: tuple[str, ...] = ()
    expected: str = ""
    hint: Hint = ""

    def spelled(self, spell: Callable[[Setting], str | Setting]) -> Message:
        """Return the message with each Setting in its hint replaced by spell(setting).

        If spell() returns a Setting, spelled() can be called again, to replace it.

        >>> hint = ("use ", Setting("Choices", "invalid", "skip"))
        >>> text = message("a.ko, line 3", "not valid UTF-8", hint=hint)
        >>> print(text.spelled(lambda setting: f"--choose {setting.name}={setting.value}"))
        a.ko, line 3: not valid UTF-8
        hint: use --choose invalid=skip
        """
        parts = (self.hint,) if isinstance(self.hint, str) else self.hint
        spelled = [part if isinstance(part, str) else spell(part) for part in parts]
        texts = [part for part in spelled if isinstance(part, str)]
        hint = "".join(texts) if len(texts) == len(spelled) else tuple(spelled)
        return _formatted(self.call, self.problem, self.rows, self.expected, hint)


class RegardError(Exception):
    """Base class of the errors that Regard raises.

    >>> issubclass(ArgumentError, RegardError) and issubclass(ArgumentError, ValueError)
    True
    >>> ArgumentError(message("window()", "size is 0", expected="at least 1")).message.problem
    'size is 0'
    """

    @property
    def message(self) -> Message:
        """The error message with its fields. If the error was raised with a str, only `problem` is set."""
        text = self.args[0] if self.args else ""
        return text if isinstance(text, Message) else _formatted("", str(self))


class ArgumentError(RegardError, ValueError):
    """Invalid arguments, or shapes, dtypes or devices that do not match.

    >>> import regard, torch
    >>> try:
    ...     regard.attention(torch.ones(2, 8), torch.ones(3, 4), torch.ones(3, 4))
    ... except ArgumentError as error:
    ...     print(error)
    attention(): query and key have different widths, but ScaledDot needs the same width
      query  T=2 D=8  float32 cpu
      key    S=3 D=4  float32 cpu
      value  S=3 E=4  float32 cpu
    expected: D of query = D of key
    hint: use General(query_size=8, key_size=4) for different widths
    """


class BackendError(RegardError, ValueError):
    """The requested backend cannot run this call; the message lists the reasons.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, select=regard.Best(), backend="blocked")
    ... except BackendError as error:
    ...     print(error)
    attention(): backend 'blocked' cannot run this call
      blocked: computes Soft and Sparse only, block by block, not Best
    hint: backend="auto" selects 'reference' here
    """


class DataError(RegardError, ValueError):
    """Invalid data; the message names the file and the line, and says what to do.

    >>> print(DataError(message("a.ko, line 3", "the source is empty", hint="add the sentence or delete it")))
    a.ko, line 3: the source is empty
    hint: add the sentence or delete it
    """


class LookError(RegardError, ValueError):
    """An invalid Look, or a field of Look that is not available for this selection.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, select=regard.Gate(), look=regard.Look(entropy=True))
    ... except LookError as error:
    ...     print(error)
    attention(): Look(entropy=...) is not available with Gate
    expected: one of alignment, mass, pooled, rows, top, weights
    hint: request another field: the weights do not sum to 1, so they have no entropy
    """


class LostProcess(RegardError):
    """Exception: in distributed training, another process has ended.

    >>> issubclass(LostProcess, RegardError)
    True
    """


class RegardWarning(UserWarning):
    """A probable mistake that is not an error, such as a record() that recorded nothing.

    >>> import regard, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     with regard.record():
    ...         pass  # no attention() call
    >>> issubclass(caught[0].category, RegardWarning)
    True
    """


class UnknownName(RegardError, KeyError):
    """An unknown name; the message lists the known names and suggests the most similar one.

    >>> import regard, torch
    >>> x = torch.ones(2, 3, 4)
    >>> try:
    ...     regard.attention(x, x, x, backend="spda")
    ... except UnknownName as error:
    ...     print(error)  # doctest: +ELLIPSIS
    unknown backend 'spda'; did you mean 'sdpa'?
    known: auto, blocked, ...
    """

    def __init__(
        self,
        kind: str,
        name: object,
        known: Iterable[str],
        *,
        guess: str = "",
        hint: str = "",
        answer: str = "",
    ):
        """Build the message.

        kind: what the name stands for, such as "backend".
        known: the valid names.
        guess: the name to suggest. Default: the most similar known name, and names that begin with `name`.
        hint: a hint, which becomes the last line of the message.
        answer: a sentence that says what to use. It replaces the suggestion and the list of known names.
        """
        names = sorted(known)
        close = [guess] if guess else difflib.get_close_matches(str(name), names, n=1)
        if len(str(name)) > 2 and not guess:
            close = list(dict.fromkeys([*close, *(each for each in names if each.startswith(str(name)))]))[:3]
        suggestion = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        last_line = f"\nhint: {hint}" if hint else ""
        rest = f"; {answer}" if answer else f"{suggestion}\nknown: {', '.join(map(list_item, names))}"
        self.name = name
        self.text = f"unknown {kind} {name!r}{rest}{last_line}"
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text


class UnknownKeyword(UnknownName, TypeError):
    """An unknown keyword argument. It is also a TypeError, as for any other Python function.

    >>> import regard, torch
    >>> try:
    ...     regard.attention(torch.eye(2), torch.eye(2), msk=None)
    ... except UnknownKeyword as error:
    ...     print(error)  # doctest: +ELLIPSIS
    unknown argument of attention() 'msk'; did you mean 'mask'?
    known: ...
    """


def lettered(tensor: Tensor, letters: str) -> str:
    """Format shape, dtype and device of a tensor: "B=2 T=5 D=64  float32 cpu".

    letters: one letter per dimension; the last letter names the last dimension. If there are fewer letters
    than dimensions, the first dimensions are named "?".
    """
    letters = letters.rjust(tensor.dim(), "?")[-tensor.dim() :] if tensor.dim() else ""
    shape = " ".join(f"{letter}={size}" for letter, size in zip(letters, tensor.shape, strict=True))
    return f"{shape or 'a single number'}  {str(tensor.dtype).removeprefix('torch.')} {tensor.device}"


def message(
    call: str,
    problem: str,
    tensors: Mapping[str, tuple[Tensor, str]] | None = None,
    expected: str = "",
    hint: Hint = "",
) -> Message:
    """Format an error message: call and problem, the tensors in aligned rows, what was expected, a hint.

    tensors: for each name, the tensor and the letters of its dimensions (see lettered()).
    hint: a text, or a sequence of texts and Settings; the settings are written as Python code.
    """
    table = []
    rows = {name: lettered(tensor, letters) for name, (tensor, letters) in (tensors or {}).items()}
    width = max([0, *map(len, rows)])
    shape_width = max([0, *(len(row.split("  ")[0]) for row in rows.values())])
    for name, row in rows.items():
        shape, kind = row.split("  ")
        # For example: "  query  T=2 D=8  float32 cpu"
        table.append(f"  {name.ljust(width)}  {shape.ljust(shape_width)}  {kind}")
    return _formatted(call, problem, tuple(table), expected, hint)


def _formatted(
    call: str, problem: str, rows: tuple[str, ...] = (), expected: str = "", hint: Hint = ""
) -> Message:
    lines = [f"{call}: {problem}" if call else problem, *rows]
    if expected:
        lines.append(f"expected: {expected}")
    if hint:
        lines.append(f"hint: {hint if isinstance(hint, str) else ''.join(map(str, hint))}")
    text = Message("\n".join(lines))
    text.call, text.problem, text.rows, text.expected, text.hint = call, problem, rows, expected, hint
    return text


def printable(text: str, kept: str = "") -> str:
    """Replace control characters by U+FFFD, so that a terminal does not interpret them.

    kept: control characters that are not replaced.

    >>> printable("red: \\x1b[31m")
    'red: �[31m'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else "�" for c in text)


def list_item(name: str) -> str:
    """Return a name as an item of a list with commas: printable, and in quotes if it has a comma itself.

    >>> list_item("good"), list_item("good, but long")
    ('good', '"good, but long"')
    """
    name = printable(name)
    return f'"{name}"' if "," in name else name


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as text, with control characters and invalid UTF-8 replaced."""
    return printable(os.fsencode(path).decode("utf-8", "replace"))


def similar_path(path: str | os.PathLike[str], *, folder: bool = False) -> str:
    """Return a hint for a missing path: the file, or the folder, with a similar name; "" if there is none.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = pathlib.Path(place, "문장.csv").touch()
    ...     similar_path(pathlib.Path(place, "문장csv")).removeprefix(f"did you mean {place}/")
    '문장.csv?'
    """
    close = _similar(os.path.normpath(path), folder)
    return f"did you mean {shown(close)}?" if close else ""


def _similar(path: str, folder: bool) -> str:
    """Return the path of a file, or a folder, with a similar name, maybe in a folder with a similar name."""
    parent, name = os.path.split(path)
    if parent and parent != path and not os.path.isdir(parent):
        parent = _similar(parent, True)
        if not parent:
            return ""
    try:
        with os.scandir(parent or os.curdir) as entries:
            names = [each.name for each in entries if (each.is_dir() if folder else each.is_file())]
    except (OSError, ValueError):
        return ""
    close = difflib.get_close_matches(name, names, n=1)
    return os.path.join(parent, close[0]) if close else ""


def shell_word(path: str | os.PathLike[str]) -> str:
    """Return a path for a shell command, in quotes if it has spaces or other special characters.

    >>> shell_word("runs/x"), shell_word("my runs/x")
    ('runs/x', "'my runs/x'")
    """
    return shlex.quote(shown(path))


@contextmanager
def naming_place(place: str) -> Iterator[None]:
    """Context manager: in the text of an ArgumentError, replace the name of the call by `place`.

    `place` is a name that the user knows better.

    In this example, `place` is the section of a configuration file that sets the width.

    >>> with naming_place("[model]"):
    ...     positive("Model()", width=0)
    Traceback (most recent call last):
    regard.errors.ArgumentError: [model]: width is 0
    expected: an integer, 1 or more
    """
    try:
        yield
    except ArgumentError as error:
        text = error.message
        if isinstance(error, UnknownName) or not text.call:
            raise
        renamed = _formatted(place, text.problem, text.rows, text.expected, text.hint)
        raise ArgumentError(renamed) from None


def positive(call: str, dropout: float = 0.0, **sizes: object) -> None:
    """Raise ArgumentError unless all sizes are integers >= 1 and 0 <= dropout < 1.

    call: name of the checked call in the error message, such as "MultiHead()".
    sizes: the numbers to check, by the name of the argument, as in width=8, heads=2.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | Integral) or size < 1:
            raise ArgumentError(message(call, f"{name} is {size!r}", expected="an integer, 1 or more"))
    if isinstance(dropout, bool) or not isinstance(dropout, int | float | Real) or not 0 <= dropout < 1:
        raise ArgumentError(message(call, f"dropout is {dropout!r}", expected="0 <= dropout < 1"))


def answer_torch_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: if a keyword of torch is passed, raise an ArgumentError that says what to write instead.

    A torch keyword that has no effect, such as attn_mask=None or need_weights=False, is ignored, because
    nn.TransformerEncoderLayer passes such keywords to its attention layer. Any other unknown keyword raises
    UnknownKeyword.

    >>> import regard
    >>> try:
    ...     regard.MultiHead(embed_dim=8, num_heads=2)
    ... except ArgumentError as error:
    ...     print(error)
    MultiHead(): embed_dim, num_heads are keywords of torch
    hint: instead of embed_dim write width=...
    hint: instead of num_heads write heads=...
    """
    call, known = f"{_name(function)}()", _parameters(function)

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for keyword in keywords:
            if keyword not in known if known else keyword in TORCH_KEYWORDS:
                return function(*args, **_without_torch_keywords(call, keywords, known))  # type: ignore
        return function(*args, **keywords)

    # functools.wraps does not copy __kwdefaults__, from which the documentation builds its table of defaults.
    checked.__kwdefaults__ = getattr(function, "__kwdefaults__", None)  # type: ignore[attr-defined]
    return checked


def check_keywords(function: Callable[P, R], hint: str | Callable[[str, object], str] = "") -> Callable[P, R]:
    """Decorator: raise UnknownKeyword, with a suggestion, if an unknown keyword is passed.

    hint: the hint of the error, or a function that returns it for the keyword and its value.
    """
    call, known = f"{_name(function)}()", _parameters(function)

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for keyword in keywords:
            if keyword not in known:
                text = hint if isinstance(hint, str) else hint(keyword, keywords[keyword])
                raise UnknownKeyword(f"argument of {call}", keyword, known, hint=text)
        return function(*args, **keywords)

    checked.__kwdefaults__ = getattr(function, "__kwdefaults__", None)  # type: ignore[attr-defined]
    return checked


def _name(function: Callable[..., object]) -> str:
    return function.__qualname__.removesuffix(".__init__").removesuffix(".forward")


def _parameters(function: Callable[..., object]) -> dict[str, None]:
    """Return the names of the keyword arguments of a function; empty if it takes any keyword (**options)."""
    code = inspect.unwrap(function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {} if code.co_flags & inspect.CO_VARKEYWORDS else dict.fromkeys(n for n in names if n != "self")


def _without_torch_keywords(
    call: str, keywords: Mapping[str, object], known: Iterable[str]
) -> dict[str, object]:
    """Remove the keywords of torch. Raise ArgumentError if a keyword of torch has an effect.

    known: the keywords of the call. Any other keyword raises UnknownKeyword. Empty: any keyword is allowed.
    """
    torch_keywords = {name: value for name, value in keywords.items() if name in TORCH_KEYWORDS}
    if any(_requests(name, value) for name, value in torch_keywords.items()):
        raise _torch_keywords(call, torch_keywords)
    for name in keywords:
        if known and name not in (*known, *torch_keywords):
            raise UnknownKeyword(f"argument of {call}", name, known)
    return {name: value for name, value in keywords.items() if name not in TORCH_KEYWORDS}


def _requests(name: str, value: object) -> bool:
    """Whether a torch keyword has an effect: it has none if its value is None or False.

    Exception: average_attn_weights has no effect if its value is None or True, because True is torch's
    default.
    """
    return value is not None and value is not (name == "average_attn_weights")


def _torch_keywords(call: str, keywords: Mapping[str, object]) -> ArgumentError:
    names = [name for name, value in keywords.items() if _requests(name, value)]
    are = "is a keyword" if len(names) == 1 else "are keywords"
    answers = TORCH_KEYWORDS | (ATTENTION_KEYWORDS if call in ("attention()", "explain()") else {})
    hints = [f"hint: instead of {keyword} write {answers[keyword]}" for keyword in names]
    if call == "MultiHead()" and not {"attn_mask", "key_padding_mask", "is_causal"}.isdisjoint(names):
        hints.append(f"hint: {INSIDE_TORCH}")
    return ArgumentError("\n".join((f"{call}: {', '.join(names)} {are} of torch", *hints)))
