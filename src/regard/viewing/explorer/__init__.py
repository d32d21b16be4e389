"""explore(): show the recorded attention of one sentence in an interactive HTML page with all views.

The page contains the weights as base64 text, and decodes them for drawing. Tokens are inserted as text, never
as markup. Without JavaScript, the page shows the sentence and its alignment as a table.

A weight is stored as the integer q = round(L sqrt(weight / most)). `most` is the largest weight of the head.
L is 65,534 (16 bits) for small pages and 254 (8 bits) for large pages. The integer L + 1 means NaN. The
rounding error is at most sqrt(weight * most) / L + most / (4 L^2). With 8 bits, the relative error of the
largest weight is 0.4 %. The relative error of a weight that is a hundred times smaller is 4 %. Weights below
about most / 250,000 become 0. With 16 bits, the error is 258 times smaller.

If a page has too many weights, only the largest weights of each row are stored, with their keys.

Two words are used in this module. A plane is one stored matrix of a site: the weights of one head, or a mean
over heads. A side is the sequence of subwords that label the rows, or the columns, of a site.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.viewing.entry import WEIGHTS, Entry, facts, table
from regard.viewing.html_document import JOINERS, Page, article_page, check_ending, save_html
from regard.viewing.pooled_attention import Pooled, largest, pooled
from regard.viewing.seen import Drawable, Seen, Site, seen_of
from regard.viewing.terminal_colors import clean
from regard.viewing.word_groups import grouped, spelled_or_space

__all__ = ["explore", "pack", "quantised"]

TITLE = "Recorded attention"

SCRIPTS = (
    *("data", "table", "long", "element", "reading", "matrix", "canvas", "map", "lines"),
    *("sentence", "steps", "heads", "choices", "explorer"),
)
"""The JavaScript files of the page. They are joined to one script in this order."""

FINE = 1_000_000
"""If a page has at most this number of weights, each weight has 16 bits. Otherwise, each weight has 8
bits."""

BYTES = 6_500_000
"""Maximum size of all matrices of a page in bytes (8.7 MB as base64)."""

LONG = 2**20
"""If a head has more weights than this, its matrix is not stored.

The page then has only the largest weights of each row, and the maximum and the mean of each block of the
matrix."""

LONGEST = 200
"""Maximum length of a token in characters. Longer tokens are truncated."""


def explore(seen: Drawable, path: str | Path | None = None, title: str = "") -> Page:
    """Return an interactive HTML page with every view of recorded attention.

    The page is one file and makes no network requests. It has these views: the alignment matrix, two columns
    of words joined by lines, a sentence with shaded words, the attention to one word over time, thumbnails of
    all layers and heads, and attention rollout. The reader can choose between subwords and words, and between
    weights and weights times value norms. Special tokens can be hidden. The full matrix of a long sequence is
    not stored. Then the page has the maximum and the mean of each block of the matrix, and the largest
    weights of each row.

    seen: a Seen, a Translation, or the result of record() for one sequence.
    path: file to write, ending in .html. Default: no file is written.
    title: heading of the page. Default: the title of `seen`.

    Returns the page, a str that a notebook displays. The matrices take less than 9 MB of the page. If all
    weights need more space, only the largest weights of each row are stored. Weights are rounded. The error
    is at most 0.4 % of the largest weight (see the head of `regard.viewing.explorer`).

    >>> from regard.viewing import Seen, Site, explore
    >>> site = Site("decoder.cross", [[0.9, 0.1]], ["<cat>"], ["고양이", "</s>"])
    >>> page = explore(Seen((site,), ("고양이", "</s>"), ("<cat>",), (0, -1), (0,)))
    >>> page.startswith("<!DOCTYPE html>"), "<cat>" in page
    (True, False)
    """
    seen = seen_of(seen, "explore()")
    if path is not None:
        check_ending(path, ".html", "use the ending of an HTML file")
    files = ("explorer/explorer.css", *(f"explorer/{name}.js" for name in SCRIPTS))
    heading = title or seen.title or TITLE
    page = article_page(heading, _still(seen), files=files, after=_data(seen), name="explorer")
    if path is not None:
        save_html(path, lambda: page)
    return page


def _data(seen: Seen) -> Iterator[str]:
    """Yield the elements with the weights, which the JavaScript of the page reads."""
    packed = pack(seen)
    for number, block in enumerate(packed.blocks):
        text = base64.b64encode(block).decode()
        yield f'<script type="text/plain" id="block-{number}">{text}</script>'
    data = json.dumps({"sides": packed.sides, "sites": packed.sites}, separators=(",", ":"))
    # Without the character "<", no text in the data can close this script element or open a new element.
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    yield f'<script type="application/json" id="data">{data}</script>'


def _still(seen: Seen) -> Iterator[str]:
    """Yield the HTML that the page shows without JavaScript: the sentence and its alignment as a table."""
    crossing = tuple(site for site in seen.sites if site.kind == "cross" and site.weights[0].size <= LONG)
    words = replace(seen, sites=crossing).words().without_specials(renormalise=False)
    cross = words.sites
    weights = None
    if cross and {(site.rows, site.columns) for site in cross} == {(words.target, words.source)}:
        weights = numpy.mean([site.weights.mean(0) for site in cross], 0)
    entry = Entry(words.source, words.target, weights, seen.score)
    yield "<article>"
    yield from facts(entry, seen.notes)
    if weights is not None and weights.size:
        yield f'<details id="still" open><summary>weights: {WEIGHTS}</summary>'
        yield from table(entry)
        yield "</details>"
    yield "</article>"


def quantised(weights: NDArray[Any], most: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return weights as integers on a square-root scale: round(L sqrt(weight / most)); NaN becomes L + 1.

    weights: (P, ...), the weights of P matrices: heads, or means over heads.
    most: (P,), the largest weight of each matrix.
    bits: 8 (L = 254) or 16 (L = 65,534).

    >>> quantised(numpy.array([[0.0, 0.25, 1.0, numpy.nan]]), numpy.array([1.0]), 8).tolist()
    [[0, 127, 254, 255]]
    """
    top = 2**bits - 2
    shaped = most.reshape(-1, *[1] * (weights.ndim - 1))
    roots = numpy.sqrt(numpy.clip(weights / shaped, 0.0, 1.0))
    whole = numpy.where(numpy.isnan(roots), top + 1, numpy.rint(top * numpy.nan_to_num(roots)))
    return whole.astype("<u2" if bits == 16 else "u1")


