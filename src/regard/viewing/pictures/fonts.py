"""Find an installed font for each text. Characters that no installed font has are replaced and reported.

The cached list of fonts of matplotlib may be out of date. So this module searches the font files itself, and
reads which characters each font has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from regard.errors import ArgumentError, message
from regard.files.requirements import install_command

REPLACED = "▯□?"
"""Replacements for a character that no installed font has.

The first replacement that exists in the font of the neighbouring text is used.
"""

FIRST = (
    "notosanscjk",
    "notosanskr",
    "notosansjp",
    "notosanssc",
    "sourcehansans",
    "nanumgothic",
    "nanumbarun",
)
"""East Asian fonts that are preferred, by the start of their file names."""

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
"""East Asian fonts of macOS, Windows and Linux that are tried after the fonts in FIRST."""

LAST = ("bold", "italic", "oblique", "light", "thin", "black", "condensed", "mono", "coding", "serif")
"""Fonts whose file names contain one of these words (styles) are tried last."""

NEVER = ("emoji", "lastresort")
"""Fonts whose paths contain one of these words are never used.

The characters of emoji fonts are coloured images. The characters of Last Resort fonts are only boxes."""

MOST = 300
"""Maximum number of installed fonts in which a character is searched."""

PACKAGES = {
    "HANGUL": ("Korean", "fonts-noto-cjk (or fonts-nanum)"),
    "CJK": ("Chinese characters", "fonts-noto-cjk"),
    "HIRAGANA": ("Japanese", "fonts-noto-cjk"),
    "KATAKANA": ("Japanese", "fonts-noto-cjk"),
}
"""For each writing system, its English name and the Debian or Ubuntu package of a font for it.

The key is the first word of the Unicode names of the characters, such as HANGUL in "HANGUL SYLLABLE GA"."""

_SILENT = "\u200c\u200d\ufe0e\ufe0f"
"""Joiners and variation selectors: invisible characters. A font without them can still draw a text."""


class Run(NamedTuple):
    """A part of a text that is drawn with one font.

    font: path of the font file.
    text: the characters of this part.
    """

    font: str
    text: str


class Written(NamedTuple):
    """A text, split into parts. Each part is drawn with one font.

    runs: the parts, in the order of the text.
    missing: the characters that no installed font has. In the parts, they are replaced, usually by "▯".
    """

    runs: tuple[Run, ...]
    missing: str

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


def needs(name: str) -> ArgumentError:
    """Return the error for a package that is not installed, with the command that installs it.

    name: "matplotlib" or "Pillow".
    """
    hint = f"save as .svg, which needs no package, or {install_command('view')}"
    return ArgumentError(
        message("save()", f"PNG, PDF and GIF files need {name}, which is not installed", hint=hint)
    )


@lru_cache(maxsize=4096)
def written(text: str) -> Written:
    """Split a text into parts (`.runs`), and choose for each part a font that has its characters.

    If one font has all characters of the text, there is one part. Characters that no installed font has are
    listed in `.missing`, and replaced in the parts, usually by "▯".

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
            font, available = next(
                ((each, True) for each in _candidates() if character in _characters(each)), (font, False)
            )
            if not available:
                missing.add(character)
                character = next((each for each in REPLACED if each in _characters(font)), "?")
        if runs and runs[-1].font == font:
            runs[-1] = Run(font, runs[-1].text + character)
        else:
            runs.append(Run(font, character))
    cleaned = tuple(Run(run.font, _without_silent(run.text, run.font)) for run in runs)
    return Written(cleaned, "".join(sorted(missing)))


def hint_for(missing: Iterable[str]) -> str:
    """Return a hint about characters that no installed font has, or "" if there are none.

    >>> hint_for("고")
    'no installed font has Korean (1 character shown as ▯): install fonts-noto-cjk (or fonts-nanum)'
    """
    characters = sorted(set(missing))
    if not characters:
        return ""
    count = f"{len(characters)} character{'s' if len(characters) > 1 else ''} shown as {REPLACED[0]}"
    kinds = {PACKAGES[word] for word in map(_script, characters) if word in PACKAGES}
    if kinds:
        names, packages = ({kind[place] for kind in kinds} for place in (0, 1))
        shortest = min(packages, key=len) if len(packages) > 1 else next(iter(packages))
        return f"no installed font has {' and '.join(sorted(names))} ({count}): install {shortest}"
    kinds_named = list(dict.fromkeys(map(_named, characters)))
    listed = ", ".join(kinds_named[:3]) + (" and more" if len(kinds_named) > 3 else "")
    return f"no installed font has {listed} ({count}); save as .svg to use the fonts of the viewer's machine"


def _named(character: str) -> str:
    """Return the name of a character for a hint.

    For a letter, the result is its writing system, for example "Thai". For any other character, the result is
    the code point and the Unicode name, for example "U+2603 snowman".
    """
    if unicodedata.category(character)[0] in "LM":
        return _script(character).capitalize()
    return f"U+{ord(character):04X} {unicodedata.name(character, '').lower()}".rstrip()


def _script(character: str) -> str:
    return unicodedata.name(character, "").replace("-", " ").split(" ")[0]


def _may_lack(character: str) -> bool:
    return character in _SILENT or character.isspace()


def _without_silent(text: str, font: str) -> str:
    """Remove the invisible characters (see _SILENT) that the font does not have.

    Otherwise they would be drawn as empty boxes.
    """
    return "".join(each for each in text if each not in _SILENT or each in _characters(font))


@lru_cache(maxsize=MOST)
def _characters(font: str) -> frozenset[str]:
    """Return the characters of a font. The result is empty if the file is not a scalable font."""
    from matplotlib.font_manager import get_font

    try:
        opened = get_font(font)
        return frozenset(map(chr, opened.get_charmap())) if opened.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def _candidates() -> Iterator[str]:
    """Yield the paths of fonts: first the font that is part of matplotlib, then the installed fonts."""
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
    """Return the paths of the installed fonts. A character is drawn with the first font that has it."""
    from matplotlib.font_manager import findSystemFonts

    def rank(path: str) -> tuple[int, int, str]:
        name = Path(path).stem.lower().replace("-", "").replace("_", "").replace(" ", "")
        place = next(
            (i for i, start in enumerate((*FIRST, *THEN)) if name.startswith(start)), len(FIRST + THEN)
        )
        return sum(word in name for word in LAST), place, path

    paths = (path for path in findSystemFonts() if not any(word in path.lower() for word in NEVER))
    return tuple(sorted(paths, key=rank)[:MOST])
