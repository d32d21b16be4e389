"""The captioning task: data, loss, evaluation, resuming, loading, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn import functional

import regard
from regard.cli.usage_errors import setting_option
from regard.data import shapes as scenes
from regard.data.batch import EOS, PAD
from regard.data.images import image_file
from regard.data.shapes import shapes
from regard.errors import ArgumentError, DataError, RegardError
from regard.evaluation.region_erasure import hide_cells
from regard.models.captioner import doubly_stochastic_penalty
from regard.runs.prepare_run import Machine
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.runs.train_run import train_run
from regard.tasks.captioning import (
    Caption,
    CaptioningRun,
    CaptioningTask,
    settings,
    task,
)
from regard.tasks.captioning.settings import CaptioningSettings, ImageData
from regard.tasks.captioning.task import FeatureCache, read_caption_split, read_shapes
from regard.tasks.task_table import find_task
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes
from regard.training.loop import Trainer
from regard.training.settings import build, merged
from tests.facts import facts

TINY = {"image_encoder": "convolutional", "encoder_options": {"features": 8, "channels": 4, "stages": 3}}
TITLES = ("attention", "erasure, nats", "integrated gradients")
HARD = {"select": "hard"}
REINFORCE = {"estimator": {"samples": 2, "entropy": 0.01, "expected": 0.5}}


def test_sizes_in_the_settings_equal_those_of_the_images():
    assert settings.MAX_SIZE == image_file.MAX_SIZE
    assert settings.PIXELS == scenes.PIXELS


def small(data: dict[str, Any] | None = None, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that trains in a second."""
    usual = {
        "data": {"built_in": "shapes", "pictures": 20, "max_length": 12} if data is None else data,
        "model": {**TINY, "width": 8, "embedding": 8},
        "training": {"steps": 2, "batch_size": 8, "warmup_steps": 1, "evaluate_every": 2},
        "evaluation": {"images": 2, "samples": 1},
    }
    return merged(usual, sections)


