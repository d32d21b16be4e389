"""The training loop: when it evaluates, saves and ends, and which checkpoints it keeps."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import DataError, UnknownName
from regard.models.bahdanau import Bahdanau
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.gradients import coarse_products
from regard.training.precision import chosen_precision
from regard.training.task import CarriedState, Loss
from tests.facts import facts
from tests.training.toys import Numbers, Toy, bits, last, records, trainer


def scored(name: str, values: list[float]) -> list[dict[str, float]]:
    return [{"loss": 1.0, "bleu": 1.0, "chrf": 1.0, name: value} for value in values]


def test_run_ends_after_patience_evaluations(tmp_path: Path):
    task = Toy(scores=scored("loss", [3.0, 2.0, 2.5, 2.0, 1.0]))
    at = trainer(tmp_path, task, steps=100, evaluate_every=2, patience=2).run()
    assert (at.step, at.best, at.best_step, at.stale) == (8, 2.0, 4, 2)
    assert at.ended == "loss has not improved in 2 evaluations"
    assert [each.step for each in Checkpoints(tmp_path).all()] == [4, 6, 8]


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [("loss", [3.0, 1.0, 2.0], 4), ("bleu", [3.0, 9.0, 2.0], 4), ("chrf", [3.0, 1.0, 2.0], 2)],
)
def test_best_checkpoint_is_chosen_by_training_best(tmp_path: Path, name: str, values: Any, best: int):
    at = trainer(tmp_path, Toy(scores=scored(name, values)), steps=20, evaluate_every=2, best=name).run()
    assert at.best_step == best
    checkpoint = Checkpoints(tmp_path).best()
    assert checkpoint is not None and checkpoint.step == best
    assert (tmp_path / "best").read_text() == f"step-{best:06d}\n"


def test_equal_scores_are_decided_by_the_loss(tmp_path: Path):
    scores = [{"loss": loss, "bleu": bleu} for loss, bleu in ((9.0, 0.0), (4.0, 0.0), (5.0, 0.0), (6.0, 0.1))]
    at = trainer(tmp_path, Toy(scores=scores[:3]), steps=6, evaluate_every=2, best="bleu").run()
    assert (at.best, at.best_loss, at.best_step, at.stale) == (0.0, 4.0, 4, 1)
    other = tmp_path / "other"
    assert trainer(other, Toy(scores=scores), steps=8, evaluate_every=2, best="bleu").run().best_step == 8


def test_nan_score_is_worse_than_any_other(tmp_path: Path):
    at = trainer(
        tmp_path, Toy(scores=scored("loss", [float("nan"), 2.0, float("nan")])), evaluate_every=4
    ).run()
    assert (at.best, at.best_step, at.stale) == (2.0, 8, 1)


def test_unknown_metric_raises_and_lists_known_ones(tmp_path: Path):
    with pytest.raises(UnknownName, match=facts("'ter'", "loss")):
        trainer(tmp_path, Toy(), best="ter")
    with pytest.raises(UnknownName, match=facts("'chrf'", "loss")):
        trainer(tmp_path, Toy(scores=[{"loss": 1.0}]), best="chrf").run()


def test_evaluations_and_checkpoints_at_their_intervals_and_none_twice(tmp_path: Path, monkeypatch):
    saved: list[int] = []
    real = Checkpoints.save

    def save(self: Checkpoints, step: int, tensors: Any, state: Any) -> Any:
        saved.extend([step] if tensors is not None else [])
        return real(self, step, tensors, state)

    monkeypatch.setattr(Checkpoints, "save", save)
    trainer(tmp_path, log=True, steps=10, evaluate_every=3, save_every=4).run()
    assert [each["step"] for each in records(tmp_path, "evaluation")] == [3, 6, 9, 10]
    assert saved == [3, 4, 6, 8, 9, 10]
    assert [each["step"] for each in records(tmp_path, "training")] == list(range(1, 11))


def test_default_is_ten_evaluations(tmp_path: Path):
    task = Toy()
    trainer(tmp_path, task, steps=20).run()
    assert task.evaluations == 10


def test_averaged_weights_are_evaluated_and_saved_and_raw_weights_are_trained(tmp_path: Path):
    plain = Toy()
    weights: list[torch.Tensor] = [plain.model[0].weight.detach().clone()]
    plain.on_loss = lambda count: weights.append(plain.model[0].weight.detach().clone())
    trainer(tmp_path / "plain", plain, evaluate_every=100).run()
    weights.append(plain.model[0].weight.detach().clone())
    expected = weights[0].clone()
    for step, after in enumerate(weights[2:], 1):  # the first loss is computed before the first step
        expected += (1 - min(0.7, (1 + step) / (10 + step))) * (after - expected)

    evaluated = []
    task = Toy()
    task.on_evaluation = lambda count: evaluated.append(task.model[0].weight.detach().clone())
    trainer(tmp_path / "averaged", task, ema=0.7, evaluate_every=100).run()
    checkpoint = last(tmp_path / "averaged")
    torch.testing.assert_close(checkpoint.tensors("weights")["0.weight"], expected)
    assert torch.equal(checkpoint.tensors("weights")["0.weight"], evaluated[-1])
    assert torch.equal(checkpoint.tensors("raw")["0.weight"], weights[-1])
    assert torch.equal(task.model[0].weight, weights[-1])


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.5), (0.5, 0.0)])
def test_averaging_can_be_switched_on_or_off_when_resuming(tmp_path: Path, before: float, after: float):
    first = Toy()
    trainer(tmp_path, first, steps=6, ema=before).run()
    raw = first.model[0].weight.detach().clone()
    second = Toy()
    resumed = trainer(tmp_path, second, steps=12, ema=after)
    assert resumed.resume() is not None
    assert torch.equal(second.model[0].weight, raw)
    assert resumed.run().step == 12


def test_two_accumulated_batches_equal_one_batch_of_twice_the_size(tmp_path: Path):
    trainer(tmp_path / "two", Toy(each=4), accumulation_steps=2).run()
    trainer(tmp_path / "one", Toy(each=8)).run()
    two, one = (last(tmp_path / name).tensors("weights") for name in ("two", "one"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)


def test_bfloat16_training_keeps_float32_weights(tmp_path: Path):
    for precision in ("float32", "bfloat16"):
        trainer(tmp_path / precision, steps=40, precision=precision, log=True).run()
    losses = [each["loss"] for each in records(tmp_path / "bfloat16", "training")]
    assert losses[-1] < 0.5 * losses[0]
    assert all(
        value.dtype == torch.float32 for value in last(tmp_path / "bfloat16").tensors("weights").values()
    )
    assert bits(tmp_path / "bfloat16") != bits(tmp_path / "float32")


def test_auto_precision_depends_on_the_model_and_the_device(monkeypatch: pytest.MonkeyPatch):
    coarse = [
        Luong(9, 9),
        LSTMNTranslationModel(9, 9, 4),
        LSTMNLanguageModel(9, width=4),
        LSTMNClassifier(9, 2, 4),
    ]
    models = [*coarse, Bahdanau(9, 9, 4), nn.Linear(2, 2)]
    on_gpu = ["tf32"] * len(coarse) + ["bfloat16"] * 2
    for supported, expected in ((True, on_gpu), (False, ["float32"] * len(models))):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported, **_: supported)
        gpu, cpu = torch.device("cuda"), torch.device("cpu")
        assert [chosen_precision("auto", gpu, model).name for model in models] == expected
        assert {chosen_precision("auto", cpu, model).name for model in models} == {"float32"}
        assert {chosen_precision("bfloat16", gpu, model).name for model in models} == {"bfloat16"}


def test_tf32_has_no_effect_on_the_cpu_and_is_restored_after_a_step(tmp_path: Path):
    for precision in ("float32", "tf32"):
        trainer(tmp_path / precision, steps=4, precision=precision).run()
    assert bits(tmp_path / "tf32") == bits(tmp_path / "float32")  # TF32 exists on GPUs only
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), coarse_products("high"):
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


def test_logged_gradient_norm_is_that_before_clipping(tmp_path: Path):
    trainer(tmp_path / "free", log=True, steps=3, max_grad_norm=0.0).run()
    trainer(tmp_path / "bound", log=True, steps=3, max_grad_norm=0.1).run()
    free, bound = (records(tmp_path / name, "training") for name in ("free", "bound"))
    assert free[0]["norm"] == bound[0]["norm"] > 0.1  # the norm before clipping
    assert bits(tmp_path / "free") != bits(tmp_path / "bound")


def test_resuming_an_ended_run_changes_nothing(tmp_path: Path):
    trainer(tmp_path, log=True, steps=6).run()
    before = {path: path.stat().st_mtime_ns for path in last(tmp_path).path.iterdir()}
    again = Toy()
    resumed = trainer(tmp_path, again, log=True, steps=6)
    resumed.resume()
    assert resumed.run().ended == "completed all steps"
    assert (again.losses, again.evaluations) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in last(tmp_path).path.iterdir()} == before


def test_log_of_a_run_without_checkpoint_is_rewound(tmp_path: Path):
    killed = trainer(tmp_path, log=True, steps=6)
    killed.log.event("data", "three words")
    killed.take_step()
    resumed = trainer(tmp_path, log=True, steps=6)
    assert resumed.resume() is None
    resumed.run()
    assert [each["step"] for each in records(tmp_path, "training")] == [1, 2, 3, 4, 5, 6]
    assert records(tmp_path, "data") == []


def test_changed_threads_and_batches_are_logged_when_resuming(tmp_path: Path):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        trainer(tmp_path, Toy(each=4), log=True, steps=4).run()
        torch.set_num_threads(1)
        resumed = trainer(tmp_path, Toy(each=2), log=True, steps=8)
        resumed.resume()
    finally:
        torch.set_num_threads(threads)
    texts = [each["text"] for each in records(tmp_path, "changed")]
    assert len(texts) == 2
    assert texts[0].startswith("threads: 2 before, 1 now")
    assert texts[1].startswith("batches per epoch: 6 before, 12 now")
    assert resumed.progress.batch == 8
    assert resumed.run().step == 8


def test_changed_number_of_processes_is_logged_when_resuming(tmp_path: Path, monkeypatch):
    resumed = trainer(tmp_path, log=True, steps=4)
    real = resumed._surroundings
    monkeypatch.setattr(resumed, "_surroundings", lambda: {**real(), "processes": 2})
    resumed.run()
    again = trainer(tmp_path, log=True, steps=4)
    again.resume()
    (record,) = records(tmp_path, "changed")
    assert record["text"].startswith("processes: 2 before, 1 now")


def test_resume_marks_a_best_checkpoint_that_was_not_marked(tmp_path: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "mark_best", lambda self, step: None)
        trainer(tmp_path, steps=4, evaluate_every=4).run()
    assert not (tmp_path / "best").exists()
    trainer(tmp_path, steps=4, evaluate_every=4).resume()
    assert (tmp_path / "best").read_text() == "step-000004\n"


class Mean(CarriedState):
    """The mean of the batches so far."""

    mean: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        return {} if self.mean is None else {"mean": self.mean}

    def load(self, tensors: dict[str, torch.Tensor], place: str) -> None:
        self.mean = tensors["mean"]


class Counting(Toy):
    """A task whose loss depends on a state besides the weights: the mean of the batches so far."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Mean = Mean()

    def loss(self, batch: Numbers) -> Loss:
        before = self.state.mean
        mean = batch.x.mean(0) if before is None else 0.5 * (before + batch.x.mean(0))
        self.state.mean = mean
        return super().loss(Numbers(batch.x + mean, batch.y))


