"""Check the arguments of Translator: lines of text, and keyword arguments that have other names in Regard."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from regard.data.batch import UNK
from regard.decoding.long_lines import Tokenizer
from regard.errors import ArgumentError, UnknownKeyword, message


class Default(Enum):
    """The type of the constant DEFAULT, which means: use the value that the Translator was created with."""

    DEFAULT = "the value of the translator"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Final = Default.DEFAULT
"""The default of an argument of a Translator method: use the value that the translator was created with.

None cannot be the default, because it has another meaning: look=None records no attention.
"""

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
"""Maps the name of a search setting in other toolkits to what to write in Regard. {} stands for the value."""


def check_load_keywords(returned: type, keywords: Mapping[str, object]) -> None:
    """Raise UnknownKeyword if a keyword argument of load() is unknown.

    The known names are `checkpoint`, `device`, and the keyword-only arguments of the class `returned`.

    returned: the class that load() returns.
    keywords: the keyword arguments to check.
    """
    parameters = inspect.signature(returned).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    for name, value in keywords.items():
        if name not in (*known, "checkpoint", "device"):
            hint = search_hint(name, value)
            raise UnknownKeyword("argument of load()", name, [*known, "checkpoint", "device"], hint=hint)


def search_hint(name: str, value: object, where: str = "use {}") -> str:
    """Return what to write in Regard for a search setting of another toolkit; "" for any other name.

    where: the text of the hint. What SEARCH_KEYWORDS recommends replaces {}.

    >>> search_hint("num_beams", 4)
    'use search=Beam(size=4)'
    """
    return where.format(SEARCH_KEYWORDS[name].format(repr(value))) if name in SEARCH_KEYWORDS else ""


def both_single(call: str, first: object, second: object) -> bool:
    """Return True if both arguments are single lines (str), and False if neither is.

    Raise ArgumentError if only one of them is a single line.
    """
    single = [isinstance(argument, str) for argument in (first, second)]
    if single[0] != single[1]:
        problem = "one argument is a single line, the other is a list"
        raise ArgumentError(message(call, problem, expected="two lines, or two lists of lines"))
    return single[0]


def checked_lines(call: str, lines: Iterable[str], first: int = 0) -> list[str]:
    """Return the lines as a list of str with valid Unicode. Raise ArgumentError if a line is not a str.

    Surrogate pairs become one character, and lone surrogates become U+FFFD.

    first: the number of input lines before these lines, for line numbers in error messages.
    """
    if isinstance(lines, bytes | bytearray):
        hint = 'decode them: line.decode("utf-8")'
        raise ArgumentError(message(call, "the argument is bytes", expected="text (str)", hint=hint))
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


def encode_prefixes(
    tokenizer: Tokenizer, prefixes: Sequence[str], limits: Sequence[int], first: int
) -> list[tuple[int, ...]]:
    """Return the tokens of each prefix (the text that a translation must begin with).

    Raise ArgumentError if a prefix has unknown words or too many tokens.

    limits: the maximum numbers of tokens of a translation, for example one of the search and one of the
        model. A prefix must be shorter than each of them.
    first: the number of input lines before these lines, for line numbers in error messages.
    """
    encoded = [tuple(tokens) for tokens in tokenizer.encode_lines(prefixes)]
    for number, tokens in enumerate(encoded, first + 1):
        if UNK in tokens:
            problem = f"the prefix of line {number} has words outside the target vocabulary"
            hint = "use words of the training data"
            raise ArgumentError(message("translate()", problem, hint=hint))
        if limits and len(tokens) >= min(limits):
            problem = f"the prefix of line {number} has {len(tokens)} tokens"
            expected = f"fewer than {min(limits)}, the maximum length of a translation"
            raise ArgumentError(message("translate()", problem, expected=expected))
    return encoded
