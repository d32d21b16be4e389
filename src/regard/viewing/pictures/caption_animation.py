"""caption_animation(): an animation of a caption, with the image and the attention of one word per frame."""

from __future__ import annotations

from regard.errors import ArgumentError, message
from regard.viewing.image_attention import ImageAttention, resized
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.caption_panels import MARK, SCALE_NOTE, outline, panel_size, shaded_image
from regard.viewing.pictures.colors import DARK, QUIET, label, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal_image import terminal_caption

__all__ = ["caption_animation"]

SIDE, TEXT, LINE, SPACE = 260.0, 12.0, 18.0, 5.0
"""SIDE: length of the longer side of the image. TEXT: font size of the caption. LINE: height of a line of the
caption. SPACE: distance between words. All in points."""

PIXELS = 4_000_000
"""Maximum number of pixels of the images of all frames together."""


def caption_animation(seen: ImageAttention, seconds: float = 0.8) -> Picture:
    """Draw an animation of a caption, with one frame for each word.

    In each frame, the image is bright where the word attends. Below the image is the caption up to this word.
    The first frame is the image alone. All frames have the same size.

    seen: the image with its caption and the attention of each word.
    seconds: how long each frame is shown, from 0.05 to 60.

    >>> import numpy
    >>> image = numpy.full((8, 8, 3), 128, numpy.uint8)
    >>> len(caption_animation(ImageAttention(image, ["a", "cat"], numpy.ones((2, 1, 1)))).frames)
    3
    """
    if not 0.05 <= seconds <= 60:
        problem = f"seconds is {seconds}"
        raise ArgumentError(message("animation()", problem, expected="a number from 0.05 to 60"))
    size = panel_size(seen, PIXELS / (len(seen.words) + 1))
    small = resized(seen.image, *size)
    wide, high = (SIDE * each / max(size) for each in (size[1], size[0]))
    places = _placed([label(word, 40) for word in seen.words], max(wide, SIDE))
    frames = []
    for now in range(-1, len(seen.words)):
        canvas = Canvas(label(seen.heading, 200), "the image" if now < 0 else label(seen.words[now], 40))
        pixels = small if now < 0 else shaded_image(small, seen.levels(now))
        canvas.raster(0, 0, wide, high, pixels, smooth=True)
        if now >= 0:
            outline(canvas, seen, now, 0, 0, wide, high)
            most = f"largest weight {seen.weights[now].max():.2g}"
            canvas.words(0, high + 10, most, 8, color=QUIET)
        for place, (x, line, word) in enumerate(places[: now + 1]):
            color = DARK if place == now else QUIET
            canvas.words(x, high + 30 + line * LINE, word, TEXT, color=color)
            if place == now:
                below = high + 30 + line * LINE + 9
                canvas.line(x, below, x + width_of(word, TEXT), below, color=MARK, width=1.5)
        _reserve(canvas, max(wide, SIDE), high + 30 + (places[-1][1] + 1) * LINE)
        note = SCALE_NOTE.replace("beside the word", "below the image")
        canvas.foot(note, *(label(each, 400) for each in (*seen.uniform_note(), *seen.notes)))
        frames.append(canvas)
    return Picture(frames, terminal_caption(seen), seconds)


def _placed(words: list[str], width: float) -> list[tuple[float, int, str]]:
    """Wrap the words of a caption to lines.

    Returns (x, line, word) for each word: its left end in points, the index of its line, and its text.

    width: maximum width of a line, in points.
    """
    places, x, line = [], 0.0, 0
    for word in words:
        wide = width_of(word, TEXT)
        if x and x + wide > width:
            x, line = 0.0, line + 1
        places.append((x, line, word))
        x += wide + SPACE
    return places


def _reserve(canvas: Canvas, width: float, height: float) -> None:
    """Extend the bounds of a frame to (width, height), so that all frames have the same size.

    For this, an invisible white line is drawn at this point. Notes that are added later are below the line.
    """
    canvas.line(width, height, width, height, color="#ffffff", width=0.1)
