"""Versions of the built-in corpus's grammar: new runs store version 2; runs without one use version 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from regard.data import korean_english
from regard.errors import ArgumentError
from regard.runs.run_folder import config_of
from regard.tasks.task_table import load_task
from regard.tasks.translation import load_translator
from regard.training.settings_toml import to_toml
from tests.tasks.small import settings, train
from tests.training.toys import bits, last

FINGERPRINTS = {
    "train": "0fff1b019c1b63835412aec285cd4cea",
    "valid": "abe06a4d84b47eaacd41f8b1b3cffdc0",
    "alignments": "0941d0d1a086fcce3ee795ff3b7f319f",
}
"""In data.json of a run of 300 and 8 pairs, written before the grammar had a second version."""


def small(**data: Any) -> dict[str, Any]:
    corpus = {"built_in": "korean", "pairs": 300, "held_out": 8, **data}
    return settings(corpus, training={"save_every": 2, "keep": 4})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An ended run without data.grammar in its config.toml, as before version 2."""
    folder = tmp_path / "old"
    train(small(grammar=1), folder)
    config = config_of(folder)
    assert config["data"].pop("grammar") == 1
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    (folder / "manifest.json").unlink()
    return folder


def test_new_run_uses_version_2_and_stores_it(tmp_path: Path):
    train(small(), tmp_path / "run")
    assert config_of(tmp_path / "run")["data"]["grammar"] == 2
    assert [pair.source for pair in load_task(tmp_path / "run").corpus.split.train] == [
        example.source for example in korean_english("train", 300, version=2)
    ]


def test_version_1_can_be_chosen(tmp_path: Path):
    train(small(grammar=1), tmp_path / "run")
    assert config_of(tmp_path / "run")["data"]["grammar"] == 1
    assert json.loads((tmp_path / "run" / "data.json").read_text()) == FINGERPRINTS


def test_unknown_versions_raise(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"data\.grammar is 3"):
        train(small(grammar=3), tmp_path / "run")


def test_run_without_a_version_resumes_with_the_same_bits(old: Path):
    before, config = bits(old), (old / "config.toml").read_bytes()
    shutil.rmtree(last(old).path)
    outcome = train({}, old, resume=True)
    assert outcome.progress.ended and last(old).step == 4
    assert bits(old) == before
    assert (old / "config.toml").read_bytes() == config
    assert json.loads((old / "data.json").read_text()) == FINGERPRINTS


def test_run_without_a_version_cannot_be_resumed_with_version_2(old: Path):
    with pytest.raises(ArgumentError, match=r"data\.grammar: .*-> 2"):
        train({"data": {"grammar": 2}}, old, resume=True)


def test_init_from_keeps_the_version_of_the_other_run(old: Path, tmp_path: Path):
    train(small(), tmp_path / "next", init_from=old)
    assert config_of(tmp_path / "next")["data"]["grammar"] == 1


@pytest.mark.parametrize("grammar", [None, 2])
def test_final_punctuation_is_split_from_its_word(old: Path, tmp_path: Path, grammar: int | None):
    if grammar is not None:
        train(small(grammar=grammar), tmp_path / "run")
    run = load_translator(old if grammar is None else tmp_path / "run", device="cpu")
    attached, separate = run.translate(["나는 고양이로소이다.", "나는 고양이로소이다 ."])
    assert attached.source == separate.source == "나는 고양이로소이다 ."
    assert attached.text == separate.text and attached.score == separate.score
    (streamed,) = run.stream(["너는 갔니?"])
    assert streamed.source == "너는 갔니 ?"


def test_run_on_files_does_not_split_punctuation(finished: Path):
    assert load_translator(finished, device="cpu").translate("나는 간다.").source == "나는 간다."
