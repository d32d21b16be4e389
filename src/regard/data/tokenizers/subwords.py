"""Unigram and BPE: subword tokenizers trained by sentencepiece, and saved as its model files.

Subword sampling splits words into subwords at random, to regularise training. sentencepiece can sample
segmentations too, but its random generator cannot be seeded again after its first use. So a resumed training
run would sample other segmentations than an uninterrupted run."""

from __future__ import annotations

import hashlib
import heapq
import io
import itertools
import math
import os
import random
import re
from abc import abstractmethod
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

import sentencepiece

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.tokenizer import SPACE, SPECIALS, UNKNOWN, Sample, Tokenizer, clean, clean_lines
from regard.errors import ArgumentError, DataError, message

Draw = Callable[[], float]
"""A function that returns a random number in [0, 1), such as random.Random(0).random."""


Segmenter = Callable[[Draw], Sequence[int]]
"""A word, prepared for sampling its segmentations (ways to split it into subwords): a function that samples
one and returns its token ids."""


class Lattice(NamedTuple):
    """The pieces (subwords) of a unigram tokenizer, into which a word can be segmented.

    scores: the log-probability of each piece.
    longest: the length of the longest piece in characters.
    unknown: the score of a character that is not a piece.
    """

    scores: Mapping[str, float]
    longest: int
    unknown: float

    @classmethod
    def of(cls, scores: Mapping[str, float]) -> Lattice:
        """Create a Lattice from the log-probability of each piece (subword).

        `unknown`, the score of a character that is not a piece, becomes the lowest score minus 10, as in
        sentencepiece.
        """
        return cls(scores, max(map(len, scores), default=1), min(scores.values(), default=0.0) - 10)


Backpointers = list[list[tuple[float, int]]]
"""For each position of a text, the pieces (subwords) that can end there.

Each piece is a pair: its probability, and the position at which it starts."""


def backpointers(text: str, lattice: Lattice, alpha: float) -> Backpointers:
    """For each position of a text, compute the probability of each piece (subword) that can end there.

    Entry i of the result is a list of pairs (probability, start), one for each piece text[start:i].

    lattice: the pieces and their log-probabilities.
    alpha: the exponent of the probabilities. The smaller it is, the more random are the segmentations.

    This is the forward filtering of Kudo (2018, "Subword Regularization", section 3.2): the probability of a
    segmentation is proportional to p(pieces)^alpha. draw_pieces() samples from this distribution.
    """
    scores, longest, unknown = lattice
    total = [0.0]
    ways: Backpointers = [[]]
    for end in range(1, len(text) + 1):
        arcs = []
        for begin in range(max(0, end - longest), end):
            score = scores.get(text[begin:end])
            if score is None and begin == end - 1:
                score = unknown
            if score is not None:
                arcs.append((total[begin] + alpha * score, begin))
        if len(arcs) == 1:
            total.append(arcs[0][0])
            ways.append([(1.0, arcs[0][1])])
            continue
        best = max(arcs)[0]
        whole = best + math.log(sum([math.exp(weight - best) for weight, _ in arcs]))
        total.append(whole)
        ways.append([(math.exp(weight - whole), begin) for weight, begin in arcs])
    return ways


def draw_pieces(text: str, ways: Backpointers, draw: Draw) -> list[str]:
    """Sample one segmentation, piece by piece from the end of the text to its start (backward sampling).

    ways: the result of backpointers().
    draw: function that returns a random number in [0, 1).

    >>> import random
    >>> ways = backpointers("ab", Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), 0.5)
    >>> draw = random.Random(0).random
    >>> [draw_pieces("ab", ways, draw) for _ in range(3)]
    [['a', 'b'], ['ab'], ['ab']]
    """
    pieces = []
    end = len(text)
    while end:
        left = draw()
        for part, begin in ways[end]:
            chosen = begin
            left -= part
            if left < 0:
                break
        pieces.append(text[chosen:end])
        end = chosen
    return pieces[::-1]


Item = TypeVar("Item")


