"""Erasure for classifiers: costs of known models, of a trained one, and against single forward passes."""

from __future__ import annotations

import inspect
import json
import math

import pytest
import torch
from torch import Tensor

import regard
from regard.data import LabelledBatch, train_tokenizer
from regard.data.batch import UNK
from regard.errors import ArgumentError
from regard.evaluation import ClassifierErasure, TextClassifier, erase_words
from regard.evaluation.erasure import Effect
from regard.evaluation.region_erasure import RegionErasure, erase_regions
from regard.models import Classifier, build_classifier
from tests.evaluation.toy_sentiment import sentiment_word, toy_texts, trained

WORDS = "a b c d e f"
SHARP, LOUD = 12.0, 6.0


class Pointer(Classifier):
    """Attends to the word "f" and predicts class 0 if it is there; with `lies`, whatever it attends to."""

    pool_site = "pool"

    def __init__(self, vocabulary: int, target: int, lies: bool = False):
        super().__init__(vocabulary, 2, 2, 1, dropout=0.0, word_dropout=0.0, pairs=False)
        self.target, self.lies = target, lies
        self.output = torch.nn.Identity()
        self.parameter = torch.nn.Parameter(torch.zeros(1))

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        hit_BS1 = (tokens == self.target).double()[..., None]
        query = torch.ones(len(tokens), 1, 1).double()
        mask = regard.padding((lengths - 1).clamp(min=1))
        read = regard.attention(query, SHARP * hit_BS1, hit_BS1, score=regard.Dot(), mask=mask, site="pool")
        used = hit_BS1.amax(1) if self.lies else read.output[:, 0]
        return torch.cat((LOUD * used, torch.zeros_like(used)), -1)


def pointer(lies: bool = False) -> TextClassifier:
    tokenizer = train_tokenizer("word", [WORDS])
    return TextClassifier(Pointer(tokenizer.size, tokenizer.encode("f")[0], lies), tokenizer, ["yes", "no"])


@pytest.mark.parametrize(
    ("report", "call"), [(ClassifierErasure, erase_words), (RegionErasure, erase_regions)]
)
def test_a_report_counts_as_many_words_as_its_function_by_default(report, call):
    assert inspect.signature(report).parameters["k"].default == 1
    assert inspect.signature(call).parameters["k"].default == 1


def test_costs_of_a_classifier_that_uses_its_attention():
    measured = erase_words(pointer(), ["a f b", "c d f e"], samples=2)
    before, without = -math.log1p(math.exp(-LOUD)), -math.log(2)
    for text, place in zip(measured.texts, (1, 2), strict=True):
        assert (text.looked, text.text) == ((place,), "yes") and text.weight > 0.99
        assert text.hidden == pytest.approx(before - without, abs=1e-3)
        assert text.unknown == pytest.approx(before - without, abs=1e-3)
        assert abs(text.hidden_random) < 1e-3 and abs(text.unknown_random) < 1e-3
    assert measured.better == 1 and measured.skipped == 0
    assert "0.69 nats" in measured.summary() and str(measured).endswith("(2 texts)")


def test_costs_of_a_classifier_that_does_not_use_its_attention():
    measured = erase_words(pointer(lies=True), ["a f b", "c d f e"])
    for text in measured.texts:
        assert text.hidden == text.hidden_random == 0 and text.unknown > 0.6
    assert measured.better == 0


