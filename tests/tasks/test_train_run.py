"""Training runs: starting, resuming, changing settings, init_from, and errors."""

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
from regard.training.loop import Trainer
from tests.facts import facts, mentions
from tests.tasks.built_task import build_task
from tests.tasks.small import settings, train, written
from tests.training.toys import bits, last, records


def test_run_folder_has_its_files_and_translates(run_copy: Path):
    assert {
        "config.toml",
        "data.json",
        "log.jsonl",
        "source.tokenizer",
        "target.tokenizer",
        "latest",
        "best",
    } <= {path.name for path in run_copy.iterdir()}
    config = config_of(run_copy)
    assert config["model"] == {"name": "luong", "width": 8, "feeding": False, "dropout": 0.0}
    assert config["training"]["learning_rate"] == 0.006
    assert load_translator(run_copy).translate(["고양이", ""])[1].text == ""


def test_data_report_is_printed_and_logged(tmp_path: Path, capsys):
    data = written(tmp_path / "data")
    with open(data["source"][0], "ab") as source, open(data["target"][0], "ab") as target:
        source.write("\n고양이\x00 가 잔다\n".encode())
        target.write(b"nothing\nthe cat sleeps\n")
    train(settings(data, data={"max_length": 9}), tmp_path / "run", console=Console(width=200))
    printed = capsys.readouterr().out
    logged = [each["text"] for each in records(tmp_path / "run", "data")]
    for text in (printed, "\n".join(logged)):
        assert mentions(text, "122 pairs", "121 kept")
        assert mentions(text, "empty", "NUL")
        assert mentions(text, "5 held")
        assert mentions(text, "many", "tokens")
    (model,) = records(tmp_path / "run", "model")
    assert model["text"].startswith("luong, ") and "parameters" in model["text"]


def test_training_in_the_folder_of_another_run_raises(run_copy: Path, data: dict[str, list[str]]):
    before = bits(run_copy)
    with pytest.raises(ArgumentError, match=facts("run", "hint", "--resume")):
        train(settings(data), run_copy)
    (run_copy / "config.toml").unlink()
    with pytest.raises(DataError, match=facts("checkpoints", "config.toml")):
        train(settings(data), run_copy, resume=True)
    assert bits(run_copy) == before


def test_folder_in_use_raises(run_copy: Path, data: dict[str, list[str]]):
    with locked(run_copy), pytest.raises(DataError, match=r"process \d+"):
        train({}, run_copy, resume=True)
    fresh = run_copy.with_name("fresh")
    fresh.mkdir()
    with locked(fresh), pytest.raises(DataError, match=r"process \d+"):
        train(settings(data), fresh)
    assert not (fresh / "config.toml").exists()


def test_invalid_settings_raise_and_create_no_folder(tmp_path: Path, data: dict[str, list[str]]):
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"model": {"name": "bahdanou"}}, UnknownName, "'bahdanau'"),
        ({"model": {"widht": 9}}, UnknownName, "'width'"),
        ({"model": {"width": -1}}, ArgumentError, "width is -1"),
        ({"data": {"source": ["none.ko"]}}, DataError, r"none\.ko: "),
        ({"data": {"problems": {"invalit": "skip"}}}, UnknownName, "'invalid'"),
        ({"evaluation": {"tokenize": "14a"}}, UnknownName, r"evaluation\.tokenize"),
        ({"evaluation": {"beam_size": 0}}, ArgumentError, r"evaluation\.beam_size"),
        ({"training": {"best": "accuracy"}}, ArgumentError, r"training\.best"),
    ]
    for sections, kind, message in wrong:
        with pytest.raises(kind, match=message):
            train(settings(data, **sections), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ArgumentError, match=facts("no ", "data")):
        train({}, tmp_path / "run")


def test_resume_needs_no_settings(run_copy: Path, monkeypatch, tmp_path: Path):
    before = bits(run_copy)
    monkeypatch.chdir(tmp_path)
    outcome = train({}, run_copy, resume=True)
    assert outcome.progress.ended and bits(run_copy) == before


