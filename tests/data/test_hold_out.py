"""Held-out pairs are chosen by the source sentence and are never in train; all dropped pairs are counted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.pairs import Pairs, hold_out, pairs_from_lists
from regard.errors import ArgumentError, DataError, UnknownName


def many(count: int = 2000) -> list[tuple[str, str]]:
    return [(f"문장 {i}", f"sentence {i}") for i in range(count)]


def pairs_of(both: list[tuple[str, str]]) -> Pairs:
    return pairs_from_lists([a for a, _ in both], [b for _, b in both])


def contents(pairs: Pairs) -> set[tuple[str, str]]:
    return {pair[:2] for pair in pairs}


def test_count_pairs_are_held_out():
    train, valid = hold_out(pairs_of(many()), count=150)
    assert (len(train), len(valid)) == (1850, 150)
    assert contents(train) | contents(valid) == set(many()) and not contents(train) & contents(valid)
    assert train.fingerprint != valid.fingerprint != pairs_of(many()).fingerprint


def test_fraction_holds_out_the_same_pairs_when_data_grows():
    valid = hold_out(pairs_of(many(1000)), fraction=0.1).valid
    assert 60 < len(valid) < 140
    grown = hold_out(pairs_of(many(2000)), fraction=0.1)
    assert contents(valid) <= contents(grown.valid)
    assert contents(grown.valid) & set(many(1000)) == contents(valid)


def test_split_depends_on_the_seed_but_not_on_the_order():
    shuffled = random.Random(1).sample(many(), 2000)
    valid = contents(hold_out(pairs_of(many()), count=100).valid)
    assert contents(hold_out(pairs_of(shuffled), count=100).valid) == valid
    assert contents(hold_out(pairs_of(many()), count=100, seed=1).valid) != valid


def test_split_is_the_same_on_every_machine():
    valid = hold_out(pairs_of(many(40)), count=3).valid
    assert [pair.number for pair in valid] == [16, 19, 24]


def test_duplicates_are_dropped_ignoring_white_space():
    both = [*many(), *many(), ("문장  5", "sentence 5"), (" 문장\t6 ", "sentence\u30006")]
    held = hold_out(pairs_of(both), count=100)
    assert held.duplicates == 2002 and len(held.train) + len(held.valid) == 2000
    assert max(pair.number for part in held for pair in part) <= 2000
    assert "2,002 duplicates" in str(held)


def test_all_translations_of_a_sentence_are_in_the_same_part():
    both = [(f"문장 {i % 200}", f"sentence {i}") for i in range(1000)]
    train, valid = hold_out(pairs_of(both), count=52)
    assert len(valid) == 50, "ten sentences with five translations each; an eleventh would be too many"
    assert not {pair.source for pair in train} & {pair.source for pair in valid}


@given(st.integers(0, 2**32), st.integers(0, 5))
def test_train_and_valid_are_disjoint(numbers, seed):
    """Random combinations of few sentences: most of them occur in several pairs."""
    drawn = random.Random(numbers)
    both = [(f"문장 {drawn.randrange(30)}", f"sentence {drawn.randrange(30)}") for _ in range(80)]
    held = hold_out(pairs_of(both), count=3, seed=seed)
    train, valid = map(contents, held)
    assert not {a for a, _ in train} & {a for a, _ in valid}
    assert not {b for _, b in train} & {b for _, b in valid}
    assert len(both) == len(held.train) + len(held.valid) + held.duplicates + held.shared
    assert held.duplicates == len(both) - len(set(both))


def test_a_split_can_be_split():
    train, test = hold_out(pairs_of(many(300)), count=50)
    train, valid = hold_out(train, count=50, seed=1)
    assert (len(train), len(valid), len(test)) == (200, 50, 50)
    assert contents(train) | contents(valid) | contents(test) == set(many(300))


@pytest.mark.parametrize(
    "arguments", [{}, {"count": 5, "fraction": 0.1}, {"count": 0}, {"fraction": 0.0}, {"fraction": 1.5}]
)
def test_invalid_arguments_raise(arguments):
    with pytest.raises(ArgumentError, match=r"hold_out\(\)"):
        hold_out(pairs_of(many(10)), **arguments)


def test_too_few_pairs_raise():
    with pytest.raises(DataError, match=r"10 of 10 .* 0 left"):
        hold_out(pairs_of(many(10)), count=10)
    with pytest.raises(DataError, match="0 of 0 "):
        hold_out(pairs_of([]), count=1)


def test_summary_counts_pairs_dropped_by_the_data_check():
    pairs = pairs_from_lists(["a", "b", "", "c"], ["1", "2", "3", "4"])
    assert str(hold_out(pairs, count=1)).count("the data check dropped 1,") == 1


@pytest.mark.parametrize("wrong", [{"count": 1.5}, {"count": 0}, {"fraction": 1.0}])
def test_invalid_count_and_fraction_raise(wrong: dict[str, float]):
    with pytest.raises(ArgumentError, match="hold_out"):
        hold_out(pairs_from_lists(["a", "b"], ["1", "2"]), **wrong)


def test_a_list_in_place_of_pairs_raises():
    with pytest.raises(ArgumentError, match="pairs_from_lists"):
        hold_out([("a", "b")], count=1)


def labelled(count: int = 3000, labels: int = 5) -> list[tuple[str, str]]:
    return [(f"sentence {i}", f"label {i % labels}") for i in range(count)]


def test_labels_are_held_out_by_source_only():
    held = hold_out(pairs_of(labelled()), count=150)
    assert (len(held.train), len(held.valid), held.shared, held.disjoint) == (2850, 150, 0, "source")
    assert contents(held.train) | contents(held.valid) == set(labelled())
    assert {b for _, b in contents(held.train)} == {b for _, b in contents(held.valid)}
    assert "5 distinct targets" in held.why and held.why in str(held)


def test_every_rule_holds_out_the_same_pairs():
    auto = hold_out(pairs_of(labelled(labels=2000)), count=50)
    both, source = (
        hold_out(pairs_of(labelled(labels=2000)), count=50, disjoint=rule) for rule in ("both", "source")
    )
    assert auto.train.fingerprint == both.train.fingerprint != source.train.fingerprint
    assert auto.valid.fingerprint == both.valid.fingerprint == source.valid.fingerprint
    assert (auto.disjoint, auto.why, source.disjoint) == ("both", "", "source")
    assert len(source.train) == len(both.train) + both.shared


def test_targets_are_disjoint_if_most_pairs_can_be_kept():
    """1,000 targets with five sources each: a few pairs are dropped, and no held-out target is in train."""
    held = hold_out(pairs_of(labelled(5000, 1000)), count=100)
    assert held.disjoint == "both" and 0 < held.shared < 500
    assert not {b for _, b in contents(held.train)} & {b for _, b in contents(held.valid)}


def test_disjoint_both_raises_if_no_training_pair_is_left():
    with pytest.raises(DataError, match="0 left"):
        hold_out(pairs_of(labelled()), count=150, disjoint="both")
    with pytest.raises(UnknownName, match="both, source"):
        hold_out(pairs_of(labelled()), count=150, disjoint="target")
