"""Unigram and BPE: subword tokenizers trained by sentencepiece, and saved as its model files."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import os
import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any, Self

import sentencepiece

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.normalize import SPACE, Sample, clean
from regard.data.tokenizers.subword_sampling import (
    Lattice,
    LongWord,
    MergedWord,
    Segmenter,
    ShortWord,
    all_segmentations,
    backpointers,
)
from regard.data.tokenizers.tokenizer import SPECIALS, UNKNOWN, Tokenizer
from regard.errors import ArgumentError, DataError, message

__all__ = ["BPE", "Subwords", "Unigram"]

BYTES = len(SPECIALS) + 256
"""Number of tokens that every subword vocabulary contains: the four special tokens and 256 byte tokens."""

LARGEST = 32_000
COVERED = 0.9995
"""The most frequent characters of a text become subword tokens, until they cover this fraction of the text.

OFTEN and ALPHABET decide which rarer characters become tokens too. Other characters are encoded as bytes.
"""

OFTEN, ALPHABET = 5, 1000
"""After COVERED is reached, a further character becomes a token under two conditions.

The character occurs at least OFTEN times, and fewer than ALPHABET characters are tokens already. So a small
text keeps its letters, digits and punctuation marks. In Chinese, which has more than ALPHABET characters,
only COVERED matters."""

PART = 1000
"""Maximum length in characters of a line on which a tokenizer is trained. Longer lines are split."""

CACHED_WORDS = 50_000
"""Maximum number of words in each of the two dicts of a cache: recently used words, and older words.

The cache stores data from which a segmentation of the word (a way to split it into subwords) is sampled
quickly. A word takes about 3 kB of memory.
"""

CACHED_CHARACTERS = 12 * CACHED_WORDS
"""Maximum number of characters of all words in each dict of the cache (see CACHED_WORDS).

This limits the memory for text without spaces, such as Chinese, where a whole line is treated as one word."""

WORDS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
"""Matches each word of a line, with the ▁ before it. The line must have ▁ instead of spaces."""

FEW_SEGMENTATIONS = 64
"""If a word can be split into subwords in at most this many ways, the cache stores all of them.