@dataclass
class Packed:
    """The data of an explorer page. `sides` and `sites` are written as JSON, `blocks` as base64.

    sides: the sequences of subwords that label the rows or columns of matrices, without duplicates. Each
        subword has the index of its word.
    sites: for each site (attention layer), its name, its kind, the indices in `sides` of its rows and
        columns, and the number format of its weights.
    blocks: the weights of each site as bytes.
    """

    sides: list[dict[str, Any]] = field(default_factory=list)
    sites: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    _indices: dict[Any, int] = field(default_factory=dict)

    def side(self, pieces: Sequence[str], numbers: Sequence[int]) -> int:
        """Return the index of a sequence of subwords in `sides`; append the sequence if it is new.

        pieces: the subwords.
        numbers: the word index of each subword.
        """
        key = (tuple(pieces), tuple(numbers))
        if key not in self._indices:
            groups = grouped(numbers)
            place = {piece: number for number, group in enumerate(groups) for piece in group}
            parts = [[pieces[piece] for piece in group] for group in groups]
            side = {
                "pieces": [_token(piece) for piece in pieces],
                "words": [_token(spelled_or_space(part)) for part in parts],
                "groups": [place[piece] for piece in range(len(pieces))],
                "special": [int(numbers[group[0]] < 0) for group in groups],
            }
            self._indices[key] = len(self.sides)
            self.sides.append(side)
        return self._indices[key]


