"""The classification task: settings, data, loss, evaluation, resuming and loading."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.nn import functional

import regard
from regard.data.batch import NO_LABEL
from regard.data.labelled_text import labelled_from_lists, read_labelled
from regard.errors import ArgumentError, DataError, RegardError, UnknownName
from regard.runs.prepare_run import Machine
from regard.runs.run_facts import facts_of
from regard.runs.train_run import estimate
from regard.tasks.classification import ClassificationRun, ClassificationSettings, ClassificationTask
from regard.tasks.classification.task import (
    hold_out_texts,
    read_labelled_split,
)
from regard.tasks.task_table import find_task
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes
from regard.training.loop import Trainer
from regard.training.settings import build, merged
from regard.training.task import Stopped
from tests.facts import facts
from tests.tasks.small_classification import reviews, small, train, written


def make_task(settings: dict[str, Any], folder: Path, processes: Processes | None = None) -> Any:
    folder.mkdir(exist_ok=True)
    chosen = build(ClassificationSettings, settings, "here")
    corpus = ClassificationTask.encode_data(read_labelled_split(chosen.data), chosen, folder)
    torch.manual_seed(0)
    model = ClassificationTask.build_model(chosen.model, corpus.sizes)
    return ClassificationTask(model, corpus, chosen, processes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classification")


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, Any]:
    return {"train_file": [written(folder / "train.tsv", reviews(240))]}


@pytest.fixture(scope="module")
def trained(folder: Path, data: dict[str, Any]) -> Path:
    """A run that has learned the task. Tests must not change it."""
    train(small(data, training={"keep": 3}), folder / "run")
    return folder / "run"


def logged(run: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [each for each in records if each["kind"] == kind]


def test_loss_falls_and_the_run_classifies(trained: Path):
    losses = [each["loss"] for each in logged(trained, "training")]
    last = logged(trained, "evaluation")[-1]
    assert losses[-1] < 0.3 < 0.5 < losses[0]
    assert last["accuracy"] > 0.9 and {"loss", "macro_f1"} < set(last)
    classifier = regard.load(trained, device="cpu")
    assert isinstance(classifier, ClassificationRun)
    good, bad = classifier.classify(["a good film", "the long awful story"])
    assert (good.label, bad.label) == ("pos", "neg")
    words = dict(zip(bad.texts[0].words, bad.texts[0].weights, strict=True))
    assert max(words, key=words.get) == "awful"
    assert classifier.settings.model.name == "lstm" and classifier.folder == trained
    assert "step=" in repr(classifier) and classifier.notes == ()


def test_stored_run_gives_the_accuracy_of_training(trained: Path):
    classifier = regard.load(trained, device="cpu", checkpoint="latest")
    settings = classifier.settings
    report = classifier.evaluate(read_labelled_split(settings.data).valid)
    assert report.accuracy == pytest.approx(logged(trained, "evaluation")[-1]["accuracy"])
    assert classifier.longest == settings.data.max_length + 1
    assert regard.load(trained, device="cpu", longest=5).longest == 5
    with pytest.raises(UnknownName, match="longest"):
        regard.load(trained, device="cpu", longst=5)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "gru", "width": 6, "pooling": "mean"},
        {"name": "lstmn", "width": 6},
        {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1, "position": "rotary"},
    ],
)
def test_killed_run_resumes_with_the_same_bits(tmp_path: Path, data, model, monkeypatch: pytest.MonkeyPatch):
    chosen = small(data, training={"steps": 8, "evaluate_every": 4, "save_every": 3, "label_smoothing": 0.1})
    chosen["model"] = {**model, "dropout": 0.2, "word_dropout": 0.1}
    train(chosen, tmp_path / "whole")
    original = Trainer._step

    def killed(self: Trainer, requested: Any) -> Any:
        if self.progress.step == 7:
            raise KeyboardInterrupt
        return original(self, requested)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_step", killed)
        train(chosen, tmp_path / "part")
    assert Checkpoints(tmp_path / "part").latest().step < 7
    train({"data": {}}, tmp_path / "part", resume=True)
    for name in ("weights", "optimizer"):
        whole, part = (Checkpoints(tmp_path / run).latest().tensors(name) for run in ("whole", "part"))
        assert whole.keys() == part.keys() and all(torch.equal(whole[key], part[key]) for key in whole)


def test_pairs_of_texts_in_json_lines(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"gold": number % 3, "a": f"one {number}", "b": ("no", "yes", "so")[number % 3]}
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train_file": [str(path)], "label": "gold", "text": "a", "second": "b"}
    train(small(data, training={"class_weights": "balanced", "steps": 20}), tmp_path / "run")
    classifier = regard.load(tmp_path / "run", device="cpu")
    assert classifier.model.pairs and classifier.settings.model.options["pairs"] is True
    assert classifier.labels.names == ("0", "1", "2")
    results = classifier.classify([("one 77", "no"), ("one 78", "yes"), ("one 79", "so")])
    assert [each.label for each in results] == ["0", "1", "2"]


def test_loss_is_the_weighted_and_smoothed_cross_entropy(tmp_path: Path, data):
    settings = small(data, training={"class_weights": "balanced", "label_smoothing": 0.1})
    task = make_task(settings, tmp_path)
    task.model.eval()
    batch = next(task.batches(0))
    loss, logits = task.loss(batch), task.model(batch)
    counts = torch.tensor([54.0, 162.0])  # of the 240 texts, 24 are held out: 6 neg and 18 pos
    weights = counts.sum() / (2 * counts)
    expected = functional.cross_entropy(
        logits, batch.labels, weight=weights, label_smoothing=0.1, reduction="sum"
    )
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    plain = functional.cross_entropy(logits, batch.labels, reduction="sum")
    assert loss.shown["loss"].item() == pytest.approx(plain.item(), rel=1e-5)
    assert not loss.shown["loss"].requires_grad and task.count(batch) == len(batch) == 17


def test_padding_to_few_shapes_does_not_change_the_loss(tmp_path: Path, data):
    plain = make_task(small(data), tmp_path)
    compiled = make_task(small(data, training={"compile": True}), tmp_path)
    compiled.model.load_state_dict(plain.model.state_dict())
    plain.model.eval(), compiled.model.eval()
    shapes = set()
    for batch in compiled.batches(0):
        ready = compiled.prepare(batch, "cpu")
        shapes.add(tuple(ready.first.shape))
        assert ready.labels[len(batch) :].tolist() == [NO_LABEL] * (17 - len(batch))
        assert compiled.loss(ready).total.item() == pytest.approx(plain.loss(batch).total.item(), rel=1e-4)
    assert shapes <= {(17, 8), (17, 16)}


def test_processes_together_see_the_batches_of_one(tmp_path: Path, data):
    whole = make_task(small(data, training={"batch_size": 10}), tmp_path)
    parts = [
        make_task(small(data, training={"batch_size": 5}), tmp_path, Processes(rank, 2)) for rank in range(2)
    ]
    together = [batch.index.tolist() for part in parts for batch in part.batches(1)]
    numbers = sorted(number for batch in together for number in batch)
    assert numbers == sorted(number for batch in whole.batches(1) for number in batch.index.tolist())


def test_evaluation_shows_the_confusion_matrix_and_samples(tmp_path: Path, data):
    task = make_task(small(data, evaluation={"samples": 2}), tmp_path)
    task.model.eval()
    result = task.evaluate(lambda: False)
    assert set(result.scores) == set(task.metrics) and task.metrics[task.best] == "higher"
    Console(file=(page := io.StringIO()), width=90).print(*result.shown)
    shown = page.getvalue()
    assert "true \\ predicted" in shown and shown.count("true class") == 2 and "macro F1" not in shown
    with pytest.raises(Stopped):
        task.evaluate(lambda: True)


def test_held_out_texts_are_stratified_disjoint_and_independent_of_order():
    rows = reviews(200)
    rows += rows[:30]  # equal texts must not be in both sets
    texts = labelled_from_lists([text for _, text in rows], [label for label, _ in rows])
    train_set, valid = hold_out_texts(texts)
    assert not set(train_set.firsts) & set(valid.firsts)
    assert valid.labels.count("neg") == 6 and valid.labels.count("pos") in (16, 17)
    random.Random(1).shuffle(rows)
    again = labelled_from_lists([text for _, text in rows], [label for label, _ in rows])
    assert set(hold_out_texts(again)[1].firsts) == set(valid.firsts)
    rare = labelled_from_lists(["one", "two", "three"], ["a", "a", "b"])
    assert set(hold_out_texts(rare)[0].labels) == {"a", "b"}
    with pytest.raises(DataError, match="held"):
        hold_out_texts(labelled_from_lists(["same", "same", "same"], ["a", "a", "b"]))
    with pytest.raises(DataError, match=facts("held", 3)):
        hold_out_texts(rare, 3)


def test_dry_run_writes_nothing(tmp_path: Path, data):
    chosen = {"data": data, "model": {"name": "gru", "width": 8}}
    result = estimate(ClassificationTask, chosen, tmp_path / "run", machine=Machine("cpu", 1))
    assert result.parameters > 1000 and result.seconds > 0 and result.steps >= 400
    assert result.settings.training.batch_size == 32
    assert "classes" in result.sizes and not (tmp_path / "run").exists()
    assert any("held" in str(note) for note in result.notes)
    table = next(str(note) for note in result.notes if "share" in str(note))
    assert "neg" in table and "25.0%" in table


def test_minutes_are_planned_from_the_speed(tmp_path: Path, data):
    settings = small(data)
    settings["training"] = {"minutes": 0.02}
    train(settings, tmp_path / "run")
    assert regard.load(tmp_path / "run", device="cpu").checkpoint.step >= 1


def test_facts_of_a_run(trained: Path):
    facts = facts_of(ClassificationTask, trained)
    assert (facts.task, facts.best_metric) == ("classification", "accuracy")
    assert re.findall(r"\d+", facts.sizes) == ["22", "2"] and not facts.notes
    assert facts.best["accuracy"] > 0.9


def test_init_from_starts_with_the_weights_and_labels(trained: Path, tmp_path: Path, data):
    extra = written(tmp_path / "more.tsv", reviews(60, seed=3))
    settings = {"data": {"train_file": [extra]}, "training": {"steps": 2}}
    train(settings, tmp_path / "run", init_from=trained)
    for name in ClassificationTask.files:
        assert (tmp_path / "run" / name).read_bytes() == (trained / name).read_bytes()
    before, after = (regard.load(run, device="cpu").model for run in (trained, tmp_path / "run"))
    pairs = zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    assert max((a - b).abs().max().item() for a, b in pairs) < 0.01
    with pytest.raises(ArgumentError, match=r"data\.lowercase"):
        train(merged(settings, {"data": {"lowercase": True}}), tmp_path / "other", init_from=trained)
    unknown = written(tmp_path / "third.tsv", [*reviews(20), ("neutral", "a film")])
    with pytest.raises(DataError, match=facts("third.tsv", "line 21", "'neutral'")):
        train(merged(settings, {"data": {"train_file": [unknown]}}), tmp_path / "third", init_from=trained)


def test_changed_labels_are_detected(trained: Path, tmp_path: Path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    path = run / "labels.json"
    path.write_text('{"labels": ["pos", "neg"]}')
    with pytest.raises(DataError, match=facts(path.name)):
        regard.load(run, device="cpu")
    (run / "manifest.json").unlink()
    path.write_text('{"labels": ["pos"]}')
    with pytest.raises(DataError, match=facts(path.name)):
        regard.load(run, device="cpu")


def test_lowercase_and_ignored_labels(tmp_path: Path):
    rows = [(label, text.upper()) for label, text in reviews(40)] + [("-", "no agreement")]
    path = written(tmp_path / "a.tsv", rows)
    task = make_task(small({"train_file": [path], "lowercase": True, "ignore": ["-"]}), tmp_path / "run")
    assert task.corpus.tokenizer.encode("GOOD") == task.corpus.tokenizer.encode("good") != [1]
    assert list(task.corpus.labels) == ["neg", "pos"]
    assert any("data.ignore" in str(note) for note in task.corpus.split.notes)


def test_a_tokenizer_can_be_trained_on_fewer_texts(tmp_path: Path):
    chosen = small({"train_file": [written(tmp_path / "a.tsv", reviews(40))]})
    settings = build(ClassificationSettings, chosen, "")
    sizes = []
    for lines in (2, None):
        folder = tmp_path / str(lines)
        folder.mkdir()
        data = read_labelled_split(settings.data)
        corpus = ClassificationTask.encode_data(data, settings, folder, lines=lines)
        sizes.append(corpus.tokenizer.size)
    assert sizes[0] < sizes[1]


def test_long_texts_are_truncated_and_reported(tmp_path: Path):
    path = written(tmp_path / "a.tsv", [*reviews(20), ("pos", "long " * 50)])
    task = make_task(small({"train_file": [path], "valid_file": [path], "max_length": 12}), tmp_path / "run")
    assert [note.split()[:2] for note in task.corpus.notes] == [["1", "training"], ["1", "validation"]]
    assert max(batch.first.shape[1] for batch in task.batches(0)) == 13
    assert len(task.largest_batch()) == 17


def test_resumed_run_detects_changed_data(trained: Path, tmp_path: Path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    other = written(tmp_path / "other.tsv", reviews(30, seed=9))
    with pytest.raises(RegardError, match="train"):
        train({"data": {"train_file": [other]}}, run, resume=True)
    assert read_labelled(other).pairs is False


def test_task_is_in_the_table():
    assert find_task("classification") is ClassificationTask
