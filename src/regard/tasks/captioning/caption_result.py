"""Caption: the caption of an image, with token scores and the attention of each word over the image.

print(caption) prints the text; rich.print(caption) and notebooks also draw the attention;
caption.save("x.png") writes a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message, printable
from regard.roles import Role
from regard.viewing import Seen, Site
from regard.viewing.html_document import safe
from regard.viewing.image_attention import WORDS, ImageAttention
from regard.viewing.result import Result

__all__ = ["Caption"]

TO_IMAGE = Role("cross", "target", "image")


@dataclass(frozen=True, eq=False, repr=False)
class Caption(Result):
    """The caption of one image, as an ImageCaptioner returns it.

    image: the name of the image file, or "" for an array.
    text: the caption.
    token_ids: the ids of its tokens; the last is EOS, unless the maximum length was reached.
    token_scores: the log-probability of each token.
    words: the T words of the caption.
    word_scores: the log-probability of each word, the sum over its tokens.
    weights: (T, h, w), the attention of each word over the h x w cells of the feature map. None if it was not
        recorded. Cell (i, j) covers the rows of pixels from i H/h to (i + 1) H/h, and the columns from j W/w
        to (j + 1) W/w.
    pixels: (H, W, 3), uint8, the image as the model reads it: cropped and resized.
    ranking: the log-probability with length penalty. The captions of an image are sorted by this score.
    notes: remarks, for example that the maximum length was reached.
    others: with n-best search, the captions after the best one, best first.

    >>> caption = Caption("a.jpg", "a dog", (4, 5, 3), (-0.5, -1.0, -0.25), ("a", "dog"), (-0.5, -1.0))
    >>> str(caption), caption.log_probability, caption.to_dict()["words"]
    ('a dog', -1.75, ['a', 'dog'])
    """

    image: str
    text: str
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    words: tuple[str, ...]
    word_scores: tuple[float, ...]
    weights: NDArray[numpy.float32] | None = None
    pixels: NDArray[numpy.uint8] | None = None
    ranking: float = 0.0
    notes: tuple[str, ...] = ()
    others: tuple[Caption, ...] = field(default=())
    page_title = "Captions"
    most = 200

    @property
    def log_probability(self) -> float:
        """The log-probability of the caption: the sum of the token scores."""
        return sum(self.token_scores)

    def image_attention(self, title: str = "") -> ImageAttention:
        """Return the attention of every word over the image, to draw it or save it as a picture.

        title: text above the picture. "" is the caption.

        Raise ArgumentError if no attention was recorded (for example, because the model has no attention), or
        if the caption has no words.
        """
        if self.weights is None or self.pixels is None or not self.words:
            problem = "this caption has no words, or no attention was recorded for it"
            hint = "use a captioner with attention, and do not set look=None"
            raise ArgumentError(message("Caption.image_attention()", problem, hint=hint))
        weights = self.weights.astype(numpy.float64)
        return ImageAttention(self.pixels, self.words, weights, self.word_scores, title, self.notes)

    def seen(self, title: str = "") -> Seen:
        """Return the attention as a matrix: one row per word, one column per cell of the feature map.

        The columns have labels such as "2,5": the cell in row 2 and column 5 of the feature map, counted from
        1.

        title: heading of the result. "" is the caption.
        """
        sites: tuple[Site, ...] = ()
        cells: tuple[str, ...] = ()
        if self.weights is not None and len(self.words):
            height, width = self.weights.shape[1:]
            cells = tuple(f"{row},{column}" for row in range(1, height + 1) for column in range(1, width + 1))
            weights_TL = self.weights.reshape(len(self.words), -1)
            sites = (Site("decoder.cross", weights_TL, self.words, cells, role=TO_IMAGE),)
        numbers = tuple(range(len(cells))), tuple(range(len(self.words)))
        heading = title or self.text
        return Seen(sites, cells, self.words, *numbers, heading, self.notes, self.log_probability)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except `weights` and `pixels` as a dict for JSON.

        Two entries describe the attention. "map" is the height and width of the feature map.
        "strongest_cells" has, for each word, the row and column of the cell with the largest weight, counted
        from 0. Both are None if no attention was recorded.
        """
        shape = None if self.weights is None else list(self.weights.shape[1:])
        strongest = None
        if self.weights is not None and shape is not None:
            places = [divmod(int(each.argmax()), shape[1]) for each in self.weights]
            strongest = [[row, column] for row, column in places]
        return {
            "image": self.image,
            "caption": self.text,
            "log_probability": self.log_probability,
            "ranking": self.ranking,
            "words": list(self.words),
            "word_scores": list(self.word_scores),
            "token_ids": list(self.token_ids),
            "token_scores": list(self.token_scores),
            "map": shape,
            "strongest_cells": strongest,
            "notes": list(self.notes),
            "others": [each.to_dict() for each in self.others],
        }

    def drawing(self) -> ImageAttention:
        return self.image_attention()

    def page_entry(self) -> ImageAttention | None:
        drawable = self.weights is not None and 1 <= len(self.words) <= WORDS
        return self.image_attention(self.image) if drawable else None

    @staticmethod
    def write_page(path: str | Path, entries: Sequence[ImageAttention], title: str, about: str = "") -> None:
        from regard.viewing.image_attention import save_caption_page

        save_caption_page(path, entries, title, about)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Caption({self.text[:80]!r}, log_probability={self.log_probability:.4g})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        heading = printable(f"{self.image}  {self.text}" if self.image else self.text)
        if self.weights is not None and self.words and self.pixels is not None:
            yield self.image_attention(heading)
        else:
            yield Text(heading)

    def _repr_html_(self) -> str:
        if self.weights is None or self.pixels is None or not self.words:
            return f"<p>{safe(self.text)}</p>"
        return self.image_attention()._repr_html_()
