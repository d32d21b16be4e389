"""Split captions into words, and check the arguments of the caption metrics (CIDEr-D and caption BLEU)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from regard.errors import ArgumentError, DataError, message

__all__ = [
    "CAPTION_TOKENS",
    "Ngram",
    "caption_words",
    "checked_captions",
    "checked_references",
    "count_ngrams",
]

Ngram = tuple[str, ...]

CAPTION_TOKENS = "case:lc|tok:words|punct:no"
"""The part of the signature of a score (see Score) that describes caption_words()."""

WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*|'(?:d|ll|m|re|s|t|ve)(?!\w)")
"""Matches a word, possibly with hyphens, or an English suffix with its apostrophe, such as 's."""


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
