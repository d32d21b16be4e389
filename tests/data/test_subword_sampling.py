"""Subword sampling: each way to cut a word as often as it is likely, and the same again from a seed."""

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
from regard.data.tokenizers.subword_sampling import Lattice, every_way, reach, sample_merges, sample_pieces
from regard.errors import ArgumentError
from tests.data.test_tokenizers import ANY_TEXT, LINES, SUBWORDS, TRAINED


@pytest.fixture(params=SUBWORDS)
def subwords(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


def all_ways(word: str, known: Sequence[str]) -> list[tuple[str, ...]]:
    """Every segmentation of a word into known pieces."""
    if not word:
        return [()]
    return [
        (piece, *rest)
        for piece in known
        if word.startswith(piece)
        for rest in all_ways(word[len(piece) :], known)
    ]


def one(piece: str) -> list[str]:
    """A piece, written as itself."""
    return [piece]


def test_segmentations_are_drawn_as_often_as_they_are_likely():
    scores = {"a": -1.5, "b": -2.0, "ab": -2.2, "ba": -3.0, "aba": -4.0}
    weights = {way: math.exp(0.5 * sum(map(scores.__getitem__, way))) for way in all_ways("ababa", [*scores])}
    draw = random.Random(3).random
    drawn = Counter(tuple(sample_pieces("ababa", Lattice.of(scores), 0.5, draw)) for _ in range(20_000))
    assert set(drawn) == set(weights) and len(weights) > 5
    for way, weight in weights.items():
        assert drawn[way] / 20_000 == pytest.approx(weight / sum(weights.values()), abs=0.015)


def test_every_way_to_cut_a_word_is_listed_with_its_probability():
    scores = {"a": -1.5, "b": -2.0, "ab": -2.2, "ba": -3.0, "aba": -4.0}
    weights = {way: math.exp(0.5 * sum(map(scores.__getitem__, way))) for way in all_ways("ababa", [*scores])}
    ways = reach("ababa", Lattice.of(scores), 0.5)
    found = every_way("ababa", ways, most=len(weights), spelled=one)
    assert found is not None and len(found) == len(weights)
    for part, pieces in found:
        assert part == pytest.approx(weights[pieces] / sum(weights.values()))
    assert every_way("ababa", ways, most=len(weights) - 1, spelled=one) is None


@pytest.mark.parametrize("listed", [0, 64])
def test_a_word_is_cut_alike_whether_its_ways_are_listed_or_not(monkeypatch: pytest.MonkeyPatch, listed: int):
    monkeypatch.setattr("regard.data.tokenizers.subwords.FEW_WAYS", listed)
    unigram = train_tokenizer("unigram", ["low lower lowest", "new newer newest"] * 20)
    assert isinstance(unigram, Unigram)
    ways = every_way("▁lowest", reach("▁lowest", unigram.lattice, 0.1), most=64, spelled=one)
    assert ways is not None and len(ways) > 3 and max(ways)[0] < 0.9
    draw = random.Random(5)
    drawn = Counter(tuple(unigram.encode("lowest", sample=0.1, generator=draw)) for _ in range(10_000))
    for part, pieces in ways:
        tokens = tuple(unigram.numbers[piece] for piece in pieces)
        assert drawn[tokens] / 10_000 == pytest.approx(part, abs=0.02)


def test_without_chance_sampling_is_encoding():
    for line in LINES:
        unigram, bpe = TRAINED["unigram"], TRAINED["bpe"]
        assert isinstance(unigram, Unigram) and isinstance(bpe, BPE)
        assert unigram.encode(line, sample=1e4) == unigram.encode(line)
        for word in line.split():
            merged = sample_merges(f"▁{word}", bpe.scores, 0.0, lambda: 0.5)
            assert [bpe.numbers[piece] for piece in merged] == bpe.encode(word)


@settings(max_examples=30)
@given(line=ANY_TEXT, sample=st.floats(0.05, 1.0), seed=st.integers(0, 9))
def test_sampled_tokens_say_the_same_text(line: str, sample: float, seed: int):
    for kind in SUBWORDS:
        tokens = TRAINED[kind].encode(line, sample=sample, generator=random.Random(seed))
        assert TRAINED[kind].decode(tokens) == clean(line)


def test_sampling_repeats_with_its_seed(subwords: Tokenizer):
    def drawn(generator: random.Random | None) -> list[list[int]]:
        return [subwords.encode(line, sample=0.2, generator=generator) for line in LINES[:20]]

    first = drawn(random.Random(7))
    assert first == drawn(random.Random(7)) != drawn(random.Random(8))
    assert first != [subwords.encode(line) for line in LINES[:20]]
    random.seed(7)
    assert drawn(None) == first


@pytest.mark.parametrize("most", [1, 7])
def test_what_is_drawn_does_not_depend_on_what_was_met_before(
    subwords: Tokenizer, monkeypatch: pytest.MonkeyPatch, most: int
):
    def drawn(tokenizer: Tokenizer, sample: float, lines: Sequence[str]) -> list[list[int]]:
        return [
            tokenizer.encode(line, sample=sample, generator=random.Random(f"{place}"))
            for place, line in enumerate(lines)
        ]

    lines = LINES[:30]
    wanted = {sample: drawn(subwords, sample, lines) for sample in (0.1, 0.5)}
    monkeypatch.setattr("regard.data.tokenizers.subwords.MET", most)
    forgetful = type(subwords).deserialized(subwords.serialized(), "again")
    for sample in (0.1, 0.5, 0.1):
        assert drawn(forgetful, sample, lines) == wanted[sample]
        backwards = drawn(forgetful, sample, lines[::-1])
        assert backwards == drawn(subwords, sample, lines[::-1])


def test_lines_without_spaces_are_remembered_by_their_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.data.tokenizers.subwords.LETTERS", 200)
    unigram = TRAINED["unigram"]
    forgetful = type(unigram).deserialized(unigram.serialized(), "again")
    lines = [f"{number:03}" + "ab" * 20 for number in range(50)]
    for line in lines:
        forgetful.encode(line, sample=0.1, generator=random.Random(0))
    held = [word for part in (forgetful._young, forgetful._old) for word in part]
    assert 2 <= len(held) <= 10


def test_a_word_of_many_bytes_takes_memory_by_its_length():
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


def test_sampling_that_means_nothing_is_refused():
    for kind, sample in (("unigram", -1.0), ("unigram", math.nan), ("bpe", 1.5), ("word", 0.1)):
        with pytest.raises(ArgumentError, match=r"encode\(\): sample is"):
            TRAINED[kind].encode("a", sample=sample)