def pack(seen: Seen) -> Packed:
    """Return the data of an explorer page for a Seen (the recorded attention of one sentence)."""
    packed = Packed()
    sites = (*_means(seen), *seen.sites, *_rollouts(seen))
    short = [site for site in sites if site.weights[0].size <= LONG]
    planes = list(map(_planes, short))
    count = sum(weights.size for weights in planes)
    rows = sum(weights.shape[0] * weights.shape[1] for weights in planes)
    available = BYTES - 4 * sum(site.values.size for site in short if site.values is not None)
    # If kept is None, whole matrices are stored.
    kept = None if count <= available else max(min(available // (3 * rows), 64), 1)
    for site, weights in zip(short, planes, strict=True):
        about, content = _short(weights, kept, 16 if count <= FINE else 8)
        values = b"" if site.values is None else site.values.astype("<f4").tobytes()
        packed.blocks.append(content + values)
        packed.sites.append(
            {
                "name": clean(site.name),
                "kind": site.kind,
                "heads": site.heads,
                "rows": packed.side(site.rows, site.row_words or ()),
                "columns": packed.side(site.columns, site.column_words or ()),
                "values": site.values is not None,
                **about,
            }
        )
    long = [_pooled_site(site) for site in sites if site.weights[0].size > LONG]
    for each, mean in (*((each, each.heads > 1) for each in long), *((each, False) for each in seen.long)):
        about, content = _long(each)
        packed.blocks.append(content)
        packed.sites.append(
            {
                "name": clean(each.name),
                "kind": "long",
                "heads": each.heads - mean,
                "mean": mean,
                "rows": packed.side(each.rows, range(len(each.rows))),
                "columns": packed.side(each.columns, range(len(each.columns))),
                **about,
            }
        )
    return packed


def _planes(site: Site) -> NDArray[numpy.float32]:
    """Return the matrices that the page stores for a site (an attention layer).

    The matrices are the weights of each head and the mean over heads. If the value norms are known, the mean
    over heads of weight × value norm is added. For a site with one head, the only matrix is the weights of
    this head.
    """
    if site.heads == 1:
        return site.weights
    planes = [site.weights, site.weights.mean(0, keepdims=True)]
    if site.values is not None:
        planes.append((site.weights * site.values[:, None]).mean(0, keepdims=True))
    return numpy.concatenate(planes)


def _short(planes: NDArray[Any], kept: int | None, bits: int) -> tuple[dict[str, Any], bytes]:
    """Convert the matrices of one site (attention layer) to the form in which the page stores them.

    Returns a pair: a dict that describes the number format, for JSON, and the numbers as bytes.

    planes: (P, T, S), the matrices: heads, or means over heads.
    kept: how many of the largest weights of each row to store. None: all weights are stored.
    bits: the number of bits of each weight, 8 or 16, if all weights are stored.
    """
    most = _most(planes)
    about: dict[str, Any] = {"form": "whole", "bits": bits, "most": _rounded(most)}
    if kept is None or kept >= planes.shape[2]:
        return about, quantised(planes, most, bits if kept is None else 8).tobytes()
    keys, weights = largest(planes, kept)
    share = weights.sum((1, 2), dtype=float) / numpy.maximum(planes.sum((1, 2), dtype=float), 1e-30)
    wide = _wide(planes.shape[2])
    about |= {"form": "top", "bits": 8, "kept": kept, "wide": wide, "share": _rounded(share)}
    return about, keys.astype("<u4" if wide else "<u2").tobytes() + quantised(weights, most, 8).tobytes()


def _long(site: Pooled) -> tuple[dict[str, Any], bytes]:
    """Convert one site (attention layer) of a long sequence to the form in which the page stores it.

    The matrix is not stored in full. The stored numbers are the largest weights of each row with their
    keys, and the maximum and the mean of each block of the matrix.

    Returns a pair: a dict that describes the number format, for JSON, and the numbers as bytes.
    """
    wide = _wide(len(site.columns))
    most, most_mean = _most(site.maxima), _most(site.means)
    about = {
        "form": "long",
        "bits": 8,
        "kept": site.keys.shape[2],
        "wide": wide,
        "map": list(site.maxima.shape[1:]),
        "whole": site.whole,
        "exactMeans": site.exact_means,
        "most": _rounded(most),
        "mostMean": _rounded(most_mean),
    }
    parts = [
        site.keys.astype("<u4" if wide else "<u2"),
        quantised(site.weights, most, 8),
        quantised(site.maxima, most, 8),
        quantised(site.means, most_mean, 8),
    ]
    return about, b"".join(part.tobytes() for part in parts)


def _wide(columns: int) -> bool:
    """Return whether the index of a key needs four bytes instead of two.

    columns: the number of keys. The largest integer of the type cannot be used as an index, because it means
        "no key".
    """
    return columns > 2**16 - 1


def _pooled_site(site: Site) -> Pooled:
    """Return a summary (Pooled) of a site whose matrix is too large to be stored.

    If the site has several heads, the first head of the Pooled is the mean over all heads.
    """
    mean = site.weights.mean(0, keepdims=True)
    weights = site.weights if site.heads == 1 else numpy.concatenate([mean, site.weights])
    return pooled(site.name, weights, site.rows, site.columns)


def _means(seen: Seen) -> list[Site]:
    """Return the mean over layers and heads of each kind of attention (cross, encoder, decoder).

    A kind is left out if it has only one layer, or if its layers have different queries or keys.
    """
    means = []
    for kind in ("cross", "encoder", "decoder"):
        layers = [site for site in seen.sites if site.kind == kind]
        if len(layers) < 2 or len({(site.rows, site.columns) for site in layers}) > 1:
            continue
        mean = numpy.mean([site.weights.mean(0) for site in layers], 0)[None]
        part, last = layers[0].name.split(".")[0], layers[0].name.split(".")[-1]
        means.append(replace(layers[0], name=f"{part}.*.{last}", weights=mean, values=None))
    return means


def _rollouts(seen: Seen) -> list[Site]:
    """Return a list with the attention rollout of the encoder as its only Site.

    The list is empty if no encoder self-attention was recorded.
    """
    layers = [site for site in seen.sites if site.kind == "encoder" and site.role.kind == "self"]
    square = len({site.weights.shape[1:] for site in layers}) == 1
    return [seen.rollout()] if square and layers[0].rows == layers[0].columns else []


def _most(planes: NDArray[Any]) -> NDArray[Any]:
    """Return the largest weight of each matrix, or 1 if the matrix has no positive weight.

    planes: (P, ...), the weights of P matrices.
    """
    largest_weight = (
        numpy.where(numpy.isnan(planes), 0.0, planes).reshape(len(planes), -1).max(1, initial=0.0)
    )
    # Round the maximum first, then divide the weights by the rounded maximum, because the page multiplies
    # them by it.
    return numpy.array(_rounded(numpy.where(largest_weight > 0, largest_weight, 1.0)))


def _rounded(numbers: NDArray[Any]) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers.tolist()]


def _token(text: str) -> str:
    shown = clean(text, kept=JOINERS)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
