"""player(): animate the attention of a translation word by word, in the encoder and then in the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import (
    DARK,
    FAINT,
    LINK,
    QUIET,
    SIZE,
    Canvas,
    label,
    shade,
    text_color_on,
    width_of,
)
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.words import Joined

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
        read = None if reading is None else numpy.asarray(reading)[place]
        frames.append(stage.frame(f"encoder: {word}", (0, place), own=read))
    for step, word in enumerate(bottom):
        if past is not None:
            caption = f"step {step + 1}: self-attention to earlier words"
            frames.append(stage.frame(caption, (1, step), own=numpy.asarray(past)[step]))
        caption = f"step {step + 1}: cross-attention, output {word}"
        frames.append(stage.frame(caption, (1, step), cross={step: numpy.asarray(cross)[step]}))
    every = dict(enumerate(numpy.asarray(cross)))
    frames.append(stage.frame("cross-attention of all words", (1, len(bottom)), cross=every))
    terminal = Joined(numpy.asarray(cross, float), tuple(bottom), tuple(top), label(title, 90))
    return Picture(frames, terminal, SECONDS)


class _Stage:
    """Draws the frames of an animation of a translation, in which each word has the same position.

    A side is 0 for the source, above, and 1 for the target, below.
    """

    def __init__(self, source: Sequence[str], target: Sequence[str], title: str, arcs: bool):
        self.sides, self.title, self.arcs = (source, target), title, ARCS if arcs else 0.0
        self.widths = [[width_of(word, SIZE) + 2 * PAD for word in side] for side in self.sides]
        totals = [sum(widths) + APART * (len(widths) - 1) for widths in self.widths]
        self.left = [[(max(totals) - total) / 2] for total in totals]
        for left, widths in zip(self.left, self.widths, strict=True):
            for width in widths[:-1]:
                left.append(left[-1] + width + APART)
        self.tops = (0.0, HEIGHT + BETWEEN)

    def frame(
        self,
        caption: str,
        now: tuple[int, int],
        own: Weights = None,
        cross: Mapping[int, NDArray[numpy.floating]] | None = None,
    ) -> Canvas:
        """Return a frame that shows how one word is read or generated.

        caption: the text above the words.
        now: the side and the index of this word. Without `own`, no later word of its side is shown.
        own: its self-attention weights for the words of its side.
        cross: the cross-attention weights of this word, or of all target words in the last frame.
        """
        canvas, (side, step) = Canvas(self.title or "Animation of a translation", caption), now
        cross = cross or {}
        for row, weights in cross.items():
            self._links(canvas, row, weights, 0.9 if len(cross) == 1 and row == step else 0.55)
        levels: list[NDArray[numpy.floating]] = [numpy.zeros(len(words)) for words in self.sides]
        if step in cross:
            levels[0] = cross[step]
        if own is not None:
            levels[side] = numpy.where(numpy.arange(len(own)) < (len(own) if side == 0 else step), own, 0.0)
        for number, words in enumerate(self.sides):
            for place, word in enumerate(words):
                hidden = number > side or (number == side and place > step)
                if number == side == 0:
                    hidden = hidden and own is None
                elif number == side and place == step:
                    hidden = own is not None
                shown, current = "" if hidden else word, (number, place) == now
                self._word(canvas, number, place, shown, float(levels[number][place]), current)
        if own is not None:
            self._arcs(canvas, side, step, own)
        left = min(self.left[0][0], self.left[1][0])
        canvas.reserve(left, self.tops[1] + HEIGHT + self.arcs)
        canvas.words(left, -self.arcs - 14, caption, 9, color=QUIET)
        canvas.head(self.title)
        return canvas

    def _word(self, canvas: Canvas, side: int, place: int, word: str, level: float, now: bool) -> None:
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
