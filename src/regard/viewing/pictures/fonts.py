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

from regard.errors import ArgumentError, install_command, message

__all__ = ["Run", "Written", "hint_for", "needs", "written"]

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


class Run(NamedTuple):
    """A part of a text that one font draws: its file, and the part."""

    font: str
    text: str


class Written(NamedTuple):
    """A text as it can be drawn: in runs of one font each, with what is missing replaced, and that."""

    runs: tuple[Run, ...]
    missing: str

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


def needs(name: str) -> ArgumentError:
    """What is said where matplotlib or Pillow is missing."""
    hint = f"{install_command('view')}; SVG needs neither"
    return ArgumentError(
        message("save()", f"PNG, PDF and GIF are drawn by {name}, not installed here", hint=hint)
    )


@lru_cache(maxsize=4096)
def written(text: str) -> Written:
    """How a text is drawn on this machine: by one font where one has all of it.

    >>> written("cat").missing
    ''
    """
    needed = {character for character in text if not _may_lack(character)}
    for font in _candidates():
        if needed <= _characters(font):
            return Written((Run(font, _without_silent(text, font)),), "")
    runs: list[Run] = []
    missing = set()
    for character in text:
        font = runs[-1].font if runs else _own()
        if not _may_lack(character) and character not in _characters(font):
            font, found = next(
                ((each, True) for each in _candidates() if character in _characters(each)), (font, False)
            )
            if not found:
                missing.add(character)
                character = next((each for each in REPLACED if each in _characters(font)), "?")
        if runs and runs[-1].font == font:
            runs[-1] = Run(font, runs[-1].text + character)
        else:
            runs.append(Run(font, character))
    kept = tuple(Run(run.font, _without_silent(run.text, run.font)) for run in runs)
    return Written(kept, "".join(sorted(missing)))


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
    called = list(dict.fromkeys(map(_named, characters)))
    listed = ", ".join(called[:3]) + (" and more" if len(called) > 3 else "")
    return f"no font here draws {listed} ({count}); an SVG is drawn with the fonts of who looks at it"


def _named(character: str) -> str:
    """What to call a character: letters by their script, anything else by its number."""
    if unicodedata.category(character)[0] in "LM":
        return _script(character).capitalize()
    return f"U+{ord(character):04X} {unicodedata.name(character, '').lower()}".rstrip()


def _script(character: str) -> str:
    return unicodedata.name(character, "").replace("-", " ").split(" ")[0]


def _may_lack(character: str) -> bool:
    return character in _SILENT or character.isspace()


def _without_silent(text: str, font: str) -> str:
    """The text without the joiners that a font does not know: it would draw boxes for them."""
    return "".join(each for each in text if each not in _SILENT or each in _characters(font))


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
