"""Write a canvas as PNG, PDF or GIF with matplotlib, without pyplot.

No global state of matplotlib is read or changed. So pictures can be drawn in several threads, and other code
can use matplotlib at the same time. Files contain no date and no version, so the same picture gives the same
bytes.

written() finds an installed font for each text; characters that no installed font has are replaced and
reported. The cached list of fonts of matplotlib may be out of date, so the font files are searched here.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from regard.errors import ArgumentError, message
from regard.files.requirements import install_command
from regard.viewing.pictures.canvas import MIDDLE, QUIET, Box, Canvas, Curve, Mark, Raster, Words

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


DPI = 216
"""Pixels per inch of a PNG file: three pixels per point, so that the edges of cells fall on whole pixels."""

PIXELS, EDGE = 40_000_000, 60_000
"""Maximum number of pixels of a whole picture (PIXELS) and along one side (EDGE). The resolution of larger
pictures is reduced."""

MOVING, MOVING_PIXELS = 1600, 40_000_000
"""MOVING: maximum width of a GIF in pixels. MOVING_PIXELS: maximum number of pixels of all frames of a GIF
that contains images. The resolution of larger pictures is reduced."""

ALIGNED: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}

SMALL = 8.0
"""Font size of the hint below a picture about characters that no installed font has."""


def png_of(canvas: Canvas) -> bytes:
    """Return a canvas as the bytes of a PNG file."""
    _, agg = _drawn(canvas, DPI)
    file = io.BytesIO()
    agg.print_png(file, metadata={"Software": None, "Title": _latin(canvas.title)})
    return file.getvalue()


def pdf_of(canvas: Canvas) -> bytes:
    """Return a canvas as the bytes of a PDF file of one page."""
    figure, _ = _drawn(canvas, 72)
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    nothing = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    file = io.BytesIO()
    FigureCanvasPdf(figure).print_pdf(file, metadata={**nothing, "Title": canvas.title})
    return file.getvalue()


def gif_of(frames: Sequence[Canvas], seconds: float) -> bytes:
    """Return the bytes of an animated GIF file that repeats.

    frames: the pictures of the animation, one canvas for each.
    seconds: how long each frame is shown. The last frame is shown twice as long.
    """
    try:
        from PIL import Image
    except ImportError:
        raise needs("Pillow") from None
    images = []
    photos = any(isinstance(mark, Raster) for canvas in frames for mark in canvas.marks)
    for canvas in frames:
        dpi = min(DPI, 72 * MOVING / canvas.size[0])
        if photos:
            dpi = min(dpi, 72 * math.sqrt(MOVING_PIXELS / len(frames) / math.prod(canvas.size)))
        _, agg = _drawn(canvas, dpi)
        agg.draw()
        images.append(Image.fromarray(numpy.asarray(agg.buffer_rgba())[..., :3]))
    # All frames use one palette. With different palettes, the colours would flicker. If the frames contain no
    # images, use the palette of the last frame, which has the most marks.
    if photos:
        palette = _sampled(images).quantize(256, dither=Image.Dither.NONE)
    else:
        palette = images[-1].quantize(128, dither=Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    duration = [round(1000 * seconds)] * len(others) + [round(2000 * seconds)]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=duration, loop=0, disposal=1)
    return file.getvalue()


def _sampled(images: Sequence[Any]) -> Any:
    """Return an image with every n-th pixel of all frames of an animation.

    The palette of an animation with photos is computed from this image, so that it suits all frames.
    """
    from PIL import Image

    pixels = [numpy.asarray(image).reshape(-1, 3) for image in images]
    step = max(sum(map(len, pixels)) // 1_000_000, 1)
    return Image.fromarray(numpy.concatenate([each[::step] for each in pixels])[None])


def hints(frames: Sequence[Canvas]) -> tuple[str, ...]:
    """Return a tuple with a hint about characters that no installed font has. Empty if there are none.

    frames: the canvases whose texts are checked.
    """
    texts = {mark.text for canvas in frames for mark in canvas.marks if isinstance(mark, Words)}
    hint = hint_for("".join(written(text).missing for text in texts))
    return (hint,) if hint else ()


def _drawn(canvas: Canvas, dpi: float) -> tuple[Any, Any]:
    """Draw a canvas with matplotlib. Return the figure and its Agg canvas.

    Hints about characters that no installed font has are added below the picture.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D
    except ImportError:
        raise needs("matplotlib") from None
    marks = canvas.placed
    width, height = canvas.size
    for hint in hints([canvas]):
        marks = [*marks, Words(canvas.margin, height, hint, SMALL, QUIET)]
        width, height = max(width, marks[-1].bounds[2] + canvas.margin), height + 2 * SMALL
    dpi = min(dpi, 72 * math.sqrt(PIXELS / (width * height)), 72 * EDGE / max(width, height))
    figure = Figure((width / 72, height / 72), dpi=dpi, facecolor=canvas.paper.color, edgecolor="none")
    agg = FigureCanvasAgg(figure)
    place = Affine2D().scale(1 / width, -1 / height).translate(0, 1) + figure.transFigure
    for order, artist in enumerate(_artists(marks, figure, width, height)):
        artist.set_zorder(order)
        if not artist.is_transform_set():
            artist.set_transform(place)
        figure.add_artist(artist)
    return figure, agg