def train(settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    """Train on the CPU without output."""
    quiet = {"machine": Machine("cpu", 1), "console": Console(quiet=True)}
    return train_run(CaptioningTask, settings, folder, **{**quiet, **options})


def made(settings: dict[str, Any], folder: Path, processes: Processes | None = None) -> CaptioningTask:
    """Return the task with an untrained model."""
    folder.mkdir(exist_ok=True)
    checked = build(CaptioningSettings, settings, "the settings")
    corpus = CaptioningTask.encode_data(CaptioningTask.read_data(checked), checked, folder)
    torch.manual_seed(0)
    model = CaptioningTask.build_model(checked.model, corpus.sizes)
    return CaptioningTask(model, corpus, checked, processes or Processes())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a caption file of two splits, and its images."""
    folder = tmp_path_factory.mktemp("captions")
    draw = numpy.random.default_rng(0)
    lines = ["image\tsplit\tcaption1\tcaption2"]
    for number in range(8):
        Image.fromarray(draw.integers(0, 256, (20, 24, 3), numpy.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png\t{'dev' if number > 5 else 'train'}\tA dog {number} .\tThe Dog runs")
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "soft"
    train(small(training={"doubly_stochastic": 1.0}), run)
    return run


def of_files(folder: Path, **data: Any) -> dict[str, Any]:
    names = {"train_file": [str(folder / "captions.tsv")], "image_size": 16, **data}
    return small(names, model={"encoder_options": {"stages": 2}})


def test_task_is_in_the_table():
    assert find_task("captioning") is CaptioningTask and CaptioningTask.best == "cider"


def test_split_names_lowercase_and_every_caption_is_a_sample(files: Path, tmp_path: Path):
    task = made(of_files(files, workers=0), tmp_path)
    assert len(task.corpus.split.train) == 6 and len(task.corpus.split.valid) == 2
    assert sum(len(batch) for batch in task.batches(0)) == 12
    assert not task.corpus.tokenizer.unknown("the DOG runs")


@pytest.mark.parametrize(
    ("model", "training"),
    [({}, {"doubly_stochastic": 1.0, "word_noise": 0.5}), (HARD, REINFORCE), ({"select": "none"}, {})],
)
def test_killed_run_resumes_with_the_same_bits(tmp_path: Path, files: Path, model, training, monkeypatch):
    data = {"crop_margin": 2, "flip": True}
    chosen = merged(of_files(files, **data), {"model": {**model, "dropout": 0.2}, "training": training})
    chosen["training"] |= {"steps": 4, "save_every": 2, "evaluate_every": 4}
    train(chosen, tmp_path / "whole")
    original = Trainer._step

    def killed(self: Trainer, requested: Any) -> Any:
        if self.progress.step == 3:
            raise KeyboardInterrupt
        return original(self, requested)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_step", killed)
        train(chosen, tmp_path / "part")
    train({"data": {}}, tmp_path / "part", resume=True)
    for name in ("weights", "optimizer"):
        whole, part = (Checkpoints(tmp_path / run).latest().tensors(name) for run in ("whole", "part"))
        assert whole.keys() == part.keys() and all(torch.equal(whole[key], part[key]) for key in whole)


def test_loss_adds_the_doubly_stochastic_penalty(tmp_path: Path):
    task = made(small(training={"doubly_stochastic": 0.5}), tmp_path)
    task.model.eval()
    batch = next(task.batches(0))
    loss = task.loss(batch)
    logits, weights = task.model.logits_and_weights(batch)
    plain = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=PAD)
    penalty = doubly_stochastic_penalty(weights, batch.target_lengths).sum()
    torch.testing.assert_close(loss.shown["loss"], plain.detach() * task.count(batch))
    torch.testing.assert_close(loss.total, plain * task.count(batch) + 0.5 * penalty)
    torch.testing.assert_close(task.loss(batch.padded_to(11, 0, 14)).total, loss.total)


@pytest.mark.parametrize("sections", [{}, {"model": HARD, "training": REINFORCE}])
def test_word_noise_changes_the_words_read_in_training_only(tmp_path: Path, monkeypatch, sections):
    task = made(merged(small(training={"word_noise": 0.9}), sections), tmp_path)
    batch, read = next(iter(task.batches(0))), []
    step = task.model.step
    monkeypatch.setattr(
        task.model, "step", lambda state, tokens, encoded: _kept(read, step, state, tokens, encoded)
    )
    task.loss(batch)
    task.model.eval()
    task.loss(batch)
    noised, plain = read
    assert torch.equal(plain, batch.inputs) and not torch.equal(noised[: len(plain)], plain)
    assert torch.equal(noised < 4, plain.repeat_interleave(len(noised) // len(plain), 0) < 4)


def _kept(read: list[torch.Tensor], step: Any, state: Any, tokens: torch.Tensor, encoded: Any) -> Any:
    read.append(tokens)
    return step(state, tokens, encoded)


def test_hard_loss_logs_the_bound_and_encodes_each_image_once(tmp_path: Path, monkeypatch):
    task = made(small(model=HARD, training=REINFORCE), tmp_path)
    rows = []
    original = task.model.image_encoder.forward
    monkeypatch.setattr(
        task.model.image_encoder, "forward", lambda images: rows.append(len(images)) or original(images)
    )
    loss = task.loss(next(task.batches(0)))
    loss.total.backward()
    assert {"loss", "bound", "baseline", "entropy"} == set(loss.shown) and rows == [8]
    assert loss.shown["bound"] >= -loss.shown["loss"]
    assert all(each.grad is not None for each in task.model.score.parameters())


def test_features_of_a_frozen_encoder_are_computed_once(tmp_path: Path):
    task = made(small(), tmp_path)
    task.model.image_encoder.freeze()
    task = CaptioningTask(task.model, task.corpus, task.settings, Processes())
    batch = next(task.batches(0))
    ready = task.prepare(batch, "cpu")
    assert batch.source.dim() == 1 and ready.image.shape == (8, 64, 8)
    pixels = task.corpus.split.train.pixels
    torch.testing.assert_close(ready.image, task.model.image_encoder(pixels[batch.source]))
    assert isinstance(task._train_store, FeatureCache)
    evaluation, valid = task.evaluate(lambda: False), task.corpus.split.valid
    printed = "\n".join(map(str, evaluation.shown))
    assert evaluation.scores["loss"] > 0 and "pointing" in printed
    # One of the two images of the evaluation is printed, with its reference.
    assert valid.names[1] in printed and valid.captions[1][0] in printed


def test_processes_share_the_batches_of_an_epoch(tmp_path: Path):
    alone = made(small(), tmp_path / "run")
    ranks = [made(small(), tmp_path / "run", Processes(rank, 2)) for rank in (0, 1)]
    parts = [[batch.labels.tolist() for batch in rank.batches(0)] for rank in ranks]
    assert len(parts[0]) == len(parts[1]) < len(list(alone.batches(0)))
    assert not any(each in parts[1] for each in parts[0])


def test_evaluation_of_shapes_has_exact_and_pointing(trained: Path):
    scores = CaptioningTask.evaluate_run(ChosenRun(trained, device="cpu"), _options(pictures=3)).to_dict()
    assert {"cider", "bleu1", "bleu4", "bleu", "exact", "pointing", "pointing_chance"} <= scores.keys()
    assert scores["images"] == 3 and scores["map"] == [8, 8] and "bp:no" in scores["signatures"]["bleu1"]


@pytest.mark.parametrize("options", [{}, {"max_length": 1}, {"max_length": 1, "greedy": True}])
def test_evaluation_searches_as_requested(
    trained: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    texts, scored = list[str](), task.caption_scores

    def caption_scores(captions: list[str], references: Any) -> Any:
        texts.extend(captions)
        return scored(captions, references)

    monkeypatch.setattr(task, "caption_scores", caption_scores)
    CaptioningTask.evaluate_run(ChosenRun(trained, device="cpu"), _options(pictures=3, **options))
    assert len(texts) == 3 and (max(len(text.split()) for text in texts) <= 1) == bool(options)


def test_evaluation_of_a_file_and_faithfulness(files: Path, tmp_path: Path):
    train(of_files(files), tmp_path / "run")
    options = _options(test_file=[str(files / "captions.tsv")], split="dev", faithfulness=True)
    report = CaptioningTask.evaluate_run(ChosenRun(tmp_path / "run", device="cpu"), options)
    assert report.values["images"] == 2 and "exact" not in report.values and "faithfulness" in report.values
    assert "split dev" in report.data
    lines = [{"image": f"{number}.png", "captions": ["a dog"]} for number in range(3)]
    path = tmp_path / "test.captions"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = _options(jsonl=[str(path)], images=str(files))
    assert (
        CaptioningTask.evaluate_run(ChosenRun(tmp_path / "run", device="cpu"), options).values["images"] == 3
    )


def test_columns_of_captions_with_other_names(files: Path, tmp_path: Path):
    train(of_files(files), tmp_path / "run")
    chosen, path = ChosenRun(tmp_path / "run", device="cpu"), tmp_path / "test.csv"
    path.write_text("id,file,text\n7,0.png,a dog\n8,1.png,a cat\n", encoding="utf-8")
    options = _options(tsv=[str(path)], images=str(files), columns="file,text")
    assert CaptioningTask.evaluate_run(chosen, options).values["images"] == 2
    with pytest.raises(DataError, match=facts("test.csv, line 1", "header", "columns")):
        CaptioningTask.evaluate_run(chosen, options | {"columns": None})
    for columns in ("file", "1,2"):
        with pytest.raises(ArgumentError, match="--columns"):
            CaptioningTask.evaluate_run(chosen, options | {"columns": columns})
    with pytest.raises(ArgumentError, match="--columns"):
        CaptioningTask.evaluate_run(chosen, _options(columns="file,text"))


def test_test_file_of_another_format_is_detected_and_validation_images_are_named(files: Path, tmp_path: Path):
    train(of_files(files, format="tsv"), tmp_path / "run")
    chosen = ChosenRun(tmp_path / "run", device="cpu")
    other, same = tmp_path / "test.jsonl", tmp_path / "test.captions"
    other.write_text('{"image": "0.png", "captions": ["a dog"]}\n')
    same.write_text("0.png\ta dog\n1.png\ta cat\n")
    for path, count in ((other, 1), (same, 2)):  # .captions has no format of its own: the format of the run
        options = _options(test_file=[str(path)], images=str(files))
        assert CaptioningTask.evaluate_run(chosen, options).values["images"] == count
    report = CaptioningTask.evaluate_run(chosen, _options())
    assert report.values["images"] == 2 and "captions.tsv, validation images" in report.data


def test_evaluation_of_hard_attention_by_expectation_differs_from_argmax(tmp_path: Path):
    train(small(model=HARD, training=REINFORCE), tmp_path / "run")
    chosen = ChosenRun(tmp_path / "run", device="cpu")
    found = [
        CaptioningTask.evaluate_run(chosen, _options(pictures=20, read=read)).to_dict()
        for read in (None, "argmax", "expectation")
    ]
    assert found[0] == found[1] and found[0] != found[2]


def test_reading_is_only_chosen_for_hard_attention(trained: Path):
    with pytest.raises(ArgumentError, match=facts("--read", "hard")):
        CaptioningTask.evaluate_run(ChosenRun(trained, device="cpu"), _options(read="sample"))
    with pytest.raises(ArgumentError, match=facts("ImageCaptioner()", "hard")):
        regard.load(trained, device="cpu", read="sample")


def _options(**changes: Any) -> dict[str, Any]:
    usual = {
        "test_file": None,
        "tsv": None,
        "jsonl": None,
        "columns": None,
        "images": None,
        "split": None,
        "pictures": 2,
        "page": None,
        "read": None,
    }
    usual |= {"faithfulness": False, "beam_size": None, "length_penalty": None, "greedy": True}
    return {**usual, "max_length": 5, **changes}


def test_load_captions_paths_and_arrays(trained: Path, tmp_path: Path):
    run = regard.load(trained, device="cpu", max_length=6)
    assert isinstance(run, CaptioningRun) and run.map_size == (8, 8)
    pixels = shapes("test", 2).images([0, 1])
    Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    by_path = run.caption(tmp_path / "a.png", beam_size=1)
    assert by_path.token_scores == run.caption(pixels[0], beam_size=1).token_scores
    run.model.output.bias.data[EOS] += 3  # so that several beams end before the maximum length
    several = run.caption([pixels[0], pixels[1].permute(1, 2, 0).numpy()], beam_size=3, n_best=2)
    assert len(several) == 2 and len(several[0].others) == 1
    assert several[0].ranking >= several[0].others[0].ranking
    assert run.caption(pixels[0], look=None).weights is None
    with pytest.raises(ArgumentError, match="float"):
        run.caption(numpy.zeros((4, 4, 3)))


def test_caption_has_the_attention_of_each_word(trained: Path, tmp_path: Path):
    run = regard.load(trained, device="cpu", max_length=4)
    hypothesis = run.caption(shapes("test", 1).images([0])[0], beam_size=1)
    words = hypothesis.words or pytest.fail("no words")
    assert hypothesis.weights.shape == (len(words), 8, 8)
    numpy.testing.assert_allclose(hypothesis.weights.sum((1, 2)), 1, rtol=1e-5)
    assert hypothesis.seen().sites[0].weights.shape == (1, len(words), 64)
    assert hypothesis.to_dict()["map"] == [8, 8] and "<" in hypothesis._repr_html_()
    scores = run.word_scores(torch.from_numpy(hypothesis.pixels).permute(2, 0, 1)[None], hypothesis)
    numpy.testing.assert_allclose(scores[0], hypothesis.word_scores, rtol=1e-4)
    hypothesis.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size
    with pytest.raises(ArgumentError, match=facts(".html", ".gif")):
        hypothesis.save(tmp_path / "x.xyz")


def test_view_of_an_image(trained: Path, tmp_path: Path):
    Image.fromarray(numpy.zeros((30, 40, 3), numpy.uint8)).save(tmp_path / "a.png")
    options = {"image": str(tmp_path / "a.png"), "beam_size": None, "length_penalty": None}
    options |= {"greedy": True, "max_length": 3}
    view = CaptioningTask.view_run(ChosenRun(trained, device="cpu"), options, ViewOptions())
    assert view.picture(ViewOptions()).frames and "log-probability" in view.seen.notes[-1]
    for name, titles in (("erasure", TITLES[:2]), ("gradient", TITLES)):
        drawn = view.picture(ViewOptions(name)).svg()
        assert [title in drawn for title in TITLES] == [title in titles for title in TITLES]
    captioner: CaptioningRun = regard.load(trained, device="cpu")
    caption = captioner.caption(options["image"])
    assert isinstance(caption, Caption) and caption.pixels is not None
    costs = captioner.attribute(caption)["erasure"].weights
    image = hide_cells(caption.image_attention(), [3])
    both = torch.from_numpy(numpy.stack([caption.pixels, image])).permute(0, 3, 1, 2)
    before, after = captioner.word_scores(both, caption).double().numpy()
    numpy.testing.assert_allclose(costs.reshape(len(costs), -1)[:, 3], (before - after).clip(0), atol=1e-5)
    view.write_page(tmp_path / "x.html")
    assert b"<html" in (tmp_path / "x.html").read_bytes()


def test_caption_without_attention():
    caption = Caption("a<b>.jpg", "a <dog>", (4, 3), (-1.0, -0.5), ("a", "<dog>"), (-1.0, -0.5))
    assert "&lt;dog" in caption._repr_html_() and not caption.seen().sites
    with pytest.raises(ArgumentError):
        caption.image_attention()


def test_held_out_images(files: Path):
    data = ImageData(train_file=[str(files / "captions.tsv")], held_out=3, image_size=16)
    split = read_caption_split(data)
    assert split.is_held_out and len(split.train) == 5 and len(split.valid) == 3
    assert not set(split.train.names) & set(split.valid.names)
    with pytest.raises(DataError, match="held"):
        read_caption_split(ImageData(train_file=data.train_file, held_out=8))


def test_fingerprint_depends_on_pixels(files: Path, tmp_path: Path):
    data = ImageData(train_file=[str(files / "captions.tsv")], image_size=16)
    before = read_caption_split(data).fingerprints
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    Image.fromarray(numpy.zeros((9, 9, 3), numpy.uint8)).save(tmp_path / "0.png")
    after = read_caption_split(
        ImageData(train_file=[str(tmp_path / "captions.tsv")], image_size=16)
    ).fingerprints
    assert before["train"] != after["train"] and before["valid"] == after["valid"]


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ("missing", ("3.png", "line 5")),
        ("damaged", ("3.png", "line 5")),
        ("empty", ("line 2",)),
        ("no words", ("captions.tsv",)),
    ],
)
def test_bad_data_names_the_file(files: Path, tmp_path: Path, change: str, facts: tuple[str, ...]):
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    captions = tmp_path / "captions.tsv"
    if change == "missing":
        (tmp_path / "3.png").unlink()
    elif change == "damaged":
        (tmp_path / "3.png").write_bytes(b"no image")
    elif change == "empty":
        captions.write_text(captions.read_text().replace("A dog 0 .", ". !"))
    else:
        captions.write_text("")
    with pytest.raises(RegardError) as caught:
        read_caption_split(ImageData(train_file=[str(captions)], image_size=16))
    assert all(fact in str(caught.value) for fact in facts), caught.value
    if change in ("missing", "damaged", "empty"):
        assert f"data.{change}=skip" in caught.value.message.spelled(setting_option)
        assert ("--images" in caught.value.message.spelled(setting_option)) == (change == "missing")
        skipping = ImageData(train_file=[str(captions)], image_size=16, **{change: "skip"})
        left = read_caption_split(skipping)
        assert sum(map(len, left.train.captions)) < 12 and len(left.notes) == 3
        assert "few images" in left.notes[-1] and "Flickr8k" in left.notes[-1]


def test_images_without_a_caption_are_counted(files: Path, tmp_path: Path):
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "extra.jpg").write_bytes(b"")
    split = read_caption_split(ImageData(train_file=[str(tmp_path / "captions.tsv")], image_size=16))
    assert "extra.jpg" in split.notes[0]


@pytest.mark.parametrize(
    ("sections", "fact"),
    [
        ({"data": {"flip": True}}, "flip"),
        ({"data": {"image_size": 32}}, "image_size"),
        ({"data": {"built_in": None}}, "train_file"),
        ({"model": {"encoder_options": {"stages": 6}}}, "1 x 1"),
        ({"model": {"select": "none"}, "training": {"doubly_stochastic": 1.0}}, "doubly_stochastic"),
        ({"model": HARD}, "estimator"),
        ({"training": {"word_noise": 1.0}}, "word_noise"),
        ({"model": {"name": "other"}}, "captioner"),
        ({"model": {"widht": 3}}, "did you mean 'width'"),
        ({"data": {"images": ["nowhere"], "built_in": None, "train_file": ["a.tsv"]}}, "nowhere"),
    ],
)
def test_bad_settings_name_the_setting(tmp_path: Path, sections: dict[str, Any], fact: str):
    settings = small()
    for name, values in sections.items():
        settings[name] = {
            key: value for key, value in {**settings[name], **values}.items() if value is not None
        }
    if "train_file" in settings["data"]:
        settings["data"].pop("pictures")
    with pytest.raises(RegardError) as caught:
        train(settings, tmp_path / "run")
    assert fact in str(caught.value)


def test_unknown_split_of_shapes():
    with pytest.raises(RegardError, match="held-out"):
        read_shapes("dev", 1)


def test_result_is_json(trained: Path):
    run = regard.load(trained, device="cpu", max_length=3)
    record = run.caption(shapes("test", 1).images([0])[0]).to_dict()
    assert json.loads(json.dumps(record)) == record


def test_features_of_all_images_must_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counts = list[int]()
    monkeypatch.setattr(task, "features_fit", lambda encoder, images, size: counts.append(images))
    split = made(small(), tmp_path / "run").corpus.split
    assert counts == [len(split.train) + len(split.valid)]
