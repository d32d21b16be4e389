"""Write a canvas as PNG, PDF or GIF with matplotlib, without pyplot.

No global state of matplotlib is read or changed. So pictures can be drawn in several threads, and other code
can use matplotlib at the same time. Files contain no date and no version, so the same picture gives the same
bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy

from regard.viewing.pictures.canvas import MIDDLE, Box, Canvas, Curve, Mark, Raster, Words
from regard.viewing.pictures.colors import QUIET
from regard.viewing.pictures.fonts import Run, hint_for, needs, written

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
