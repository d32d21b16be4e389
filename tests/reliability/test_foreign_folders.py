"""Untrusted run folders: symbolic links, FIFOs, devices, and numbers that would allocate too much memory."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy
import pytest
import tomli_w
from rich.console import Console

from regard.cli.average import average_run
from regard.cli.show import describe_run
from regard.data import encode_pairs, train_tokenizers
from regard.data.tokenizers.tokenizer import Characters
from regard.errors import DataError, RegardError
from regard.files.folder_lock import locked
from regard.files.tensor_file import read_header
from regard.files.untrusted import LIMITS, open_regular, parse_json, read_limited
from regard.runs.run_facts import facts_of
from regard.runs.run_folder import fingerprints_of
from regard.runs.stored_runs import checked_settings
from regard.tasks.translation import load_translator
from regard.tasks.translation.task import TranslationTask
from regard.training.checkpoints.checkpoints import Checkpoints, averaged_from
from regard.training.gradients import build_optimizer, load_optimizer
from regard.training.logs.log import Journal
from regard.training.progress import Progress
from regard.viewing import Seen, Site
from tests.facts import facts
from tests.reliability.damaged_runs import Original
from tests.tasks.small import train

ROOM = 200 << 20
"""Memory in bytes that rejecting a model may allocate; the models themselves need gigabytes."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original.made(tmp_path_factory.mktemp("foreign") / "words", "words")


@pytest.fixture
def run(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(original.place / "cache"))
    return Path(shutil.copytree(original.place / "killed", tmp_path / "run"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("mine\n")
    return path


def test_lock_file_that_is_a_symbolic_link_raises(run: Path, secret: Path):
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(secret)
    with pytest.raises(DataError, match=facts(".lock", "symbolic")), locked(run):
        pass
    with pytest.raises(DataError, match=r"\.lock"):
        train({}, run, resume=True)
    assert secret.read_text() == "mine\n"


def test_log_that_is_a_symbolic_link_is_not_written(run: Path, secret: Path):
    (run / "log.jsonl").unlink()
    (run / "log.jsonl").symlink_to(secret)
    warnings: list[str] = []
    journal = Journal(run / "log.jsonl", warnings.append)
    journal.write({"kind": "x"})
    journal.rewind(0)
    assert secret.read_text() == "mine\n" and "log.jsonl" in warnings[0]
    train({}, run, resume=True)
    assert secret.read_text() == "mine\n" and (run / "step-000004").is_dir()


def test_averaging_copies_no_symbolic_links_and_fifos(run: Path, secret: Path, tmp_path: Path):
    (run / "notes.txt").symlink_to(secret)
    os.mkfifo(run / "pipe")
    settings = checked_settings(TranslationTask, run)
    average_run(TranslationTask, run, settings, Checkpoints(run).all(), tmp_path / "mean")
    copied = {path.name for path in (tmp_path / "mean").iterdir()}
    assert not {"notes.txt", "pipe"} & copied and {"config.toml", "source.tokenizer"} <= copied
    (run / "target.tokenizer").rename(tmp_path / "tokenizer")
    (run / "target.tokenizer").symlink_to(tmp_path / "tokenizer")
    with pytest.raises(DataError, match="symbolic"):
        average_run(TranslationTask, run, settings, Checkpoints(run).all(), tmp_path / "other")


@pytest.mark.parametrize(
    "name", ["config.toml", "source.tokenizer", "alignment.json", "step-000002/state.json"]
)
def test_fifo_or_device_raises_with_its_name(run: Path, name: str):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(DataError, match=name.split("/")[-1]):
        load_translator(run)
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match=name.split("/")[-1]):
        load_translator(run)


def test_run_folder_can_be_a_symbolic_link(original: Original, tmp_path: Path):
    (tmp_path / "link").symlink_to(original.place / "run")
    assert load_translator(tmp_path / "link").checkpoint.step == original.best


def test_files_must_be_regular_and_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "config.toml"
    path.write_bytes(bytes(LIMITS["config"] + 1))
    with pytest.raises(OSError, match="limit"):
        read_limited(path, "config")
    (tmp_path / "link").symlink_to(path)
    monkeypatch.delattr(os, "O_NOFOLLOW")  # as on systems without O_NOFOLLOW
    with pytest.raises(OSError, match="symbolic"):
        open_regular(tmp_path / "link")
    with open(path, "rb", opener=open_regular) as file:
        assert file.read(1) == b"\0"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": 1, "a": 2}', "9" * 5000, "\ud800", b"\xff", b"", b"{\0}"]
)
def test_invalid_json_raises_value_error(text: str | bytes):
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    with pytest.raises(ValueError):
        parse_json(content)


def changed_model(run: Path, **options: Any) -> None:
    config = tomllib.loads((run / "config.toml").read_text())
    config["model"] |= options
    (run / "config.toml").write_text(tomli_w.dumps(config))


@pytest.mark.parametrize(
    "options",
    [
        {"width": 20_000},
        {"width": 10**12},
        {"width": 10**30},
        {"depth": 10**9},
        {"width": "8"},
        {"score": 3},
        {"name": "transformer", "size": "tiny", "layers": 10**9},
        {"name": "transformer", "size": "tiny", "heads": 10**9, "position": "alibi"},
    ],
)
def test_model_that_does_not_match_its_weights_raises_before_it_is_built(run: Path, options: Any):
    changed_model(run, **options)
    (run / "manifest.json").unlink(missing_ok=True)  # the manifest would detect the change first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for attempt in (load_translator, lambda run: train({}, run, resume=True)):
        with pytest.raises(RegardError, match=r"config\.toml"):
            attempt(run)
    try:
        assert facts_of(TranslationTask, run).folder == run
    except RegardError as error:
        assert "config.toml" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < ROOM