def test_error_of_changed_settings_lists_the_differences(run_copy: Path, data: dict[str, list[str]]):
    with pytest.raises(ArgumentError) as caught:
        train(settings(data, training={"learning_rate": 0.5, "steps": 6}), run_copy, resume=True)
    for fact in ("training.steps: 4 -> 6\n", "training.learning_rate: 0.006 -> 0.5\n", "--change"):
        assert fact in str(caught.value)


def test_changed_settings_are_used_with_change(run_copy: Path):
    outcome = train({"training": {"steps": 6, "learning_rate": 0.5}}, run_copy, resume=True, change=True)
    assert outcome.progress.step == 6
    assert config_of(run_copy)["training"]["learning_rate"] == 0.5
    with pytest.raises(ArgumentError, match=facts("training.minutes", "-> 0.1")):
        train({"training": {"minutes": 0.1}}, run_copy, resume=True)


def test_evaluation_settings_are_checked_when_a_run_is_resumed(run_copy: Path):
    before = (run_copy / "config.toml").read_bytes()
    with pytest.raises(UnknownName, match=r"evaluation\.tokenize"):
        train({"evaluation": {"tokenize": "14a"}}, run_copy, resume=True, change=True)
    assert (run_copy / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"width": 9}},
        {"model": {"name": "bahdanau"}},
        {"data": {"lowercase": True}},
        {"data": {"joint": True}},
    ],
)
def test_settings_that_determine_the_weights_cannot_be_changed(run_copy: Path, changed: dict[str, Any]):
    before = (run_copy / "config.toml").read_bytes()
    with pytest.raises(ArgumentError, match="resumed") as caught:
        train(changed, run_copy, resume=True, change=True)
    assert "--change" not in str(caught.value)
    assert (run_copy / "config.toml").read_bytes() == before
    load_translator(run_copy)


def test_changed_data_need_change_to_resume(tmp_path: Path):
    data, run_copy = written(tmp_path / "data", 60), tmp_path / "run"
    train(settings(data), run_copy)
    for name, line in (("source", "고양이가 잔다\n"), ("target", "the cat sleeps\n")):
        with open(data[name][0], "a", encoding="utf-8") as file:
            file.write(line)
    with pytest.raises(DataError, match=facts("changed", " train", "--change")):
        train({}, run_copy, resume=True)
    assert train({}, run_copy, resume=True, change=True).progress.ended
    assert train({}, run_copy, resume=True).progress.ended


def test_init_from_starts_with_weights_and_tokenizers_of_another_run(
    run_copy: Path, tmp_path: Path, monkeypatch
):
    started: list[dict[str, torch.Tensor]] = []
    real = Trainer.run

    def record_weights(self: Trainer, *rest: Any) -> Any:
        assert self.average is not None
        with self.average.applied():
            started.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return real(self, *rest)

    monkeypatch.setattr(Trainer, "run", record_weights)
    others = written(tmp_path / "other", 60, "valid", "b")
    given = {"data": others | {"held_out": 3}, "training": {"steps": 2, "ema": 0.5}}
    given["evaluation"] = {"sentences": 1, "samples": 0}
    train(given, tmp_path / "tuned", init_from=run_copy)
    best = load_translator(run_copy).checkpoint.tensors("weights")
    assert all(torch.equal(started[0][name], best[name]) for name in best)
    for name in ("source.tokenizer", "target.tokenizer"):
        assert (tmp_path / "tuned" / name).read_bytes() == (run_copy / name).read_bytes()
    config = config_of(tmp_path / "tuned")
    assert config["init_from"] == str(run_copy)
    assert config["model"] == config_of(run_copy)["model"] and config["training"]["learning_rate"] == 3e-4
    shutil.rmtree(run_copy)  # not needed to resume
    assert train({}, tmp_path / "tuned", resume=True).progress.ended