def _artists(marks: Sequence[Mark], figure: Any, width: float, height: float) -> Iterator[Any]:
    from matplotlib.collections import PolyCollection
    from matplotlib.image import BboxImage
    from matplotlib.transforms import Bbox, TransformedBbox

    for kind, some in groupby(marks, lambda m: isinstance(m, Box) and not (m.round or m.edge)):
        if kind:  # consecutive boxes that have neither a border nor round corners are drawn as one collection
            boxes = [mark for mark in some if isinstance(mark, Box)]
            corners = [_corners(box) for box in boxes]
            fills = [box.fill for box in boxes]
            yield PolyCollection(corners, facecolors=fills, edgecolors="none", antialiaseds=False)
            continue
        for mark in some:
            if isinstance(mark, Raster):
                ends = (mark.x / width, 1 - (mark.y + mark.height) / height)
                far = ((mark.x + mark.width) / width, 1 - mark.y / height)
                box = TransformedBbox(Bbox([ends, far]), figure.transFigure)
                interpolation = "bilinear" if mark.smooth else "nearest"
                image = BboxImage(box, origin="upper", interpolation=interpolation, resample=True)
                image.set_data(mark.pixels)
                image.set_transform(figure.transFigure)
                yield image
            elif isinstance(mark, Words):
                yield from _texts(mark)
            else:
                yield _shape(mark)


def _shape(mark: Box | Curve) -> Any:
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path

    if isinstance(mark, Box):
        style = f"round,pad=0,rounding_size={mark.round}" if mark.round else "square,pad=0"
        edge, corner = mark.edge or "none", (mark.x, mark.y)
        return FancyBboxPatch(corner, mark.width, mark.height, style, fc=mark.fill, ec=edge, lw=1)
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    return PathPatch(
        Path(mark.points, codes),
        fill=False,
        edgecolor=mark.color,
        linewidth=mark.width,
        alpha=mark.opacity,
        capstyle="round",
    )


def _texts(mark: Words) -> Iterator[Any]:
    """Yield a line of text as matplotlib Text objects, one for each font that it needs (usually one)."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

    runs = written(mark.text).runs
    widths = [_width(run, mark.size) for run in runs] if len(runs) > 1 else [0.0]
    turn, down = math.radians(mark.angle), MIDDLE * mark.size
    along = -sum(widths) * {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.anchor]
    for run, width in zip(runs, widths, strict=True):
        yield Text(
            mark.x + down * math.sin(turn) + along * math.cos(turn),
            mark.y + down * math.cos(turn) - along * math.sin(turn),
            run.text,
            color=mark.color,
            horizontalalignment=ALIGNED[mark.anchor] if len(runs) == 1 else "left",
            verticalalignment="baseline",
            rotation=mark.angle,
            rotation_mode="anchor",
            fontproperties=FontProperties(fname=run.font, size=mark.size),
            parse_math=False,
            usetex=False,
        )
        along += width


def _width(run: Run, size: float) -> float:
    """Return the width of a text that is drawn with one font, in points. size: the font size in points."""
    from matplotlib.font_manager import get_font

    font = get_font(run.font)
    font.set_size(size, 72)
    font.set_text(run.text, 0.0)
    return font.get_width_height()[0] / 64


def _corners(box: Box) -> list[tuple[float, float]]:
    left, top, right, bottom = box.bounds
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _latin(text: str) -> str:
    """Replace the characters that are not in Latin-1, the encoding of the title in a PNG file, by "?"."""
    return text.encode("latin-1", "replace").decode("latin-1")
