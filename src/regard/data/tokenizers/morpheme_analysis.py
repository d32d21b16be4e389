"""Korean morphemes: split lines into morphemes with kiwipiepy, and join morphemes to well-formed words."""

from __future__ import annotations

import importlib.metadata
import itertools
import re
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

from regard.data.tokenizers.normalize import SPACE, clean
from regard.data.tokenizers.subwords import available_cores
from regard.errors import ArgumentError, message
from regard.files.requirements import install_command

__all__ = ["Morpheme", "analyzed_lines", "installed_versions", "is_korean", "joined_morphemes"]

PACKAGES = ("kiwipiepy", "kiwipiepy_model")
"""The Python packages that decide how a text is split: the analyzer, and the files of its language model."""

ENDINGS = ("로소이다",)
"""Literary endings that the dictionary of kiwipiepy does not have."""

KOREAN_LINES = 1000
"""Number of lines that is_korean() reads."""

SURFACE = ""
"""The tag of a morpheme that is written as it stands in the text, so that decode() does not conjugate it."""

WORD = re.compile(r"\S+")

LOCK = threading.RLock()
"""Held while the analyzer is used, because several threads may share a tokenizer."""


class Morpheme(NamedTuple):
    """A morpheme of a text, with its part-of-speech tag.

    spaced: whether a word begins with this morpheme.
    """

    spaced: bool
    form: str
    tag: str

    def __str__(self) -> str:
        return f"{SPACE * self.spaced}{self.form}/{self.tag}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the morpheme that str() wrote as text."""
        form, _, tag = text.rpartition("/")
        return cls(form.startswith(SPACE), form.removeprefix(SPACE), tag)


def is_korean(lines: Iterable[str]) -> bool:
    """Return whether a text is Korean: at least a third of the letters of its first lines are Hangul.

    >>> is_korean(["나는 BBC를 본다"]), is_korean(["I watch KBS (한국방송)"])
    (True, False)
    """
    letters = [
        letter for line in itertools.islice(lines, KOREAN_LINES) for letter in line if letter.isalpha()
    ]
    return 3 * sum("가" <= clean(letter) <= "힣" for letter in letters) >= max(len(letters), 1)


def installed_versions(call: str = "tokenizer") -> dict[str, str]:
    """Return the versions of PACKAGES. Raise ArgumentError if they are not installed.

    call: the name of the public function or of the tokenizer file, for the error message.
    """
    try:
        return {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError:
        problem = "the morpheme tokenizer needs kiwipiepy, which is not installed"
        raise ArgumentError(message(call, problem, hint=install_command("korean"))) from None


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    """Load kiwipiepy, which takes about two seconds and 270 MB of memory.

    Its dictionary of proper nouns with several words is left out. It contains the titles of books and films,
    such as 나는 고양이로소이다, which would be one token.
    """
    from kiwipiepy import Kiwi

    analyzer = Kiwi(num_workers=available_cores(), load_multi_dict=False)
    for ending in ENDINGS:
        analyzer.add_user_word(ending, "EF")
    return analyzer


def analyzed_lines(lines: Sequence[str]) -> list[list[Morpheme]]:
    """Return the morphemes of each line. The lines have been normalized by clean()."""
    installed_versions()
    with LOCK:
        analyses = _analyzer().tokenize(lines, z_coda=False)
        return [_placed(line, tokens) for line, tokens in zip(lines, analyses, strict=True)]


def _placed(line: str, tokens: Sequence[Any]) -> list[Morpheme]:
    """Return the morphemes of a line, word by word, from the result of kiwipiepy."""
    morphemes: list[Morpheme] = []
    at = 0
    crossed = 0
    for found in WORD.finditer(line):
        word, inside, starts = found.group(), list[tuple[str, str]](), [0]
        is_whole = crossed <= found.start()
        while at < len(tokens) and tokens[at].start < found.end():
            token = tokens[at]
            inside.append((token.form, str(token.tag)))
            starts.append(token.start - found.start())
            crossed = max(crossed, token.start + token.len)
            at += 1
        if is_whole and crossed <= found.end() and _restores(word, inside):
            parts = inside
        else:
            cuts = sorted({start for start in starts if 0 <= start < len(word)})
            parts = [(word[a:b], SURFACE) for a, b in zip(cuts, [*cuts[1:], len(word)], strict=True)]
        morphemes += [Morpheme(not number, form, tag) for number, (form, tag) in enumerate(parts)]
    return morphemes


def _restores(word: str, parts: list[tuple[str, str]]) -> bool:
    """Return whether joining the morphemes of a word gives the word again."""
    return all(form and clean(form) == form for form, _ in parts) and joined_morphemes(tuple(parts)) == word


@lru_cache(maxsize=100_000)
def joined_morphemes(parts: tuple[tuple[str, str], ...]) -> str:
    """Join the morphemes of a word, (form, tag) each: 가, 었 and 다 become 갔다.

    A model may generate any sequence. The result never has a space, and it is empty only if all forms are.
    """
    text, tagged = "", list[tuple[str, str]]()
    for form, tag in (*parts, ("", SURFACE)):
        if tag != SURFACE:
            tagged.append((form, tag))
            continue
        text += _conjugated(tagged) + form
        tagged = []
    return "".join(clean(text).split())


def _conjugated(parts: list[tuple[str, str]]) -> str:
    """Join morphemes with kiwipiepy, or write one after the other if it cannot join them."""
    forms = "".join(form for form, _ in parts)
    if not forms:
        return ""
    try:
        with LOCK:
            joined = _analyzer().join([(form, tag, False) for form, tag in parts if form], lm_search=False)
    except (ValueError, RuntimeError):
        return forms
    return str(joined) or forms
