"""Hard attention in the runs of every task: training, exact resume, loading, averaging, and bad settings."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import regard
from regard.cli import main
from regard.data.batch import Batch, LabelledBatch, TextBatch
from regard.errors import ArgumentError, RegardError
from regard.runs.prepare_run import Machine
from regard.runs.run_folder import config_of
from regard.runs.run_task import RunTask
from regard.runs.train_run import train_run
from regard.tasks.task_table import find_task
from regard.tasks.translation.task import load_tokenizers
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.estimators import hard_selections
from regard.training.settings import merged
from tests.tasks.built_task import build_task
from tests.training.toys import bits, last, records

WORDS = ("one", "two", "three", "four", "five", "six")
REINFORCE = {"baseline": "learned", "samples": 2, "entropy": 0.01, "expected": 0.3}
SMALL: dict[str, dict[str, Any]] = {"width": 8, "heads": 2, "inner": 8, "layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "translation": {"name": "bahdanau", "width": 8, "dropout": 0.0, "select": "hard"},
    "language": {"name": "transformer", **SMALL, "dropout": 0.0, "select": "hard"},
    "classification": {"name": "lstm", "width": 8, "dropout": 0.0, "select": "hard"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The [data] of each task: copied words, running text, and texts whose label is their first word."""
    folder, draw = tmp_path_factory.mktemp("hard"), random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(60)]
    for name in ("a.txt", "copy.txt"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "a.tsv").write_text("".join(f"{line.split()[0]}\t{line}\n" for line in lines))
    text, copy = str(folder / "a.txt"), str(folder / "copy.txt")
    return {
        "translation": {"source": [text], "target": [copy], "tokenizer": "word", "held_out": 5},
        "language": {"train_file": [text], "layout": "documents", "tokenizer": "word", "held_out": 5},
        "classification": {"train_file": [str(folder / "a.tsv")], "held_out": 10},
    }


def small(task: str, data: dict[str, dict[str, Any]], /, **sections: Any) -> dict[str, Any]:
    training = {"steps": 6, "batch_size": 10, "evaluate_every": 6, "log_every": 1, "save_every": 2}
    training |= {"learning_rate": 0.02, "warmup_steps": 1, "estimator": REINFORCE}
    evaluation = {"samples": 0} | ({"sentences": 1} if task == "translation" else {})
    usual = {"data": data[task], "model": MODELS[task], "training": training, "evaluation": evaluation}
    return merged({"task": task}, usual, sections)


