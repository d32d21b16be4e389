"""Runs: begun, resumed, changed, started from another, and refused where that would spoil something."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.errors import ArgumentError, DataError, UnknownName
from regard.files.folder_lock import locked
from regard.runs.run_folder import config_of
from regard.tasks.translation import TranslationTask, load_translator
from regard.tasks.translation.train_run import load_task
from regard.training.loop import Trainer
from regard.training.nonfinite_steps import NonFinite, replay
from tests.tasks.small import settings, train, written
from tests.training.toys import bits, last, records


def test_a_run_leaves_what_it_was_made_with_and_a_translator(begun: Path):
    assert {
        "config.toml",
        "data.json",
        "log.jsonl",
        "source.tokenizer",
        "target.tokenizer",
        "latest",
        "best",
    } <= {path.name for path in begun.iterdir()}
    config = config_of(begun)
    assert config["model"] == {"name": "luong", "width": 8, "feeding": False, "dropout": 0.0}
    assert config["training"]["learning_rate"] == 0.006
    assert load_translator(begun).translate(["고양이", ""])[1].text == ""


def test_what_was_found_in_the_data_is_shown_and_kept(tmp_path: Path, capsys):
    data = written(tmp_path / "data")
    with open(data["source"][0], "ab") as source, open(data["target"][0], "ab") as target:
        source.write("\n고양이\x00 가 잔다\n".encode())
        target.write(b"nothing\nthe cat sleeps\n")
    train(settings(data, data={"max_length": 9}), tmp_path / "run", console=Console(width=200))
    said = capsys.readouterr().out
    kept = [each["text"] for each in records(tmp_path / "run", "data")]
    for text in (said, "\n".join(kept)):
        assert "122 pairs read, 121 kept" in text
        assert "a side is empty" in text and "NUL" in text
        assert "training pairs, 5 held out" in text
        assert "pairs are dropped: a side has too many tokens" in text
    (model,) = records(tmp_path / "run", "model")
    assert model["text"].startswith("luong, ") and "parameters" in model["text"]


def test_a_run_is_not_begun_over_another(begun: Path, data: dict[str, list[str]]):
    before = bits(begun)
    with pytest.raises(ArgumentError, match=r"a run in this folder already\nhint: --resume"):
        train(settings(data), begun)
    (begun / "config.toml").unlink()
    with pytest.raises(DataError, match=r"checkpoints, .*config\.toml"):
        train(settings(data), begun, resume=True)
    assert bits(begun) == before


def test_a_folder_in_use_is_refused(begun: Path, data: dict[str, list[str]]):
    with locked(begun), pytest.raises(DataError, match="running in this folder: process"):
        train({}, begun, resume=True)
    fresh = begun.with_name("fresh")
    fresh.mkdir()
    with locked(fresh), pytest.raises(DataError, match="running in this folder"):
        train(settings(data), fresh)
    assert not (fresh / "config.toml").exists()


def test_nothing_is_left_of_a_run_that_could_not_begin(tmp_path: Path, data: dict[str, list[str]]):
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"model": {"name": "bahdanou"}}, UnknownName, "did you mean 'bahdanau'"),
        ({"model": {"widht": 9}}, UnknownName, "did you mean 'width'"),
        ({"model": {"width": -1}}, ArgumentError, "width is -1"),
        ({"data": {"source": ["none.ko"]}}, DataError, r"none\.ko: there is no such file"),
        ({"data": {"problems": {"invalit": "skip"}}}, UnknownName, "did you mean 'invalid'"),
        ({"evaluation": {"tokenize": "14a"}}, UnknownName, r"evaluation\.tokenize"),
        ({"evaluation": {"beam_size": 0}}, ArgumentError, r"evaluation\.beam_size"),
        ({"training": {"best": "accuracy"}}, ArgumentError, r"training\.best"),
    ]
    for sections, kind, says in wrong:
        with pytest.raises(kind, match=says):
            train(settings(data, **sections), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ArgumentError, match="data are given"):
        train({}, tmp_path / "run")


def test_a_run_goes_on_without_being_told_anything_again(begun: Path, monkeypatch, tmp_path: Path):
    before = bits(begun)
    monkeypatch.chdir(tmp_path)
    outcome = train({}, begun, resume=True)
    assert outcome.progress.ended and bits(begun) == before


def test_changed_settings_are_refused_with_the_difference(begun: Path, data: dict[str, list[str]]):
    with pytest.raises(ArgumentError) as caught:
        train(settings(data, training={"learning_rate": 0.5, "steps": 6}), begun, resume=True)
    assert "\n  training.steps: 4 -> 6\n  training.learning_rate: 0.006 -> 0.5\nhint: --change" in str(
        caught.value
    )


def test_changed_settings_are_taken_where_asked_for(begun: Path):
    outcome = train({"training": {"steps": 6, "learning_rate": 0.5}}, begun, resume=True, change=True)
    assert outcome.progress.step == 6
    assert config_of(begun)["training"]["learning_rate"] == 0.5
    with pytest.raises(ArgumentError, match=r"training\.minutes: not set -> 0\.1"):
        train({"training": {"minutes": 0.1}}, begun, resume=True)


def test_evaluation_settings_are_checked_when_a_run_is_resumed(begun: Path):
    before = (begun / "config.toml").read_bytes()
    with pytest.raises(UnknownName, match=r"evaluation\.tokenize"):
        train({"evaluation": {"tokenize": "14a"}}, begun, resume=True, change=True)
    assert (begun / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"width": 9}},
        {"model": {"name": "bahdanau"}},
        {"data": {"lowercase": True}},
        {"data": {"joint": True}},
    ],
)
def test_what_the_weights_fit_cannot_be_changed(begun: Path, changed: dict[str, Any]):
    before = (begun / "config.toml").read_bytes()
    with pytest.raises(ArgumentError, match="cannot be resumed") as caught:
        train(changed, begun, resume=True, change=True)
    assert "--change" not in str(caught.value)
    assert (begun / "config.toml").read_bytes() == before
    load_translator(begun)


def test_changed_data_are_refused_unless_asked_for(tmp_path: Path):
    data, begun = written(tmp_path / "data", 60), tmp_path / "run"
    train(settings(data), begun)
    for name, line in (("source", "고양이가 잔다\n"), ("target", "the cat sleeps\n")):
        with open(data[name][0], "a", encoding="utf-8") as file:
            file.write(line)
    with pytest.raises(DataError, match=r"train.* changed\nhint: --change"):
        train({}, begun, resume=True)
    assert train({}, begun, resume=True, change=True).progress.ended
    assert train({}, begun, resume=True).progress.ended


def test_another_run_gives_its_weights_and_its_tokens(begun: Path, tmp_path: Path, monkeypatch):
    started: list[dict[str, torch.Tensor]] = []
    real = Trainer.run

    def watched(self: Trainer, *rest: Any) -> Any:
        assert self.average is not None
        with self.average.applied():
            started.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return real(self, *rest)

    monkeypatch.setattr(Trainer, "run", watched)
    others = written(tmp_path / "other", 60, "valid", "b")
    given = {"data": others | {"held_out": 3}, "training": {"steps": 2, "ema": 0.5}}
    given["evaluation"] = {"sentences": 1, "samples": 0}
    train(given, tmp_path / "tuned", init_from=begun)
    best = load_translator(begun).checkpoint.tensors("weights")
    assert all(torch.equal(started[0][name], best[name]) for name in best)
    for name in ("source.tokenizer", "target.tokenizer"):
        assert (tmp_path / "tuned" / name).read_bytes() == (begun / name).read_bytes()
    config = config_of(tmp_path / "tuned")
    assert config["init_from"] == str(begun)
    assert config["model"] == config_of(begun)["model"] and config["training"]["learning_rate"] == 3e-4
    shutil.rmtree(begun)  # it is not needed any more
    assert train({}, tmp_path / "tuned", resume=True).progress.ended


def test_what_a_run_started_from_is_remembered_before_its_first_checkpoint(
    begun: Path, tmp_path: Path, data: dict[str, list[str]], monkeypatch
):
    weights = load_translator(begun).checkpoint.tensors("weights")
    seen: list[bool] = []

    def struck(self: Trainer, *rest: Any) -> Any:
        seen.append(all(torch.equal(value, weights[name]) for name, value in self.model.state_dict().items()))
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", struck)
    given = {"data": {**data, "held_out": 5}}
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train(
                {} if resume else given,
                tmp_path / "tuned",
                resume=resume,
                init_from=None if resume else begun,
            )
    assert seen == [True, True]


def test_a_start_that_cannot_be_is_refused(begun: Path, tmp_path: Path, data: dict[str, list[str]]):
    given = {"data": data}
    with pytest.raises(DataError, match=r"no such folder|not a run folder"):
        train(given, tmp_path / "new", init_from=tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"do not fit .*\n  model\.name: 'luong' -> 'transformer'"):
        train({**given, "model": {"name": "transformer"}}, tmp_path / "new", init_from=begun)
    with pytest.raises(ArgumentError, match=r"data\.tokenizer: 'word' -> 'bpe'"):
        train({"data": {**data, "tokenizer": "bpe"}}, tmp_path / "new", init_from=begun)
    shutil.rmtree(last(begun).path)
    for path in begun.glob("step-*"):
        shutil.rmtree(path)
    for pointer in ("best", "latest"):
        (begun / pointer).unlink()
    with pytest.raises(DataError, match="no checkpoint to start from"):
        train(given, tmp_path / "new", init_from=begun)


def test_the_bad_step_of_a_real_run_is_replayed(
    tmp_path: Path, data: dict[str, list[str]], links: str, monkeypatch
):
    real = TranslationTask.loss

    def spoilt(self: TranslationTask, batch: Any) -> Any:
        loss = real(self, batch)
        return loss._replace(total=loss.total * torch.inf)

    monkeypatch.setattr(TranslationTask, "loss", spoilt)
    with pytest.raises(NonFinite, match=r"step 1: .*no checkpoint yet"):
        train(
            settings(data, data={"alignments": [links]}, training={"guided_alignment": 0.1}),
            tmp_path / "run",
        )
    found = replay(tmp_path / "run" / "nonfinite-000001", load_task(tmp_path / "run"))
    assert found.losses == {"batch-0-0": torch.inf}


def test_a_step_that_was_captured_is_padded_again(begun: Path, tmp_path: Path):
    """What is dropped at random depends on the shapes."""
    folder, ready = shutil.copytree(begun, tmp_path / "captured"), []
    assert 'capture = "auto"' in (folder / "config.toml").read_text()
    for device in ("cpu", "cuda"):
        task = load_task(folder, device)
        batch, _ = task.prepare(task.largest_batch(), "cpu")
        ready.append(batch.source.shape[1])
    assert ready[1] % 8 == 0 and ready[0] < ready[1]


def test_a_run_with_batches_of_sentences_is_resumed_with_the_same_bits(
    tmp_path: Path, data: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
):
    given = settings(data, training={"steps": 20, "save_every": 1, "batch_size": 7})
    del given["training"]["batch_tokens"]
    train(given, tmp_path / "whole")
    config = config_of(tmp_path / "whole")["training"]
    assert config["batch_size"] == 7 and "batch_tokens" not in config
    task = load_task(tmp_path / "whole")
    assert {len(batch) for batch in task.batches(0)} == {7, len(task.corpus.train) % 7}
    loss, losses = TranslationTask.loss, []

    def killed_at_the_twelfth(self: TranslationTask, batch: Any) -> Any:
        losses.append(batch)
        if len(losses) == 12:
            raise MemoryError
        return loss(self, batch)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(TranslationTask, "loss", killed_at_the_twelfth)
        train(given, tmp_path / "killed")
    assert last(tmp_path / "killed").step == 11
    train({}, tmp_path / "killed", resume=True)
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    for name, change in {"batch_size": r"batch_size: 7 -> 8", "batch_tokens": "not set -> 8"}.items():
        with pytest.raises(ArgumentError, match=change):
            train({"training": {name: 8}}, tmp_path / "killed", resume=True)
