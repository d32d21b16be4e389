"""Sentence encodings: both ways to compute them, padding, unknown words, and gradients."""

from __future__ import annotations

import pytest
import torch

from regard.errors import UnknownName
from regard.layers import sentence_encoding
from regard.layers.sentence_encoding import encode_sentences, position_weights

TOKENS = torch.tensor([[[5, 6, 5, 5], [7, 0, 0, 0]], [[1, 8, 0, 0], [0, 0, 0, 0]]])


def by_hand(tokens: torch.Tensor, table: torch.Tensor, encoding: str, size: int = 0) -> torch.Tensor:
    """Sum the embeddings of the known words, word by word."""
    words = [int(each) for each in tokens if each]
    weights = position_weights(size or len(words), table.shape[1]).double()
    total = torch.zeros(table.shape[1], dtype=torch.double)
    for place, word in enumerate(words):
        total += (weights[place] if encoding == "position" else 1.0) * table[word] * (word > 1)
    return total


@pytest.mark.parametrize("encoding", ["position", "bag"])
@pytest.mark.parametrize("size", [0, 6])
@pytest.mark.parametrize("dense", [True, False])
def test_encoding_is_the_weighted_sum_of_embeddings(encoding: str, dense: bool, size: int, monkeypatch):
    monkeypatch.setattr(sentence_encoding, "DENSE_WORDS", 2048 if dense else 0)
    torch.manual_seed(0)
    tables = torch.randn(3, 9, 5, dtype=torch.double)
    encoded = encode_sentences(TOKENS, tables, encoding, size)
    assert encoded.shape == (2, 2, 3, 5)
    for row in range(2):
        for sentence in range(2):
            for table in range(3):
                expected = by_hand(TOKENS[row, sentence], tables[table], encoding, size)
                torch.testing.assert_close(encoded[row, sentence, table], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", ["position", "bag"])
def test_gradients_of_both_ways_agree_and_spare_special_words(encoding: str, monkeypatch):
    gradients = []
    for size in (2048, 0):
        monkeypatch.setattr(sentence_encoding, "DENSE_WORDS", size)
        tables = torch.linspace(-1, 1, 2 * 9 * 4, dtype=torch.double).view(2, 9, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(encode_sentences(TOKENS, tables, encoding).square().sum(), tables)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    assert not gradients[0][:, :2].any() and gradients[0][:, 5].all()


def test_unknown_encoding_is_an_error():
    with pytest.raises(UnknownName, match="position"):
        encode_sentences(TOKENS, torch.zeros(1, 9, 2), "positions")
