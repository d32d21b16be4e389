"""Evaluate captions: CIDEr-D, BLEU and, for the built-in corpus `shapes`, correctness and pointing accuracy.

Pointing accuracy measures whether a word of a caption, such as "circle", attends to the object that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from regard.data.shapes import Scene, is_valid, word_regions
from regard.evaluation.bleu import Score, bleu
from regard.evaluation.caption_metrics import CiderD, caption_bleu


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Score]:
    """Compute CIDEr-D and BLEU of captions, as a dict from the name of a metric to its Score.

    The names are "cider", "bleu1", "bleu2", "bleu3", "bleu4" and "bleu".

    captions: one caption for each image.
    references: for each image, one or more references.

    bleu1 to bleu4 have no brevity penalty, as in Xu et al. 2015; bleu is BLEU-4 of sacreBLEU, with brevity
    penalty, on lowercased text.

    >>> scores = caption_scores(["a dog runs", "two birds"], [["a dog runs"], ["two red birds", "birds"]])
    >>> {name: round(score.value, 1) for name, score in scores.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'cider': 4.7, 'bleu1': 100.0, 'bleu2': 81.6, 'bleu3': 87.4, 'bleu4': 0.0, 'bleu': 0.0}
    """
    most = max(map(len, references))
    # sacreBLEU needs the same number of references for each caption. A repeated reference does not change the
    # score.
    filled = [[*several, *[several[0]] * (most - len(several))] for several in references]
    one, two, three, four = caption_bleu(captions, references)
    return {
        "cider": CiderD(references).score(captions),
        "bleu1": one,
        "bleu2": two,
        "bleu3": three,
        "bleu4": four,
        "bleu": bleu(captions, [list(column) for column in zip(*filled, strict=True)], lowercase=True),
    }


def exact_captions(captions: Iterable[str], scenes: Iterable[Scene]) -> float:
    """Return the fraction of captions that describe their scene correctly.

    captions: one caption for each scene.
    scenes: the objects of each picture of the built-in corpus `shapes`. data.shapes.is_valid() decides
        whether a caption describes a scene correctly.
    """
    valid = [is_valid(scene, caption) for caption, scene in zip(captions, scenes, strict=True)]
    return sum(valid) / max(len(valid), 1)


class Pointing(NamedTuple):
    """How often a word of a caption attends most to the object that it names (pointing accuracy).

    Only content words count, such as "red", "circle" or "above", which describe one or two objects. The gold
    region of such a word is the set of pixels of these objects.

    accuracy: the fraction of content words that attend most to a cell with a pixel of the gold region. A cell
        is a square part of the picture with one attention weight.
    chance: the expected accuracy if the cells are chosen at random.
    words: number of content words.
    """

    accuracy: float
    chance: float
    words: int


def pointing(captions: Sequence[str], maps: Sequence[Any], scenes: Sequence[Scene]) -> Pointing:
    """Compute the pointing accuracy of the attention of captions of the built-in corpus `shapes`.

    captions: one caption for each picture.
    maps: for each caption, an array (T, h, h) with the attention weights of its T words on h x h cells of the
        picture; or None to skip the caption.
    scenes: the objects of each picture.

    A picture has 64 x 64 pixels. Cell (i, j) covers the rows of pixels from 64 i / h to 64 (i + 1) / h, and
    the columns from 64 j / h to 64 (j + 1) / h. A caption that describes its scene wrongly is skipped,
    because its words may name objects that are not in the scene.

    >>> import numpy
    >>> from regard.data.shapes import shapes
    >>> scene, captions = shapes("valid", 1)[0]
    >>> maps = [numpy.stack([numpy.eye(8)] * len(captions[0].split()))]
    >>> result = pointing(captions[:1], maps, [scene])
    >>> result.words > 0, 0 <= result.chance < 1
    (True, True)
    """
    hits, chances = list[bool](), list[float]()
    for caption, maps_Thw, scene in zip(captions, maps, scenes, strict=True):
        if maps_Thw is None or not is_valid(scene, caption):
            continue
        for map_hw, region in zip(maps_Thw, word_regions(scene, caption), strict=True):
            if region is None:
                continue
            cells = region.cells(map_hw.shape[0])
            hits.append(bool(cells.flat[int(map_hw.argmax())]))
            chances.append(float(cells.mean()))
    count = max(len(hits), 1)
    return Pointing(sum(hits) / count, sum(chances) / count, len(hits))