About 95 % of the words of a text have at most this many segmentations."""

THREADS = 8
"""Number of threads that train a unigram tokenizer. It is stored in the model file, and changes the rounding
of probabilities. So it is the same on every machine, even if a machine has fewer cores."""

FEW_LINES = 64
"""Fewer lines than this are encoded in one thread, because starting more threads would take longer."""


class Subwords(Tokenizer):
    """A tokenizer with the subwords (pieces) of a sentencepiece model: base class of Unigram and BPE.

    A character that is in no piece is encoded as its UTF-8 bytes, never as UNK. The text is normalized by
    clean() only, not by sentencepiece, so decode(encode(line)) equals clean(line) for every string.
    """

    def __init__(self, model: bytes, place: str = "model"):
        self._model = model
        self._processor = _processor(model, place)
        if self.kind != _kind(self._processor):
            problem = f"this sentencepiece model is not of kind '{self.kind}'"
            raise DataError(message(place, problem, hint="use load_tokenizer(path), which loads any kind"))
        self._strength, self._young, self._old = 0.0, dict[str, Segmenter](), dict[str, Segmenter]()
        self._characters = 0
        self.size = int(self._processor.vocab_size())
        self.fingerprint = hashlib.sha256(model).hexdigest()
        tokens = (self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.uncovered = frozenset({UNK, *(token for token in tokens if self._processor.is_byte(token))})

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        counts = Counter(SPACE + "".join(sample.lines).replace(" ", SPACE))
        characters = covering_characters(counts)
        if size is None:
            words = sum(line.count(" ") + 1 for line in sample.lines) * sample.scale
            # A model can learn a piece only if the piece occurs often enough (Gowda and May 2020). With 8
            # sqrt(words), a text of 10,000 words has 12 words per piece, and a text of 400,000 words has 80
            # words per piece.
            size = min(BYTES + len(characters) + int(8 * math.sqrt(words)), LARGEST)
        if not isinstance(size, int) or size < BYTES + 4:
            expected = f"{BYTES + 4} or more; {BYTES} are needed for the special tokens and the bytes"
            raise ArgumentError(message(call, f"size is {size!r}", expected=expected))
        # Single characters get at most half of the vocabulary, and longer pieces get the other half.
        rare = set(counts) - set(characters[: max((size - BYTES) // 2, 2)])
        return cls(_trained(cls.kind, _parts(_without(sample.lines, rare)), size, call))

    @abstractmethod
    def cut(self, word: str, sample: float) -> Segmenter:
        """Prepare a word for sampling its segmentations (ways to split it into subwords).

        sample: how random the segmentations are; see encode().
        """

    @abstractmethod
    def check(self, sample: float) -> None:
        """Raise ArgumentError if `sample`, an argument of encode(), is invalid for this kind of tokenizer."""

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        if not sample:
            return self._processor.encode(clean(line))
        draw, tokens = random.random if generator is None else generator.random, list[int]()
        self.check(sample)
        cache = self._cache(sample)
        # Pieces never cross a space, so each word can be sampled separately.
        for word in WORDS.findall(self._processor.normalize(clean(line))):
            tokens += (cache.get(word) or self._add_to_cache(word, sample)).drawn(draw)
        return tokens

    def _cache(self, sample: float) -> dict[str, Segmenter]:
        """Return the dict from recently used words to their Segmenter, which samples segmentations.

        If `sample` differs from the last call, the dict is emptied, because a Segmenter depends on `sample`.
        """
        if self._strength != sample:
            self._strength, self._young, self._old, self._characters = sample, {}, {}, 0
        return self._young

    def _add_to_cache(self, word: str, sample: float) -> Segmenter:
        """Add a word to the cache and return its Segmenter, which samples segmentations of the word.

        When the dict of recent words is full, its words become the older words, and the previous older words
        are dropped. The cache changes the speed only, not the result.
        """
        if len(self._young) >= CACHED_WORDS or self._characters >= CACHED_CHARACTERS:
            self._old, self._characters = dict(self._young), 0
            self._young.clear()
        prepared = self._old.pop(word) if word in self._old else self.cut(word, sample)
        self._young[word] = prepared
        self._characters += len(word)
        return prepared

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        cleaned = [clean(line) for line in lines]
        return self._processor.encode(
            cleaned, num_threads=1 if len(cleaned) < FEW_LINES else available_cores()
        )

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        texts = self._texts
        return [texts[token] for token in self.checked(tokens)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.decode_lines([tokens])[0]

    def decode_lines(self, lines: Sequence[Sequence[int]]) -> list[str]:
        visible = [[token for token in self.checked(line) if token not in (PAD, BOS, EOS)] for line in lines]
        threads = 1 if len(visible) < FEW_LINES else available_cores()
        # A model may generate the bytes of control characters. clean() removes them, because they could
        # change the terminal.
        return [clean(text) for text in self._processor.decode(visible, num_threads=threads)]

    def word_starts(self, tokens: Sequence[int]) -> list[tuple[bool, bool]]:
        starts = self._starts
        return [starts[token] for token in self.checked(tokens)]

    @cached_property
    def _starts(self) -> list[tuple[bool, bool]]:
        """For each token of the vocabulary, the result of word_starts()."""
        return [(text.startswith(SPACE), bool(text.strip(SPACE))) for text in self._texts]

    def unknown(self, line: str) -> tuple[str, ...]:
        tokens, words = self.encode(line), clean(line).split()
        spelled = {
            word
            for token, word in zip(tokens, self.words(tokens), strict=True)
            if token in self.uncovered and word >= 0
        }
        return tuple(words[word] for word in sorted(spelled))

    def serialized(self) -> bytes:
        return self._model

    @classmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        return cls(content, place)

    @cached_property
    def _texts(self) -> list[str]:
        """The text of each token of the vocabulary: a list is read faster than the sentencepiece model."""
        return [self._processor.id_to_piece(token) for token in range(self.size)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """A dict from each piece (subword) to its token id, without special tokens and byte tokens."""
        get = self._processor
        return {
            get.id_to_piece(token): token
            for token in range(len(SPECIALS), self.size)
            if not (get.is_control(token) or get.is_byte(token))
        }

    @cached_property
    def scores(self) -> dict[str, float]:
        """A dict from each piece (subword) in `numbers` to its score in the sentencepiece model."""
        return {piece: self._processor.get_score(token) for piece, token in self.numbers.items()}

    def _tokens_of_piece(self, piece: str) -> list[int]:
        """Return the token id of a piece as a list, or the ids of its bytes if the piece is not a token."""
        number = self.numbers.get(piece)
        if number is not None:
            return [number]
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]

    def _tokens_of(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in self._tokens_of_piece(piece)]


class Unigram(Subwords):
    """A tokenizer with the subwords of a unigram language model, for subword regularization (Kudo 2018).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("unigram", ["low lower lowest", "new newer newest"] * 20)
    >>> tokenizer.decode(tokenizer.encode("a slower 낮은 one"))
    'a slower 낮은 one'
    """

    kind = "unigram"

    def cut(self, word: str, sample: float) -> Segmenter:
        ways = backpointers(word, self.lattice, sample)
        segmentations = all_segmentations(word, ways, FEW_SEGMENTATIONS, self._tokens_of_piece)
        if segmentations is None:
            return LongWord(word, ways, self._tokens_of)
        parts, tokens = zip(*segmentations, strict=True)
        return ShortWord(list(itertools.accumulate(parts[:-1])), list(tokens))

    @cached_property
    def lattice(self) -> Lattice:
        """The pieces (subwords) and their log-probabilities, for sampling segmentations of words."""
        return Lattice.of(self.scores)

    def check(self, sample: float) -> None:
        if not 0 < sample < math.inf:
            expected = "alpha > 0, usually 0.1 or 0.2 (lower is more random), or 0 for no sampling"
            raise ArgumentError(message("Unigram.encode()", f"sample is {sample}", expected=expected))


class BPE(Subwords):
    """A tokenizer with the subwords of byte-pair encoding (Sennrich et al. 2016).

    Training starts from single characters, and repeatedly merges the most frequent pair of subwords.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("bpe", ["low lower lowest", "new newer newest"] * 20, size=300)
    >>> tokenizer.pieces(tokenizer.encode("lower newest"))
    ['▁lower', '▁newest']
    """

    kind = "bpe"

    def cut(self, word: str, sample: float) -> Segmenter:
        return MergedWord(word, self.scores, sample, self._tokens_of)

    def check(self, sample: float) -> None:
        if not 0 < sample <= 1:
            expected = "a dropout probability, usually 0.1 (higher is more random), or 0 for no sampling"
            raise ArgumentError(message("BPE.encode()", f"sample is {sample}", expected=expected))


def covering_characters(counts: Counter[str]) -> list[str]:
    """Return the characters that become tokens: ▁, which represents a space, then the most frequent first.

    COVERED, OFTEN and ALPHABET decide how many characters become tokens.

    counts: how often each character occurs.
    """
    ranked = sorted(counts, key=lambda character: (character != SPACE, -counts[character], character))
    uncovered = COVERED * counts.total()
    covering: list[str] = []
    for character in ranked:
        if uncovered <= 0 and (counts[character] < OFTEN or len(covering) >= ALPHABET):
            break
        uncovered -= counts[character]
        covering.append(character)
    return covering


def _without(lines: list[str], rare: set[str]) -> list[str]:
    """Replace the characters in `rare` by spaces, so that they do not become tokens. Drop empty lines.

    lines: the results of clean().
    """
    if not rare:
        return lines
    pattern = re.compile(f"[{re.escape(''.join(sorted(rare)))}]")
    blanked = (" ".join(pattern.sub(" ", line).split()) if pattern.search(line) else line for line in lines)
    return [line for line in blanked if line]


def _parts(lines: list[str]) -> list[str]:
    """Split lines into parts of at most PART characters: sentencepiece ignores lines of over 4192 bytes."""
    return [line[at : at + PART] for line in lines for at in range(0, len(line), PART)]


def _trained(kind: str, lines: list[str], size: int, call: str) -> bytes:
    """Train a sentencepiece model and return the content of its file. The same lines give the same bytes.

    kind: "unigram" or "bpe".
    size: the vocabulary size.
    call: the name of the public function, for error messages.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,  # allow fewer pieces if the text is short
            character_coverage=1.0,  # rare characters have been removed already
            normalization_rule_name="identity",
            byte_fallback=True,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            unk_surface=UNKNOWN,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (OSError, RuntimeError) as error:
        problem = f"sentencepiece could not train {size} tokens on {len(lines)} lines: {error}"
        raise DataError(message(call, problem, hint="use more text, or a smaller size")) from None
    return model.getvalue()


