"""Run manifest: changed tokenizers and settings are noticed, harmless edits and old folders are accepted."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main
from regard.decoding import Greedy
from regard.errors import DataError
from regard.runs.run_folder import config_of, write_config
from regard.runs.run_manifest import MANIFEST
from regard.tasks.translation import load_translator
from regard.training.settings import merged
from tests.conftest import seed
from tests.tasks.small import settings, train
from tests.training.toys import bits

TOKENIZERS = ("source.tokenizer", "target.tokenizer")


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def edit(folder: Path, changed: dict[str, Any]) -> None:
    """Change settings as with an editor: the manifest stays."""
    write_config(folder, merged(config_of(folder), changed))


def test_no_flipped_bit_of_a_tokenizer_goes_unnoticed(begun: Path):
    chance = random.Random(seed())
    for name in TOKENIZERS:
        whole = (begun / name).read_bytes()
        for _ in range(40):
            flip(begun / name, chance.randrange(len(whole)), chance.randrange(8))
            with pytest.raises(DataError, match=rf"{name}.*SHA-256"):
                load_translator(begun)
            (begun / name).write_bytes(whole)
    load_translator(begun)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_damaged_tokenizer_is_noticed_by_every_command(begun: Path, tmp_path: Path, capsys, name: str):
    flip(begun / name, (begun / name).stat().st_size // 2)
    text = tmp_path / "text"
    text.write_text("a\n")
    before = bits(begun)
    given = ["--source", str(text), "--target", str(text)]
    commands = {
        "translate": [str(begun), "--text", "a"],
        "evaluate": [str(begun), *given],
        "average": [str(begun), "--last", "2", "--out", str(tmp_path / "mean")],
        "train": ["--out", str(begun), "--resume"],
    }
    for command, arguments in commands.items():
        with pytest.raises(SystemExit) as caught:
            main([command, *arguments])
        assert caught.value.code == 2 and name in capsys.readouterr().err, command
    with pytest.raises(DataError, match=name):
        train({}, begun, resume=True, change=True)
    with pytest.raises(DataError, match=name):
        train({"data": config_of(begun)["data"]}, tmp_path / "tuned", init_from=begun)
    assert bits(begun) == before and not (tmp_path / "mean").exists()
    with pytest.raises(SystemExit):
        main(["show", str(begun), "--json"])
    assert any(name in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_missing_tokenizer_is_named(begun: Path):
    (begun / "target.tokenizer").unlink()
    with pytest.raises(DataError, match=r"target\.tokenizer.*missing"):
        load_translator(begun)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": {"dropout": 0.5}}, r"model\.dropout: 0\.0 -> 0\.5"),
        ({"model": {"score": "dot"}}, r"model\.score: not set -> 'dot'"),
        ({"data": {"lowercase": True}}, r"data\.lowercase: False -> True"),
        ({"training": {"guided": 0.1}}, r"training\.guided: 0\.0 -> 0\.1"),
        ({"evaluation": {"tokenize": "char"}}, r"evaluation\.tokenize: '13a' -> 'char'"),
    ],
)
def test_a_changed_setting_is_named_with_both_values(begun: Path, changed: dict[str, Any], says: str):
    edit(begun, changed)
    for attempt in (lambda: load_translator(begun), lambda: train({}, begun, resume=True)):
        with pytest.raises(DataError, match=rf"config\.toml.*\n.*{says}"):
            attempt()


def test_heads_of_another_number_are_not_taken_in_silence(tmp_path: Path, data: dict[str, list[str]]):
    """The weights have the same shapes with any number of heads."""
    given = settings(data, training={"steps": 1})
    given["model"] = {"name": "transformer", "width": 8, "heads": 2, "layers": 1}
    train(given, tmp_path / "run")
    load_translator(tmp_path / "run")
    edit(tmp_path / "run", {"model": {"heads": 4}})
    with pytest.raises(DataError, match=r"model\.heads: 2 -> 4"):
        load_translator(tmp_path / "run")


def test_harmless_edits_are_accepted(begun: Path):
    expected = load_translator(begun, search=Greedy()).translate("고양이")
    config = config_of(begun)
    turned = {name: config[name] for name in reversed(config)}
    write_config(begun, turned)
    path = begun / "config.toml"
    path.write_text("# a comment\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    found = load_translator(begun, search=Greedy()).translate("고양이")
    assert (found.text, found.score) == (expected.text, expected.score)
    assert train({}, begun, resume=True).progress.ended


def test_an_edited_training_setting_stops_a_resumed_run_unless_it_is_accepted(begun: Path):
    edit(begun, {"training": {"log_every": 7}})
    load_translator(begun)
    with pytest.raises(DataError, match=r"training\.log_every: \d+ -> 7"):
        train({}, begun, resume=True)
    train({}, begun, resume=True, change=True)
    train({}, begun, resume=True)


def test_a_change_that_was_asked_for_is_written(begun: Path):
    train({"evaluation": {"tokenize": "char"}}, begun, resume=True, change=True)
    assert load_translator(begun).settings.evaluation.tokenize == "char"
    edit(begun, {"evaluation": {"tokenize": "intl"}})
    with pytest.raises(DataError, match="tokenize"):
        load_translator(begun)
    train({}, begun, resume=True, change=True)
    assert load_translator(begun).settings.evaluation.tokenize == "intl"


def test_a_folder_without_a_manifest_loads_and_a_resumed_run_writes_one(begun: Path, data: Any):
    expected = json.loads((begun / MANIFEST).read_bytes())
    (begun / MANIFEST).unlink()
    text = load_translator(begun, search=Greedy()).translate("고양이").text
    before = bits(begun)
    train({}, begun, resume=True)
    assert bits(begun) == before and json.loads((begun / MANIFEST).read_bytes()) == expected
    assert load_translator(begun, search=Greedy()).translate("고양이").text == text


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b'{"sha256": ""}', b"[" * 100_000, b"\xff"])
def test_a_damaged_manifest_is_named(begun: Path, content: bytes):
    (begun / MANIFEST).write_bytes(content)
    with pytest.raises(DataError, match=MANIFEST):
        regard.load(begun)


def test_no_byte_of_a_manifest_can_change_what_it_says(begun: Path):
    chance = random.Random(seed())
    whole = (begun / MANIFEST).read_bytes()
    said = json.loads(whole)
    for _ in range(40):
        (begun / MANIFEST).write_bytes(whole)
        flip(begun / MANIFEST, chance.randrange(len(whole)), chance.randrange(8))
        try:
            load_translator(begun)
        except DataError:
            continue
        assert json.loads((begun / MANIFEST).read_bytes()) == said  # white space


def test_a_kill_between_config_and_manifest_leaves_a_run_that_loads(begun: Path, monkeypatch):
    real, calls = os.replace, []

    def kill(source: Any, target: Any) -> None:
        calls.append(Path(target).name)
        if calls[-1] == MANIFEST:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", kill)
        train({"evaluation": {"tokenize": "char"}}, begun, resume=True, change=True)
    assert "config.toml" in calls and not (begun / MANIFEST).exists()
    assert load_translator(begun).settings.evaluation.tokenize == "char"
    train({}, begun, resume=True)
    assert (begun / MANIFEST).exists()


def test_a_file_removed_while_training_is_not_passed_over(tmp_path: Path, data: Any, monkeypatch):
    real = regard.tasks.translation.TranslationTask.evaluate

    def evaluate(self: Any, stopping: Any) -> Any:
        (tmp_path / "run" / "source.tokenizer").unlink(missing_ok=True)
        return real(self, stopping)

    monkeypatch.setattr("regard.tasks.translation.TranslationTask.evaluate", evaluate)
    with pytest.raises(DataError, match=r"source\.tokenizer"):
        train(settings(data), tmp_path / "run")
