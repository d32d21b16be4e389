"""Fonts: for each text, an installed one that has all its characters; what none has is replaced, and told.

Matplotlib keeps a list of fonts that it may have made long ago, so the fonts themselves are looked for, and
asked which characters they draw.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from regard.errors import ArgumentError, message

__all__ = ["Written", "hint_for", "needs", "written"]

REPLACED = "▯□?"
"""What stands for a character that cannot be drawn: the first of these that can be."""

FIRST = (
    "notosanscjk",
    "notosanskr",
    "notosansjp",
    "notosanssc",
    "sourcehansans",
    "nanumgothic",
    "nanumbarun",
)
"""Fonts of the East that are taken before others, by the beginnings of their names."""

THEN = (
    "applesdgothicneo",
    "malgun",
    "hiragino",
    "yugoth",
    "meiryo",
    "pingfang",
    "msyh",
    "simhei",
    "wqy",
    "ipa",
)
LAST = ("bold", "italic", "oblique", "light", "thin", "black", "condensed", "mono", "coding", "serif")
NEVER = ("emoji", "lastresort")
"""Fonts whose letters are coloured images, or boxes."""

MOST = 300
"""Fonts that are asked for a character before it is given up."""

PACKAGES = {
    "HANGUL": ("Korean", "fonts-noto-cjk (or fonts-nanum)"),
    "CJK": ("Chinese characters", "fonts-noto-cjk"),
    "HIRAGANA": ("Japanese", "fonts-noto-cjk"),
    "KATAKANA": ("Japanese", "fonts-noto-cjk"),
}
"""By the first word of a character's name: what it is, and the package that has it on Debian and Ubuntu."""

_SILENT = "\u200c\u200d\ufe0e\ufe0f"
"""Joiners and selectors: a font without them loses nothing that is seen."""


class Written(NamedTuple):
    """A text as it can be drawn: the file of a font, the text with what is missing replaced, and that."""

    font: str
    text: str
    missing: str


def needs(name: str) -> ArgumentError:
    """What is said where matplotlib or Pillow is missing."""
    hint = "pip install regard[view]; SVG needs neither"
    return ArgumentError(
        message("save()", f"PNG, PDF and GIF are drawn by {name}, not installed here", hint=hint)
    )


@lru_cache(maxsize=4096)
def written(text: str) -> Written:
    """How a text is drawn on this machine.

    >>> written("cat").missing
    ''
    """
    needed = {character for character in text if not character.isspace()} - set(_SILENT)
    best, most = "", -1
    for font in _candidates():
        here = len(needed & _characters(font))
        if here == len(needed):
            return Written(font, _replaced(text, font), "")
        if here > most:
            best, most = font, here
    missing = sorted(needed - _characters(best))
    return Written(best, _replaced(text, best), "".join(missing))


def hint_for(missing: Iterable[str]) -> str:
    """What to say about characters that no font here has; nothing where there are none.

    >>> hint_for("고")
    'no font here draws Korean (1 character shown as ▯): install fonts-noto-cjk (or fonts-nanum)'
    """
    characters = sorted(set(missing))
    if not characters:
        return ""
    count = f"{len(characters)} character{'s' if len(characters) > 1 else ''} shown as {REPLACED[0]}"
    kinds = {PACKAGES[word] for word in map(_script, characters) if word in PACKAGES}
    if kinds:
        names, packages = ({kind[place] for kind in kinds} for place in (0, 1))
        shortest = min(packages, key=len) if len(packages) > 1 else next(iter(packages))
        return f"no font here draws {' and '.join(sorted(names))} ({count}): install {shortest}"
    codes = ", ".join(
        f"U+{ord(each):04X} {unicodedata.name(each, '').lower()}".rstrip() for each in characters[:3]
    )
    more = " and more" if len(characters) > 3 else ""
    return f"no font here draws {codes}{more} ({count}); an SVG is drawn with the fonts of who looks at it"


def _script(character: str) -> str:
    return unicodedata.name(character, "").replace("-", " ").split(" ")[0]


def _replaced(text: str, font: str) -> str:
    there = _characters(font)
    stand_in = next((each for each in REPLACED if each in there), "?")
    kept = (character for character in text if character not in _SILENT or character in there)
    return "".join(c if c in there or c.isspace() else stand_in for c in kept)


@lru_cache(maxsize=MOST)
def _characters(font: str) -> frozenset[str]:
    """The characters that a font draws; of a file that is no font, none."""
    from matplotlib.font_manager import get_font

    try:
        opened = get_font(font)
        return frozenset(map(chr, opened.get_charmap())) if opened.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def _candidates() -> Iterator[str]:
    """The font that comes with matplotlib, then those of the machine, the most fitting first."""
    yield _own()
    yield from installed()


@cache
def _own() -> str:
    try:
        import matplotlib
    except ImportError:
        raise needs("matplotlib") from None
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@cache
def installed() -> tuple[str, ...]:
    """The files of the fonts of this machine, in the order in which they are tried."""
    from matplotlib.font_manager import findSystemFonts

    def rank(path: str) -> tuple[int, int, str]:
        name = Path(path).stem.lower().replace("-", "").replace("_", "").replace(" ", "")
        place = next(
            (i for i, start in enumerate((*FIRST, *THEN)) if name.startswith(start)), len(FIRST + THEN)
        )
        return sum(word in name for word in LAST), place, path

    found = (path for path in findSystemFonts() if not any(word in path.lower() for word in NEVER))
    return tuple(sorted(found, key=rank)[:MOST])
