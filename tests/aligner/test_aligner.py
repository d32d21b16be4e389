"""Aligner: results for each pair, streams of chunks, saved models, and unusual pairs."""

from __future__ import annotations

import json

import numpy
import pytest
import torch

import regard
from regard.aligner import AlignedPair, Aligner
from regard.aligner import aligner as module
from regard.aligner.agreement import METHODS
from regard.aligner.units import UNITS
from regard.data import korean_english
from regard.errors import ArgumentError, DataError, UnknownName
from regard.evaluation import Links, score_links
from regard.files.tensor_file import tensor_blocks

SMALL = [("das haus", "the house"), ("das buch", "the book"), ("ein buch", "a book")]


@pytest.fixture(scope="module")
def corpus():
    return list(korean_english("train", 600))


def texts(corpus):
    return [(pair.source, pair.target) for pair in corpus]


def error_rate(aligned, corpus):
    links = [[link[:2] for link in pair.links()] for pair in aligned]
    return score_links(links, [Links(pair.sure, pair.possible) for pair in corpus]).error_rate


def test_small_pairs_are_aligned():
    assert [str(pair) for pair in regard.align(SMALL)] == ["0-0 1-1"] * 3


def test_the_built_in_corpus_is_aligned(corpus):
    assert error_rate(regard.align(texts(corpus)), corpus) < 0.12


def test_posteriors_are_probabilities(corpus):
    for pair in regard.align(texts(corpus[:50])):
        words = len(pair.target_words), len(pair.source_words)
        assert pair.forward.shape == words and pair.backward.shape == words[::-1]
        for weights in (pair.forward, pair.backward):
            assert weights.min() >= 0 and weights.sum(1).max() <= 1.001
        assert 0 <= pair.agreement <= 1


def test_every_method_gives_links_in_order(corpus):
    pair = regard.align(texts(corpus))[3]
    for how in METHODS:
        links = pair.links(how)
        assert links == sorted(links, key=lambda link: (link[1], link[0])) and links
        assert all(0 < probability <= 1 for *_, probability in links)
    assert len(pair.links(threshold=0.9)) <= len(pair.links(threshold=0.1))
    with pytest.raises(UnknownName):
        pair.links("grow")
    with pytest.raises(ArgumentError):
        pair.links(threshold=0)


