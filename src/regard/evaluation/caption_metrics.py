"""Metrics of captions: CIDEr-D, and BLEU-1 to BLEU-4 without brevity penalty (Xu et al. 2015).

For the built-in corpus `shapes`, also correctness, and pointing accuracy: whether a word of a caption, such
as "circle", attends to the object that it names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from regard.data.shapes import Scene, is_valid, word_regions
from regard.errors import DataError, message
from regard.evaluation.bleu import Score, bleu, checked_texts

Ngram = tuple[str, ...]

CAPTION_TOKENS = "case:lc|tok:words|punct:no"
"""The part of the signature of a score (see Score) that describes caption_words()."""

WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*|'(?:d|ll|m|re|s|t|ve)(?!\w)")
"""Matches a word, possibly with hyphens, or an English suffix with its apostrophe, such as 's."""

ORDER = 4
"""N, the maximum length of n-grams (Vedantam et al. 2015, equation 3)."""

SIGMA = 6.0
"""Standard deviation of the length penalty, in words (Vedantam et al. 2015, below equation 4)."""

SCALE = 10.0
"""The factor 10 in Vedantam et al. 2015, equation 4. It makes scores about as large as in other metrics."""


def caption_words(caption: str) -> list[str]:
    """Split a caption into words, in lower case and without punctuation.

    "dog's" and "dog 's" give two words, "dog" and "'s".

    Differs from coco-caption, the evaluation code of COCO, whose tokenizer is a Java program. It also splits
    "don't" into "do n't", and it keeps symbols such as "&". Like this function, it drops punctuation.

    >>> caption_words("A dog's T-shirt, isn’t it 3 o'clock?")
    ['a', 'dog', "'s", 't-shirt', 'isn', "'t", 'it', '3', 'o', 'clock']
    """
    return WORD.findall(caption.lower().replace("’", "'"))


def checked_captions(call: str, captions: Iterable[str], images: int) -> list[list[str]]:
    """Check the captions that a metric scores, one for each image. Return the words of each caption.

    A caption without words is valid, because a model may output an empty caption.

    call: name of the function for error messages.
    captions: the captions.
    images: number of images.
    """
    words = list(map(caption_words, checked_texts(call, "captions", captions)))
    if len(words) != images:
        problem = f"there are {len(words)} captions, but references of {images} images"
        hint = "references[i] is the list of references of image i"
        raise DataError(message(call, problem, expected="one caption for each image", hint=hint))
    return words


def checked_references(call: str, references: Iterable[Iterable[str]]) -> list[list[list[str]]]:
    """Check the reference captions, one or more for each image. Return the words of each reference.

    A reference without words is an error, because no caption can match it.

    call: name of the function for error messages.
    references: for each image, a list of references.
    """
    listed = []
    for number, several in enumerate([references] if isinstance(references, str) else references, 1):
        texts = checked_texts(call, f"references of image {number}", several)
        split = list(map(caption_words, texts))
        if not split or not all(split):
            problem = f"a reference of image {number} has no words" if split else f"image {number} has none"
            raise DataError(message(call, problem, expected="at least one reference with words"))
        listed.append(split)
    if not listed:
        raise DataError(message(call, "there are no captions to score", expected="at least one image"))
    return listed


def caption_bleu(
    captions: Iterable[str], references: Iterable[Iterable[str]]
) -> tuple[Score, Score, Score, Score]:
    """Compute BLEU-1, 2, 3 and 4 of captions without brevity penalty, each 0 to 100, higher is better.

    BLEU-N = (p_1 ... p_N)^(1/N), with p_n the n-gram precision over all captions (Papineni et al. 2002,
    section 2.1.1). An n-gram that occurs several times in a caption is counted at most k times, where k is
    the largest number of times that it occurs in one reference of the image. There is no brevity penalty, as
    in Xu et al. 2015 (section 5), so a short caption is not penalised. Compare these scores only with scores
    without brevity penalty. For BLEU with the penalty, use bleu().

    captions: one caption for each image.
    references: for each image, a list of one or more references. This differs from bleu(), where each list
        has one reference for every translation.

    There is no smoothing: if no n-gram of length N matches, BLEU-N is 0. caption_words() splits captions.

    >>> for score in caption_bleu(["a dog runs fast"], [["a dog is running fast", "the dog runs"]]):
    ...     print(f"{score.name} {score.value:.2f}")
    BLEU-1 100.00
    BLEU-2 81.65
    BLEU-3 0.00
    BLEU-4 0.00
    """
    from sacrebleu.metrics import BLEU

    call = "caption_bleu()"
    listed = checked_references(call, references)
    hypotheses = checked_captions(call, captions, len(listed))
    # sacrebleu takes a list of first references, a list of second references, ...; None is no reference.
    columns = zip_longest(*([" ".join(words) for words in several] for several in listed))
    metric = BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=ORDER)
    score = metric.corpus_score([" ".join(words) for words in hypotheses], list(map(list, columns)))
    signature = f"nrefs:{_counts(listed)}|{CAPTION_TOKENS}|bp:no|smooth:none"
    one, two, three, four = (
        Score(f"BLEU-{order}", math.prod(score.precisions[:order]) ** (1 / order), signature)
        for order in range(1, ORDER + 1)
    )
    return one, two, three, four


