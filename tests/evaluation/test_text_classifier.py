"""TextClassifier: small models learn toy sentiment and attend to the word that decides it; its results."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import rich.console
import torch

import regard
from regard.data import LabelledBatch, Labels, labelled_from_lists, train_tokenizer
from regard.data.batch import EOS
from regard.errors import ArgumentError, DataError
from regard.evaluation import Classification, ReadText, TextClassifier
from regard.models import build_classifier
from tests.evaluation.toy_sentiment import sentiment_word, toy_texts, trained
from tests.facts import facts, mentions

LINES = ["good film", "", "the plot was dull and the cast awful", "\u3000 ", "unseen words , good", "film"]


def untrained(
    name: str = "lstm", tokenizer: str = "word", pairs: bool = False, **options: Any
) -> TextClassifier:
    torch.manual_seed(0)
    tokens = train_tokenizer(tokenizer, toy_texts(40, seed=1).texts)
    small = {"width": 8, "heads": 2, "inner": 8, "layers": 2} if name == "transformer" else {"width": 8}
    model = build_classifier(name, tokens.size, 3, **{**small, **options}, pairs=pairs)
    return TextClassifier(model, tokens, ["bad", "so so", "good"])


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_learns_toy_sentiment_and_attends_to_the_sentiment_word(name: str):
    classifier, texts = trained(name, width=16), toy_texts(200, seed=2)
    report = classifier.evaluate(texts)
    assert report.accuracy > 0.95 and report.macro_f1 > 0.95
    results = classifier.classify(texts.firsts)
    places = [sentiment_word(text) for text in texts.firsts]
    weights = [result.texts[0].weights for result in results]
    most = [int(numpy.argmax(each)) for each in weights]
    assert numpy.mean([one == place for one, place in zip(most, places, strict=True)]) > 0.85
    assert numpy.mean([each[place] for each, place in zip(weights, places, strict=True)]) > 0.6
    correct = [result.label == label for result, label in zip(results, texts.labels, strict=True)]
    assert numpy.mean(correct) == report.accuracy


@pytest.mark.parametrize("pooling", ["attention", "first", "mean"])
def test_transformer_learns_toy_sentiment(pooling: str):
    classifier = trained("transformer", 8, width=16, heads=2, inner=32, layers=1, pooling=pooling)
    assert classifier.evaluate(toy_texts(100, seed=2)).accuracy > 0.95


@pytest.mark.parametrize(
    ("name", "pooling"), [("lstm", "attention"), ("gru", "last"), ("transformer", "first")]
)
def test_results_are_in_order_and_do_not_depend_on_the_batch(name: str, pooling: str):
    classifier = untrained(name, pooling=pooling)
    results = classifier.classify(LINES)
    assert [result.text for result in results] == LINES
    assert [result.label is None for result in results] == [not line.strip() for line in LINES]
    alone = [classifier.classify(line) for line in LINES]
    classifier.tokens_per_batch = 4
    for result, other, streamed in zip(
        results, alone, classifier.stream(iter(LINES), at_once=4), strict=True
    ):
        assert result.label == other.label == streamed.label
        assert result.probabilities == pytest.approx(other.probabilities, abs=1e-6)
        assert result.probabilities == pytest.approx(streamed.probabilities, abs=1e-6)
    assert classifier.classify([]) == [] and not classifier.classify(LINES)[1].probabilities


def test_probabilities_are_those_of_the_model():
    classifier = untrained()
    result = classifier.classify("the film was good")
    batch = LabelledBatch.collate([classifier.tokenizer.encode("the film was good")])
    expected = torch.softmax(classifier.model.eval()(batch)[0].double(), -1).tolist()
    assert list(result.probabilities) == ["bad", "so so", "good"]
    assert list(result.probabilities.values()) == pytest.approx(expected)
    assert result.label == max(result.probabilities, key=result.probabilities.get)
    assert result.probability == pytest.approx(max(expected)) and result.ranked[0] == (
        result.label,
        result.probability,
    )


def test_mode_of_the_model_is_restored():
    classifier = untrained(dropout=0.9)
    classifier.model.train()
    one, other = classifier.classify("good film"), classifier.classify("good film")
    assert one.probabilities == other.probabilities and classifier.model.training


def test_weights_of_subwords_are_summed_to_words():
    classifier = untrained(tokenizer="bpe")
    read = classifier.classify("the unthinkable film").texts[0]
    assert read.words == ("the", "unthinkable", "film") and len(read.pieces) > 4 and read.tokens[-1] == EOS
    token_weights = read.attention["pool"][0]
    assert token_weights.shape == (len(read.tokens),) and token_weights[-1] == 0
    assert read.weights == pytest.approx([token_weights[list(group)].sum() for group in read.places])
    assert sum(read.weights) == pytest.approx(1)


def test_unit_of_a_character_tokenizer_is_the_character():
    read = untrained(tokenizer="character").classify("a film").texts[0]
    assert read.words == ("a", "␣", "f", "i", "l", "m") and len(read.weights) == 6


@pytest.mark.parametrize("pooling", ["attention", "first"])
def test_look_chooses_the_sites(pooling: str):
    classifier = untrained("transformer", pooling=pooling)
    line = "the good film"
    pool = {"pool"} if pooling == "attention" else set()
    assert set(classifier.classify(line).texts[0].attention) == pool
    nothing = classifier.classify(line, look=None).texts[0]
    assert not nothing.attention and nothing.weights is None
    everything = classifier.classify([line, "a longer line with more words"], look="*")[0]
    attention = everything.texts[0].attention
    assert set(attention) == {"encoder.0.self", "encoder.1.self"} | pool
    size = 4 + (pooling == "first")
    assert attention["encoder.1.self"].shape == (2, size, size)
    numpy.testing.assert_allclose(attention["encoder.1.self"].sum(-1), 1, rtol=1e-5)
    with pytest.raises(ArgumentError, match=r"encoder\.0\.self, encoder\.1\.self"):
        classifier.classify(line, look="decoder*")
    seen = everything.seen()
    assert seen.site("encoder.0.self").rows[-1] == "</s>" and len(seen.rollout().rows) == size
    assert [site.name for site in seen.sites][-1] == ("pool" if pool else "encoder.1.self")


def test_pairs():
    classifier = untrained(pairs=True)
    pairs = [("the film was good", "it was fine"), ("", "film"), ("a plot", "weak")]
    results = classifier.classify(pairs)
    assert [(result.text, result.second) for result in results] == pairs
    assert results[1].label is None and results[0].label is not None
    single = classifier.classify(("a plot", "weak"))
    assert isinstance(single, Classification) and single.label == results[2].label
    assert classifier.classify([["a plot", "weak"]])[0].label == single.label
    assert [len(read.weights) for read in single.texts] == [2, 1]
    assert single.texts[1].weights == pytest.approx((1.0,))
    seen = single.seen()
    assert [site.name for site in seen.sites] == ["first.pool", "second.pool"]
    assert seen.site("second.pool").columns == ("weak", "</s>")
    texts = labelled_from_lists(["a plot", "film"], ["bad", "good"], seconds=["weak", "fine"])
    assert classifier.evaluate(texts).count == 2


def test_long_texts_are_truncated_with_a_note():
    classifier = untrained()
    classifier.longest = 4
    result = classifier.classify("the film was good and the plot was fine")
    assert result.texts[0].words == ("the", "film", "was") and mentions(result.notes[0], "3 of 9")
    limited = untrained("transformer", position="learned", longest=5)
    assert limited.longest == 5 and len(limited.classify("the " * 20).texts[0].tokens) == 5


def test_unknown_words_are_noted():
    result = untrained().classify("the zebra film zebra")
    assert result.texts[0].unknown == ("zebra", "zebra") and result.texts[0].words[1] == "zebra"
    assert "'zebra'" in result.seen().notes[0] and result.to_dict()["texts"][0]["pieces"][1] == "<unk>"


def test_text_without_known_words_is_noted():
    known, unknown = untrained().classify(["the zebra", "zebra yak"])
    assert not known.notes and any("vocabulary" in note for note in unknown.notes)
    assert unknown.label is not None


def test_result_as_json_text_and_html(tmp_path: Path):
    classifier = untrained()
    result = classifier.classify("the <b>film</b> was good")
    written = json.loads(json.dumps(result.to_dict()))
    assert written["label"] == result.label and written["probabilities"] == result.probabilities
    (text,) = written["texts"]
    assert text["token_ids"] == [*classifier.tokenizer.encode(result.text), EOS]
    assert text["words"][1] == "<b>film</b>" and sum(text["weights"]) == pytest.approx(1)
    page = result._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;film" in page and "<svg" in page and str(result.label) in page
    result.save(tmp_path / "a.html")
    saved = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert saved.startswith("<!DOCTYPE html>") and "&lt;b&gt;film" in saved and "<b>" not in saved
    with pytest.raises(ArgumentError, match="html"):
        result.save(tmp_path / "a.txt")
    result.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == regard.picture(result, "shaded").svg()
    console = rich.console.Console(width=100, file=io.StringIO())
    console.print(result)
    printed = console.file.getvalue()
    assert str(result) == result.label and f"{result.label} (" in printed and "film" in printed
    assert regard.picture(result, "shaded").svg().count("film") == 1
    assert result.label in repr(result) and "film" in repr(result)


def test_result_without_attention_or_label():
    for classifier, line in ((untrained(pooling="mean"), "good film"), (untrained(), "")):
        result = classifier.classify(line)
        assert json.dumps(result.to_dict()) and "<svg" not in result._repr_html_()
        assert not result.seen().sites and result.texts[0].weights is None
    assert (result.label, result.probability, str(result)) == (None, None, "")
    assert "blank" in result.notes[0] and "classified" in result._repr_html_()
    read = ReadText("x", (4, 3), ("x", "</s>"), (0, -1))
    assert Classification("a", {"a": 1.0}, (read,)).second is None


@pytest.mark.parametrize(
    ("pairs", "lines", "part"),
    [
        (False, [("a", "b")], "line 1"),
        (False, ["a", None], "line 2"),
        (False, 3, "int"),
        (False, b"a", "bytes"),
        (True, "a", "line 1"),
        (True, ["ab"], "line 1"),
        (True, [("a", "b"), ("a", "b", "c")], "line 2"),
    ],
)
def test_wrong_lines(pairs: bool, lines: Any, part: str):
    with pytest.raises(ArgumentError, match=part) as caught:
        untrained(pairs=pairs).classify(lines)
    # A list with a wrong line: the error says what the model classifies.
    assert isinstance(lines, int | str | bytes) or ("second)" in str(caught.value)) == pairs


def test_wrong_parts():
    classifier = untrained()
    with pytest.raises(ArgumentError, match=facts("2 labels", 3)):
        TextClassifier(classifier.model, classifier.tokenizer, Labels(("a", "b")))
    other = train_tokenizer("word", ["a b"])
    with pytest.raises(ArgumentError, match=facts("tokenizer", 6)):
        TextClassifier(classifier.model, other, classifier.labels)
    with pytest.raises(ArgumentError, match="longest"):
        TextClassifier(classifier.model, classifier.tokenizer, classifier.labels, longest=1)
    texts = labelled_from_lists(["a"], ["bad"], seconds=["b"])
    with pytest.raises(ArgumentError, match="single"):
        classifier.evaluate(texts)
    with pytest.raises(DataError, match=facts("line 1", "'worse'")):
        classifier.evaluate(labelled_from_lists(["a"], ["worse"]))


@pytest.mark.parametrize(
    ("texts", "function"),
    [
        ("a.jsonl", "read_labelled('a.jsonl')"),
        ([("a", "pos")], "labelled_from_lists"),
        (None, "read_labelled"),
    ],
)
def test_evaluate_names_the_function_that_reads_labelled_texts(texts: Any, function: str):
    with pytest.raises(ArgumentError, match=facts(function)):
        untrained("lstm").evaluate(texts)
