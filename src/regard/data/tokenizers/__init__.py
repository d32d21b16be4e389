"""Tokenizers for subwords (unigram and BPE), words, morphemes and characters. Each is saved to one file."""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
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


READ, SAMPLE = 200_000, 4000
"""At most READ pairs are read, and at most SAMPLE of them are examined.

The examined pairs are taken at equal distances, because files may be sorted."""

FEWEST = 20
"""Minimum number of pairs for a decision. For fewer pairs, "unigram" is suggested."""

MOST_WORDS = 1.5
"""If the sources (or targets) have more words than this on average, they are sentences, not strings."""

LONG_STRING, LONG_LINE = 40, 80
"""Maximum median length in characters of the sources (or targets) for which "character" is suggested.

The limit is LONG_STRING for non-ASCII text with a large alphabet, and LONG_LINE for other text. Training on
longer sequences of characters takes too long."""

ENDS = (".", "!", "?", "…", "。", "！", "？")
"""Final punctuation of sentences."""

SMALL_ALPHABET = 30
"""If the sources have at most this many distinct characters, "character" may be suggested for any length.

Examples are nucleotides and digits."""

WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")
"""Writing systems that do not separate words by spaces.

Each is identified by the first word in the Unicode names of its letters: HIRAGANA for "HIRAGANA LETTER A"."""


@dataclass(frozen=True)
class _Side:
    """Statistics of the source lines, or of the target lines, of the examined pairs.

    words: mean number of words per line.
    length: median number of characters per line.
    alphabet: number of distinct characters.
    distinct: fraction of distinct lines.
    unseen: fraction of unseen words. The distinct lines are divided into two halves; a word of one half is
        unseen if it does not occur in the other half.
    symbols: fraction of characters that are digits or punctuation.
    spaceless: fraction of characters of writing systems without spaces between words (WITHOUT_SPACES).
    ended: fraction of lines that end with final punctuation.
    ascii: whether all characters are ASCII.
    """

    words: float
    length: int
    alphabet: int
    distinct: float
    unseen: float
    symbols: float
    spaceless: float
    ended: float
    ascii: bool

    @classmethod
    def of(cls, lines: list[str]) -> _Side:
        distinct = list(dict.fromkeys(lines))
        vocabulary = {word for line in distinct[::2] for word in line.split()}
        others = [word for line in distinct[1::2] for word in line.split()]
        letters = "".join(lines).replace(" ", "") or " "
        alphabet = set(letters)
        symbols = {letter for letter in alphabet if unicodedata.category(letter)[0] in "NPS"}
        spaceless = {letter for letter in alphabet if unicodedata.name(letter, "").startswith(WITHOUT_SPACES)}
        return cls(
            words=sum(line.count(" ") + 1 for line in lines) / len(lines),
            length=sorted(map(len, lines))[len(lines) // 2],
            alphabet=len(alphabet),
            distinct=len(distinct) / len(lines),
            unseen=sum(word not in vocabulary for word in others) / max(len(others), 1),
            symbols=sum(letter in symbols for letter in letters) / len(letters),
            spaceless=sum(letter in spaceless for letter in letters) / len(letters),
            ended=sum(line.endswith(ENDS) for line in lines) / len(lines),
            ascii=letters.isascii(),
        )

    def strings(self) -> str:
        """Return why the tokenizer "character" suits these lines, or "" if it does not suit them.

        The tokenizer suits strings that are not sentences. Example of a result: "are mostly digits and
        punctuation, and 98% of their words do not occur in the other half of the sample".
        """
        # If most lines or words are repeated, they come from a small set, such as class labels.
        if self.distinct < 0.1 or self.unseen < 0.1:
            return ""
        if self.symbols >= 0.5 and self.length <= LONG_STRING:
            kind = "are mostly digits and punctuation"
            return (
                f"{kind}, and {self.unseen:.0%} of their words do not occur in the other half of the sample"
            )
        if self.words > MOST_WORDS or self.unseen < 0.5 or self.spaceless >= 0.2 or self.ended >= 0.3:
            return ""
        if self.length <= LONG_STRING or self.alphabet <= SMALL_ALPHABET or self.ascii:
            kind = f"are single strings of {self.alphabet} distinct characters"
            return f"{kind}, and {self.unseen:.0%} of them do not occur in the other half of the sample"
        return ""


def suggest_tokenizer(pairs: Iterable[Any]) -> tuple[str, str]:
    """Suggest a tokenizer for training pairs, from a sample of at most 4,000 pairs.

    Returns "character" or "unigram", and the reason in one sentence.

    "character" suits tasks with strings, such as dates, numbers, spelling and pronunciation. In these tasks,
    most words of new strings do not occur in the training data, and the output depends on single characters.
    Otherwise, and in doubt, "unigram" is suggested. It suits sentences of any language, with or without
    spaces. It also suits sentences whose targets are a few labels: each label becomes one token.

    >>> suggest_tokenizer([(f"{n} apples", str(n * n)) for n in range(100, 400)])[0]
    'character'
    >>> suggest_tokenizer([(f"the cat saw {n} dogs", "le chat a vu des chiens") for n in range(300)])[0]
    'unigram'
    """
    read = [sides(pair) for pair in itertools.islice(pairs, READ)]
    step = -(-len(read) // SAMPLE) or 1
    sample = [(clean(source), clean(target)) for source, target in read[::step]]
    sample = [pair for pair in sample if all(pair)]
    if len(sample) < FEWEST:
        return "unigram", f"{len(sample)} pairs are too few to decide whether characters are better"
    source, target = (_Side.of(list(lines)) for lines in zip(*sample, strict=True))
    strings = [(name, side.strings()) for name, side in (("sources", source), ("targets", target))]
    if source.length > LONG_LINE and not (strings[0][1] and source.alphabet <= SMALL_ALPHABET):
        return "unigram", f"sources are long: the median is {source.length} characters"
    if target.length > LONG_LINE:
        return "unigram", f"targets are long: the median is {target.length} characters"
    for name, why in reversed(strings):
        if why:
            return "character", f"{name} {why}"
    if sum(len(before) == len(after) for before, after in sample) >= 0.95 * len(sample) and (
        source.unseen >= 0.1 and source.spaceless < 0.2 and source.length >= 5
    ):
        return "character", "source and target have the same number of characters in nearly all pairs"
    return "unigram", f"sources have {source.words:.1f} words per line, targets {target.words:.1f}"