def _counts(references: Sequence[Sequence[object]]) -> str:
    """Return the number of references of each image as text: "5", or "4-6"."""
    fewest, most = min(map(len, references)), max(map(len, references))
    return str(most) if fewest == most else f"{fewest}-{most}"


class CiderD:
    """CIDEr-D (Vedantam et al. 2015) of captions for fixed references: 0 to 10, higher is better.

    For each n-gram length n, a caption c is compared with its references s_j (equations 1, 4 and 5):

        g_k(s) = count of k in s * log(number of images / number of images with k in a reference)
        CIDEr-D_n = 10/m * sum_j exp(-(l(c) - l(s_j))^2 / (2 * 6^2))
                    * min(g(c), g(s_j)) . g(s_j) / (|g(c)| |g(s_j)|)
        CIDEr-D = mean of CIDEr-D_n over n = 1, 2, 3, 4, then mean over the images

    g(s) is the tf-idf vector of a sentence s, with one element g_k(s) for each n-gram k. l(s) is the number
    of words of s. The vectors of the references are computed only once, for the captions of several models.

    references: for each image, its m references s_1 ... s_m. The numbers of images in g_k(s) are counted in
        this argument. An n-gram that occurs in no reference is treated as if it occurred in the references of
        one image.

    Papers usually print this value times 100: a COCO model with "CIDEr 113.2" has 1.132 here. With only one
    image, all logarithms are 0, so the score is 0.

    Differs from the paper: equation 1 divides the count of an n-gram by the number of n-grams of the
    sentence. The code of the authors, coco-caption, does not divide, and neither does this class. Published
    scores come from that code.

    Captions are split into words by caption_words().

    >>> metric = CiderD([["a dog runs"], ["two red birds"]])
    >>> print(metric.score(["a dog runs", "two red birds"]))
    CIDEr-D 7.50  nrefs:1|n:4|sigma:6|df:references|case:lc|tok:words|punct:no|scale:10
    >>> metric.image_scores(["a dog runs", "a cat"])  # "a dog runs" has no 4-gram, so its score is 7.5
    [7.5, 0.0]
    """

    def __init__(self, references: Iterable[Iterable[str]]):
        self._references = checked_references("CiderD()", references)
        seen: Counter[Ngram] = Counter()
        for several in self._references:
            seen.update({ngram for words in several for counts in _ngrams(words) for ngram in counts})
        self._unseen = math.log(len(self._references))
        self._idf = {ngram: self._unseen - math.log(count) for ngram, count in seen.items()}
        self._vectors = [[self._vectors_of(words) for words in several] for several in self._references]

    def __len__(self) -> int:
        """Return the number of images that have references."""
        return len(self._references)

    def score(self, captions: Iterable[str]) -> Score:
        """Return the CIDEr-D of all captions together: the mean of image_scores().

        captions: one caption for each image.
        """
        scores = self.image_scores(captions)
        settings = f"n:{ORDER}|sigma:{SIGMA:g}|df:references|{CAPTION_TOKENS}|scale:{SCALE:g}"
        signature = f"nrefs:{_counts(self._references)}|{settings}"
        return Score("CIDEr-D", sum(scores) / len(scores), signature)

    def image_scores(self, captions: Iterable[str]) -> list[float]:
        """Return a list with the CIDEr-D of each caption, 0 to 10.

        captions: one caption for each image.
        """
        scores = []
        checked = checked_captions("CiderD.score()", captions, len(self))
        for words, several, vectors in zip(checked, self._references, self._vectors, strict=True):
            own, total = self._vectors_of(words), 0.0
            for reference, other in zip(several, vectors, strict=True):
                penalty = math.exp(-((len(words) - len(reference)) ** 2) / (2 * SIGMA**2))
                total += penalty * sum(map(_clipped_cosine, own, other)) / ORDER
            scores.append(SCALE * total / len(several))
        return scores

    def _vectors_of(self, words: list[str]) -> list[dict[Ngram, float]]:
        """Return the tf-idf vector of a sentence for each n-gram length."""
        return [
            {ngram: count * self._idf.get(ngram, self._unseen) for ngram, count in counts.items()}
            for counts in _ngrams(words)
        ]


def _ngrams(words: list[str]) -> list[Counter[Ngram]]:
    """Return, for each n from 1 to ORDER, how many times each n-gram occurs."""
    starts = [[words[start:] for start in range(n)] for n in range(1, ORDER + 1)]
    return [Counter(zip(*each, strict=False)) for each in starts]


def _clipped_cosine(caption: dict[Ngram, float], reference: dict[Ngram, float]) -> float:
    """Return min(g(c), g(s)) . g(s) / (|g(c)| |g(s)|), or 0 if one of the norms is 0."""
    norms = math.hypot(*caption.values()) * math.hypot(*reference.values())
    shared = caption.keys() & reference.keys()
    product = math.fsum(min(caption[ngram], reference[ngram]) * reference[ngram] for ngram in shared)
    return product / norms if norms else 0.0


def cider_d(captions: Iterable[str], references: Iterable[Iterable[str]]) -> Score:
    """Compute CIDEr-D of one caption for each image: see CiderD.

    >>> references = [["a dog runs", "a dog is running"], ["two red birds"]]
    >>> round(cider_d(["a dog runs", "two birds"], references).value, 2)
    3.49
    """
    return CiderD(references).score(captions)


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
