"""The player: a source is read, then each target word reads its past and the source, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, FAINT, LINK, QUIET, text_color_on, label, shade, width_of
from regard.viewing.pictures.link_lines import Joined
from regard.viewing.pictures.picture_files import Picture

__all__ = ["player"]

HIGH, PAD, APART = 20.0, 6.0, 5.0
"""Of a word's box, inside it, and between boxes, in points."""

ARCS, BETWEEN = 46.0, 96.0
"""Room for the arcs of words that read their own sentence, and between the two sentences."""

FAINTEST, SECONDS = 0.06, 0.9

Weights = NDArray[numpy.floating] | None


def player(
    cross: NDArray[numpy.floating],
    source: Sequence[object],
    target: Sequence[object],
    title: str = "",
    *,
    reading: Weights = None,
    past: Weights = None,
) -> Picture:
    """Draw a translation in the making: a frame for each source word that is read, two for each target word.

    cross: (T, S), what each target word read of the source. reading: (S, S), what each source word read of
    its sentence; where it is not there, as in recurrent models, words are read one after another. past:
    (T, T), what each target word read of those before it; where it is not there, a target word has one frame.

    >>> import numpy
    >>> from regard.viewing import player
    >>> film = player(numpy.eye(2), ["나는", "고양이"], ["I", "cat"])
    >>> len(film.frames)
    5
    """
    top, bottom = [label(word) for word in source], [label(word) for word in target]
    wanted = (
        ("cross", cross, (len(bottom), len(top))),
        ("reading", reading, (len(top),) * 2),
        ("past", past, (len(bottom),) * 2),
    )
    for name, given, sizes in wanted:
        if given is not None and numpy.shape(given) != sizes:
            problem = f"{name} has the sizes {numpy.shape(given)}"
            raise ArgumentError(message("player()", problem, expected=f"{sizes}"))
    if not top or not bottom:
        raise ArgumentError(message("player()", "a sentence without words has no film"))
    stage = _Stage(top, bottom, label(title, 90), arcs=reading is not None or past is not None)
    frames = []
    for place, word in enumerate(top):
        row = None if reading is None else numpy.asarray(reading)[place]
        frames.append(stage.encoded(place, f"the source is read: {word}", row))
    for step, word in enumerate(bottom):
        if past is not None:
            frames.append(
                stage.frame(f"step {step + 1}: what was said is read", step, past=numpy.asarray(past)[step])
            )
        said = f"step {step + 1}: the source is read, and {word} is said"
        frames.append(stage.frame(said, step, cross=numpy.asarray(cross)[step]))
    frames.append(stage.frame("all of it, word by word", len(bottom), all_cross=numpy.asarray(cross)))
    told = Joined(numpy.asarray(cross, float), tuple(bottom), tuple(top), "")
    heading = [Text(label(title, 90), "bold")] if title else []
    return Picture(frames, Group(*heading, told), SECONDS)


