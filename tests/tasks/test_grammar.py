"""Runs on the built-in corpus store the version of its grammar, and split final punctuation from words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.data import korean_english
from regard.errors import ArgumentError
from regard.runs.run_folder import config_of
from regard.tasks.translation import TranslationTask, load_translator
from tests.tasks.built_task import build_task
from tests.tasks.small import settings, train


def small(**data: Any) -> dict[str, Any]:
    corpus = {"built_in": "korean", "pairs": 300, "held_out": 8, **data}
    return settings(corpus, training={"save_every": 2, "keep": 4})


def test_new_run_stores_the_version_of_the_grammar(tmp_path: Path):
    train(small(), tmp_path / "run")
    assert config_of(tmp_path / "run")["data"]["grammar"] == 2
    assert [pair.source for pair in build_task(TranslationTask, tmp_path / "run").corpus.split.train] == [
        example.source for example in korean_english("train", 300)
    ]


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_raise(tmp_path: Path, version: int):
    with pytest.raises(ArgumentError, match=rf"data\.grammar is {version}"):
        train(small(grammar=version), tmp_path / "run")


def test_final_punctuation_is_split_from_its_word(tmp_path: Path):
    train(small(), tmp_path / "run")
    run = load_translator(tmp_path / "run", device="cpu")
    attached, separate = run.translate(["나는 고양이로소이다.", "나는 고양이로소이다 ."])
    assert attached.source == separate.source == "나는 고양이로소이다 ."
    assert attached.text == separate.text and attached.score == separate.score
    (streamed,) = run.stream(["너는 갔니?"])
    assert streamed.source == "너는 갔니 ?"


def test_run_on_files_does_not_split_punctuation(finished: Path):
    assert load_translator(finished, device="cpu").translate("나는 간다.").source == "나는 간다."
