"""The lists in docs/design.md name the files that a call, a training step and a search step run through."""

from __future__ import annotations

import pytest

from tests.files_on_the_way import DESIGN, MOST, block, checked_call, direct_call, every_list, written

TEXT = DESIGN.read_text(encoding="utf-8")
CALLS = {"direct call": direct_call, "checked call": checked_call}


@pytest.mark.parametrize("name", CALLS)
def test_files_of_a_call(name: str):
    files = CALLS[name]()
    assert len(files) <= MOST[name], files
    assert written(TEXT, {name: block(name, files)}) == TEXT, "run python -m tests.files_on_the_way --write"


def test_files_of_a_training_step_and_of_a_search_step():
    lists = every_list()
    blocks = {name: block(name, files) for name, files in lists.items() if name not in CALLS}
    assert written(TEXT, blocks) == TEXT, "run python -m tests.files_on_the_way --write"
