"""CIDEr-D: a metric of the similarity of captions and references, with higher weights for rare n-grams."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from regard.evaluation.bleu import Score
from regard.evaluation.caption_words import (
    CAPTION_TOKENS,
    Ngram,
    checked_captions,
    checked_references,
    count_ngrams,
)

__all__ = ["CiderD", "cider_d"]

ORDER = 4
"""N, the maximum length of n-grams (Vedantam et al. 2015, equation 3)."""

SIGMA = 6.0
"""Standard deviation of the length penalty, in words (Vedantam et al. 2015, below equation 4)."""

SCALE = 10.0
"""The factor 10 in Vedantam et al. 2015, equation 4. It makes scores about as large as in other metrics."""


class _Vectors(NamedTuple):
    """The tf-idf vectors of a caption or reference, one vector for each n-gram length n = 1 to ORDER.

    weights: for each n, a dict: n-gram -> tf-idf weight.
    norms: for each n, the Euclidean norm of the vector.
    length: number of words of the caption or reference.
    """

    weights: tuple[dict[Ngram, float], ...]
    norms: tuple[float, ...]
    length: int


def cider_d(captions: Iterable[str], references: Iterable[Iterable[str]]) -> Score:
    """Compute CIDEr-D (Vedantam et al. 2015) of captions: 0 to 10, higher is better.

    For each n-gram length n, a caption c is compared with its references s_j (equations 1, 4 and 5):

        g_k(s) = count of k in s * log(number of images / number of images with k in a reference)
        CIDEr-D_n = 10/m * sum_j exp(-(l(c) - l(s_j))^2 / (2 * 6^2))
                    * min(g(c), g(s_j)) . g(s_j) / (|g(c)| |g(s_j)|)
        CIDEr-D = mean of CIDEr-D_n over n = 1, 2, 3, 4, then mean over the images

    g(s) is the tf-idf vector of a sentence s, with one element g_k(s) for each n-gram k. l(s) is the number
    of words of s.

    captions: one caption for each image.
    references: for each image, its m references s_1 ... s_m. The numbers of images in g_k(s) are counted in
        this argument. An n-gram that occurs in no reference is treated as if it occurred in the references of
        one image.

    Papers usually print this value times 100: a COCO model with "CIDEr 113.2" has 1.132 here. With only one
    image, all logarithms are 0, so the score is 0.

    Differs from the paper: equation 1 divides the count of an n-gram by the number of n-grams of the
    sentence. The code of the authors, coco-caption, does not divide, and neither does this function.
    Published scores come from that code.

    Captions are split into words by caption_words().

    >>> references = [["a dog runs", "a dog is running"], ["two red birds"]]
    >>> round(cider_d(["a dog runs", "two birds"], references).value, 2)
    3.49
    """
    return CiderD(references).score(captions)


class CiderD:
    """Computes CIDEr-D of captions for fixed references, whose tf-idf vectors are computed only once.

    Use this class to score the captions of several models or checkpoints.

    references: for each image, one or more references.

    >>> metric = CiderD([["a dog runs"], ["two red birds"]])
    >>> print(metric.score(["a dog runs", "two red birds"]))
    CIDEr-D 7.50  nrefs:1|n:4|sigma:6|df:references|case:lc|tok:words|punct:no|scale:10
    >>> metric.image_scores(["a dog runs", "a cat"])  # "a dog runs" has no 4-gram, so its score is 7.5
    [7.5, 0.0]
    """

    def __init__(self, references: Iterable[Iterable[str]]):
        listed = checked_references("CiderD()", references)
        seen: Counter[Ngram] = Counter()
        for several in listed:
            seen.update(
                {ngram for words in several for counts in count_ngrams(words, ORDER) for ngram in counts}
            )
        images = len(listed)
        self._unseen = math.log(images)
        self._idf = {ngram: math.log(images / count) for ngram, count in seen.items()}
        self._vectors = [[self._vector(words) for words in several] for several in listed]

    def __len__(self) -> int:
        """Return the number of images that have references."""
        return len(self._vectors)

    def score(self, captions: Iterable[str]) -> Score:
        """Return the CIDEr-D of all captions together: the mean of image_scores().

        captions: one caption for each image.
        """
        scores = self.image_scores(captions)
        fewest = min(map(len, self._vectors))
        most = max(map(len, self._vectors))
        references = str(most) if fewest == most else f"{fewest}-{most}"
        signature = (
            f"nrefs:{references}|n:{ORDER}|sigma:{SIGMA:g}|df:references|{CAPTION_TOKENS}|scale:{SCALE:g}"
        )
        return Score("CIDEr-D", sum(scores) / len(scores), signature)

    def image_scores(self, captions: Iterable[str]) -> list[float]:
        """Return a list with the CIDEr-D of each caption, 0 to 10.

        captions: one caption for each image.
        """
        words = checked_captions("CiderD.score()", captions, len(self))
        return [
            self._image(self._vector(each), several)
            for each, several in zip(words, self._vectors, strict=True)
        ]

    def _vector(self, words: list[str]) -> _Vectors:
        weights = tuple(
            {ngram: count * self._idf.get(ngram, self._unseen) for ngram, count in counts.items()}
            for counts in count_ngrams(words, ORDER)
        )
        norms = tuple(math.sqrt(sum(weight * weight for weight in each.values())) for each in weights)
        return _Vectors(weights, norms, len(words))

    def _image(self, caption: _Vectors, references: list[_Vectors]) -> float:
        total = 0.0
        for reference in references:
            penalty = math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
            total += penalty * sum(_clipped_cosine(caption, reference, n) for n in range(ORDER)) / ORDER
        return SCALE * total / len(references)


def _clipped_cosine(caption: _Vectors, reference: _Vectors, order: int) -> float:
    """Return the similarity of a caption and a reference for one n-gram length, as in CIDEr-D.

    It is min(g(c), g(s)) . g(s) / (|g(c)| |g(s)|), or 0 if one of the norms is 0.

    caption: the tf-idf vectors g(c) of the caption.
    reference: the tf-idf vectors g(s) of the reference.
    order: index of the n-gram length, n - 1.
    """
    norms = caption.norms[order] * reference.norms[order]
    if not norms:
        return 0.0
    wanted = reference.weights[order]
    shared = ((weight, wanted[ngram]) for ngram, weight in caption.weights[order].items() if ngram in wanted)
    return sum(min(own, other) * other for own, other in shared) / norms
