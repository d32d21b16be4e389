"""The options of regard train for files of labelled texts."""

from __future__ import annotations

from typing import Any

import pytest

from regard.cli.train_settings import settings_of
from regard.errors import ArgumentError
from regard.tasks.classification.settings import labelled_columns, labelled_files
from regard.tasks.task_table import find_task


def test_options_become_settings_of_the_data():
    options = {"jsonl": ["a.jsonl"], "valid_jsonl": ["b.jsonl"], "fields": "class,a,b", "seed": 3}
    expected = {"train_file": ["a.jsonl"], "valid_file": ["b.jsonl"], "format": "jsonl"}
    expected |= {"label": "class", "text": "a", "second": "b"}
    assert settings_of(options, find_task("classification")) == {"data": expected, "seed": 3}
    assert labelled_files({}) == {}


def test_columns_are_numbers_or_names():
    assert labelled_columns("--columns", " 3, 1 ") == {"label": 3, "text": 1}
    assert labelled_columns("--columns", "3,review") == {"label": "3", "text": "review"}
    assert labelled_columns("--fields", "3,1") == {"label": "3", "text": "1"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tsv": ["a"], "jsonl": ["b"]}, ("--tsv", "--jsonl")),
        ({"train_file": ["a"], "tsv": ["b"]}, ("--train-file", "--tsv")),
        ({"columns": "1,2"}, ("--columns", "--tsv")),
        ({"tsv": ["a"], "fields": "a,b"}, ("--fields", "--jsonl")),
        ({"tsv": ["a"], "columns": "1"}, ("--columns", "'1'")),
        ({"tsv": ["a"], "columns": "1,,2"}, ("--columns", "'1,,2'")),
    ],
)
def test_invalid_options_are_named(options: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(ArgumentError) as error:
        labelled_files(options)
    assert all(each in str(error.value) for each in named)
