"""The options --tsv and --jsonl, which classification and captioning share."""

from __future__ import annotations

from typing import Any

import pytest

from regard.cli.train_settings import settings_of
from regard.errors import ArgumentError
from regard.tasks.captioning.settings import CaptioningSettings, ImageData
from regard.tasks.file_options import evaluated_files, train_files
from regard.tasks.task_table import find_task


def test_captioning_options_become_settings_of_the_data():
    options = {"jsonl": ["a.jsonl"], "valid_jsonl": ["b.jsonl"], "images": "pictures"}
    expected = {"train_file": ["a.jsonl"], "valid_file": ["b.jsonl"], "format": "jsonl"}
    assert settings_of(options, find_task("captioning")) == {"data": {**expected, "images": ["pictures"]}}
    assert train_files({}) == {}


def test_test_files_have_the_usual_format():
    none: dict[str, Any] = {"test_file": None, "tsv": None, "jsonl": None}
    assert evaluated_files(none, "coco") == ([], "coco")
    assert evaluated_files({**none, "test_file": ["a.json"]}, "coco") == (["a.json"], "coco")
    assert evaluated_files({**none, "tsv": ["a.txt"]}, "coco") == (["a.txt"], "tsv")


@pytest.mark.parametrize("other", ["tsv", "train_file"])
def test_two_kinds_of_training_files_are_named(other: str):
    with pytest.raises(ArgumentError) as error:
        train_files({"jsonl": ["a"], other: ["b"]})
    assert "--jsonl" in str(error.value) and f"--{other.replace('_', '-')}" in str(error.value)


def test_two_kinds_of_test_files_are_refused():
    with pytest.raises(ArgumentError, match="--test-file"):
        evaluated_files({"test_file": ["a"], "tsv": ["b"], "jsonl": None}, None)


@pytest.mark.parametrize("columns", ["1,2", "image", "image,"])
def test_columns_of_captions_are_names(columns: str):
    with pytest.raises(ArgumentError, match="--columns"):
        settings_of({"tsv": ["a.tsv"], "columns": columns}, find_task("captioning"))


def test_columns_of_captions_are_a_setting():
    names, data = CaptioningSettings.data_options({"tsv": ["a.csv"], "columns": "file, text"})
    assert "columns" in names and data["columns"] == ["file", "text"]
    assert ImageData(**data).columns == ["file", "text"]
    assert "columns" not in CaptioningSettings.data_options({"tsv": ["a.csv"], "columns": None})[1]