class _Stage:
    """Where the words of both sentences stand, the same in every frame."""

    def __init__(self, source: Sequence[str], target: Sequence[str], title: str, arcs: bool):
        self.source, self.target, self.title = source, target, title
        self.arcs = ARCS if arcs else 0.0
        self.widths = [[width_of(word, SIZE) + 2 * PAD for word in side] for side in (source, target)]
        totals = [sum(widths) + APART * (len(widths) - 1) for widths in self.widths]
        self.left = [[(max(totals) - total) / 2] for total in totals]
        for left, widths in zip(self.left, self.widths, strict=True):
            for width in widths[:-1]:
                left.append(left[-1] + width + APART)
        self.tops = (0.0, HIGH + BETWEEN)

    def encoded(self, place: int, said: str, reading: Weights) -> Canvas:
        """One frame of the reading: a source word with what it looks at, or with the words before it."""
        canvas = Canvas(self.title or "A translation in the making", said)
        for other, word in enumerate(self.source):
            level = 0.0 if reading is None else float(reading[other])
            shown = word if reading is not None or other <= place else ""
            self._word(canvas, 0, other, shown, level, now=other == place)
        for other in range(len(self.target)):
            self._word(canvas, 1, other, "", 0.0)
        if reading is not None:
            self._arcs(canvas, 0, place, reading)
        return self._told(canvas, said)

    def frame(
        self,
        said: str,
        step: int,
        past: Weights = None,
        cross: Weights = None,
        all_cross: Weights = None,
    ) -> Canvas:
        """One frame of the writing: step is the target word that is being said."""
        canvas = Canvas(self.title or "A translation in the making", said)
        levels = numpy.zeros(len(self.source)) if cross is None else numpy.asarray(cross)
        if all_cross is not None:
            for number, weights in enumerate(all_cross):
                self._links(canvas, number, weights, 0.55)
        if cross is not None:
            self._links(canvas, step, cross, 0.9)
        for place, word in enumerate(self.source):
            self._word(canvas, 0, place, word, float(levels[place]))
        for place in range(len(self.target)):
            shown = self.target[place] if place < step or (place == step and past is None) else ""
            level = float(past[place]) if past is not None and place < step else 0.0
            self._word(canvas, 1, place, shown, level, now=place == step)
        if past is not None:
            self._arcs(canvas, 1, step, past)
        return self._told(canvas, said)

    def _told(self, canvas: Canvas, said: str) -> Canvas:
        """A frame with its words above it, on the same ground as every other."""
        self._room(canvas)
        canvas.words(min(self.left[0][0], self.left[1][0]), -self.arcs - 14, said, 9, color=QUIET)
        canvas.head(self.title)
        return canvas

    def _word(self, canvas: Canvas, side: int, place: int, word: str, level: float, now: bool = False) -> None:
        left, width, top = self.left[side][place], self.widths[side][place], self.tops[side]
        canvas.box(left, top, width, HIGH, shade(level), edge=DARK if now else FAINT, round=4)
        canvas.words(left + width / 2, top + HIGH / 2, word, anchor="middle", color=text_color_on(level))

    def _middle(self, side: int, place: int) -> float:
        return self.left[side][place] + self.widths[side][place] / 2

    def _links(self, canvas: Canvas, step: int, weights: NDArray[numpy.floating], most: float) -> None:
        start, end = self.tops[0] + HIGH, self.tops[1]
        bend = (end - start) * 0.45
        for place, weight in enumerate(weights):
            if weight >= FAINTEST:
                above, below = self._middle(0, place), self._middle(1, step)
                points = ((above, start), (above, start + bend), (below, end - bend), (below, end))
                canvas.curve(
                    points,
                    color=LINK,
                    width=0.5 + 3.5 * float(weight),
                    opacity=round(most * (0.25 + 0.75 * float(weight)), 2),
                )

    def _arcs(self, canvas: Canvas, side: int, row: int, weights: NDArray[numpy.floating]) -> None:
        """Arcs over the source, or under the target, from the words read to the one that reads them."""
        edge, way = (self.tops[0], -1.0) if side == 0 else (self.tops[1] + HIGH, 1.0)
        whole = abs(self.left[side][-1] - self.left[side][0]) or 1.0
        for place, weight in enumerate(weights):
            if weight < FAINTEST or place == row:
                continue
            start, end = self._middle(side, place), self._middle(side, row)
            high = edge + way * (12 + (ARCS - 12) * 1.3 * abs(end - start) / whole)
            points = ((start, edge), (start, high), (end, high), (end, edge))
            canvas.curve(
                points,
                color=LINK,
                width=0.5 + 2.5 * float(weight),
                opacity=round(0.2 + 0.6 * float(weight), 2),
            )

    def _room(self, canvas: Canvas) -> None:
        """The same ground in every frame, whatever is drawn on it."""
        left = min(self.left[0][0], self.left[1][0])
        bottom = self.tops[1] + HIGH + self.arcs
        canvas.line(left, bottom, left, bottom, color="#ffffff", width=0.1)
