"""Subword sampling: segmentations have the right probabilities and are reproducible with a seed."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tokenizers import BPE, Tokenizer, Unigram, clean, train_tokenizer
from regard.data.tokenizers.subwords import (
    Lattice,
    all_segmentations,
    backpointers,
    draw_pieces,
    sample_merges,
)
from regard.errors import ArgumentError
from tests.data.test_tokenizers import ANY_TEXT, LINES, SUBWORDS, TRAINED
from tests.facts import facts


@pytest.fixture(params=SUBWORDS)
def subwords(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


def all_ways(word: str, vocabulary: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every segmentation of a word into pieces of the vocabulary."""
    if not word:
        return [()]
    return [
        (piece, *rest)
        for piece in vocabulary
        if word.startswith(piece)
        for rest in all_ways(word[len(piece) :], vocabulary)
    ]


def one(piece: str) -> list[str]:
    """Return the piece itself."""
    return [piece]


def test_segmentations_are_sampled_with_their_probabilities():
    scores = {"a": -1.5, "b": -2.0, "ab": -2.2, "ba": -3.0, "aba": -4.0}
    weights = {way: math.exp(0.5 * sum(map(scores.__getitem__, way))) for way in all_ways("ababa", [*scores])}
    draw, ways = random.Random(3).random, backpointers("ababa", Lattice.of(scores), 0.5)
    drawn = Counter(tuple(draw_pieces("ababa", ways, draw)) for _ in range(20_000))
    assert set(drawn) == set(weights) and len(weights) > 5
    for way, weight in weights.items():
        assert drawn[way] / 20_000 == pytest.approx(weight / sum(weights.values()), abs=0.015)


def test_all_segmentations_are_listed_with_their_probabilities():
    scores = {"a": -1.5, "b": -2.0, "ab": -2.2, "ba": -3.0, "aba": -4.0}
    weights = {way: math.exp(0.5 * sum(map(scores.__getitem__, way))) for way in all_ways("ababa", [*scores])}
    ways = backpointers("ababa", Lattice.of(scores), 0.5)
    segmentations = all_segmentations("ababa", ways, most=len(weights), spelled=one)
    assert segmentations is not None and len(segmentations) == len(weights)
    for part, pieces in segmentations:
        assert part == pytest.approx(weights[pieces] / sum(weights.values()))
    assert all_segmentations("ababa", ways, most=len(weights) - 1, spelled=one) is None


@pytest.mark.parametrize("listed", [0, 64])
def test_listed_and_unlisted_segmentations_have_the_same_distribution(
    monkeypatch: pytest.MonkeyPatch, listed: int
):
    monkeypatch.setattr("regard.data.tokenizers.subwords.FEW_SEGMENTATIONS", listed)
    unigram = train_tokenizer("unigram", ["low lower lowest", "new newer newest"] * 20)
    assert isinstance(unigram, Unigram)
    ways = all_segmentations("▁lowest", backpointers("▁lowest", unigram.lattice, 0.1), most=64, spelled=one)
    assert ways is not None and len(ways) > 3 and max(ways)[0] < 0.9
    draw = random.Random(5)
    drawn = Counter(tuple(unigram.encode("lowest", sample=0.1, generator=draw)) for _ in range(10_000))
    for part, pieces in ways:
        tokens = tuple(unigram.numbers[piece] for piece in pieces)
        assert drawn[tokens] / 10_000 == pytest.approx(part, abs=0.02)


def test_sampling_without_randomness_equals_encoding():
    for line in LINES:
        unigram, bpe = TRAINED["unigram"], TRAINED["bpe"]
        assert isinstance(unigram, Unigram) and isinstance(bpe, BPE)
        assert unigram.encode(line, sample=1e4) == unigram.encode(line)
        for word in line.split():
            merged = sample_merges(f"▁{word}", bpe.scores, 0.0, lambda: 0.5)
            assert [bpe.numbers[piece] for piece in merged] == bpe.encode(word)


@settings(max_examples=30)
@given(line=ANY_TEXT, sample=st.floats(0.05, 1.0), seed=st.integers(0, 9))
def test_sampled_tokens_decode_to_the_same_text(line: str, sample: float, seed: int):
    for kind in SUBWORDS:
        tokens = TRAINED[kind].encode(line, sample=sample, generator=random.Random(seed))
        assert TRAINED[kind].decode(tokens) == clean(line)


def test_sampling_is_reproducible_with_a_seed(subwords: Tokenizer):
    def drawn(generator: random.Random | None) -> list[list[int]]:
        return [subwords.encode(line, sample=0.2, generator=generator) for line in LINES[:20]]

    first = drawn(random.Random(7))
    assert first == drawn(random.Random(7)) != drawn(random.Random(8))
    assert first != [subwords.encode(line) for line in LINES[:20]]
    random.seed(7)
    assert drawn(None) == first


@pytest.mark.parametrize("most", [1, 7])
def test_sampling_does_not_depend_on_the_cache(
    subwords: Tokenizer, monkeypatch: pytest.MonkeyPatch, most: int
):
    def drawn(tokenizer: Tokenizer, sample: float, lines: Sequence[str]) -> list[list[int]]:
        return [
            tokenizer.encode(line, sample=sample, generator=random.Random(f"{place}"))
            for place, line in enumerate(lines)
        ]

    lines = LINES[:30]
    expected = {sample: drawn(subwords, sample, lines) for sample in (0.1, 0.5)}
    monkeypatch.setattr("regard.data.tokenizers.subwords.CACHED_WORDS", most)
    copy = type(subwords).deserialized(subwords.serialized(), "copy")
    for sample in (0.1, 0.5, 0.1):
        assert drawn(copy, sample, lines) == expected[sample]
        backwards = drawn(copy, sample, lines[::-1])
        assert backwards == drawn(subwords, sample, lines[::-1])


def test_cache_is_limited_by_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.data.tokenizers.subwords.CACHED_CHARACTERS", 200)
    unigram = TRAINED["unigram"]
    copy = type(unigram).deserialized(unigram.serialized(), "copy")
    lines = [f"{number:03}" + "ab" * 20 for number in range(50)]
    for line in lines:
        copy.encode(line, sample=0.1, generator=random.Random(0))
    assert 1 <= len(copy._prepared) <= 5


def test_memory_for_a_long_word_of_bytes_is_limited():
    word = "═" * 2000
    tracemalloc.start()
    try:
        tokens = TRAINED["unigram"].encode(word, sample=0.1, generator=random.Random(0))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert TRAINED["unigram"].decode(tokens) == word
    assert most < 8 * 2**20


def test_a_long_word_is_sampled_too(subwords: Tokenizer):
    tokens = subwords.encode("ab" * 5000, sample=0.1, generator=random.Random(0))
    assert subwords.decode(tokens) == "ab" * 5000


def test_invalid_sample_raises():
    for kind, sample in (("unigram", -1.0), ("unigram", math.nan), ("bpe", 1.5), ("word", 0.1)):
        with pytest.raises(ArgumentError, match=facts("encode()", "sample")):
            TRAINED[kind].encode("a", sample=sample)
