"""Write captions with the attention of every word over the image to one self-contained HTML page.

The page makes no network requests. If the reader points at a word, or selects it with Tab and the arrow keys,
the page shows the attention of the word over the image. If the reader points at a cell of the image, the page
shows which words attend to this cell. Without JavaScript, the page shows a panel for each word. Text is
escaped, and the attention weights are numbers in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy

from regard.errors import ArgumentError, message
from regard.viewing.html_document import Page, article_page, fragment_of, image_uri, safe, save_html
from regard.viewing.image_attention import ImageAttention, resized
from regard.viewing.pictures.caption_panels import caption_panels, panel_size
from regard.viewing.pictures.svg_writer import png_of

__all__ = ["caption_fragment", "caption_page", "save_caption_page"]

CAPTIONS = 500
"""Maximum number of captions on one HTML page."""

PIXELS, IMAGE = 6_000_000, 160_000
"""PIXELS is the maximum number of pixels of all images on a page together, to limit the size of the file.
IMAGE is the maximum number of pixels of the image of one caption."""

INLINE = 200_000
"""Maximum number of pixels of the pictures of all words together in caption_fragment()."""

TITLE = "Captions"


def caption_page(captions: Iterable[ImageAttention], title: str = TITLE, about: str = "") -> Page:
    """Return a self-contained HTML page of captions with the attention of every word over its image.

    captions: 1 to 500 images, each with its caption and the attention of each word.
    title: the heading of the page.
    about: a line below the heading.

    >>> image = numpy.zeros((4, 4, 3), numpy.uint8)
    >>> page = caption_page([ImageAttention(image, ["<cat>"], [[[1.0]]])])
    >>> page.startswith("<!DOCTYPE html>"), "<cat>" in page, "&lt;cat&gt;" in page
    (True, False, True)
    """
    listed = list(captions)
    if not 1 <= len(listed) <= CAPTIONS:
        problem = f"there are {len(listed)} captions"
        raise ArgumentError(message("caption_page()", problem, expected=f"1 to {CAPTIONS}"))
    hint = (
        "Point at a word, or move to it with Tab and the arrow keys, to see where it attended. Point at the "
        "image to see which words attended to that region."
    )
    body = (line for number, each in enumerate(listed) for line in _article(each, number, len(listed)))
    files = ("caption.css", "words.js", "caption.js")
    return article_page(title, body, about=about, hint=hint, files=files, images=True)


def save_caption_page(
    path: str | Path, captions: Iterable[ImageAttention], title: str = TITLE, about: str = ""
) -> None:
    """Write the HTML page that caption_page() returns to a file, atomically.

    path: the file to write, ending in .html.
    captions, title, about: see caption_page().
    """
    save_html(path, lambda: caption_page(captions, title, about))


def caption_fragment(seen: ImageAttention) -> str:
    """Return HTML for a notebook: a picture of the attention of each word over the image, and a summary.

    seen: the image with its caption and the attention of each word.

    >>> image = numpy.zeros((4, 4, 3), numpy.uint8)
    >>> text = caption_fragment(ImageAttention(image, ["<cat>"], [[[1.0]]]))
    >>> "<script" in text, "&lt;cat&gt;" in text
    (False, True)
    """
    notes = (f'<p class="quiet" dir="auto">{safe(note)}</p>' for note in (seen.summary(), *seen.notes))
    return fragment_of((_panels(seen, INLINE), *notes))


def _article(seen: ImageAttention, number: int, count: int) -> Iterator[str]:
    """Yield the HTML of an <article> with one image, its caption and the attention of each word.

    seen: the image with the caption and the attention of each word.
    number: index of the caption on the page, from 0.
    count: number of captions on the page.
    """
    yield f'<article id="c{number + 1}">'
    if count > 1:
        yield f'<h2><a href="#c{number + 1}">{number + 1}</a></h2>'
    if seen.title:
        yield f'<p class="name" dir="auto">{safe(seen.title)}</p>'
    size = panel_size(seen, min(IMAGE, PIXELS / count / 2))
    rows, columns = seen.weights.shape[1:]
    yield f'<figure data-rows="{rows}" data-columns="{columns}">'
    yield (
        f'<img class="photo" width="{size[1]}" height="{size[0]}" alt="the image of the caption: '
        f'{safe(seen.caption)}" src="{image_uri("png", png_of(resized(seen.image, *size)))}">'
    )
    yield "</figure>"
    words = "\n".join(_word(seen, word) for word in range(len(seen.words)))
    yield f'<p class="caption" dir="auto" lang="" role="group" aria-label="words of the caption">{words}</p>'
    yield f'<p class="what" dir="auto">{safe(_sentence(seen.summary()))}</p>'
    if seen.notes:
        yield "".join(f'<p class="note quiet" dir="auto">{safe(note)}</p>' for note in seen.notes)
    yield '<details class="panels" open><summary>a panel for each word</summary>'
    yield _panels(seen, PIXELS / count / 2)
    yield "</details>"
    yield "</article>"


def _word(seen: ImageAttention, word: int) -> str:
    """Return a word of the caption as a <span>, with its attention weights in the attributes.

    The attribute data-map has one byte for each cell of the image, in base64. 255 is the largest weight.

    word: index of the word, from 0.
    """
    levels = (255 * seen.levels(word)).round().astype(numpy.uint8)
    chance = seen.probability(word)
    probability = "" if chance is None else f' data-probability="{chance:.3g}"'
    most = f'data-most="{seen.weights[word].max():.6g}"'
    if not seen.is_uniform(word):
        most += f' data-cell="{seen.strongest(word)}"'
    data = base64.b64encode(levels.tobytes()).decode()
    return f'<span {most}{probability} data-map="{data}">{safe(seen.words[word])}</span>'


def _panels(seen: ImageAttention, pixels: float) -> str:
    """Return an <img> element with an SVG picture: for each word, a copy of the image with its attention.

    pixels: maximum number of pixels of all copies together.
    """
    svg = caption_panels(seen, pixels=int(pixels)).svg()
    return f'<img class="all" alt="{safe(seen.caption)}" src="{image_uri("svg+xml", svg.encode())}">'


def _sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}."
