"""The lexicon: probabilities by counts, back-off to prefixes, and similar strings."""

from __future__ import annotations

import pytest
import torch

from regard.aligner.lexicon import BACKOFF, SHIFT, Lexicon, sorted_keys
from regard.aligner.vocabulary import LEVELS, Vocabulary, prefix_lengths, word_form


def lexicon(pairs, prior=None):
    """Return a lexicon with an entry for each pair of words, and the number of the entry of each pair."""
    source, target = (Vocabulary(dict.fromkeys(words)) for words in zip(*pairs, strict=True))
    numbers = [(source.forms.index(a) << SHIFT) + target.forms.index(b) for a, b in pairs]
    keys = torch.tensor(sorted(numbers))
    return Lexicon(source, target, keys, prior), [1 + sorted(numbers).index(each) for each in numbers]


def test_probabilities_are_counts_plus_the_backoff():
    pairs = [("gegangen", "walked"), ("gegangen", "x"), ("gegessen", "walks"), ("du", "walked")]
    table, places = lexicon(pairs)
    counts = torch.zeros(table.size)
    counts[places] = torch.tensor([3.0, 1.0, 2.0, 1.0])
    forward, backward = table.probabilities(counts)
    # The prefixes of three letters are geg, du and wal, x; those of four and of six letters all differ,
    # except walk.
    three, four = 5 / 6, 3 / 4
    back_off = (three + four + four) / LEVELS
    assert float(forward[places[0]]) == pytest.approx((3 + BACKOFF * back_off) / (4 + BACKOFF), rel=1e-5)
    three, four, six = 5 / 6, 3 / 6, 3 / 4
    back_off = (three + four + six) / LEVELS
    assert float(backward[places[0]]) == pytest.approx((3 + BACKOFF * back_off) / (4 + BACKOFF), rel=1e-5)
    assert float(forward[0]) == float(backward[0]) == 0


def test_equal_and_similar_words_have_prior_counts():
    pairs = [("7", "7"), ("7", "8"), ("nation", "nations"), ("nation", "nature"), ("eine", "einer")]
    table, places = lexicon([*pairs, ("nation", "zug")])
    prior = table.prior_N[places].tolist()
    assert prior == pytest.approx([1, 0, 12 / 13, 0.5, 8 / 9, 0])


def test_prior_counts_are_added():
    pairs = [("a", "x"), ("a", "y")]
    plain, places = lexicon(pairs)
    more, _ = lexicon(pairs, torch.tensor([0.0, 5.0]))
    zeros = torch.zeros(plain.size)
    assert plain.probabilities(zeros)[0][places[1]] < more.probabilities(zeros)[0][places[1]]


def test_union_of_keys():
    pieces = [torch.tensor([1, 4]), torch.tensor([2]), torch.tensor([0, 4])]
    assert sorted_keys(pieces).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("word", "form"),
    [("Haus,", "haus"), ("!!", "!!"), ("(a)", "a"), ("안녕.", "안녕"), ("EU-Staat", "eu-staat")],
)
def test_forms(word, form):
    assert word_form(word) == form


def test_prefix_lengths_depend_on_the_script():
    assert len({prefix_lengths(word) for word in ("word", "단어", "単語", "слово")}) == 3


def test_words_of_one_form_are_one_word():
    vocabulary = Vocabulary()
    numbers, lengths = vocabulary.encode([["Haus", "haus."], [], ["HAUS"]])
    assert numbers.tolist() == [0, 0, 0] and lengths.tolist() == [2, 0, 1]
    assert vocabulary.frequency.tolist() == [3]
