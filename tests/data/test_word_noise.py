"""replace_words(): words that a decoder reads in training are replaced by random words."""

from __future__ import annotations

import torch

from regard.data.batch import BOS, EOS, PAD, UNK, replace_words
from regard.data.tokenizers.tokenizer import SPECIALS


def test_only_words_are_replaced_and_only_by_words():
    torch.manual_seed(0)
    first, last = len(SPECIALS), 8
    inputs = torch.tensor([[BOS, first, 6, UNK, last, EOS, PAD]]).repeat(2000, 1)
    noised = replace_words(inputs, vocabulary_size=9, probability=0.5)
    special = inputs < 4
    assert torch.equal(noised[special], inputs[special])
    assert set(noised[~special].unique().tolist()) == {4, 5, 6, 7, 8}
    # A replaced word is the same word as before in one of five cases.
    for place in (1, 2, 4):
        assert abs((noised != inputs)[:, place].float().mean().item() - 0.4) < 0.05


def test_the_seed_determines_the_words():
    inputs = torch.full((4, 6), 5)
    torch.manual_seed(3)
    first = replace_words(inputs, 30, 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, replace_words(inputs, 30, 0.5)) and not torch.equal(first, inputs)


def test_a_vocabulary_without_words_and_an_empty_batch():
    assert torch.equal(replace_words(torch.tensor([[BOS, EOS]]), 4, 0.9), torch.tensor([[BOS, EOS]]))
    assert replace_words(torch.zeros(0, 3, dtype=torch.int64), 9, 0.5).shape == (0, 3)
