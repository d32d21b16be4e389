"""Aligner: learns word alignments from sentence pairs by the EM algorithm, in both directions at once.

    1. IBM model 1 (ibm1.py), IBM_ITERATIONS times; then the HMM (hmm.py), HMM_ITERATIONS times:
       the posteriors of both directions, with fertilities (fertility.py)
    2. their product is the expected count of each link (agreement.py)
    3. counts give translation probabilities, with a back-off to prefixes (lexicon.py), and jumps

Pairs are read in chunks of limited size. From the second chunk on, and with a saved model, the counts of
earlier pairs are added to those of the chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.aligner.aligned_pair import AlignedPair
from regard.aligner.batches import Batch, Side, batches_of, renumber
from regard.aligner.expectation import Counts, Estimate
from regard.aligner.hmm import WIDEST, Jumps
from regard.aligner.lexicon import SHIFT, Lexicon, sorted_keys
from regard.aligner.units import Words, split_at_spaces
from regard.aligner.vocabulary import Vocabulary
from regard.data.line_io import advancing
from regard.errors import ArgumentError, DataError, message, shown
from regard.files.atomic_io import write_whole
from regard.files.tensor_file import read_tensors, tensor_blocks

__all__ = ["HMM_ITERATIONS", "IBM_ITERATIONS", "LONGEST", "Aligner", "align"]

IBM_ITERATIONS, HMM_ITERATIONS = 2, 5
"""Number of iterations with pairs alone."""

NEXT_ITERATIONS = 1
"""Number of iterations of the HMM with counts of earlier pairs."""

LONGEST = 1000
"""Maximum number of words of a sentence. Further words are not aligned."""

CHUNK_CELLS = 16_000_000
"""Maximum number of (source word, target word) positions in a chunk."""

LEAST_COUNT, MOST_ENTRIES = 0.01, 4_000_000
"""After a chunk, entries with a smaller count are dropped, and so are the smallest ones of more entries."""

LINES = 2000
"""Number of pairs that are split into words at once."""

VERSION = 1
"""Version of the files of save()."""


def align(
    pairs: Iterable[tuple[str, str]],
    *,
    model: Aligner | None = None,
    source_words: Words = split_at_spaces,
    target_words: Words = split_at_spaces,
) -> list[AlignedPair]:
    """Align the words of sentence pairs, without a pretrained model: what they have in common is enough.

    pairs: (source, target) of each pair; further fields, as those of regard.data.Pair, are ignored.
    model: an Aligner that has learned from other pairs; it also learns from these.
    source_words, target_words: functions that split a list of lines into words; by default, at spaces.

    Returns an AlignedPair for each pair, in the same order.

    >>> import regard
    >>> pairs = [("das haus", "the house"), ("das buch", "the book"), ("ein buch", "a book")]
    >>> print(*regard.align(pairs), sep=" | ")
    0-0 1-1 | 0-0 1-1 | 0-0 1-1
    """
    aligner = Aligner() if model is None else model
    return list(aligner.align(pairs, source_words, target_words))


class Aligner:
    """Learns word alignments from sentence pairs, and keeps what it has learned for further pairs.

    pairs: number of pairs that it has learned from.

    >>> import regard
    >>> from regard.aligner import Aligner
    >>> aligner = Aligner().fit([("das haus", "the house"), ("das buch", "the book"), ("ein buch", "a book")])
    >>> aligner
    Aligner(3 pairs, 4 source words, 4 target words)
    >>> print(*regard.align([("ein haus", "a house")], model=aligner))
    0-0 1-1
    """

    def __init__(self) -> None:
        self.source, self.target = Vocabulary(), Vocabulary()
        self.jumps = (Jumps.zeros(), Jumps.zeros())
        self.keys, self.counts = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        self.pairs = 0

    def __repr__(self) -> str:
        sizes = f"{len(self.source):,} source words, {len(self.target):,} target words"
        return f"Aligner({self.pairs:,} pairs, {sizes})"

    def fit(
        self,
        pairs: Iterable[tuple[str, str]],
        source_words: Words = split_at_spaces,
        target_words: Words = split_at_spaces,
    ) -> Aligner:
        """Learn from sentence pairs; return self. For the arguments, see align()."""
        for chunk in self._chunks(pairs, source_words, target_words):
            self._learn(chunk)
        return self

    def align(
        self,
        pairs: Iterable[tuple[str, str]],
        source_words: Words = split_at_spaces,
        target_words: Words = split_at_spaces,
    ) -> Iterator[AlignedPair]:
        """Align sentence pairs, and learn from them. For the arguments, see regard.align().

        Pairs are read in chunks, so that a corpus need not fit into memory: yields an AlignedPair for each
        pair, in the same order.
        """
        for chunk in self._chunks(pairs, source_words, target_words):
            batches, places = self._learn(chunk), dict[int, tuple[Batch, int]]()
            for batch in batches:
                places.update((number, (batch, row)) for row, number in enumerate(batch.index.tolist()))
            for begin in range(0, len(chunk.texts), LINES):
                # Words are split again, because they need more memory than the texts.
                texts = chunk.texts[begin : begin + LINES]
                sides = (
                    source_words([source for source, _ in texts]),
                    target_words([text for _, text in texts]),
                )
                for row, words in enumerate(zip(*sides, strict=True)):
                    yield _aligned_pair(texts[row], words, *places.get(begin + row, ()))

    def _chunks(
        self, pairs: Iterable[tuple[str, str]], source_words: Words, target_words: Words
    ) -> Iterator[Chunk]:
        """Group pairs into chunks of limited size, with the numbers of their words."""
        iterator, chunk = iter(pairs), Chunk()
        while texts := [_texts(pair) for pair in itertools.islice(iterator, LINES)]:
            chunk.texts += texts
            lengths = []
            for side, (vocabulary, split) in enumerate(
                ((self.source, source_words), (self.target, target_words))
            ):
                words = split([text[side] for text in texts])
                numbers, counts = vocabulary.encode([each[:LONGEST] for each in words])
                chunk.numbers[side].append(numbers)
                chunk.lengths[side].append(counts)
                lengths.append(counts)
            chunk.cells += int((lengths[0] * lengths[1]).sum())
            if chunk.cells >= CHUNK_CELLS:
                yield chunk
                chunk = Chunk()
        if chunk.texts:
            yield chunk

    def _learn(self, chunk: Chunk) -> list[Batch]:
        """Learn from a chunk of pairs; return its batches with their posteriors."""
        self.pairs += len(chunk.texts)
        batches, keys = batches_of(*chunk.sides())
        if not batches:
            return []
        first, prior = not len(self.keys), None
        if not first:
            chunk_keys, keys = keys, sorted_keys([keys, self.keys])
            prior = torch.zeros(len(keys)).index_add_(0, torch.searchsorted(keys, self.keys), self.counts)
            renumber(batches, torch.searchsorted(keys, chunk_keys))
        lexicon = Lexicon(self.source, self.target, keys, prior)
        estimate = Estimate(lexicon, (self.source, self.target), self.jumps, first)
        plan = [False] * IBM_ITERATIONS + [True] * HMM_ITERATIONS if first else [True] * NEXT_ITERATIONS
        total = (len(plan) + 1) * len(batches)
        with advancing("aligning words", total=total) as reached:
            steps = itertools.count(1)
            for by_hmm in plan:
                counts = estimate.expected(batches, by_hmm, lambda: reached(next(steps)))
                estimate.maximise(counts)
            counts = estimate.expected(batches, True, lambda: reached(next(steps)))
        self._keep(lexicon, counts, prior)
        return batches

    def _keep(self, lexicon: Lexicon, counts: Counts, prior: Tensor | None) -> None:
        """Keep the counts of a chunk, for further pairs."""
        entries = counts.entries_N[1:] if prior is None else counts.entries_N[1:] + prior
        least = LEAST_COUNT
        if len(entries) > MOST_ENTRIES:
            least = max(least, float(entries.kthvalue(len(entries) - MOST_ENTRIES).values))
        kept = (entries > least).nonzero()[:, 0]
        self.keys, self.counts = lexicon.keys[kept], entries[kept]
        for vocabulary, aligned, unaligned in zip(
            (self.source, self.target), counts.aligned, counts.unaligned, strict=True
        ):
            vocabulary.aligned, vocabulary.unaligned = aligned, unaligned
        self.jumps = counts.jumps

    def lexicon(self, least: float = 0.01) -> Iterator[tuple[str, str, float, float, float]]:
        """Yield the dictionary, sorted by source word and probability.

        Yields (source word, target word, probability of the target word given the source word, probability of
        the source word given the target word, expected count).

        least: the smallest probability, in both directions.

        >>> aligner = Aligner().fit([("haus", "house"), ("haus", "house"), ("buch", "book")])
        >>> [(source, target) for source, target, *_ in aligner.lexicon(least=0.5)]
        [('buch', 'book'), ('haus', 'house')]
        """
        source_N, target_N = (self.keys >> SHIFT), self.keys & (1 << SHIFT) - 1
        shares = []
        for vocabulary, word_N in ((self.source, source_N), (self.target, target_N)):
            total_V = torch.zeros(len(vocabulary)).index_add_(0, word_N, self.counts)
            shares.append(self.counts / total_V[word_N])
        kept = ((shares[0] >= least) & (shares[1] >= least)).nonzero()[:, 0]
        columns = (source_N, target_N, *shares, self.counts)
        rows = zip(*(column[kept].tolist() for column in columns), strict=True)
        names = self.source.forms, self.target.forms
        for source, target, there, back, count in sorted(
            rows, key=lambda row: (names[0][row[0]], -row[2], names[1][row[1]])
        ):
            yield names[0][source], names[1][target], there, back, count

    def _sides(self) -> Iterator[tuple[str, Vocabulary, Jumps]]:
        """Yield the name, the vocabulary and the jumps of each side."""
        yield from zip(("source", "target"), (self.source, self.target), self.jumps, strict=True)

    def save(self, path: str | Path) -> None:
        """Write the aligner to a file of tensors (safetensors), for load()."""
        tensors = {"keys": self.keys, "counts": self.counts}
        for name, vocabulary, jumps in self._sides():
            text = "\n".join(vocabulary.forms).encode("utf-8", "surrogatepass")
            tensors[f"{name}.words"] = torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)
            for each in ("frequency", "aligned", "unaligned"):
                tensors[f"{name}.{each}"] = getattr(vocabulary, each)
            for each in ("width", "start", "end"):
                tensors[f"{name}.jump_{each}"] = getattr(jumps, each)
        tensors["pairs"] = torch.tensor([VERSION, self.pairs])
        write_whole(Path(path), b"".join(map(bytes, tensor_blocks(tensors))))

    @classmethod
    def load(cls, path: str | Path) -> Aligner:
        """Read an aligner from a file that save() wrote."""
        aligner = cls()
        hint = "write it again: regard align --source A --target B --save-model FILE"
        try:
            tensors = read_tensors(Path(path))
        except DataError as error:
            if not Path(path).is_file():
                raise
            problem = f"the file is not an aligner: {error.message.problem}"
            raise DataError(message(shown(path), problem, hint=hint)) from None
        try:
            version, aligner.pairs = tensors["pairs"].tolist()
            if version != VERSION:
                raise ValueError(f"version {version}, expected {VERSION}")
            for name, jumps in zip(("source", "target"), aligner.jumps, strict=True):
                words = bytes(tensors[f"{name}.words"].numpy()).decode("utf-8", "surrogatepass")
                vocabulary = Vocabulary(words.split("\n") if len(tensors[f"{name}.frequency"]) else ())
                for each in ("frequency", "aligned", "unaligned"):
                    setattr(vocabulary, each, _checked(tensors[f"{name}.{each}"], len(vocabulary)))
                setattr(aligner, name, vocabulary)
                for each, size in (("width", 2 * WIDEST + 1), ("start", WIDEST + 1), ("end", WIDEST + 1)):
                    setattr(jumps, each, _checked(tensors[f"{name}.jump_{each}"], size))
            aligner.keys = tensors["keys"]
            aligner.counts = _checked(tensors["counts"], len(aligner.keys))
            if len(aligner.keys) and not (
                bool((aligner.keys.diff() > 0).all())
                and int(aligner.keys[0]) >= 0
                and int(aligner.keys[-1] >> SHIFT) < len(aligner.source)
                and int((aligner.keys & (1 << SHIFT) - 1).max()) < len(aligner.target)
            ):
                raise ValueError("the entries of the table are out of range")
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            problem = f"the file is not an aligner that this version can read: {error}"
            raise DataError(message(shown(path), problem, hint=hint)) from None
        return aligner


def _checked(tensor: Tensor, size: int) -> Tensor:
    """Return a vector that a file must have; raise ValueError if its values or its size are not possible."""
    if tensor.shape != (size,) or tensor.dtype != torch.float32:
        raise ValueError(f"a tensor is {tensor.dtype} of shape {tuple(tensor.shape)}, expected ({size},)")
    if not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise ValueError("a count is negative or not finite")
    return tensor


@dataclass
class Chunk:
    """Sentence pairs that are aligned together.

    texts: source and target of each pair.
    numbers, lengths: for source and target, the numbers of all words, and the length of each sentence.
    cells: number of positions (source word, target word).
    """

    texts: list[tuple[str, str]] = field(default_factory=list)
    numbers: tuple[list[NDArray[numpy.int32]], list[NDArray[numpy.int32]]] = field(
        default_factory=lambda: ([], [])
    )
    lengths: tuple[list[NDArray[numpy.int64]], list[NDArray[numpy.int64]]] = field(
        default_factory=lambda: ([], [])
    )
    cells: int = 0

    def sides(self) -> Iterator[Side]:
        """Yield the numbers of all words of the source and then of the target, and the lengths."""
        for numbers, lengths in zip(self.numbers, self.lengths, strict=True):
            yield numpy.concatenate(numbers), numpy.concatenate(lengths)


def _aligned_pair(
    texts: tuple[str, str],
    words: tuple[Sequence[str], Sequence[str]],
    batch: Batch | None = None,
    row: int = 0,
) -> AlignedPair:
    """Return a pair with its posteriors, a row of a batch. Without a batch, a side is empty: no links."""
    notes: tuple[str, ...] = ()
    lengths = targets, sources = len(words[1]), len(words[0])
    forward_TS, backward_ST = numpy.zeros(lengths, "f4"), numpy.zeros(lengths[::-1], "f4")
    if batch is None or batch.posteriors is None:
        empty = [name for name, each in zip(("source", "target"), words, strict=True) if not each]
        return AlignedPair(*texts, *words, forward_TS, backward_ST, (f"empty: {' and '.join(empty)}",))
    if max(lengths) > LONGEST:
        notes = (f"cut at {LONGEST:,} of {max(lengths):,} words: the other words have no links",)
        targets, sources = min(targets, LONGEST), min(sources, LONGEST)
    forward_TS[:targets, :sources] = batch.posteriors[0][row, :targets, :sources].numpy()
    backward_ST[:sources, :targets] = batch.posteriors[1][row, :sources, :targets].numpy()
    return AlignedPair(*texts, *words, forward_TS, backward_ST, notes)


def _texts(pair: tuple[str, str]) -> tuple[str, str]:
    """Return the source and the target of a pair."""
    if isinstance(pair, str) or len(pair) < 2 or not all(isinstance(each, str) for each in pair[:2]):
        expected = 'pairs of two texts, such as [("das haus", "the house")]'
        raise ArgumentError(message("align()", f"a pair is {pair!r:.80}", expected=expected))
    return pair[0], pair[1]
