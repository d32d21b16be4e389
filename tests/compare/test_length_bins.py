"""Classes of source length, the key of a run, and the models of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare.study import Variant
from regard.compare.study_context import (
    COMPARED,
    SentenceSet,
    StudyContext,
    choose_bins,
    model_options,
)
from regard.errors import ArgumentError, DataError, UnknownName
from tests.facts import facts

OPTIONS = StudyContext(Path("runs"), sentences_per_class=20)


def sentences(*counts: tuple[int, int]) -> SentenceSet:
    """Return test sentences: for each pair (words, number), `number` sentences with `words` words."""
    return SentenceSet([("a " * words, "b") for words, number in counts for _ in range(number)], "test")


def test_classes_with_few_sentences_are_joined():
    bins = choose_bins(sentences((2, 30), (4, 5), (8, 25), (12, 3), (40, 40)), OPTIONS)
    assert list(bins) == ["2-4", "8-12", "40-40"]
    assert [len(pairs) for pairs in bins.values()] == [20, 20, 20]
    assert all(len(source.split()) in (40,) for source, _ in bins["40-40"])


def test_given_bounds_are_used():
    chosen = replace(OPTIONS, bounds=(3, 6))
    bins = choose_bins(sentences((2, 20), (5, 21), (9, 20)), chosen)
    assert list(bins) == ["2-2", "5-5", "9-9"]
    with pytest.raises(DataError, match=r"20, 21, 0 sentences"):
        choose_bins(sentences((2, 20), (5, 21)), chosen)


def test_short_data_are_an_error_that_says_what_is_needed():
    with pytest.raises(DataError, match=facts("4 words")) as caught:
        choose_bins(sentences((4, 500)), OPTIONS)
    assert "--length-bins" in str(caught.value)
    with pytest.raises(ArgumentError, match=facts(1)):
        choose_bins(sentences((4, 500)), replace(OPTIONS, bounds=(0, 3)))


def test_unknown_models_and_options_are_errors():
    with pytest.raises(UnknownName, match="bahdanau"):
        model_options("bahdanu")
    with pytest.raises(UnknownName, match="scor"):
        model_options("luong:scor=dot")
    with pytest.raises(ArgumentError, match="colons"):
        model_options("luong:dot")
    assert model_options("luong-dot:cell=gru") == {**COMPARED["luong-dot"], "cell": "gru"}


def test_key_depends_on_settings_and_content_but_not_on_paths(tmp_path):
    paths = []
    for number, text in enumerate(("one\n", "one\n", "two\n")):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(text)

    def key(at: int, seed: int = 0, device: str = "cpu") -> str:
        data = {"source": [str(paths[at])], "target": [str(paths[at])]}
        context = StudyContext(tmp_path, settings={"data": data, "model": {"width": 8}})
        context.device = device
        return context.place(context.run(Variant("bahdanau", model_options("bahdanau")), seed)).name

    assert key(0) == key(1) == key(0, device="cpu")
    assert len({key(0), key(2), key(0, seed=1), key(0, device="cuda")}) == 4
    assert key(0, device="cuda:1") == key(0, device="cuda")


def test_quick_has_three_seeds_of_fewer_and_smaller_models():
    quick, usual = StudyContext(Path("runs"), quick=True), StudyContext(Path("runs"))
    assert len(quick.seeds) == len(usual.seeds) == 3
    assert quick.compared == ("seq2seq", "bahdanau") and len(usual.compared) > 5
    shorter, longer = (each.settings["training"] for each in (quick, usual))
    assert quick.width < usual.width and quick.sentences_per_class < usual.sentences_per_class
    assert all(shorter[name] < longer[name] for name in ("steps", "batch_tokens"))
    assert quick.widths_compared == (quick.width,) and len(usual.widths_compared) == 3


def test_settings_of_all_runs_reach_every_run():
    options = StudyContext(
        Path("runs"), settings={"model": {"dropout": 0.3}, "data": {"pairs": 9}}, quick=True
    )
    run = options.run(Variant("luong-dot", model_options("luong-dot")), 0)
    width = options.width
    assert run.settings["model"] == {"width": width, "dropout": 0.3, "name": "luong", "score": "dot"}
    assert run.settings["data"] == {"pairs": 9, "built_in": "korean"}
    timed = StudyContext(Path("runs"), settings={"training": {"minutes": 1.0}}, quick=True)
    assert timed.settings["training"] == {"batch_tokens": 1024, "minutes": 1.0}
    with pytest.raises(UnknownName, match="trainin"):
        StudyContext(Path("runs"), settings={"trainin": {"steps": 2}})
