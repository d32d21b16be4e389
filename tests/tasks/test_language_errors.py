"""Language models: bad files, settings and options are errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main
from regard.errors import ArgumentError, DataError, RegardError, UnknownName
from tests.facts import mentions
from tests.tasks.small_language import small, text_files, train


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return text_files(tmp_path_factory.mktemp("text"))


def error(settings: dict[str, Any], folder: Path, kind: type[Exception] = ArgumentError) -> str:
    with pytest.raises(kind) as raised:
        train(settings, folder)
    assert not (folder / "config.toml").exists()
    return str(raised.value)


def test_bad_files_are_named(tmp_path: Path, text):
    empty, one = tmp_path / "empty.txt", tmp_path / "one.txt"
    empty.write_text("\n \n")
    one.write_text("only one line\n")
    for name in ("train_file", "valid_file"):
        assert "empty.txt" in error(small({**text, name: [str(empty)]}), tmp_path / "run", DataError)
    assert "--valid-file" in error(small({"train_file": [str(one)]}), tmp_path / "run", DataError)
    missing = error(small({"train_file": [str(tmp_path / "no.txt")]}), tmp_path / "run", DataError)
    assert "no.txt" in missing and "no such file" in missing
    one.write_bytes(b"a\nb \xff\n")
    assert "line 2" in error(small({**text, "valid_file": [str(one)]}), tmp_path / "run", DataError)
    assert "--train-file" in error({"data": {}}, tmp_path / "run")


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_window_longer_than_the_text_raises(tmp_path: Path, text, name: str):
    problem = error(
        small(
            {**text, "window": 5000}, name, training={"batch_tokens": 5000} if name == "transformer" else {}
        ),
        tmp_path / "run",
        DataError,
    )
    assert mentions(problem, "a.txt", 5_000, "most")


@pytest.mark.parametrize(
    ("name", "sections", "words"),
    [
        ("lstm", {"data": {"layout": "documents", "window": 9}}, "window"),
        ("transformer", {"data": {"streams": 2}}, "streams"),
        ("lstm", {"evaluation": {"stride": 2}}, "stride"),
        ("lstm", {"data": {"streams": 3}}, "batch_size is 5"),
        ("lstm", {"model": {"widht": 8}}, "widht"),
        ("lsmt", {}, "lsmt"),
        ("transformer", {"model": {"position": "learned", "longest": 5}}, "5 positions"),
        ("lstm", {"data": {"held_out": 3}}, "held_out"),
        ("lstm", {"training": {"compile": True}}, "compile"),
        ("lstm", {"data": {"train_file": []}}, "train_file"),
        ("transformer", {"evaluation": {"window": 4, "stride": 9}}, "stride"),
    ],
)
def test_settings_that_make_no_sense_raise(tmp_path: Path, text, name: str, sections, words: str):
    settings = small(text, name)
    for section, values in sections.items():
        settings[section] = {**settings[section], **values}
    with pytest.raises(RegardError, match=words):
        train(settings, tmp_path / "run")


def test_options_of_another_task_are_named(tmp_path: Path, capsys, text):
    def failed(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["train", *map(str, arguments), "--output", str(tmp_path / "run")])
        assert ended.value.code
        return " ".join(capsys.readouterr().err.split())

    problem = failed("--train-file", text["train_file"][0])
    assert "--train-file" in problem and "translation" in problem and "data.train_file" in problem
    problem = failed("--task", "language", "--source", "a.ko", "--target", "b.en")
    assert "--source" in problem and "language" in problem and "--train-file" in problem
    problem = failed("--task", "langauge", "--train-file", "a.txt")
    assert "langauge" in problem and "language" in problem and "translation" in problem
    with pytest.raises(UnknownName):
        regard.tasks.task_table.find_task("langauge")