def train(settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    quiet = {"machine": Machine("cpu", 1), "console": Console(quiet=True)}
    return train_run(find_task(settings["task"]), settings, folder, **{**quiet, **options})


def run(command: list[str]) -> int:
    """Run a command, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("translation", {}),
        ("translation", {"model": {"select": "straight-through"}}),
        ("language", {"training": {"estimator": {"baseline": "moving-average", "samples": 1}}}),
        ("classification", {"training": {"ema": 0.9, "class_weights": "balanced"}}),
    ],
)
def test_killed_run_resumes_with_the_same_bits(
    tmp_path: Path, data, task: str, changes, monkeypatch: pytest.MonkeyPatch
):
    settings = small(task, data, **changes)
    if settings["model"]["select"] != "hard":
        del settings["training"]["estimator"]
    train(settings, tmp_path / "whole")
    kind, calls = find_task(task), [0]
    loss: Callable[[Any, Any], Any] = kind.loss

    def deadly(self: RunTask, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise SystemExit("killed")
        return loss(self, batch)

    monkeypatch.setattr(kind, "loss", deadly)
    with pytest.raises(SystemExit):
        train(settings, tmp_path / "killed")
    assert train({"task": task}, tmp_path / "killed", resume=True).progress.ended
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    logs = [records(tmp_path / name, "training") for name in ("whole", "killed")]
    whole, killed = ([{"loss": each["loss"], **each.get("parts", {})} for each in log] for log in logs)
    assert whole == killed and all(math.isfinite(value) for each in whole for value in each.values())
    shown = {"loss", "bound", "baseline", "entropy"} if "estimator" in settings["training"] else {"loss"}
    assert set(whole[0]) == shown
    weights = last(tmp_path / "whole").tensors("weights")
    assert any(name.startswith("estimator.") for name in weights) == ("estimator" in settings["training"])


def test_run_is_loaded_averaged_and_continued_without_its_estimator(tmp_path: Path, data):
    folder = tmp_path / "run"
    train(small("translation", data, training={"keep": 3}), folder)
    saved = config_of(folder)["training"]["estimator"]
    assert saved["name"] == "reinforce" and saved["baseline"]["name"] == "learned"
    translator = regard.load(folder, device="cpu")
    assert translator.translate("one two").text == translator.translate("one two").text
    assert not hasattr(translator.model, "estimator")
    assert run(["average", str(folder), "--last", "2", "--output", str(tmp_path / "mean")]) == 0
    assert any(name.startswith("estimator.") for name in last(tmp_path / "mean").tensors("weights"))
    assert regard.load(tmp_path / "mean", device="cpu").translate("one two").text is not None
    plain = {"estimator": {"baseline": "moving-average"}, "steps": 1}
    softer = small("translation", data, training=plain)
    train(softer, tmp_path / "next", init_from=folder)
    names = set(last(tmp_path / "next").tensors("weights"))
    assert {name for name in names if name.startswith("estimator.")} == {"estimator.baseline.average"}
    other = {"task": "translation", "training": {"estimator": {"baseline": "moving-average"}}}
    for change in (False, True):
        with pytest.raises(RegardError, match=r"estimator\.baseline\.name"):
            train(other, folder, resume=True, change=change)


def test_loss_falls(tmp_path: Path, data):
    for select, estimator in (("hard", REINFORCE), ("straight-through", None)):
        settings = small("translation", data, model={"select": select, "width": 16})
        settings["training"] |= {"steps": 20, "evaluate_every": 20, "save_every": 20, "learning_rate": 0.05}
        settings["training"]["estimator"] = estimator
        train(settings, tmp_path / select)
        losses = [each["loss"] for each in records(tmp_path / select, "training")]
        assert losses[-1] < losses[0] - 0.5


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, ...]], None]:
    """Make Hard draw these keys: one for each query that is drawn for, in the order of the calls."""
    queue: list[int] = []
    original = Tensor.exponential_

    def exponential(race: Tensor, generator: object = None) -> Tensor:
        if not queue:
            return original(race, generator=generator)
        rows = torch.tensor([queue.pop(0) for _ in range(race[..., 0].numel())])
        return race.fill_(1e100).scatter_(-1, rows.view(*race.shape[:-1], 1), 1.0)

    monkeypatch.setattr(Tensor, "exponential_", exponential)

    def fill(keys: tuple[int, ...]) -> None:
        assert not queue
        queue.extend(keys)

    return fill


SELECTIONS = {
    "translation": [*itertools.product(range(3), repeat=2)],  # two source words and EOS, two steps
    "language": [(0, *keys) for keys in itertools.product((0, 1), (0, 1, 2))],  # each key and those before it
    "classification": [(0,), (1,)],  # two words
}


def build(task: str, data: dict[str, dict[str, Any]], folder: Path, **training: Any) -> tuple[RunTask, Any]:
    """Return a task in float64 and a batch of one example."""
    if task == "classification":
        training["class_weights"] = "balanced"
    model = {"heads": 1} if task == "language" else {}
    settings = small(task, data, training={"label_smoothing": 0.2, **training}, model=model)
    train(merged(settings, {"training": {"steps": 1, "evaluate_every": 1}}), folder / task)
    built = build_task(find_task(task), folder / task)
    built.model.double().train()
    with torch.no_grad():
        for name, weight in built.model.named_parameters():
            if "score." in name or "query.weight" in name or "output" in name:
                weight.mul_(5)  # so that the reward depends on what is drawn
    built.model.estimator.eval()
    return built, _example(task, built)


def _example(task: str, built: RunTask) -> Any:
    if task == "translation":
        return built.prepare(Batch.collate([[5, 6]], [[4]]), "cpu")
    if task == "language":
        return built.prepare(TextBatch.collate([[5, 6]]), "cpu")
    return built.prepare(LabelledBatch.collate([[5, 6]], labels=[1]), "cpu")


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.flatten() for each in gradients])


@pytest.mark.parametrize("task", SELECTIONS)
def test_mean_of_the_gradient_of_a_task_is_exact_and_the_baseline_lowers_its_variance(
    tmp_path: Path, data, task: str, draw: Callable[[tuple[int, ...]], None]
):
    """E[d total] = d sum_s p(s) loss(y | s), over all selections s of one example, with label smoothing."""
    built, batch = build(task, data, tmp_path, estimator={"samples": 1, "expected": 0.0, "baseline": "none"})
    parameters, estimator = list(built.model.parameters()), built.model.estimator
    draw(SELECTIONS[task][0])
    shown = built.loss(batch).shown
    assert shown["loss"].item() == pytest.approx(-shown["bound"].item()) and shown["loss"].item() > 0

    def each_selection(scale: float, baseline: float) -> Iterator[tuple[Tensor, Tensor]]:
        estimator.scale, estimator.entropy = scale, 0.0
        estimator.baseline.forward = lambda reward, features: (reward * 0 + baseline, reward * 0)
        for keys in SELECTIONS[task]:
            draw(keys)
            with hard_selections() as drawn:
                loss = built.loss(batch)
            yield drawn.sums().log_probability.sum().exp(), loss.total

    losses = list(each_selection(0.0, 0.0))
    expected = sum(chance * loss for chance, loss in losses)
    assert sum(chance for chance, _ in losses).item() == pytest.approx(1)
    exact = flat(torch.autograd.grad(expected, parameters, materialize_grads=True))
    assert exact.abs().max() > 1e-3
    variances = []
    for baseline in (0.0, -expected.item()):
        pairs = [
            (chance.detach(), flat(torch.autograd.grad(loss, parameters, materialize_grads=True)))
            for chance, loss in each_selection(1.0, baseline)
        ]
        mean = sum(chance * gradient for chance, gradient in pairs)
        tolerance = 2e-5 if task == "classification" else 1e-10  # its logits are float32
        torch.testing.assert_close(mean, exact, rtol=0, atol=tolerance)
        variances.append(sum(chance * (each - mean).square().sum() for chance, each in pairs))
    assert 0 < variances[1] < 0.7 * variances[0]


BAD = {
    "hard without an estimator": ("translation", {"training": {"estimator": None}}, "training.estimator"),
    "estimator without hard": ("translation", {"model": {"select": "softmax"}}, "model.select"),
    "estimator of seq2seq": ("translation", {"model": {"name": "seq2seq", "select": None}}, "model.select"),
    "argmax": ("translation", {"model": {"select": "best"}}, "straight-through"),
    "straight-through": (
        "language",
        {"training": {"estimator": {"name": "straight-through"}}},
        "model.select",
    ),
    "unknown estimator": ("language", {"training": {"estimator": {"name": "reinforced"}}}, "reinforce"),
    "unknown option": ("language", {"training": {"estimator": {"sample": 2}}}, "samples"),
    "no samples": ("language", {"training": {"estimator": {"samples": 0}}}, "training.estimator.samples"),
    "unknown baseline": ("language", {"training": {"estimator": {"baseline": "mean"}}}, "baseline"),
    "decay of no baseline": (
        "language",
        {"training": {"estimator": {"baseline": {"name": "none", "decay": 0.5}}}},
        "decay",
    ),
    "compiled": ("language", {"training": {"compile": True}}, "training.compile"),
    "pooling without attention": ("classification", {"model": {"pooling": "mean"}}, "model.pooling"),
    "positions of an LSTM": ("classification", {"model": {"position": "rotary"}}, "position"),
    "positions of a GRU": (
        "language",
        {"model": {"name": "gru", "select": None, "position": "none"}},
        "position",
    ),
    "attention of a GRU": ("language", {"model": {"name": "gru"}}, "select"),
    "additive and rotary": ("language", {"model": {"score": "additive", "position": "rotary"}}, "position="),
    "local attention": ("translation", {"model": {"name": "transformer", "view": "local-m"}}, "luong"),
    "local-p": ("language", {"model": {"select": "local-p"}}, "luong"),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_make_no_sense_raise_before_the_data_are_read(tmp_path: Path, data, case: str):
    task, changes, match = BAD[case]
    settings = small(task, data, **changes)
    for section, values in changes.items():
        for name, value in values.items():
            if value is None:  # None does not override
                settings[section].pop(name)
            elif section == "training" and name == "estimator":
                settings[section][name] = value
    if settings["model"]["name"] in ("seq2seq", "gru", "transformer") and "name" in changes.get("model", {}):
        settings["model"] = {key: value for key, value in settings["model"].items() if key not in SMALL}
    with pytest.raises(RegardError, match=match):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_guided_alignment_needs_weights_with_a_gradient(tmp_path: Path, data):
    (tmp_path / "links").write_text("0-0\n" * 60)
    guided = {"data": {"alignments": [str(tmp_path / "links")]}, "training": {"guided_alignment": 0.5}}
    with pytest.raises(ArgumentError, match=r"training\.guided_alignment"):
        train(small("translation", data, **guided), tmp_path / "run")


def test_options_of_the_command_line(tmp_path: Path, data, capsys: pytest.CaptureFixture[str]):
    files = ["--train-file", data["classification"]["train_file"][0], "--output", str(tmp_path / "run")]
    model = ["--width", "4", "--select", "hard", "--score", "cosine", "--steps", "1", "--device", "cpu"]
    command = ["train", "--task", "classification", *files, *model]
    assert run(command) != 0
    assert "training.estimator.name=reinforce" in capsys.readouterr().err
    assert run([*command, "--estimator", "reinforce", "--set", "training.estimator.samples=3"]) == 0
    config = config_of(tmp_path / "run")
    assert config["model"]["select"] == "hard" and config["model"]["score"] == "cosine"
    estimator = config["training"]["estimator"]
    assert estimator["samples"] == 3 and estimator["expected"] == 0.5  # all settings are written
    command[command.index("--output") + 1] = str(tmp_path / "other")
    assert run([*command, "--position", "rotary"]) != 0
    assert "position" in capsys.readouterr().err
    assert Checkpoints(tmp_path / "run").latest().step == 1


FOUR = {"samples": 4, "scale": 1.0, "entropy": 0.02, "expected": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [{"baseline": "moving-average", **FOUR}, {"baseline": "learned", **FOUR}, "reinforce"]
)
def test_hard_attention_learns_to_copy_and_to_align(tmp_path: Path, estimator: str | dict[str, Any]):
    """Four of twelve words are copied: word t of the target must be read from word t of the source."""
    draw, words = random.Random(0), [f"w{number}" for number in range(12)]
    lines = [" ".join(draw.sample(words, 4)) for _ in range(600)]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = {"source": [str(tmp_path / "a.txt")], "target": [str(tmp_path / "b.txt")]}
    model = {"name": "luong", "cell": "gru", "width": 32, "dropout": 0.0, "feeding": False, "select": "hard"}
    training = {"steps": 300, "batch_size": 50, "learning_rate": 0.01, "warmup_steps": 20}
    training |= {"label_smoothing": 0.0, "evaluate_every": 300, "log_every": 100}
    training |= {"estimator": estimator}
    settings = {
        "task": "translation",
        "data": {**files, "tokenizer": "word", "held_out": 40},
        "model": model,
        "training": training,
        "evaluation": {"sentences": 40, "samples": 0},
    }
    train(settings, tmp_path / "run")
    assert records(tmp_path / "run", "evaluation")[-1]["exact"] > 60  # by chance, below 1
    translator = regard.load(tmp_path / "run", device="cpu")
    fresh = [" ".join(draw.sample(words, 4)) for _ in range(50)]
    tokenizers = load_tokenizers(tmp_path / "run", translator.settings.data)
    sources, targets = ([each.encode(line) for line in fresh] for each in tokenizers)
    with torch.no_grad(), regard.record(regard.Look(weights=True), at="decoder.cross") as seen:
        translator.model(Batch.collate(sources, targets))
    read = seen["decoder.cross"][0].weights.argmax(-1)[:, :4]
    assert (read == torch.arange(4)).float().mean() > 0.6  # by chance, 0.2
    entropies = [each["parts"]["entropy"] for each in records(tmp_path / "run", "training")]
    assert entropies[-1] < 0.5 * entropies[0]