def test_chunks_give_every_pair_in_order(corpus, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_CELLS", 12_000)
    monkeypatch.setattr(module, "LINES", 100)
    reads = []

    def stream():
        for number, pair in enumerate(texts(corpus)):
            reads.append(number)
            yield pair

    aligner = Aligner()
    results = aligner.align(stream())
    first = next(results)
    assert len(reads) < 300  # the first pair is aligned before the others are read
    aligned = [first, *results]
    assert [(pair.source, pair.text) for pair in aligned] == texts(corpus)
    assert aligner.pairs == len(corpus)
    assert error_rate(aligned, corpus) < 0.1


def test_entries_with_small_counts_are_dropped(corpus, monkeypatch):
    every = Aligner().fit(texts(corpus))
    assert float(every.counts.min()) >= module.LEAST_COUNT
    monkeypatch.setattr(module, "MOST_ENTRIES", 40)
    few = Aligner().fit(texts(corpus))
    assert len(few.keys) <= 40 < len(every.keys)
    assert float(few.counts.min()) >= float(every.counts.sort().values[-60])


def test_a_saved_aligner_continues(corpus, tmp_path):
    known = Aligner().fit(texts(corpus[:500]))
    known.save(tmp_path / "ko-en.rgd")
    again = Aligner.load(tmp_path / "ko-en.rgd")
    assert repr(again) == repr(known) and list(again.lexicon()) == list(known.lexicon())
    new = texts(corpus[500:520])
    ours, theirs = regard.align(new, model=known), regard.align(new, model=again)
    assert [str(pair) for pair in ours] == [str(pair) for pair in theirs]
    assert error_rate(ours, corpus[500:520]) < error_rate(regard.align(new), corpus[500:520])
    assert again.pairs == 520


def test_an_aligner_without_pairs_is_saved(tmp_path):
    Aligner().save(tmp_path / "empty.rgd")
    again = Aligner.load(tmp_path / "empty.rgd")
    assert [str(pair) for pair in regard.align(SMALL, model=again)] == ["0-0 1-1"] * 3


@pytest.mark.parametrize("change", ["cut", "text", "missing", "range", "nan", "version"])
def test_damaged_files_raise_data_errors(tmp_path, change):
    path = tmp_path / "model.rgd"
    aligner = Aligner().fit(SMALL)
    if change == "range":
        aligner.keys = aligner.keys + (1 << 40)
    elif change == "nan":
        aligner.counts = aligner.counts * float("nan")
    aligner.save(path)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif change == "text":
        path.write_text("0-0 1-1\n")
    elif change == "missing":
        path.write_bytes(b"".join(map(bytes, tensor_blocks({"keys": aligner.keys}))))
    elif change == "version":
        tensors = {"pairs": torch.tensor([99, 0])}
        path.write_bytes(b"".join(map(bytes, tensor_blocks(tensors))))
    with pytest.raises(DataError):
        Aligner.load(path)


def test_empty_sides_have_no_links_and_keep_their_place():
    pairs = [("", "the house"), *SMALL, ("das", " "), ("", "")]
    aligned = regard.align(pairs)
    assert [str(pair) for pair in aligned] == ["", *["0-0 1-1"] * 3, "", ""]
    assert [bool(pair.notes) for pair in aligned] == [True, False, False, False, True, True]
    assert regard.align([]) == [] and [str(pair) for pair in regard.align([("", "")])] == [""]


def test_one_pair_and_one_word():
    assert len(regard.align([("a b c", "x y")])) == 1
    assert str(regard.align([("a", "x")])[0]) in ("", "0-0")


def test_a_giant_line_is_cut_with_a_note(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 5)
    long = " ".join(map(str, range(12)))
    pair = regard.align([*SMALL, (long, long)])[-1]
    assert pair.forward.shape == (12, 12) and pair.notes
    assert {target for _, target, _ in pair.links()} <= set(range(5))


def test_a_giant_line_does_not_need_its_square():
    words = " ".join(f"w{number % 700}" for number in range(30_000))
    pair = regard.align([(words, "w1 w2"), *SMALL])[0]
    assert pair.backward.shape == (30_000, 2) and pair.notes


@pytest.mark.parametrize("pairs", [["ab"], [("a",)], [("a", 3)], [(None, "b")]])
def test_what_is_no_pair_raises(pairs):
    with pytest.raises(ArgumentError):
        regard.align(pairs)


def test_pairs_that_do_not_translate_each_other_agree_less(corpus):
    pairs = texts(corpus)
    wrong = set(range(0, 600, 20))
    mixed = [(a, pairs[(n + 7) % 600][1] if n in wrong else b) for n, (a, b) in enumerate(pairs)]
    scores = numpy.array([pair.agreement for pair in regard.align(mixed)])
    bad = numpy.array([n in wrong for n in range(600)])
    assert (scores[bad][:, None] < scores[~bad]).mean() > 0.95  # area under the ROC curve


def test_lexicon_has_probabilities(corpus):
    aligner = Aligner().fit(texts(corpus))
    rows = list(aligner.lexicon())
    assert rows == sorted(rows, key=lambda row: (row[0], -row[2], row[1]))
    assert all(min(there, back) >= 0.01 and max(there, back) <= 1.0001 for *_, there, back, _ in rows)
    assert len(list(aligner.lexicon(0.5))) < len(rows)


def test_units():
    assert UNITS["character"](["我爱 你们", ""]) == [["我", "爱", "你", "们"], []]
    assert UNITS["morpheme"](["나는 갔다", "the house"]) == [["나", "는", "가", "었", "다"], ["the", "house"]]


def test_results_are_drawn_and_saved(tmp_path):
    pair = regard.align(SMALL)[0]
    pair.save(tmp_path / "pair.html")
    pair.save(tmp_path / "pair.svg")
    assert "haus" in (tmp_path / "pair.html").read_text() and "haus" in (tmp_path / "pair.svg").read_text()
    assert "haus" in pair._repr_html_() and json.dumps(pair.to_dict())
    site = pair.seen().sites[0]
    assert site.rows == ("the", "house") and numpy.allclose(site.weights[0], pair.matrix)
    assert AlignedPair("", "").seen().sites == ()


def test_weights_of_surrogates_and_control_characters(tmp_path):
    aligner = Aligner().fit([("a\udc80 \x00b", "x y"), *SMALL])
    aligner.save(tmp_path / "odd.rgd")
    assert Aligner.load(tmp_path / "odd.rgd").source.forms == aligner.source.forms