def test_show_prints_no_control_characters(run: Path):
    config = tomllib.loads((run / "config.toml").read_text())
    config["model"] |= {"score": "\x1b[31m[bold]"}
    config["data"]["problems"] = {"\x1b]0;title\x07": "\x9b2J"}
    (run / "config.toml").write_text(tomli_w.dumps(config))
    (run / "data.json").write_text(json.dumps({"\x1b[2J": "\x1b[31m"}))
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "evaluation", "step": 3, "\x1b[31m": 1, "loss": 10**400}) + "\n")
        log.write(json.dumps({"kind": "training", "step": 3, "loss": 1e308}) + "\n")
        log.write(json.dumps({"kind": "training", "step": 4, "loss": -1e308}) + "\n")
    page = io.StringIO()
    console = Console(file=page, width=100)
    for part in describe_run(facts_of(TranslationTask, run), console):
        console.print(part)
    assert all(character.isprintable() or character == "\n" for character in page.getvalue())
    assert "[bold]" in page.getvalue()


@pytest.mark.parametrize(
    "content", ["[1]", "17", '{"train": 5}', '{"train": "a", "train": "b"}', "[" * 10**5, ""]
)
def test_invalid_data_json_raises(run: Path, content: str):
    path = run / "data.json"
    path.write_text(content)
    with pytest.raises(DataError, match=facts(path)):
        fingerprints_of(run)


def test_state_with_wrong_types_raises_with_its_field():
    for state in (
        {"step": -1},
        {"step": True},
        {"step": 10**30},
        {"ended": 3},
        {"best": "x"},
        {"seconds": None},
    ):
        with pytest.raises(DataError, match=facts("state.json", next(iter(state)))):
            Progress.read(state)
    assert numpy.isnan(Progress.read({"best": float("nan")}).best)
    for about in (3, {}, {"steps": 1}, {"steps": ["x"]}):
        with pytest.raises(DataError, match=r"state\.json"):
            averaged_from({"averaged": about}, "state.json")


def test_optimizer_tensors_with_wrong_shapes_raise(original: Original):
    run = load_translator(original.place / "run")
    tensors = run.checkpoint.tensors("optimizer")
    name = next(each for each in tensors if each.endswith("/exp_avg"))
    for wrong in (
        {**tensors, name: tensors[name][None]},
        {k: v for k, v in tensors.items() if k != name},
    ):
        with pytest.raises(DataError, match=name.removesuffix("/exp_avg")):
            optimizer = build_optimizer(run.model, beta2=0.9, weight_decay=0.0)
            load_optimizer(run.model, optimizer, wrong, "place")


def test_tensor_file_headers_are_checked_against_the_file_size(tmp_path: Path):
    about = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for wrong in ({"shape": [10**12]}, {"dtype": "F3"}, {"data_offsets": [0, 10**9]}, {"shape": [-1, -2]}):
        header = json.dumps({"a": about | wrong}).encode()
        path = tmp_path / "a.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(DataError, match=r"a\.safetensors"):
            read_header(path)
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(DataError, match=r"a\.safetensors"):
        read_header(path)


def test_fields_of_seen_files_are_checked_by_type(tmp_path: Path):
    path = tmp_path / "a.seen"
    Seen((Site("decoder.cross", [[1.0]], ["a"], ["b"]),), ("b",), ("a",), (0,), (0,)).save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    fields = json.loads(header["__metadata__"]["told"])
    for wrong in ({"score": "x"}, {"source_words": [10**30]}, {"notes": "text"}, {"source": [1, 2]}):
        header["__metadata__"]["told"] = json.dumps(fields | wrong)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with pytest.raises(DataError, match=r"a\.seen"):
            Seen.load(path)
    header["__metadata__"]["told"] = json.dumps(fields | {"title": 3, "source": [1]})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    seen = Seen.load(path)
    assert (seen.title, seen.source) == ("3", ("1",))  # text, as all other titles and words


def test_changed_or_unknown_alignment_site_raises(run: Path):
    whole = json.loads((run / "alignment.json").read_text())
    unsigned = {name: value for name, value in whole.items() if name != "checksum"}
    assert load_translator(run).alignment.site == whole["site"]
    for wrong in (
        whole | {"shifted": True},
        unsigned | {"site": "nowhere"},
        unsigned | {"head": 10**12},
        [1],
    ):
        path = run / "alignment.json"
        path.write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=facts(path.name)):
            load_translator(run)
    (run / "alignment.json").write_text(json.dumps(unsigned | {"shifted": True}))
    assert load_translator(run).alignment.shifted


def test_vocabulary_with_control_characters_raises():
    content = json.dumps({"kind": "character", "version": 1, "tokens": ["a", "\x1b", "["]}).encode()
    with pytest.raises(DataError, match="place"):
        Characters.deserialized(content, "place")


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "list"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, kind: str):
    pairs = [("ein Haus", "a house"), ("ein Hut", "a hat")]
    tokenizers = train_tokenizers(pairs, "word")
    first = encode_pairs(pairs, *tokenizers, tmp_path)
    (cache,) = tmp_path.iterdir()
    cache.unlink()
    makers = {
        "fifo": os.mkfifo,
        "link": lambda path: path.symlink_to("nowhere"),
        "folder": Path.mkdir,
        "list": lambda path: path.write_text("[1]"),
    }
    makers[kind](cache)
    with pytest.warns(UserWarning, match="cache"):
        again = encode_pairs(pairs, *tokenizers, tmp_path)
    assert len(again) == len(first) and again.source(1).tolist() == first.source(1).tolist()
    assert [path.name for path in tmp_path.iterdir()] == [cache.name] and not cache.is_symlink()