def test_init_from_is_stored_before_the_first_checkpoint(
    run_copy: Path, tmp_path: Path, data: dict[str, list[str]], monkeypatch
):
    weights = load_translator(run_copy).checkpoint.tensors("weights")
    equal: list[bool] = []

    def interrupted(self: Trainer, *rest: Any) -> Any:
        equal.append(
            all(torch.equal(value, weights[name]) for name, value in self.model.state_dict().items())
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupted)
    given = {"data": {**data, "held_out": 5}}
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train(
                {} if resume else given,
                tmp_path / "tuned",
                resume=resume,
                init_from=None if resume else run_copy,
            )
    assert equal == [True, True]


def test_invalid_init_from_raises(run_copy: Path, tmp_path: Path, data: dict[str, list[str]]):
    given = {"data": data}
    with pytest.raises(DataError, match="nowhere"):
        train(given, tmp_path / "new", init_from=tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=facts("model.name", "'luong'", "'transformer'")):
        train({**given, "model": {"name": "transformer"}}, tmp_path / "new", init_from=run_copy)
    with pytest.raises(ArgumentError, match=facts("data.tokenizer", "'word'", "'bpe'")):
        train({"data": {**data, "tokenizer": "bpe"}}, tmp_path / "new", init_from=run_copy)
    shutil.rmtree(last(run_copy).path)
    for path in run_copy.glob("step-*"):
        shutil.rmtree(path)
    for pointer in ("best", "latest"):
        (run_copy / pointer).unlink()
    with pytest.raises(DataError, match="checkpoint"):
        train(given, tmp_path / "new", init_from=run_copy)


def test_batches_on_cuda_are_padded_to_the_shapes_of_cuda_graphs(
    run_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The random numbers of dropout depend on the shapes of a batch."""
    monkeypatch.setenv("REGARD_FAST", "1")  # otherwise no step is captured
    folder, lengths = shutil.copytree(run_copy, tmp_path / "captured"), []
    assert 'capture = "auto"' in (folder / "config.toml").read_text()
    for device in ("cpu", "cuda"):
        task = build_task(TranslationTask, folder, device)
        batch, _ = task.prepare(task.largest_batch(), "cpu")
        lengths.append(batch.source.shape[1])
    assert lengths[0] % 8 and lengths[1] % 8 == 0


def test_a_run_with_batches_of_sentences_is_resumed_with_the_same_bits(
    tmp_path: Path, data: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
):
    given = settings(data, training={"steps": 20, "save_every": 1, "batch_size": 7})
    del given["training"]["batch_tokens"]
    train(given, tmp_path / "whole")
    config = config_of(tmp_path / "whole")["training"]
    assert config["batch_size"] == 7 and "batch_tokens" not in config
    task = build_task(TranslationTask, tmp_path / "whole")
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


@pytest.mark.parametrize("fusion", ["shallow", "deep"])
def test_a_killed_lstmn_ends_with_the_same_bits_and_translates(
    tmp_path: Path, data: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, fusion: str
):
    model = {"name": "lstmn", "fusion": fusion, "width": 6, "dropout": 0.1}
    training = {"steps": 4, "save_every": 1, "evaluate_every": 4, "batch_tokens": 150}
    given = settings(data, model=model, training=training, evaluation={"sentences": 1})
    del given["model"]["feeding"]
    train(given, tmp_path / "whole")
    loss, losses = TranslationTask.loss, []

    def killed_at_the_third(self: TranslationTask, batch: Any) -> Any:
        losses.append(batch)
        if len(losses) == 3:
            raise MemoryError
        return loss(self, batch)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(TranslationTask, "loss", killed_at_the_third)
        train(given, tmp_path / "killed")
    assert last(tmp_path / "killed").step == 2
    train({}, tmp_path / "killed", resume=True)
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    (result,) = load_translator(tmp_path / "whole").translate(["고양이"], look="*")
    assert {"encoder.0.self", "decoder.0.self", "decoder.cross"} == set(result.attention)
    site = result.seen().site("decoder.0.self")
    assert len(site.rows) == len(site.columns)
