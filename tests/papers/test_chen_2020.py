"""Chen et al. 2020, Accurate word alignment induction from neural machine translation: a word's alignment is
read from the step that has the word as input, and the layer is chosen by agreement of two directions."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.batch import BOS, EOS
from regard.decoding import Choice, Passage, Scored, Translator
from regard.evaluation import Links, score_links
from regard.models import Size, Transformer
from regard.tasks.translation.alignment import choose_by_agreement, choose_by_links


class Words:
    """Words w0 to w9 as tokens 4 to 13."""

    size = 14

    def encode_lines(self, lines):
        return [[4 + int(word[1:]) for word in line.split()] for line in lines]

    def pieces(self, tokens):
        return [f"w{token - 4}" for token in tokens]

    def words(self, tokens):
        return list(range(len(tokens)))

    def decode(self, tokens):
        return " ".join(self.pieces(tokens))


def transformer(seed: int) -> Translator:
    torch.manual_seed(seed)
    model = Transformer(14, 14, Size(width=16, heads=2, inner=16, layers=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # far from uniform, so that each step attends to another word
    return Translator(model, Words(), Words())


def test_shifted_alignment_uses_the_step_with_the_word_as_input():
    """Naive: y_i is aligned by step i, which outputs it; shifted: by step i + 1, which reads it (fig. 1)."""
    translator, source, target = transformer(0), "w1 w2 w3 w4", "w5 w6 w7"
    scored = translator.score(source, target)
    tokens = [BOS, *Words().encode_lines([target])[0]]
    model = translator.model
    with torch.no_grad():
        encoded = model.encode(torch.tensor([[5, 6, 7, 8, EOS]]), torch.tensor([5]))
        state, by_input = model.start(encoded), {}
        for token in tokens:
            with regard.record(at="decoder.1.cross") as seen:
                state, _ = model.step(state, torch.tensor([[token]]), encoded)
            by_input[token] = seen["decoder.1.cross"][0].weights[0, :, 0]  # (H, S)
    for head in (None, 0, 1):
        choice = Choice("decoder.1.cross", head, shifted=True)
        rows = choice.read(scored.passages[0].attention)
        for place, token in enumerate(tokens[1:]):
            expected = by_input[token].mean(0) if head is None else by_input[token][head]
            torch.testing.assert_close(rows[place], expected, atol=1e-5, rtol=1e-4)
        linked = {word: source for source, word in scored.align("decoder.1.cross", head, True).links}
        assert linked == {place: int(rows[place, :4].argmax()) for place in range(3)}


class FakeTranslator:
    """A fake translator with two layers of two heads, whose attention follows the given links.

    Head 1 of layer 0 attends to the linked words, one step late (shifted); the other heads are random.
    """

    look, unit = "*cross", "auto"

    def __init__(self, pairs: list[list[int]], seed: int):
        self.pairs, self.generator = pairs, torch.Generator().manual_seed(seed)

    def score(self, sources, targets, look=None, unit=None):
        return [self._scored(links) for links in self.pairs]

    def _scored(self, links: list[int]) -> Scored:
        size = len(links)
        seen = {
            f"decoder.{layer}.cross": torch.rand(2, size + 1, size + 1, generator=self.generator)
            for layer in (0, 1)
        }
        seen["decoder.0.cross"][1, 1:] += torch.eye(size + 1)[links]
        numbers = (*range(size), -1)
        pieces = tuple(map(str, numbers))
        passage = Passage(pieces, numbers, pieces, numbers, (0.0,) * len(pieces), seen)
        return Scored("", "", (passage,))


def inverse(links: list[int]) -> list[int]:
    return [links.index(place) for place in range(len(links))]


PAIRS = [[2, 0, 1, 3], [1, 0, 4, 2, 3], [0, 2, 1], [3, 2, 1, 0]]
RIGHT = Choice("decoder.0.cross", 1, shifted=True)


def test_choice_of_layer_by_agreement():
    """Layer selection criterion, without gold links: choose the pair of layers whose alignments have the
    lowest error rate, with one direction as the reference of the other."""
    forward, backward = FakeTranslator(PAIRS, 0), FakeTranslator([inverse(links) for links in PAIRS], 1)
    lines = [""] * len(PAIRS)
    ranking = choose_by_agreement(forward, backward, lines, lines)
    assert ranking[0] == (RIGHT, RIGHT, 1.0)
    assert len(ranking) == (2 * (1 + 2 * 3)) ** 2 and ranking[1][2] < 1


def test_choice_of_layer_by_gold_links():
    gold = [Links(frozenset((source, target) for target, source in enumerate(links))) for links in PAIRS]
    lines = [""] * len(PAIRS)
    (choice, score), *others = choose_by_links(FakeTranslator(PAIRS, 0), lines, lines, gold)
    assert choice == RIGHT and score.error_rate == 0 and others[0][1].error_rate > 0
    alignments = [
        each.align(choice.site, choice.head, choice.shifted)
        for each in FakeTranslator(PAIRS, 0).score(lines, lines)
    ]
    assert score == score_links(alignments, gold)


def test_translator_aligns_with_the_chosen_head():
    plain, source, target = transformer(1), "w1 w2 w3", "w4 w5 w6"
    chosen = Translator(plain.model, Words(), Words(), alignment=RIGHT)
    assert (
        chosen.align(source, target).links
        == plain.score(source, target).align(RIGHT.site, RIGHT.head, RIGHT.shifted).links
    )
    with pytest.raises(regard.UnknownName, match="head"):
        Translator(plain.model, Words(), Words(), alignment=Choice(head=7)).align(source, target)