def all_segmentations(
    text: str, ways: Backpointers, most: int, spelled: Callable[[str], Sequence[Item]]
) -> list[tuple[float, tuple[Item, ...]]] | None:
    """Return all segmentations of a text into pieces (subwords), or None if there are more than `most`.

    ways: the result of backpointers().
    spelled: a function that returns the items of a piece, such as its tokens.

    Each segmentation is a pair (probability, items of all its pieces).

    >>> ways = backpointers("ab", Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), 0.5)
    >>> [(round(part, 3), way) for part, way in all_segmentations("ab", ways, most=2, spelled=lambda x: [x])]
    [(0.622, ('ab',)), (0.378, ('a', 'b'))]
    """
    counts = [1]
    for before in ways[1:]:
        counts.append(min(sum(counts[begin] for _, begin in before), most + 1))
    if counts[-1] > most:
        return None
    # A segmentation is stored as a linked list: (segmentation without the last piece, last piece). It becomes
    # a tuple only at the end. With tuples at every position, the time would be quadratic in the length of the
    # word.
    prefixes: list[list[tuple[float, Any]]] = [[(1.0, None)]]
    for end in range(1, len(text) + 1):
        here: list[tuple[float, Any]] = []
        for part, begin in ways[end]:
            last = spelled(text[begin:end])
            here += [(part * so_far, (first, last)) for so_far, first in prefixes[begin]]
        prefixes.append(here)
    return [(part, _spelled(way)) for part, way in prefixes[-1]]


def _spelled(way: Any) -> tuple[Any, ...]:
    pieces = []
    while way is not None:
        way, last = way
        pieces.append(last)
    return tuple(item for piece in reversed(pieces) for item in piece)


def sample_merges(text: str, scores: Mapping[str, float], dropout: float, draw: Draw) -> list[str]:
    """Segment a text by BPE: merge the pair of symbols with the highest score first; skip merges at random.

    Each merge is skipped with probability `dropout` (Provilkov et al. 2020, "BPE-Dropout", algorithm 1). As
    in sentencepiece, a skipped pair is not tried again. Each of the two symbols may still be merged with the
    symbol on its other side.

    scores: the score of each piece that a merge can create.
    draw: function that returns a random number in [0, 1).

    >>> scores = {"ab": 0.0, "abc": -1.0}
    >>> sample_merges("abcab", scores, 0.0, lambda: 0.5), sample_merges("abcab", scores, 1.0, lambda: 0.5)
    (['abc', 'ab'], ['a', 'b', 'c', 'a', 'b'])
    """
    symbols = list(text)
    before, after = list(range(-1, len(text) - 1)), list(range(1, len(text) + 1))
    agenda: list[tuple[float, int, str]] = []

    def propose(left: int) -> None:
        if left >= 0 and after[left] < len(text):
            score = scores.get(merged := symbols[left] + symbols[after[left]])
            if score is not None:
                heapq.heappush(agenda, (-score, left, merged))

    for left in range(len(text)):
        propose(left)
    while agenda:
        _, left, merged = heapq.heappop(agenda)
        right = after[left]
        # Ignore a merge in the queue if another merge has changed one of its two symbols in the meantime.
        stale = not symbols[left] or right >= len(text) or symbols[left] + symbols[right] != merged
        if stale or draw() < dropout:
            continue
        symbols[left], symbols[right] = merged, ""
        after[left] = after[right]
        if after[right] < len(text):
            before[after[right]] = left
        propose(before[left])
        propose(left)
    return [symbol for symbol in symbols if symbol]


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
"""Maximum number of words that are kept prepared for sampling. A word takes about 3 kB of memory."""

CACHED_CHARACTERS = 12 * CACHED_WORDS
"""Maximum number of characters of all prepared words.

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
        self._strength, self._prepared = 0.0, dict[str, Segmenter]()
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
        if self._strength != sample:  # the prepared words depend on it
            self._strength, self._prepared, self._characters = sample, {}, 0
        # Pieces never cross a space, so each word can be sampled separately.
        for word in WORDS.findall(self._processor.normalize(clean(line))):
            tokens += (self._prepared.get(word) or self._prepare(word, sample))(draw)
        return tokens

    def _prepare(self, word: str, sample: float) -> Segmenter:
        if len(self._prepared) >= CACHED_WORDS or self._characters >= CACHED_CHARACTERS:
            self._prepared, self._characters = {}, 0
        self._prepared[word] = segmenter = self.cut(word, sample)
        self._characters += len(word)
        return segmenter

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        cleaned = clean_lines(lines)
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
            return lambda draw: self._tokens_of(draw_pieces(word, ways, draw))
        parts, tokens = zip(*segmentations, strict=True)
        bounds = list(itertools.accumulate(parts[:-1]))  # the last bound is always 1
        return lambda draw: tokens[bisect(bounds, draw())]

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
        return lambda draw: self._tokens_of(sample_merges(word, self.scores, sample, draw))

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
