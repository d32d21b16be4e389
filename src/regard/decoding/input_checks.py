"""Check the arguments of Translator: lines of text, and keyword arguments that other toolkits use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["SEARCH_KEYWORDS", "answer_keywords", "both_single", "check_keywords", "checked_lines"]

P = ParamSpec("P")
R = TypeVar("R")

SEARCH_KEYWORDS = {
    **dict.fromkeys(("beam", "beams", "beam_size", "num_beams"), "search=Beam(size={})"),
    **dict.fromkeys(("best", "n_best", "nbest", "num_return_sequences"), "search=Beam(best={})"),
    **dict.fromkeys(
        ("max_len", "max_length", "max_new_tokens", "maximum"), "search=Beam(rules=Rules(maximum={}))"
    ),
    **dict.fromkeys(("no_repeat_ngram_size", "repeat"), "search=Beam(rules=Rules(repeat={}))"),
    "length_penalty": "search=Beam(length=Average(alpha={}))",
    "temperature": "search=Sample(temperature={})",
    "top_k": "search=Sample(top_k={})",
    "top_p": "search=Sample(top_p={})",
    "do_sample": "search=Sample()",
    "batch_size": "tokens_per_batch=..., in tokens, not sentences",
}
"""What to write for search settings under the names of other toolkits; {} is the value."""


def check_keywords(
    call: str, keywords: Mapping[str, object], known: Iterable[str], where: str = "use {}"
) -> None:
    """Raise UnknownName for a keyword that is not known; the message lists the known ones.

    where: how the hint for a search setting is worded; {} is replaced by the setting.

    >>> check_keywords("load()", {"num_beams": 4}, ["device", "search"])
    Traceback (most recent call last):
    regard.errors.UnknownName: unknown keyword argument of load(): 'num_beams'
    known: device, search
    hint: use search=Beam(size=4)
    """
    names = list(known)
    for name, value in keywords.items():
        if name not in names:
            setting = SEARCH_KEYWORDS.get(name, "").format(repr(value))
            hint = where.format(setting) if setting else ""
            raise UnknownName(f"keyword argument of {call}:", name, names, hint=hint)


def answer_keywords(call: str, where: str = "use {}") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to raise UnknownName, with the known keywords, instead of Python's TypeError."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            check_keywords(call, keywords, known, where)
            return function(*args, **keywords)

        # functools.wraps does not copy them, and docs/ makes its table of defaults from them.
        checked.__kwdefaults__ = getattr(function, "__kwdefaults__", None)  # type: ignore[attr-defined]
        return checked

    return decorate


def both_single(call: str, first: object, second: object) -> bool:
    """Return whether both arguments are a single line (a str); raise ArgumentError if only one is."""
    single = [isinstance(argument, str) for argument in (first, second)]
    if single[0] != single[1]:
        problem = "one argument is a single line, the other is a list"
        raise ArgumentError(message(call, problem, expected="two lines, or two lists of lines"))
    return single[0]


def checked_lines(call: str, lines: Iterable[str], first: int = 0) -> list[str]:
    """Return the lines as a list of valid Unicode text: surrogate pairs are joined, lone ones replaced.

    first: index of the first line in the data, for error messages.
    """
    if not isinstance(lines, Iterable):
        problem = f"the argument is of type {type(lines).__name__}"
        raise ArgumentError(message(call, problem, expected="a line, or a list of lines"))
    checked = []
    for number, line in enumerate(lines, first + 1):
        if not isinstance(line, str):
            problem = f"line {number} is of type {type(line).__name__}"
            raise ArgumentError(message(call, problem, expected="text (str)"))
        checked.append(line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    return checked
