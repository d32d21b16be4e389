"""Tokenizers for subwords (unigram and BPE), words, morphemes and characters. Each is saved to one file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from regard.data.tokenizers.morphemes import Morphemes, is_korean
from regard.data.tokenizers.subwords import BPE, Unigram, subword_kind
from regard.data.tokenizers.tokenizer import (
    Characters,
    ClosedWords,
    Tokenizer,
    Words,
    clean,
    draw_sample,
    read_bytes,
    read_vocabulary,
    sides,
)
from regard.errors import ArgumentError, DataError, Setting, UnknownName, message

__all__ = [
    "BPE",
    "Characters",
    "ClosedWords",
    "Morphemes",
    "TOKENIZERS",
    "Tokenizer",
    "Unigram",
    "Words",
    "clean",
    "load_tokenizer",
    "train_tokenizer",
    "train_tokenizers",
]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "unigram": Unigram,
    "bpe": BPE,
    "word": Words,
    "closed-word": ClosedWords,
    "character": Characters,
    "morpheme": Morphemes,
}
"""All kinds of tokenizers by name. To add one, write its class and add a line here."""


def train_tokenizer(
    kind: str, lines: Iterable[str], size: int | None = None, *, sample: int | None = None
) -> Tokenizer:
    """Train a tokenizer on lines of text. The same lines always give the same tokenizer.

    kind: the kind of tokenizer: a key of TOKENIZERS, for example "unigram", "bpe", "word" or "character".
        "morpheme" is for Korean, and needs kiwipiepy.
    lines: the lines of text.
    size: maximum vocabulary size, including the four special tokens and, for subwords, the 256 bytes. A short
        text gives a smaller vocabulary. The default for subwords depends on the text: 260, plus the number of
        different characters, plus 8 times the square root of the number of words, but at most 32,000.
    sample: maximum number of lines to train on, chosen at random from all lines. Default: 50,000 lines; for
        "closed-word", all lines. Except for "closed-word", at most about 20 million characters are used.

    >>> tokenizer = train_tokenizer("bpe", ["the cat", "the dog", "the hat"], size=280)
    >>> tokenizer.pieces(tokenizer.encode("the dog that"))
    ['▁the', '▁dog', '▁t', 'h', 'at']
    """
    if kind not in TOKENIZERS:
        raise UnknownName("tokenizer", kind, TOKENIZERS)
    call, tokenizer = "train_tokenizer()", TOKENIZERS[kind]
    return tokenizer.learned(draw_sample(lines, call, sample, whole=tokenizer.whole_text), size, call)


def train_tokenizers(
    pairs: Iterable[Any],
    kind: str = "unigram",
    *,
    joint: bool = False,
    sizes: int | tuple[int | None, int | None] | list[int | None] | None = None,
    lines: int | None = None,
) -> tuple[Tokenizer, Tokenizer]:
    """Train a tokenizer for the source and one for the target, and return both.

    pairs: tuples (source, target), or objects with the attributes `source` and `target`. They are iterated
        over once for each tokenizer.
    kind: the kind of tokenizer; see train_tokenizer(). "morpheme" is for Korean: if only one side is Korean,
        the other side gets a "unigram" tokenizer.
    joint: if True, train one tokenizer on sources and targets together, and return it twice. Use it for
        languages that share letters and names, and for models that share embeddings.
    sizes: one vocabulary size for both tokenizers, or two sizes (source, target). For the default, see
        train_tokenizer().
    lines: maximum number of lines to train each tokenizer on.

    >>> pairs = [("ein Haus", "a house"), ("ein Hut", "a hat")]
    >>> source, target = train_tokenizers(pairs, "word")
    >>> source.encode("ein Hut"), target.encode("a house")
    ([4, 6], [4, 6])
    """
    each = sizes if isinstance(sizes, tuple | list) else (sizes, sizes)
    if len(each) != 2:
        expected = "one number, or two numbers (source, target)"
        raise ArgumentError(message("train_tokenizers()", f"sizes is {sizes!r}", expected=expected))
    source_size, target_size = each
    if not joint and iter(pairs) is pairs:
        problem = "pairs is an iterator, which can be read only once, but there are two tokenizers to train"
        raise ArgumentError(message("train_tokenizers()", problem, hint="use list(pairs)"))
    kinds = _morpheme_kinds(pairs, joint) if kind == Morphemes.kind else (kind, kind)
    if joint:
        if None not in (source_size, target_size) and source_size != target_size:
            problem = f"sizes is {source_size} and {target_size}, but joint=True trains one tokenizer"
            raise ArgumentError(
                message("train_tokenizers()", problem, expected="one size for both tokenizers")
            )
        texts = itertools.chain.from_iterable(map(sides, pairs))
        size = source_size if target_size is None else target_size
        both = train_tokenizer(kind, texts, size, sample=lines)
        return both, both
    source = train_tokenizer(kinds[0], (sides(pair)[0] for pair in pairs), source_size, sample=lines)
    return source, train_tokenizer(kinds[1], (sides(pair)[1] for pair in pairs), target_size, sample=lines)


def _morpheme_kinds(pairs: Iterable[Any], joint: bool) -> tuple[str, str]:
    """Return the kinds of tokenizers for Korean text: "morpheme" for a Korean side, "unigram" for another."""
    if joint:
        problem, hint = "a morpheme tokenizer is for one language", ("use ", Setting("data", "joint", False))
        raise ArgumentError(message("train_tokenizers()", f"{problem}, but joint is true", hint=hint))
    korean = [is_korean(sides(pair)[side] for pair in pairs) for side in (0, 1)]
    if not any(korean):
        problem = "a morpheme tokenizer splits Korean words, but neither side of the pairs is Korean"
        raise DataError(message("train_tokenizers()", problem, hint="use another tokenizer, e.g. 'unigram'"))
    source, target = (Morphemes.kind if each else Unigram.kind for each in korean)
    return source, target


def load_tokenizer(path: str | bytes | os.PathLike[str], *, links: bool = True) -> Tokenizer:
    """Load a tokenizer of any kind from a file that Tokenizer.save() wrote.

    links: whether the path may be a symbolic link. Use False for files that you do not trust, e.g. in a run
        folder that someone else created.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train_tokenizer("character", ["abba"]).save(f"{folder}/characters.json")
    ...     load_tokenizer(f"{folder}/characters.json")
    Characters(size=6)
    """
    return parse_tokenizer(read_bytes(path, links=links), os.fsdecode(path))


def parse_tokenizer(content: bytes, place: str) -> Tokenizer:
    """Return the tokenizer in the content of a file. `place`: the file name, for error messages."""
    is_json = content.startswith(b"{")
    kind = read_vocabulary(content, place)["kind"] if is_json else subword_kind(content, place)
    return TOKENIZERS[kind].deserialized(content, place)