def test_hiding_the_sentiment_word_costs_more_than_a_random_word():
    classifier, texts = trained("lstm", width=16), toy_texts(60, seed=3)
    measured = erase_words(classifier, texts.firsts)
    assert len(measured.texts) == 60 and measured.better > 0.8
    # Without the word, the classifier can only guess, at a cost of about log 2.
    assert measured.mean("unknown") > 0.4 and abs(measured.mean("unknown_random")) < 0.1
    assert measured.mean("hidden") > 0.1 and abs(measured.mean("hidden_random")) < 0.05
    at_the_word = [text.looked == (sentiment_word(texts.firsts[text.item]),) for text in measured.texts]
    assert sum(at_the_word) > 50


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.parametrize("pairs", [False, True])
def test_batched_trials_equal_single_forward_passes(name: str, pairs: bool):
    texts = toy_texts(6, seed=4).firsts
    tokenizer = train_tokenizer("bpe", texts)
    small = {"width": 8} if name == "lstm" else {"width": 8, "heads": 2, "inner": 8, "layers": 1}
    model = build_classifier(name, tokenizer.size, 2, **small, pairs=pairs).double()
    classifier = TextClassifier(model, tokenizer, ["a", "b"], tokens_per_batch=60)
    lines = list(zip(texts[:3], texts[3:], strict=True)) if pairs else list(texts)
    measured = erase_words(classifier, lines, k=2, samples=1, seed=5)
    assert len(measured.texts) == 6 and measured.k == 2
    assert [text.place for text in measured.texts[:2]] == [0, int(pairs)]
    for text in measured.texts:
        result = classifier.classify(lines[text.item])
        side = text.place
        read = result.texts[side]
        places = [place for word in text.looked for place in read.places[word]]
        tokens = [list(each.tokens[:-1]) for each in result.texts]
        for place in places:
            tokens[side][place] = UNK
        scores = [result.probabilities[text.text], _chance(model, tokens, text.text)]
        assert text.unknown == pytest.approx(math.log(scores[0] / scores[1]), abs=1e-9)
        assert text.weight == pytest.approx(sum(read.weights[word] for word in text.looked))
        if not pairs:
            tokens = [list(read.tokens[:-1])]
            with regard.intervene(cut=[(0, place) for place in places], at="pool"):
                hidden = _chance(model, tokens, text.text)
            assert text.hidden == pytest.approx(math.log(scores[0] / hidden), abs=1e-9)


def _chance(model: Classifier, tokens: list[list[int]], label: str) -> float:
    """The probability of a label for one text or pair."""
    batch = LabelledBatch.collate(*([side] for side in tokens))
    with torch.no_grad():
        return torch.softmax(model.eval()(batch), -1)[0, "ab".index(label)].item()


def test_short_and_blank_texts_are_skipped():
    measured = erase_words(pointer(), ["f", "", "a f", "a b c"], k=1)
    assert [text.item for text in measured.texts] == [2, 3] and measured.skipped == 2
    nothing = erase_words(pointer(), ["f"])
    assert nothing.texts == () and "too few words" in str(nothing)
    assert nothing.to_dict()["hidden"] is None and json.dumps(measured.to_dict(), allow_nan=False)


def test_texts_of_pairs_are_counted_as_texts_and_pairs():
    texts = [Effect(at // 2, at % 2, "pos", (0,), 0.5, 0.0, 0.25, 0.0, 0.0) for at in range(6)]
    both = ClassifierErasure(tuple(texts))
    assert both.pairs == 3 and "(6 texts of 3 pairs)" in str(both)
    assert "0.00 nats" in str(both) and "by 0.25" in str(both)
    single = ClassifierErasure(tuple(texts[::2]))
    assert single.pairs == 0 and "(3 texts)" in str(single)


def test_draws_depend_on_the_seed_only():
    lines = toy_texts(8, seed=5).firsts
    classifier = trained("lstm", width=16)
    one, same, other = (erase_words(classifier, lines, samples=1, seed=seed) for seed in (0, 0, 1))
    assert one.texts == same.texts
    assert [text.unknown for text in one.texts] == pytest.approx([text.unknown for text in other.texts])
    assert one.mean("unknown_random") != other.mean("unknown_random")
    assert erase_words(classifier, lines[0]).texts[0].looked == one.texts[0].looked


def test_wrong_arguments():
    for options in ({"k": 0}, {"samples": 0}):
        with pytest.raises(ArgumentError, match="least"):
            erase_words(pointer(), ["a b"], **options)
    tokenizer = train_tokenizer("word", [WORDS])
    model = build_classifier("lstm", tokenizer.size, 2, width=4, pooling="mean")
    with pytest.raises(ArgumentError, match="pooling"):
        erase_words(TextClassifier(model, tokenizer, ["a", "b"]), ["a b"])
    assert math.isnan(ClassifierErasure(()).better)