def _processor(model: bytes, place: str) -> Any:
    """Load a sentencepiece model.

    Raise DataError if it is damaged, or if the ids of its special tokens are not PAD, UNK, BOS and EOS.

    model: the content of the model file.
    place: the name of the file, for error messages.
    """
    hint = "the file is damaged, or not a sentencepiece model: restore it, or train the tokenizer again"
    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(model) and processor.load_from_serialized_proto(model)
    except (OSError, RuntimeError, ValueError):
        loaded = False
    if not loaded:
        raise DataError(message(place, "the file is not a sentencepiece model", hint=hint))
    specials = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if specials != (PAD, UNK, BOS, EOS):
        problem = f"the token ids of pad, unk, bos and eos are {specials}"
        raise DataError(message(place, problem, expected=f"the token ids {(PAD, UNK, BOS, EOS)}", hint=hint))
    return processor


def subword_kind(model: bytes, place: str) -> str:
    """Return the kind of tokenizer of a sentencepiece model, "unigram" or "bpe"."""
    return _kind(_processor(model, place))


def _kind(processor: Any) -> str:
    try:
        processor.nbest_encode("a", nbest_size=2)  # only unigram models support n-best segmentations
    except RuntimeError:
        return "bpe"
    return "unigram"


def available_cores() -> int:
    """Return the number of CPU cores that this process may use.

    By default, sentencepiece would start a thread for each core of the machine.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
