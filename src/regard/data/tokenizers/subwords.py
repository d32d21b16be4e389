"""Unigram and BPE: subwords learned by sentencepiece, whose model file is the source of truth."""

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
from regard.data.tokenizers.subword_sampling import Cut, Lattice, Listed, Merged, Walked, every_way, reach
from regard.data.tokenizers.tokenizer import SPECIALS, UNKNOWN, Tokenizer
from regard.errors import ArgumentError, DataError, message

__all__ = ["BPE", "Subwords", "Unigram"]

BYTES = len(SPECIALS) + 256
"""The tokens that are there before anything is learned: the specials, and every byte."""

LARGEST = 32_000
COVERED = 0.9995
"""How much of the text is in characters that are pieces; the rarest are spelled in bytes."""

PART = 1000
"""The most characters of a line that is learned from; a longer one is learned from in parts."""

MET = 50_000
"""How many words are remembered to be drawn again, some 3 kB each, and as many that were met before those."""

LETTERS = 12 * MET
"""Of how many characters those may be: where nothing stands between words, each line is one."""

WORDS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
"""The words of a line in which a space is ▁, each with the one before it."""

FEW_WAYS = 64
"""Up to so many ways to cut a word are remembered as a list; 19 of 20 words of a text have no more."""

FEW_LINES = 64
"""Fewer are encoded on one core: starting threads would take longer."""