def test_state_of_a_task_is_saved_and_restored(tmp_path: Path):
    trainer(tmp_path / "whole", Counting()).run()
    trainer(tmp_path / "part", Counting(), steps=12, save_every=5).run()
    for folder in (tmp_path / "part").glob("step-000012"):
        shutil.rmtree(folder)
    resumed = trainer(tmp_path / "part", Counting(), save_every=5)
    checkpoint = resumed.resume()
    assert checkpoint is not None and checkpoint.step == 10 and checkpoint.has("task")
    resumed.run()
    assert bits(tmp_path / "part") == bits(tmp_path / "whole")
    assert set(bits(tmp_path / "whole")) == {
        "weights.safetensors",
        "optimizer.safetensors",
        "task.safetensors",
    }
    with pytest.raises(DataError, match=facts("step-000012", "mean")):
        trainer(tmp_path / "whole").resume()


def test_task_without_state_writes_no_file_for_it(tmp_path: Path):
    trainer(tmp_path).run()
    assert set(bits(tmp_path)) == {"weights.safetensors", "optimizer.safetensors"}


def test_each_step_checks_that_the_run_folder_is_where_it_was(tmp_path: Path):
    run, checked = trainer(tmp_path, steps=5, evaluate_every=5), list[int]()
    run.lock = SimpleNamespace(check=lambda: checked.append(run.progress.step))
    run.run()
    assert set(range(1, 6)) <= set(checked)
