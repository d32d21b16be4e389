"""Unigram and BPE: subword tokenizers trained by sentencepiece; the saved file is its model file."""

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
"""Number of tokens before training: the special tokens and the 256 bytes."""

LARGEST = 32_000
COVERED = 0.9995
"""Fraction of the text whose characters become pieces; rarer characters are encoded as bytes."""

OFTEN, ALPHABET = 5, 1000
"""A rarer character becomes a piece too if it occurs at least OFTEN times, up to ALPHABET characters.
So a small text keeps its letters, digits and marks; COVERED still limits Chinese characters."""

PART = 1000
"""Maximum length in characters of a training line; longer lines are split."""

CACHED_WORDS = 50_000
"""Number of words in each of the two generations of the sampling cache, about 3 kB per word."""

CACHED_CHARACTERS = 12 * CACHED_WORDS
"""Maximum number of characters of these words: in scripts without spaces, a word is a whole line."""

WORDS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
"""Matches the words of a line in which a space is ▁, each with the ▁ before it."""

FEW_SEGMENTATIONS = 64
"""Words with at most this many segmentations (95 % of a text) are cached as a list of them."""

FEW_LINES = 64
"""Fewer lines than this are encoded in one thread: starting threads would take longer."""


class Subwords(Tokenizer):
    """Subwords of a sentencepiece model; characters that no piece covers are encoded as bytes, never as UNK.

    The text is normalized by clean() and not by the model ("identity"), so that decode(encode(line)) equals
    clean(line) for every string.
    """

    def __init__(self, model: bytes, place: str = "model"):
        self._model = model
        self._processor = _processor(model, place)
        if self.kind != _kind(self._processor):
            problem = f"this sentencepiece model is not of kind '{self.kind}'"
            raise DataError(message(place, problem, hint="load_tokenizer(path) loads any kind"))
        self._strength, self._young, self._old = 0.0, dict[str, Segmenter](), dict[str, Segmenter]()
        self._characters = 0
        self.size = int(self._processor.vocab_size())
        self.fingerprint = hashlib.sha256(model).hexdigest()
        tokens = (self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.uncovered = frozenset({UNK, *(token for token in tokens if self._processor.is_byte(token))})

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        counts = Counter(SPACE)
        for line in sample.lines:
            counts.update(line.replace(" ", SPACE))
        characters = _covering(counts)
        if size is None:
            words = sum(line.count(" ") + 1 for line in sample.lines) * sample.scale
            # Models learn only pieces that occur often (Gowda and May 2020). With this rule, there are 12
            # words of text per piece on average in a text of 10,000 words, and 80 in one of 400,000.
            size = min(BYTES + len(characters) + int(8 * math.sqrt(words)), LARGEST)
        if not isinstance(size, int) or size < BYTES + 4:
            expected = f"{BYTES + 4} or more: {BYTES} are the special tokens and the bytes"
            raise ArgumentError(message(call, f"size is {size!r}", expected=expected))
        # At least half of the learned vocabulary is reserved for pieces longer than a character.
        rare = set(counts) - set(characters[: max((size - BYTES) // 2, 2)])
        return cls(_trained(cls.kind, _parts(_without(sample.lines, rare)), size, call))

    @abstractmethod
    def cut(self, word: str, sample: float) -> Segmenter:
        """Prepare a word for sampling segmentations of it."""

    @abstractmethod
    def check(self, sample: float) -> None:
        """Raise ArgumentError if `sample` is not valid for this kind of tokenizer."""

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        if not sample:
            return self._processor.encode(clean(line))
        self.check(sample)
        draw = random.random if generator is None else generator.random
        cache, tokens = self._cache(sample), list[int]()
        # Pieces never cross a space, so each word can be sampled separately.
        for word in WORDS.findall(self._processor.normalize(clean(line))):
            tokens += (cache.get(word) or self._add_to_cache(word, sample)).drawn(draw)
        return tokens

    def _cache(self, sample: float) -> dict[str, Segmenter]:
        """Return the cache of recent words; it is cleared when `sample` changes."""
        if self._strength != sample:
            self._strength, self._young, self._old, self._characters = sample, {}, {}, 0
        return self._young

    def _add_to_cache(self, word: str, sample: float) -> Segmenter:
        """Prepare a word and add it to the cache; if that is full, drop its older generation.

        The result does not depend on the state of the cache, so sampling does not depend on earlier words.
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
        return self._processor.encode(cleaned, num_threads=1 if len(cleaned) < FEW_LINES else _cores())

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(token) for token in self.checked(tokens)]

    def decode(self, tokens: Sequence[int]) -> str:
        visible = [token for token in self.checked(tokens) if token not in (PAD, BOS, EOS)]
        # Bytes that a model generates may be control characters, which must not reach a terminal.
        return clean(self._processor.decode(visible))

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
    def numbers(self) -> dict[str, int]:
        """The token of each piece that can be sampled: all but special tokens and bytes."""
        get = self._processor
        return {
            get.id_to_piece(token): token
            for token in range(len(SPECIALS), self.size)
            if not (get.is_control(token) or get.is_byte(token))
        }

    @cached_property
    def scores(self) -> dict[str, float]:
        """The score of each piece that can be sampled."""
        return {piece: self._processor.get_score(token) for piece, token in self.numbers.items()}

    def _tokens_of_piece(self, piece: str) -> list[int]:
        """Return the token of a piece, or the tokens of its bytes if it is not in the vocabulary."""
        number = self.numbers.get(piece)
        if number is not None:
            return [number]
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]

    def _tokens_of(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in self._tokens_of_piece(piece)]


class Unigram(Subwords):
    """Subwords of a unigram language model, suited for subword regularization (Kudo 2018).

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
        """The pieces and their scores, for sampling."""
        return Lattice.of(self.scores)

    def check(self, sample: float) -> None:
        if not 0 < sample < math.inf:
            expected = "alpha > 0, usually 0.1 or 0.2 (lower is more random), or 0 for no sampling"
            raise ArgumentError(message("Unigram.encode()", f"sample is {sample}", expected=expected))


class BPE(Subwords):
    """Byte-pair encoding: subwords made by merging the most frequent pair repeatedly (Sennrich et al. 2016).

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


def _covering(counts: Counter[str]) -> list[str]:
    """Return the characters that become pieces, the most frequent first; ▁ is always the first.

    They cover COVERED of the text; further characters are added that occur OFTEN, up to ALPHABET in total.
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
    """Return the lines with rare characters replaced by spaces, so that they do not become pieces."""
    if not rare:
        return lines
    table = str.maketrans(dict.fromkeys(rare, " "))
    blanked = (" ".join(line.translate(table).split()) for line in lines)
    return [line for line in blanked if line]


def _parts(lines: list[str]) -> list[str]:
    """Split long lines: sentencepiece would skip lines of over 4192 bytes."""
    return [line[at : at + PART] for line in lines for at in range(0, len(line), PART)]


def _trained(kind: str, lines: list[str], size: int, call: str) -> bytes:
    """Train a sentencepiece model and return its file content, the same bytes for the same lines."""
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
            num_threads=1,  # it is stored in the model, so it must not depend on the machine
            minloglevel=2,
        )
    except (OSError, RuntimeError) as error:
        problem = f"sentencepiece could not train {size} tokens on {len(lines)} lines: {error}"
        raise DataError(message(call, problem, hint="use more text, or a smaller size")) from None
    return model.getvalue()


def _processor(model: bytes, place: str) -> Any:
    """Load a sentencepiece model; raise DataError if it is damaged or has other special tokens."""
    hint = "the file is damaged, or not a sentencepiece model: restore it, or train the tokenizer again"
    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(model) and processor.load_from_serialized_proto(model)
    except (OSError, RuntimeError, ValueError):
        loaded = False
    if not loaded:
        raise DataError(message(place, "not a sentencepiece model", hint=hint))
    specials = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if specials != (PAD, UNK, BOS, EOS):
        problem = f"the token ids of pad, unk, bos and eos are {specials}"
        raise DataError(message(place, problem, expected=f"{(PAD, UNK, BOS, EOS)}", hint=hint))
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


def _cores() -> int:
    """Return the number of cores this process may use; by default, sentencepiece uses all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
