"""regard export, and --engine ctranslate2 of the commands that translate."""

from __future__ import annotations

import json

import pytest

import regard
from tests.cli.conftest import train_small
from tests.facts import mentions

TEXT = "나는 학교에 간다."


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    return train_small(
        tmp_path_factory, name="transformer", width=16, heads=2, inner=16, layers=1, position="rotary"
    )


def test_export_checks_itself_and_the_engine_has_the_same_translations(command, transformer, tmp_path):
    lines = tmp_path / "a.ko"
    lines.write_text(f"{TEXT}\n그 개가 잔다 .\n\n", encoding="utf-8")
    options = ("--to", "ctranslate2", "--output", tmp_path / "out", "--check-file", lines)
    result = command("export", transformer, *options)
    assert result.status == 0 and mentions(result.out, "3 of 3 equal", "MB", "ctranslate2")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.bin", "config.json", "README.md"} <= names
    again = command("export", transformer, *options)
    assert again.status == 2 and "not empty" in again.err
    ours, theirs = (
        command("translate", transformer, lines, "--engine", engine, "--json")
        for engine in ("regard", "ctranslate2")
    )
    assert ours.status == theirs.status == 0
    for a, b in zip(ours.out.splitlines(), theirs.out.splitlines(), strict=True):
        one, other = json.loads(a), json.loads(b)
        assert (one["text"], one["alignment"]) == (other["text"], other["alignment"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
    scores = [
        command(
            "evaluate", transformer, "--split", "test", "--sentences", 4, "--json", "--engine", engine
        ).out
        for engine in ("regard", "ctranslate2")
    ]
    first, second = (json.loads(each)["scores"][0]["value"] for each in scores)
    assert first == second
    refused = command("translate", transformer, lines, "--engine", "ctranslate2", "--sample")
    assert refused.status == 2 and "--engine ctranslate2" in refused.err


def test_engine_and_export_of_a_run_without_a_checkpoint(command, trained, tmp_path):
    with pytest.raises(regard.UnknownName, match="ctranslate2"):
        regard.load(trained, engine="none")
    result = command("translate", trained, "--text", TEXT, "--engine", "ctranslate2")
    assert result.status == 2 and mentions(result.err, "bahdanau", "transformer")
    (tmp_path / "run").mkdir()
    for name in ("config.toml", "source.tokenizer", "target.tokenizer", "manifest.json"):
        (tmp_path / "run" / name).write_bytes((trained / name).read_bytes())
    unfinished = command("export", tmp_path / "run", "--to", "safetensors", "--output", tmp_path / "out")
    assert unfinished.status == 2 and "checkpoint" in unfinished.err
    assert not (tmp_path / "out").exists()
