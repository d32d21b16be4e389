"""Check the arguments of Translator: lines of text, and keyword arguments that have other names in Regard.

Lines that are longer than the maximum input length of a model are divided or truncated here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from regard.data.batch import UNK
from regard.decoding.word_alignment import Units
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


OVERLONG = ("split", "truncate")
"""What to do with a line that is too long: split it into sentences, or truncate it."""

END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]»]*+(?=\s)|[。！？｡]++[\"'”’」』）)]*+")
"""Matches the end of a sentence: punctuation before a space, or full-width punctuation anywhere.

The possessive quantifiers (++, *+) and the lookbehind keep the time linear, even for a million dots in a row.
"""

TITLE = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|[Ee]\.g|[Ii]\.e)\.$")
"""Matches abbreviations, such as Dr., whose full stop does not end a sentence."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that decoding uses. Token ids are without BOS and EOS."""

    @property
    def size(self) -> int:
        """Return the vocabulary size, including special tokens."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each line."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token."""

    def words(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its word in decode(tokens).split(), or -1 if it has none."""


@dataclass(frozen=True)
class Part:
    """The tokens of a line, or of a part of a line that is too long for the model.

    words: for each token, the index of its word (or of its character, if characters are aligned), counted
        from the start of the line. None if the part is a whole line: then, Units.numbers() returns it.
    """

    tokens: tuple[int, ...]
    words: tuple[int, ...] | None = None


def sentences(line: str) -> list[str]:
    """Split a line into sentences, without the spaces between them.

    >>> from regard.decoding.input_checks import sentences
    >>> sentences("밥을 먹었다. 3.5인분이었다! Dr. Kim paid.")
    ['밥을 먹었다.', '3.5인분이었다!', 'Dr. Kim paid.']
    """
    parts, first = [], 0
    for mark in END.finditer(line):
        if not TITLE.search(line, max(first, mark.end() - 6), mark.end()):
            parts.append(line[first : mark.end()].strip())
            first = mark.end()
    parts.append(line[first:].strip())
    return [sentence for sentence in parts if sentence]


def divided(line: str, tokenizer: Tokenizer, room: int, units: Units | None = None) -> tuple[list[Part], str]:
    """Split a line into parts of at most `room` tokens. Return the parts and a note for the user.

    Each sentence is a part. A sentence with more than `room` tokens is split between words, and a word with
    more than `room` tokens is split between tokens. An example of a note is "split into 3 sentences, which
    were translated separately".

    units: the units (words or characters) that Part.words counts. Default: words.
    """
    units = units or Units("word", tokenizer.words, tokenizer.pieces)
    texts = sentences(line)
    parts: list[Part] = []
    unsplit = first = place = 0
    for sentence, tokens in zip(texts, tokenizer.encode_lines(texts), strict=True):
        place = line.index(sentence, place)
        spaced = bool(first) and line[place - 1].isspace()
        place += len(sentence)
        # `offset` is the index in the line of the first unit of this sentence. Characters: the space before
        # the sentence has an index of its own. Words: without a space, as in 길다。그녀는, the last word of
        # the previous sentence and the first word of this one count as one word.
        # A morpheme never continues in the next sentence.
        shift = {"character": spaced, "morpheme": 0}.get(units.name, -(bool(first) and not spaced))
        offset = first + shift
        numbers = [number + offset if number >= 0 else -1 for number in units.numbers(tokens)]
        first = max([first, *(number + 1 for number in numbers)])
        pieces = _split_between_words(tokens, tokenizer.words(tokens), numbers, room)
        unsplit += len(pieces) == 1
        parts += pieces
    if unsplit == len(parts):
        return parts, f"split into {len(parts)} sentences, which were translated separately"
    return parts, f"split into {len(parts)} parts, because a sentence has more than {room} tokens"


def truncated(tokens: Sequence[int], units: Units, room: int) -> tuple[Part, str]:
    """Return the first `room` tokens of a line, and a note for the user: "truncated to 100 of 120 tokens".

    The note is "" if the line has no more tokens.

    units: the units (words or characters) that Part.words counts.
    """
    if len(tokens) <= room:
        return Part(tuple(tokens)), ""
    words = units.numbers(tokens)
    return Part(tuple(tokens[:room]), tuple(words[:room])), f"truncated to {room:,} of {len(tokens):,} tokens"


def _split_between_words(
    tokens: Sequence[int], words: Sequence[int], numbers: Sequence[int], room: int
) -> list[Part]:
    """Split tokens into parts of at most `room` tokens. Words are split only if they are longer than a part.

    words: for each token, the index of its word.
    numbers: for each token, the index of its unit (word or character), which is stored in Part.words.
    """
    parts, first = [], 0
    while first < len(tokens):
        last = min(first + room, len(tokens))
        end = last
        while first < end < len(tokens) and words[end] >= 0 and words[end] == words[end - 1]:
            end -= 1
        last = end if end > first else last
        parts.append(Part(tuple(tokens[first:last]), tuple(numbers[first:last])))
        first = last
    return parts
