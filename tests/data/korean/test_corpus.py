"""The corpus: deterministic, with disjoint splits, and one translation for each Korean sentence."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from regard.data.korean import (
    SPLITS,
    Example,
    KoreanEnglish,
    grammar,
    korean_english,
    linked,
    tenth,
    unmarked,
)
from regard.data.korean.grammar import Dice, Plan, action, person
from regard.data.korean.lexicon import ADDED_NAMES, FRAMES, TRAITS, Frame, Noun, Person
from regard.data.tokenizers.tokenizer import separate_marks
from regard.errors import ArgumentError, UnknownName
from tests.facts import facts


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
    if unmarked(example.source) != example.source:
        assert (sources - 1, targets - 1) in example.sure


def test_links_are_valid(train: list[Example], others: dict[str, list[Example]]):
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


def test_every_fifth_sentence_has_no_final_mark_on_either_side(train: list[Example]):
    marks = Counter((example.source[-1], example.target[-1]) for example in train)
    marked = sum(marks[mark, mark] for mark in ".!?")
    assert sum(count for (korean, _), count in marks.items() if korean in ".!?") == marked
    assert sum(count for (_, english), count in marks.items() if english in ".!?") == marked
    assert 0.19 < 1 - marked / len(train) < 0.21


def test_vocabularies_are_small_and_no_word_is_rare(train: list[Example]):
    korean = Counter(word for example in train for word in example.source.split())
    english = Counter(word for example in train for word in example.target.split())
    assert 1000 < len(korean) < 1300 and 400 < len(english) < 500
    for counts, few in ((korean, 0.01), (english, 0.01)):
        rare = sum(count for count in counts.values() if count < 20)
        assert rare / counts.total() < few


def test_all_words_of_test_occur_in_train(train: list[Example], others: dict[str, list[Example]]):
    for side in ("source", "target"):
        known = {word for example in train for word in getattr(example, side).split()}
        met = {
            word for each in others.values() for example in each for word in getattr(example, side).split()
        }
        assert len(met - known) <= 2


def test_splits_are_disjoint_for_any_seed(train: list[Example], others: dict[str, list[Example]]):
    owners = [split.tenths for split in SPLITS.values()]
    assert sorted(itertools.chain(*owners)) == list(range(10))
    for name, examples in {"train": train, **others}.items():
        assert all(tenth(example.source) in SPLITS[name].tenths for example in examples)
    again = {example.source for example in korean_english("train", 3000, seed=7)}
    assert not again & {example.source for examples in others.values() for example in examples}


def test_only_train_repeats_sentences(train: list[Example], others: dict[str, list[Example]]):
    for examples in others.values():
        assert len({example.source for example in examples}) == len(examples)
    assert 0.7 < len({example.source for example in train}) / len(train) < 1


def test_lengths(train: list[Example], others: dict[str, list[Example]]):
    for example in itertools.chain(train, others["valid"], others["test"]):
        assert 2 <= len(example.source.split()) <= 30 and len(example.target.split()) <= 30
    assert max(len(example.target.split()) for example in train) == 30
    long = [len(example.source.split()) for example in others["long"]]
    assert min(long) >= 25 and max(long) <= 60 and max(long) > 50


def test_examples_depend_on_the_seed():
    corpus = korean_english("train", 200)
    assert list(corpus) == list(corpus) == list(korean_english("train", 300))[:200]
    assert list(corpus) != list(korean_english("train", 200, seed=1))


DIGESTS = {
    "train": "a81b69e1e440d314783b3436dee53a8e",
    "valid": "48e5c5e4feab5baf1230813751529f49",
    "test": "3cd91582196e90b9e14138c971d6c749",
    "long": "a25e40a4c38218e20d6f61ef79c94cac",
}
"""Hashes of the first sentences of each split. Run folders depend on them: they must not change."""


def test_the_corpus_is_the_same_on_every_machine():
    counts = {"train": 3000, "valid": 500, "test": 500, "long": 100}
    assert {split: digest(korean_english(split, count)) for split, count in counts.items()} == DIGESTS


def digest(examples: Iterable[Example]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for each in examples:
        made.update(repr((each.source, each.target, sorted(each.sure), sorted(each.possible))).encode())
    return made.hexdigest()


def test_fingerprint_identifies_the_corpus():
    made = [
        korean_english("train", 10),
        korean_english("train", 11),
        korean_english("test", 10),
        korean_english("train", 10, 1),
    ]
    assert len({corpus.fingerprint for corpus in made}) == 4
    assert korean_english("train", 10).fingerprint == made[0].fingerprint
    assert len(made[0]) == 10 and repr(made[0]) == "KoreanEnglish(split='train', count=10, seed=0)"
    assert korean_english("train", 4000).fingerprint == "87c42c41b126264f6b8b200107054c55"


class Wanted(Dice):
    """Dice that pick the wanted options if possible, otherwise the first, and the likelier outcome."""

    def __init__(self, *wanted: object):
        super().__init__("wanted")
        self.wanted = wanted

    def pick(self, options: Sequence[Any], added: Sequence[Any] = ()) -> Any:
        every = [*options, *added]
        names = [each.verb.stem.text if isinstance(each, Frame) else each for each in every]
        names = [each.korean if isinstance(each, Person | Noun) else each for each in names]
        return every[next((names.index(name) for name in self.wanted if name in names), 0)]

    def chance(self, share: float) -> bool:
        return share > 0.5


def test_i_am_a_cat():
    dice = Dice("a cat")
    said = {example.source: example for example in (linked(grammar.old_style(dice)) for _ in range(500))}
    assert said["나는 고양이로소이다"] == Example(
        "나는 고양이로소이다",
        "I am a cat",
        frozenset({(0, 0), (1, 3)}),
        frozenset({(0, 0), (1, 1), (1, 2), (1, 3)}),
    )
    assert said["나는 고양이로소이다 ."] == Example(
        "나는 고양이로소이다 .",
        "I am a cat .",
        frozenset({(0, 0), (1, 3), (2, 4)}),
        frozenset({(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 4)}),
    )
    assert all(
        tenth(each) in SPLITS["train"].tenths for each in said if each.startswith("나는 고양이로소이다")
    )


@pytest.mark.parametrize("written", ["안되서", "안돼서", "안 돼서"])
def test_the_cafe(written: str):
    """최웅준은 집에서 집중이 안되서 카페에 공부하러 갔다: its English and its links, in each spelling."""
    wanted = ("name", "최웅준", "unfocused", "집", "카페", tuple(written.split()), "공부하")
    example = linked(grammar.so(Wanted(*wanted)))
    assert example.source == f"최웅준은 집에서 집중이 {written} 카페에 공부하러 갔다 ."
    assert example.target == "Woongjun could not focus at home so he went to a café to study ."
    korean, english = example.source.split(), example.target.split()
    fails, refused = ("돼서", "안") if " " in written else (written, written)
    assert {(korean[there], english[here]) for there, here in example.sure} == {
        ("최웅준은", "Woongjun"),
        (fails, "could"),
        (refused, "not"),
        ("집중이", "focus"),
        ("집에서", "home"),
        ("갔다", "went"),
        ("카페에", "café"),
        ("공부하러", "study"),
        (".", "."),
    }
    only_possible = {(korean[there], english[here]) for there, here in example.possible - example.sure}
    assert {("집에서", "at"), (fails, "so"), ("최웅준은", "he"), ("카페에", "a")} <= only_possible
    assert {("카페에", "to"), ("공부하러", "to")} <= only_possible


def test_the_dictionary_sentences_are_in_the_corpus():
    """최웅준은 (집에서) 밥을 먹었다, with and without a final mark."""
    targets = {
        "최웅준은 밥을 먹었다": "Woongjun ate rice",
        "최웅준은 집에서 밥을 먹었다": "Woongjun ate rice at home",
    }
    woongjun, eat, dice = ADDED_NAMES[0], FRAMES[0], Dice("dictionary")
    subjects = (person(woongjun, "topic") for _ in range(2000))
    said = [linked(action(dice, eat, Plan("past"), subject)) for subject in subjects]
    english = {example.source: example.target for example in said}
    assert {source: english.get(source) for source in targets} == targets


def test_purposes_occur_with_every_kind_of_stem():
    dice = Dice("purposes")
    said = {
        word for _ in range(5000) for word in linked(grammar.errand(dice, "statement", False)).source.split()
    }
    assert {"공부하러", "먹으러", "만나러", "만들러", "놀러", "들으러", "걸으러", "도우러", "부르러"} <= said


def test_marks_are_separated_as_the_corpus_writes_them(train: list[Example]):
    assert separate_marks("나는 고양이로소이다.") == "나는 고양이로소이다 ."
    assert separate_marks("나는 바쁘지만, 너는 3.5를 아니?") == "나는 바쁘지만 , 너는 3.5를 아니 ?"
    assert all(separate_marks(example.source) == example.source for example in train[:5000])


def test_invalid_arguments_raise():
    with pytest.raises(UnknownName, match=facts("known", "long", "test", "train", "valid")):
        korean_english("dev")
    with pytest.raises(ArgumentError, match=facts("count", -1)):
        KoreanEnglish("train", -1, 0)
    assert list(korean_english("train", 0)) == []


def test_every_trait_is_explained():
    assert set().union(*(frame.traits for frame in FRAMES)) == set(TRAITS)
