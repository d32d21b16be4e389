"""resolve_settings(): settings that no run folder can hold are an error before data are read."""

from __future__ import annotations

from typing import Any

import pytest

from regard.errors import ArgumentError
from regard.runs.prepare_run import resolve_settings
from regard.tasks.task_table import find_task


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"data": {"train_file": ["a\udcff.txt"]}}, "data.train_file"),
        ({"data": {"train_file": ["a.txt"]}, "model": {"name": "\udcff"}}, "model.name"),
    ],
)
def test_text_that_is_not_utf_8_names_its_setting(settings: dict[str, Any], name: str):
    with pytest.raises(ArgumentError) as caught:
        resolve_settings(find_task("language"), settings)
    assert str(caught.value).startswith(f"{name}: ") and "UTF-8" in str(caught.value)
