"""Metrics of captions: CIDEr-D, and BLEU-1 to BLEU-4 without brevity penalty (Xu et al. 2015)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from regard.errors import ArgumentError, DataError, message
from regard.evaluation.bleu import Score

__all__ = ["CiderD", "caption_bleu", "caption_words", "cider_d", "count_ngrams"]

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


def count_ngrams(words: list[str], most: int) -> Iterator[Counter[Ngram]]:
    """Yield, for each n from 1 to `most`, a dict from each n-gram to the number of times it occurs.

    >>> [dict(counts) for counts in count_ngrams(["a", "dog", "a"], 2)]
    [{('a',): 2, ('dog',): 1}, {('a', 'dog'): 1, ('dog', 'a'): 1}]
    """
    for n in range(1, most + 1):
        yield Counter(zip(*(words[start:] for start in range(n)), strict=False))


def checked_captions(call: str, captions: Iterable[str], images: int) -> list[list[str]]:
    """Check the captions that a metric scores, one for each image. Return the words of each caption.

    A caption without words is valid, because a model may output an empty caption.

    call: name of the function for error messages.
    captions: the captions.
    images: number of images.
    """
    if isinstance(captions, str):
        problem = "captions is a single str"
        raise ArgumentError(message(call, problem, expected="one caption for each image", hint="use [text]"))
    words = []
    for number, caption in enumerate(captions, 1):
        if not isinstance(caption, str):
            problem = f"caption {number} is of type {type(caption).__name__}"
            raise ArgumentError(message(call, problem, expected="a str"))
        words.append(caption_words(caption))
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
    expected = "for each image, a list of references"
    if isinstance(references, str):
        raise ArgumentError(message(call, "references is a str, not a list", expected=expected))
    for number, several in enumerate(references, 1):
        if isinstance(several, str) or not isinstance(several, Iterable):
            problem = f"the references of image {number} are a {type(several).__name__}, not a list"
            raise ArgumentError(message(call, problem, expected=expected, hint="use [[text], ...]"))
        texts = list(several)
        for text in texts:
            if not isinstance(text, str):
                problem = f"a reference of image {number} is of type {type(text).__name__}"
                raise ArgumentError(message(call, problem, expected="a str"))
        split = [caption_words(text) for text in texts]
        if not split:
            raise DataError(
                message(call, f"image {number} has no reference", expected="at least one reference")
            )
        if not all(split):
            raise DataError(message(call, f"a reference of image {number} has no words"))
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
        settings = f"n:{ORDER}|sigma:{SIGMA:g}|df:references|{CAPTION_TOKENS}|scale:{SCALE:g}"
        signature = f"nrefs:{_counts(self._vectors)}|{settings}"
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
