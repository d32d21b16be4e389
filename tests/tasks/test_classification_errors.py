"""The classification task: header lines, bad files and bad settings are errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.errors import DataError, RegardError
from regard.tasks.classification import ClassificationSettings
from regard.tasks.classification.task import (
    check_header_lines,
    read_labelled_split,
)
from regard.training.settings import build, merged
from tests.facts import facts, mentions
from tests.tasks.small_classification import reviews, train, written


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    return {"train_file": [written(tmp_path / "train.tsv", reviews(240))]}


def header_error(folder: Path, *files: list[tuple[str, ...]], **data: Any) -> str:
    """Return the error of check_header_lines() for the rows of each file; "" if there is none."""
    names = [written(folder / f"{number}.tsv", rows) for number, rows in enumerate(files)]
    settings = build(ClassificationSettings, {"data": {"train_file": names, **data}}, "test")
    try:
        check_header_lines(settings.data, read_labelled_split(settings.data))
    except DataError as error:
        return str(error)
    return ""


def test_header_line_that_is_read_as_a_text_is_an_error(tmp_path: Path):
    rows, header = reviews(20), ("judgment", "sentence")
    error = header_error(tmp_path, [header, *rows])
    assert all(fact in error for fact in ("0.tsv", "line 1", "'judgment'", "judgment,sentence"))
    assert "line 1" in header_error(tmp_path, [header, *rows], [header, *reviews(20, seed=1)])
    pairs = [(*row, "it is so") for row in rows]
    error = header_error(tmp_path, [(*header, "other"), *pairs], second=3)
    assert "judgment,sentence,other" in error
    assert not header_error(tmp_path, [header, *rows], label="judgment", text="sentence")


def test_text_in_the_label_column_is_an_error_that_names_the_columns(tmp_path: Path):
    rows = [(f"{text} {number}", label) for number, (label, text) in enumerate(reviews(20))]
    rows[1] = rows[0]  # some texts occur twice
    path = written(tmp_path / "train.tsv", [("review text", "judgment"), *rows])
    settings = build(ClassificationSettings, {"data": {"train_file": [path]}}, "test")
    with pytest.raises(DataError, match=facts("different", "labels")) as caught:
        read_labelled_split(settings.data)
    assert mentions(caught.value, "--columns", "'judgment,", "text'")


def test_header_line_of_a_validation_file_is_an_error(tmp_path: Path):
    train = {"train_file": [written(tmp_path / "train.tsv", reviews(20))]}
    for first, is_header in ((("judgment", "sentence"), True), (("judgment", "a sentence"), False)):
        valid = written(tmp_path / "valid.tsv", [first, *reviews(20, seed=1)])
        settings = build(ClassificationSettings, {"data": {**train, "valid_file": [valid]}}, "test")
        with pytest.raises(DataError) as caught:
            read_labelled_split(settings.data)
        assert mentions(caught.value, "valid.tsv", "line 1", "'judgment'")
        assert ("judgment,sentence" in str(caught.value)) == is_header


def test_rare_class_is_not_an_error(tmp_path: Path):
    rows, header = reviews(20), ("judgment", "sentence")
    for lines in (
        rows,
        [*rows, header],
        [header, *rows, ("judgment", "other")],
        [header, *rows, ("rare", "text")],
        [("judgment", "a sentence"), *rows],
        [header, *rows[:6]],
    ):
        assert not header_error(tmp_path, lines)


def test_classes_with_one_training_text_are_noted(tmp_path: Path):
    names = [written(tmp_path / "a.tsv", [*reviews(20), *((f"rare{each}", "text") for each in range(7))])]
    settings = build(ClassificationSettings, {"data": {"train_file": names}}, "test")
    (note,) = [str(note) for note in read_labelled_split(settings.data).notes if "one training" in str(note)]
    assert mentions(note, "7 classes", "'rare0'", "a.tsv", "line 21", "2 more")


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        (["Neg", "neg"], ["'Neg' and 'neg'"]),
        (["very good", "verygood", "Very good"], ["'Very good' and 'very good' and 'verygood'"]),
        (["2024-01-02", "2024-01-03"], ["dates", "--columns"]),
        (list("abcdefgh"), ["8 classes", "--columns"]),
        (["good", "bad"], []),
    ],
)
def test_odd_labels_are_noted(tmp_path: Path, labels: list[str], facts: list[str]):
    rows = [(labels[at % len(labels)], f"text {at}") for at in range(20)]
    names = [written(tmp_path / "a.tsv", rows)]
    settings = build(ClassificationSettings, {"data": {"train_file": names}}, "test")
    *notes, few = map(str, read_labelled_split(settings.data).notes)
    assert "few texts: 1" in few
    assert all(fact in notes[-1] for fact in facts) if facts else "class  texts" in notes[-1]


BAD_FILES: dict[str, str] = {
    "empty.tsv": "",
    "single.tsv": "pos\tone\npos\ttwo\n",
    "unique.tsv": "".join(f"{number}\ttext\n" for number in range(12)),
    "column.tsv": "pos\tone\nneg\n",
    "header.tsv": "label\ttext\npos\tone\nneg\ttwo\n",
    "unlabelled.tsv": "pos\tone\n\ttwo\n",
    "broken.jsonl": '{"label": "pos", "text": "one"}\n{"label": "neg"\n',
    "field.jsonl": '{"label": "pos", "text": "one"}\n{"label": "neg"}\n',
    "new.tsv": "pos\tone\nneutral\ttwo\n",
    "text.txt": "pos one\n",
}


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ({"train_file": ["empty.tsv"]}, ["empty.tsv", "empty"]),
        ({"train_file": ["missing.tsv"]}, ["missing.tsv"]),
        ({"train_file": []}, ["train_file"]),
        ({"train_file": ["single.tsv"]}, ["single.tsv", "'pos'", "two labels"]),
        ({"train_file": ["unique.tsv"]}, ["unique.tsv", "12"]),
        ({"train_file": ["column.tsv"]}, ["column.tsv, line 2", "1 column"]),
        ({"train_file": ["header.tsv"], "label": "class", "text": "text"}, ["header.tsv, line 1", "'class'"]),
        ({"train_file": ["unlabelled.tsv"]}, ["unlabelled.tsv, line 2", "label is empty"]),
        ({"train_file": ["broken.jsonl"]}, ["broken.jsonl, line 2", "JSON"]),
        ({"train_file": ["field.jsonl"]}, ["field.jsonl, line 2", "text"]),
        (
            {"train_file": ["good.tsv"], "valid_file": ["new.tsv"]},
            ["new.tsv, line 2", "'neutral'", "neg, pos"],
        ),
        ({"train_file": ["good.tsv"], "valid_file": ["empty.tsv"]}, ["empty.tsv"]),
        ({"train_file": ["good.tsv"], "valid_file": ["new.tsv"], "held_out": 3}, ["held_out", "valid_file"]),
        ({"train_file": ["text.txt"]}, ["text.txt", "--set data.format=label-first"]),
        ({"train_file": ["text.txt"], "format": "csv"}, ["data.format", "label-first"]),
        ({"train_file": ["text.txt"], "format": "label-first", "second": 3}, ["data.second"]),
        ({"train_file": ["good.tsv"], "label": 2}, ["data.label", "different columns"]),
        ({"train_file": ["good.tsv"], "label": "label"}, ["data.label", "only names"]),
        ({"train_file": ["good.tsv"], "label": 0}, ["data.label"]),
        ({"train_file": ["good.tsv"], "source": ["a"]}, ["source", "train_file"]),
        ({}, ["--train-file"]),
    ],
)
def test_bad_data_are_errors_that_name_file_line_or_setting(tmp_path, monkeypatch, data, facts):
    for name, text in BAD_FILES.items():
        (tmp_path / name).write_text(text)
    written(tmp_path / "good.tsv", reviews(20))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RegardError) as caught:
        train({"data": data, "training": {"steps": 1}}, tmp_path / "run")
    assert all(fact in str(caught.value) for fact in facts), caught.value
    assert not (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        ({"model": {"name": "bahdanau"}}, ["'bahdanau'", "gru, lstm, lstmn, transformer"]),
        ({"model": {"wdth": 3}}, ["'wdth'", "width"]),
        ({"model": {"pooling": "max"}}, ["'max'", "attention"]),
        ({"model": {"hidden_size": 9}}, ["model.width"]),
        ({"model": {"pairs": True}}, ["model.pairs", "data.second"]),
        ({"training": {"best": "bleu"}}, ["training.best", "accuracy"]),
        ({"training": {"class_weights": "equal"}}, ["training.class_weights", "balanced"]),
        ({"training": {"guided_alignment": 0.1}}, ["guided_alignment"]),
        ({"model": {"name": "transformer", "position": "learned", "longest": 256}}, ["data.max_length"]),
    ],
)
def test_bad_settings_are_errors_before_the_data_are_read(tmp_path, data, sections, facts):
    with pytest.raises(RegardError) as caught:
        train(merged({"data": {**data, "train_file": ["unread.tsv"]}}, sections), tmp_path / "run")
    assert all(fact in str(caught.value) for fact in facts), caught.value