class Subwords(Tokenizer):
    """Pieces of words from a sentencepiece model; what no piece covers is spelled in bytes, never unknown.

    The text is cleaned (text.clean) and the model itself changes nothing ("identity"), so that
    decode(encode(line)) == clean(line) for every string.
    """

    def __init__(self, model: bytes, place: str = "model"):
        self._model = model
        self._processor = _processor(model, place)
        if self.kind != _kind(self._processor):
            problem = f"this sentencepiece model is not of kind '{self.kind}'"
            raise DataError(message(place, problem, hint="load_tokenizer(path) finds the kind"))
        self._strength, self._young, self._old = 0.0, dict[str, Cut](), dict[str, Cut]()
        self._letters = 0
        self.size = int(self._processor.vocab_size())
        self.fingerprint = hashlib.sha256(model).hexdigest()
        named = (self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.uncovered = frozenset({UNK, *(token for token in named if self._processor.is_byte(token))})

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        counts = Counter(SPACE)
        for line in sample.lines:
            counts.update(line.replace(" ", SPACE))
        characters = _covering(counts)
        if size is None:
            words = sum(line.count(" ") + 1 for line in sample.lines) * sample.scale
            # A piece must be seen often to be learned (Gowda and May 2020); this rule gives each piece 12
            # words of the text on average where there are 10,000, and 80 where there are 400,000.
            size = min(BYTES + len(characters) + int(8 * math.sqrt(words)), LARGEST)
        if not isinstance(size, int) or size < BYTES + 4:
            expected = f"{BYTES + 4} or more: {BYTES} are the special tokens and the bytes"
            raise ArgumentError(message(call, f"size is {size!r}", expected=expected))
        # At least half of what can be learned is left for pieces longer than a character.
        rare = set(counts) - set(characters[: max((size - BYTES) // 2, 2)])
        return cls(_trained(cls.kind, _parts(_without(sample.lines, rare)), size, call))

    @abstractmethod
    def cut(self, word: str, sample: float) -> Cut:
        """A word, ready to be cut at random."""

    @abstractmethod
    def check(self, sample: float) -> None:
        """Refuse a strength of sampling that means nothing for this kind."""

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        if not sample:
            return self._processor.encode(clean(line))
        self.check(sample)
        draw = random.random if generator is None else generator.random
        met, tokens = self._met(sample), list[int]()
        # Pieces never go over a space, so that each word can be drawn alone.
        for word in WORDS.findall(self._processor.normalize(clean(line))):
            tokens += (met.get(word) or self._meet(word, sample)).drawn(draw)
        return tokens

    def _met(self, sample: float) -> dict[str, Cut]:
        """The words that were met lately and are ready to be cut, as strongly as this."""
        if self._strength != sample:
            self._strength, self._young, self._old, self._letters = sample, {}, {}, 0
        return self._young

    def _meet(self, word: str, sample: float) -> Cut:
        """A word that was not met lately: it is made ready, and what was met long ago is forgotten.

        What is forgotten is made again, the same: what is drawn does not depend on what was met before.
        """
        if len(self._young) >= MET or self._letters >= LETTERS:
            self._old, self._letters = dict(self._young), 0
            self._young.clear()
        ready = self._old.pop(word) if word in self._old else self.cut(word, sample)
        self._young[word] = ready
        self._letters += len(word)
        return ready

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        cleaned = [clean(line) for line in lines]
        return self._processor.encode(cleaned, num_threads=1 if len(cleaned) < FEW_LINES else _cores())

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(token) for token in self.checked(tokens)]

    def decode(self, tokens: Sequence[int]) -> str:
        said = [token for token in self.checked(tokens) if token not in (PAD, BOS, EOS)]
        # Bytes that a model makes up may be control characters, which must not reach a terminal.
        return clean(self._processor.decode(said))

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
        """The token of each piece that can be drawn: neither a special one nor a byte."""
        get = self._processor
        return {
            get.id_to_piece(token): token
            for token in range(len(SPECIALS), self.size)
            if not (get.is_control(token) or get.is_byte(token))
        }

    @cached_property
    def scores(self) -> dict[str, float]:
        """The score of each piece that can be drawn."""
        return {piece: self._processor.get_score(token) for piece, token in self.numbers.items()}

    def _tokens_of_piece(self, piece: str) -> list[int]:
        """Its token, or those of its bytes where it is none."""
        number = self.numbers.get(piece)
        if number is not None:
            return [number]
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]

    def _tokens_of(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in self._tokens_of_piece(piece)]


class Unigram(Subwords):
    """Subwords chosen to make the text likely, which can be sampled well (Kudo 2018).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("unigram", ["low lower lowest", "new newer newest"] * 20)
    >>> tokenizer.decode(tokenizer.encode("a slower 낮은 one"))
    'a slower 낮은 one'
    """

    kind = "unigram"

    def cut(self, word: str, sample: float) -> Cut:
        ways = reach(word, self.lattice, sample)
        every = every_way(word, ways, FEW_WAYS, self._tokens_of_piece)
        if every is None:
            return Walked(word, ways, self._tokens_of)
        parts, tokens = zip(*every, strict=True)
        return Listed(list(itertools.accumulate(parts[:-1])), list(tokens))

    @cached_property
    def lattice(self) -> Lattice:
        """The pieces, ready to be drawn."""
        return Lattice.of(self.scores)

    def check(self, sample: float) -> None:
        if not 0 < sample < math.inf:
            expected = "over 0, 0.1 or 0.2 as a rule; less is more random, and 0 is no sampling"
            raise ArgumentError(message("Unigram.encode()", f"sample is {sample}", expected=expected))


class BPE(Subwords):
    """Subwords made by merging the most frequent pair, again and again (Sennrich et al. 2016).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("bpe", ["low lower lowest", "new newer newest"] * 20, size=300)
    >>> tokenizer.pieces(tokenizer.encode("lower newest"))
    ['▁lower', '▁newest']
    """

    kind = "bpe"

    def cut(self, word: str, sample: float) -> Cut:
        return Merged(word, self.scores, sample, self._tokens_of)

    def check(self, sample: float) -> None:
        if not 0 < sample <= 1:
            expected = "a probability, 0.1 as a rule; more is more random, and 0 is no sampling"
            raise ArgumentError(message("BPE.encode()", f"sample is {sample}", expected=expected))


def _covering(counts: Counter[str]) -> list[str]:
    """The characters that cover the text, the most frequent first; ▁ is always the first of them."""
    ranked = sorted(counts, key=lambda character: (character != SPACE, -counts[character], character))
    wanted = COVERED * counts.total()
    kept: list[str] = []
    for character in ranked:
        if wanted <= 0:
            break
        wanted -= counts[character]
        kept.append(character)
    return kept


def _without(lines: list[str], rare: set[str]) -> list[str]:
    """Lines with rare characters blanked, so that no piece is learned for them."""
    if not rare:
        return lines
    table = str.maketrans(dict.fromkeys(rare, " "))
    blanked = (" ".join(line.translate(table).split()) for line in lines)
    return [line for line in blanked if line]


def _parts(lines: list[str]) -> list[str]:
    """Lines with the long ones cut: sentencepiece would leave out those of over 4192 bytes."""
    return [line[at : at + PART] for line in lines for at in range(0, len(line), PART)]


def _trained(kind: str, lines: list[str], size: int, call: str) -> bytes:
    """A sentencepiece model, the same bytes for the same lines."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,  # fewer pieces where the text has no more to give
            character_coverage=1.0,  # the rare characters are out already
            normalization_rule_name="identity",
            byte_fallback=True,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            unk_surface=UNKNOWN,
            num_threads=1,  # kept in the model: another number would be another model
            minloglevel=2,
        )
    except (OSError, RuntimeError) as error:
        problem = f"sentencepiece could not learn {size} tokens from {len(lines)} lines: {error}"
        raise DataError(message(call, problem, hint="give more text, or a smaller size")) from None
    return model.getvalue()


def _processor(model: bytes, place: str) -> Any:
    """The model loaded, if it is whole and numbers its special tokens as we do."""
    hint = "it is damaged, or no model of sentencepiece: restore it, or train the tokenizer again"
    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(model) and processor.load_from_serialized_proto(model)
    except (OSError, RuntimeError, ValueError):
        loaded = False
    if not loaded:
        raise DataError(message(place, "this is no sentencepiece model", hint=hint))
    found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if found != (PAD, UNK, BOS, EOS):
        problem = f"the numbers of pad, unk, bos and eos are {found}"
        raise DataError(message(place, problem, expected=f"{(PAD, UNK, BOS, EOS)}", hint=hint))
    return processor


def subword_kind(model: bytes, place: str) -> str:
    """The kind of tokenizer that a sentencepiece model is."""
    return _kind(_processor(model, place))


def _kind(processor: Any) -> str:
    try:
        processor.nbest_encode("a", nbest_size=2)  # only unigram models can list their best segmentations
    except RuntimeError:
        return "bpe"
    return "unigram"


def _cores() -> int:
    """How many cores this process may use; sentencepiece would take all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
