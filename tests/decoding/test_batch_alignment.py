"""Word alignments of many translations at once are those of align() for each of them."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from regard.decoding import Beam, Choice, Rules, Translator, align
from regard.decoding.word_alignment import align_batch
from regard.fast.search import RecordedAttention
from regard.models.transformer import Size, Transformer
from tests.decoding.toys import Spaced

WORDS = 40
LINES = ["b c d", "a", "", "e f g h a b. c d e f? g h", "h g f"]


def test_batch_gives_the_alignment_of_each_pair():
    source = [[0, 0, 1, -1], [3, 4, 4, 5, 3, -1], [], [-1], [0]]
    target = [[0, 1, 1, 2, -1], [-1, 7, 8], [0, 1], [0, -1], [-1]]
    weights = np.random.default_rng(1).random((5, 5, 6), np.float32)
    inside = [weights[row, : len(target[row]), : len(source[row])] for row in range(5)]
    expected = [
        align(torch.from_numpy(each), *pair) for each, *pair in zip(inside, source, target, strict=True)
    ]
    weights[1, 3:], weights[4, :, 1:] = np.nan, np.nan  # after the end of the target, and of the source
    for alignment, own in zip(align_batch(weights, source, target), expected, strict=True):
        assert alignment.links == own.links
        assert alignment.weighted() == [
            (*link[:2], pytest.approx(link[2], abs=1e-6)) for link in own.weighted()
        ]
        assert alignment.weighted(0.3) == own.weighted(0.3) and str(alignment) == str(own)
        torch.testing.assert_close(alignment.matrix, own.matrix)


def test_zero_weights_give_no_link():
    (alignment,) = align_batch(np.array([[[0.5, 0.5], [0.0, 0.0]]], np.float32), [[0, 1]], [[0, 1]])
    assert alignment.links == ((0, 0),)


@pytest.mark.parametrize(
    "choice", [Choice(), Choice(shifted=True), Choice("decoder.1.cross", 1), Choice(head=-1, shifted=True)]
)
def test_alignments_of_a_translator_need_no_attention_of_each_hypothesis(choice: Choice):
    torch.manual_seed(3)
    model = Transformer(WORDS, WORDS, Size(16, 2, 32, 2)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.6)
    sides = Spaced(WORDS, lines=["a b c d e f g h . ?"]), Spaced(WORDS, lines=["k l m n"])
    how = Beam(3, best=2, rules=Rules(minimum=4, maximum=9))
    translator = Translator(model, *sides, search=how, alignment=choice, longest=8, tokens_per_batch=20)
    real = RecordedAttention.of_hypothesis
    with mock.patch.object(RecordedAttention, "of_hypothesis", autospec=True, side_effect=real) as read:
        translations = translator.translate(LINES)
        best = [each for first in translations for each in (first, *first.others)]
        alignments = [each.alignment for each in best]
        links = [None if each is None else each.links for each in alignments]
        assert not read.called
    assert (
        sum(map(len, filter(None, links))) > 20
        and len(best) > len(LINES)
        and len(translations[3].passages) > 1
    )
    again = [each.alignment for each in translator.translate(LINES)]
    for each, alignment, found in zip(best, alignments, links, strict=True):
        parts = [align(choice.read(part.attention), part.source_words, part.words) for part in each.passages]
        assert found == tuple(link for part in parts for link in part.links)
        assert alignment is not None and each.alignment is not None  # now from `attention`, which was read
        torch.testing.assert_close(alignment.matrix, each.alignment.matrix)
    assert [each and each.links for each in again] == [
        each.alignment and each.alignment.links for each in translations
    ]


def test_sites_that_were_not_recorded_give_no_alignment():
    model = Transformer(WORDS, WORDS, Size(16, 2, 32, 2)).eval()
    side = Spaced(WORDS, lines=["a b c d"])
    translator = Translator(model, side, side, look="decoder.0.cross", alignment="decoder.1.cross")
    assert translator.translate("a b c").alignment is None
