"""Language models trained with SGD and with CUDA graphs: exact resume, and the equations of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.runs.prepare_run import Machine
from regard.tasks.language import LanguageTask
from tests.tasks.built_task import build_task
from tests.tasks.test_language_task import small, train, write
from tests.training.toys import bits, last, records


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The [data] of a small run. Tests must not change the files."""
    folder = tmp_path_factory.mktemp("text")
    files = {"train_file": [write(folder / "a.txt", 120)], "valid_file": [write(folder / "b.txt", 9, 1)]}
    return {**files, "tokenizer": "word"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_killed_sgd_run_with_decay_by_epoch_ends_with_the_same_bits(
    tmp_path: Path, text, monkeypatch, momentum
):
    training = {"steps": 44, "save_every": 10, "optimizer": "sgd", "momentum": momentum}
    training |= {"learning_rate": 0.5, "schedule": "epoch-decay", "decay_after": 1, "decay_factor": 2.0}
    training["warmup_steps"] = 0
    settings = small(text, training=training, model={"uniform": 0.05, "dropout": 0.5})
    train(settings, tmp_path / "whole")
    epoch = build_task(LanguageTask, tmp_path / "whole").len_epoch(0)
    rates = {each["step"]: each["rate"] for each in records(tmp_path / "whole", "training")}
    assert [rates[epoch], rates[epoch + 1], rates[2 * epoch + 1]] == [0.5, 0.25, 0.125]
    calls, loss = [0], LanguageTask.loss

    def deadly(self: LanguageTask, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == epoch + 5:
            raise SystemExit("killed")
        return loss(self, batch)

    monkeypatch.setattr(LanguageTask, "loss", deadly)
    with pytest.raises(SystemExit):
        train(settings, tmp_path / "killed", resume=True)
    assert train({}, tmp_path / "killed", resume=True).progress.ended
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    states = last(tmp_path / "whole").tensors("optimizer")
    assert {name.rpartition("/")[2] for name in states} == ({"momentum_buffer"} if momentum else set())


def test_sgd_follows_the_equations_of_zaremba_et_al(tmp_path: Path, text):
    """A step with learning rate T r and max_grad_norm c / T, T tokens per row, is a step with the loss summed
    over T and averaged over rows, with learning rate r and norm c."""
    rows, tokens, rate, norm = 5, 7, 1.0, 0.5
    training = {
        "steps": 1,
        "optimizer": "sgd",
        "learning_rate": tokens * rate,
        "max_grad_norm": norm / tokens,
    }
    training |= {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "batch_size": rows}
    options = {"uniform": 0.05, "dropout": 0.0}
    train(small(text, training=training, model=options), tmp_path / "run")
    task = build_task(LanguageTask, tmp_path / "run")  # the initial weights
    batch = next(task.batches(0))
    summed = torch.nn.functional.cross_entropy(
        task.model(batch).flatten(0, 1), batch.targets.flatten(), reduction="sum"
    )
    (summed / rows).backward()
    size = torch.nn.utils.clip_grad_norm_(task.model.parameters(), norm)
    assert size > norm
    weights = last(tmp_path / "run").tensors("weights")
    for name, parameter in task.model.named_parameters():
        torch.testing.assert_close(
            weights[name], (parameter - rate * parameter.grad).detach(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.gpu
def test_captured_steps_with_carried_state_equal_plain_steps(tmp_path: Path, text):
    losses = {}
    for capture in (True, False):
        training = {"capture": capture, "steps": 60, "precision": "float32"}
        settings = small(text, training=training, model={"dropout": 0.0})
        folder = tmp_path / f"captured-{capture}"
        train(settings, folder, machine=Machine("cuda"))
        losses[capture] = [each["loss"] for each in records(folder, "training")]
        assert not records(folder, "capture")
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
