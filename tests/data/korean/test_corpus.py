"""The corpus keeps its promises: the same every time, nothing shared, one English for each Korean."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from regard.data.korean import grammar
from regard.data.korean.corpus import SPLITS, Example, KoreanEnglish, korean_english, linked, tenth
from regard.data.korean.phrases import Dice
from regard.data.korean.predicates import FRAMES, TRAITS
from regard.errors import ArgumentError, UnknownName


@pytest.fixture(scope="module")
def train() -> list[Example]:
    return list(korean_english("train", 50000))


@pytest.fixture(scope="module")
def others() -> dict[str, list[Example]]:
    counts = {"valid": 500, "test": 500, "long": 200}
    return {split: list(korean_english(split, count)) for split, count in counts.items()}


def check_links(example: Example) -> None:
    sources, targets = len(example.source.split()), len(example.target.split())
    assert example.sure <= example.possible
    assert all(0 <= source < sources and 0 <= target < targets for source, target in example.possible)
    assert {target for _, target in example.possible} == set(range(targets)), example
    assert {source for source, _ in example.possible} == set(range(sources)), example
    assert max(Counter(target for _, target in example.sure).values()) == 1, example
    assert (sources - 1, targets - 1) in example.sure


def test_the_links_are_sound(train: list[Example], others: dict[str, list[Example]]):
    for example in itertools.chain(train, *others.values()):
        check_links(example)
    sure = sum(len(example.sure) for example in train)
    words = sum(len(example.target.split()) for example in train)
    assert 0.6 < sure / words < 0.9


def test_most_alignments_cross(train: list[Example]):
    crossing = 0
    for example in train:
        by_target = [source for source, _ in sorted(example.sure, key=lambda link: link[1])]
        crossing += by_target != sorted(by_target)
    assert crossing / len(train) > 0.8


def one_english_each(examples: list[Example]) -> bool:
    said: dict[str, Example] = {}
    return all(said.setdefault(example.source, example) == example for example in examples)


def test_english_and_links_are_a_function_of_the_korean(train: list[Example]):
    assert one_english_each(train)
    korean = {example.target: set[str]() for example in train}
    for example in train:
        korean[example.target].add(example.source)
    assert sum(len(sources) > 1 for sources in korean.values()) / len(korean) < 0.02


@pytest.mark.slow
def test_english_is_a_function_of_the_korean_at_length():
    assert one_english_each([*korean_english("train", 200000, seed=1), *korean_english("long", 5000, seed=1)])


def test_vocabularies_are_small_and_no_word_is_rare(train: list[Example]):
    korean = Counter(word for example in train for word in example.source.split())
    english = Counter(word for example in train for word in example.target.split())
    assert 1000 < len(korean) < 1300 and 400 < len(english) < 500
    for counts, few in ((korean, 0.01), (english, 0.01)):
        rare = sum(count for count in counts.values() if count < 20)
        assert rare / counts.total() < few


def test_test_holds_no_word_that_train_lacks(train: list[Example], others: dict[str, list[Example]]):
    for side in ("source", "target"):
        known = {word for example in train for word in getattr(example, side).split()}
        met = {
            word for each in others.values() for example in each for word in getattr(example, side).split()
        }
        assert len(met - known) <= 2


def test_the_splits_share_nothing_whatever_the_seed(train: list[Example], others: dict[str, list[Example]]):
    owners = [split.tenths for split in SPLITS.values()]
    assert sorted(itertools.chain(*owners)) == list(range(10))
    for name, examples in {"train": train, **others}.items():
        assert all(tenth(example.source) in SPLITS[name].tenths for example in examples)
    again = {example.source for example in korean_english("train", 3000, seed=7)}
    assert not again & {example.source for examples in others.values() for example in examples}


def test_only_train_repeats(train: list[Example], others: dict[str, list[Example]]):
    for examples in others.values():
        assert len({example.source for example in examples}) == len(examples)
    assert 0.7 < len({example.source for example in train}) / len(train) < 1


def test_lengths(train: list[Example], others: dict[str, list[Example]]):
    for example in itertools.chain(train, others["valid"], others["test"]):
        assert 2 <= len(example.source.split()) <= 30 and len(example.target.split()) <= 30
    assert max(len(example.target.split()) for example in train) == 30
    long = [len(example.source.split()) for example in others["long"]]
    assert min(long) >= 25 and max(long) <= 60 and max(long) > 50


def test_the_same_seed_gives_the_same_and_another_another():
    corpus = korean_english("train", 200)
    assert list(corpus) == list(corpus) == list(korean_english("train", 300))[:200]
    assert list(corpus) != list(korean_english("train", 200, seed=1))


def test_the_first_sentences_are_the_same_on_every_machine():
    """What a seed gives is part of the promise: change this only together with VERSION."""
    found = [(example.source, example.target) for example in korean_english("test", 3)]
    assert found == FIRST


FIRST = [
    (
        "우리는 이 공원에서 운동하고 있지만 , 민수가 좋아하는 소설은 쉽지 않다 .",
        "we are exercising in this park , but the novel that Minsu likes is not easy .",
    ),
    (
        "한국어를 가르치는 친구는 아침에 식당에서 일하지 않는다 .",
        "the friend who teaches Korean does not work at the restaurant in the morning .",
    ),
    (
        "날씨가 추워서 그녀는 버스로 집에 안 갔다 .",
        "she did not go home by bus because the weather was cold .",
    ),
]


def test_the_fingerprint_tells_corpora_apart():
    made = [
        korean_english("train", 10),
        korean_english("train", 11),
        korean_english("test", 10),
        korean_english("train", 10, 1),
    ]
    assert len({corpus.fingerprint for corpus in made}) == 4
    assert korean_english("train", 10).fingerprint == made[0].fingerprint
    assert len(made[0]) == 10 and repr(made[0]) == "KoreanEnglish(split='train', count=10, seed=0)"


def test_i_am_a_cat():
    dice = Dice("a cat")
    said = {example.source: example for example in (linked(grammar.old_style(dice)) for _ in range(500))}
    assert said["나는 고양이로소이다 ."] == Example(
        "나는 고양이로소이다 .",
        "I am a cat .",
        frozenset({(0, 0), (1, 3), (2, 4)}),
        frozenset({(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 4)}),
    )
    assert tenth("나는 고양이로소이다 .") in SPLITS["train"].tenths


def test_what_cannot_be_made_is_refused():
    with pytest.raises(UnknownName, match="known: long, test, train, valid"):
        korean_english("dev")
    with pytest.raises(ArgumentError, match="count is -1"):
        KoreanEnglish("train", -1, 0)
    assert list(korean_english("train", 0)) == []


def test_every_trait_is_explained():
    assert set().union(*(frame.traits for frame in FRAMES)) == set(TRAITS)
