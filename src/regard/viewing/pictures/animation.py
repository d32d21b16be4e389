"""player(): animate the attention of a translation word by word, in the encoder and then in the decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import DARK, FAINT, LINK, QUIET, label, shade, text_color_on, width_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.words import Joined

__all__ = ["player"]

HEIGHT, PAD, APART = 20.0, 6.0, 5.0
"""HEIGHT and PAD: height and padding of the box around a word. APART: distance between boxes. All are in
points."""

ARCS, BETWEEN = 46.0, 96.0
"""ARCS: height of the arcs for self-attention. BETWEEN: distance between source and target. In points."""

FAINTEST, SECONDS = 0.06, 0.9
"""FAINTEST: smallest weight that is drawn as a line. SECONDS: how long a frame is shown."""

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
    """Draw an animation of a translation: a frame for each source word, one or two for each target word.

    The last frame shows the cross-attention of all words.

    cross: (T, S), cross-attention weights.
    source, target: S source words and T target words.
    reading: (S, S), encoder self-attention. Without it, as in recurrent models, source words appear one after
        another.
    past: (T, T), decoder self-attention to earlier target words. Without it, each target word has one frame
        instead of two.

    This example has 2 frames for the source words, 2 for the target words, and the last frame:

    >>> import numpy
    >>> from regard.viewing import player
    >>> animation = player(numpy.eye(2), ["나는", "고양이"], ["I", "cat"])
    >>> len(animation.frames)
    5
    """
    top, bottom = [label(word) for word in source], [label(word) for word in target]
    shapes = (
        ("cross", cross, (len(bottom), len(top))),
        ("reading", reading, (len(top),) * 2),
        ("past", past, (len(bottom),) * 2),
    )
    for name, weights, shape in shapes:
        if weights is not None and numpy.shape(weights) != shape:
            problem = f"{name} has shape {numpy.shape(weights)}"
            raise ArgumentError(message("player()", problem, expected=f"{shape}"))
    if not top or not bottom:
        side = "target" if top else "source"
        raise ArgumentError(message("player()", f"the {side} has no words", expected="at least one word"))
    stage = _Stage(top, bottom, label(title, 90), arcs=reading is not None or past is not None)
    frames = []
    for place, word in enumerate(top):
        row = None if reading is None else numpy.asarray(reading)[place]
        frames.append(stage.encoded(place, f"encoder: {word}", row))
    for step, word in enumerate(bottom):
        if past is not None:
            caption = f"step {step + 1}: self-attention to earlier words"
            frames.append(stage.frame(caption, step, past=numpy.asarray(past)[step]))
        caption = f"step {step + 1}: cross-attention, output {word}"
        frames.append(stage.frame(caption, step, cross=numpy.asarray(cross)[step]))
    frames.append(stage.frame("cross-attention of all words", len(bottom), all_cross=numpy.asarray(cross)))
    terminal = Joined(numpy.asarray(cross, float), tuple(bottom), tuple(top), label(title, 90))
    return Picture(frames, terminal, SECONDS)


class _Stage:
    """Draws the frames of an animation of a translation.

    The words of source and target have the same positions in every frame.
    """

    def __init__(self, source: Sequence[str], target: Sequence[str], title: str, arcs: bool):
        self.source, self.target, self.title = source, target, title
        self.arcs = ARCS if arcs else 0.0
        self.widths = [[width_of(word, SIZE) + 2 * PAD for word in side] for side in (source, target)]
        totals = [sum(widths) + APART * (len(widths) - 1) for widths in self.widths]
        self.left = [[(max(totals) - total) / 2] for total in totals]
        for left, widths in zip(self.left, self.widths, strict=True):
            for width in widths[:-1]:
                left.append(left[-1] + width + APART)
        self.tops = (0.0, HEIGHT + BETWEEN)

    def encoded(self, place: int, caption: str, reading: Weights) -> Canvas:
        """Return the frame that shows how the encoder reads one source word.

        place: the index of the word.
        caption: the text above the words.
        reading: (S,), the self-attention weights of the word. If None, the frame shows the words up to this
            word.
        """
        canvas = Canvas(self.title or "Animation of a translation", caption)
        for other, word in enumerate(self.source):
            level = 0.0 if reading is None else float(reading[other])
            shown = word if reading is not None or other <= place else ""
            self._word(canvas, 0, other, shown, level, now=other == place)
        for other in range(len(self.target)):
            self._word(canvas, 1, other, "", 0.0)
        if reading is not None:
            self._arcs(canvas, 0, place, reading)
        return self._captioned(canvas, caption)

    def frame(
        self,
        caption: str,
        step: int,
        past: Weights = None,
        cross: Weights = None,
        all_cross: Weights = None,
    ) -> Canvas:
        """Return a frame that shows how the decoder generates one target word.

        caption: the text above the words.
        step: index of the target word that is being generated.
        past: (T,), the self-attention weights of this word, or None.
        cross: (S,), the cross-attention weights of this word, or None.
        all_cross: (T, S), the cross-attention weights of all words, for the last frame. None for other
            frames.
        """
        canvas = Canvas(self.title or "Animation of a translation", caption)
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
        return self._captioned(canvas, caption)

    def _captioned(self, canvas: Canvas, caption: str) -> Canvas:
        """Add caption and title to a frame, make it as large as the other frames, and return it."""
        left = min(self.left[0][0], self.left[1][0])
        canvas.reserve(left, self.tops[1] + HEIGHT + self.arcs)
        canvas.words(left, -self.arcs - 14, caption, 9, color=QUIET)
        canvas.head(self.title)
        return canvas

    def _word(
        self, canvas: Canvas, side: int, place: int, word: str, level: float, now: bool = False
    ) -> None:
        left, width, top = self.left[side][place], self.widths[side][place], self.tops[side]
        canvas.box(left, top, width, HEIGHT, shade(level), edge=DARK if now else FAINT, round=4)
        canvas.words(left + width / 2, top + HEIGHT / 2, word, anchor="middle", color=text_color_on(level))

    def _middle(self, side: int, place: int) -> float:
        return self.left[side][place] + self.widths[side][place] / 2

    def _links(self, canvas: Canvas, step: int, weights: NDArray[numpy.floating], most: float) -> None:
        start, end = self.tops[0] + HEIGHT, self.tops[1]
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
        """Draw the self-attention of one word: an arc from each other word of its sentence to this word.

        side: 0 draws arcs above the source sentence, 1 below the target sentence.
        row: the index of the word in its sentence.
        weights: the weight of each word of the sentence. Weights below FAINTEST have no arc.
        """
        edge, direction = (self.tops[0], -1.0) if side == 0 else (self.tops[1] + HEIGHT, 1.0)
        whole = abs(self.left[side][-1] - self.left[side][0]) or 1.0
        for place, weight in enumerate(weights):
            if weight < FAINTEST or place == row:
                continue
            start, end = self._middle(side, place), self._middle(side, row)
            high = edge + direction * (12 + (ARCS - 12) * 1.3 * abs(end - start) / whole)
            points = ((start, edge), (start, high), (end, high), (end, edge))
            canvas.curve(
                points,
                color=LINK,
                width=0.5 + 2.5 * float(weight),
                opacity=round(0.2 + 0.6 * float(weight), 2),
            )
