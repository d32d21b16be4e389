"""The task with two look-ups a word: one head and a linear readout find at most one letter of two."""

from __future__ import annotations

import torch

from regard.compare.part_study import LETTERS, accuracy_with_heads, two_lookups


def test_answers_are_the_letters_at_the_two_named_positions():
    words, answers = two_lookups(3, seed=1, length=5)
    letters, first, second = words.unbind(-1)
    for row in range(3):
        for at in range(5):
            named = [letters[row, first[row, at]], letters[row, second[row, at]]]
            assert answers[row, at].tolist() == [int(each) for each in named]
    assert bool((first != second).all()) and letters.max() < LETTERS
    assert torch.equal(two_lookups(3, seed=1, length=5)[0], words)
    assert not torch.equal(two_lookups(3, seed=2, length=5)[0], words)


def test_two_heads_learn_what_one_head_cannot():
    """With one head, the second letter is guessed: 1 of 8."""
    one, two = (accuracy_with_heads(heads, seed=0, steps=120) for heads in (1, 2))
    assert two["both_letters"] > 0.95
    assert one["both_letters"] < 0.2 and one["single_letters"] > 0.5
