"""Open a run folder: check its settings against its manifest, and its weights against its model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.runs.devices import choose_device
from regard.runs.run_folder import CONFIG, check_manifest, check_one_seed, config_of
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import RunTask, StoredRun, on_meta_device
from regard.training.checkpoints.checkpoints import ESTIMATOR, Checkpoint, Checkpoints
from regard.training.settings import build

WEIGHTS = ("weights",)
"""The tensor files that inference needs. Damage to other files, such as the optimizer state, is ignored."""


def checked_settings(task: type[RunTask], folder: Path, fixed: Sequence[str] | bool | None = True) -> Any:
    """Return the settings of a run. Raise DataError if settings or files have changed since training.

    fixed: prefixes of the settings to check, such as "model.". None: all settings are checked. True: the
        settings that affect the outputs of the run are checked (RunSettings.for_outputs).
    """

    def checked(config: Mapping[str, Any]) -> dict[str, Any]:
        settings = build(task.settings_type, config, str(folder / "config.toml"))
        return task.settings_type.without_folders(settings.model_dump())

    config = config_of(folder)
    settings = build(task.settings_type, config, str(folder / "config.toml"))
    prefixes = task.settings_type.for_outputs if isinstance(fixed, bool) else fixed
    check_manifest(folder, task.files, config, checked, prefixes)
    return settings


def find_checkpoint(folder: Path, which: str | int = "best") -> tuple[Checkpoint, tuple[str, ...]]:
    """Return a checkpoint of a run, and messages about damaged checkpoints that were skipped.

    which: "best", "latest", or the number of a training step, such as 500 or "500". If the run has not been
        evaluated yet, "best" means "latest".
    """
    if isinstance(which, bool) or not isinstance(which, str | int):
        expected = '"best", "latest" or the number of a step'
        raise ArgumentError(message("load()", f"checkpoint is {which!r}", expected=expected))
    which = str(which)
    checkpoints = Checkpoints(folder)
    if which.isdigit():
        steps = {str(each.step): each for each in checkpoints.all()}
        if which not in steps:
            raise UnknownName("step", which, steps)
        checkpoint: Checkpoint | None = steps[which]
        steps[which].verify(WEIGHTS)
    elif which in ("best", "latest"):
        checkpoint = checkpoints.best(WEIGHTS) if which == "best" else None
        checkpoint = checkpoint or checkpoints.latest(WEIGHTS)
    else:
        raise UnknownName("checkpoint", which, ("best", "latest", "the number of a step"))
    if checkpoint is None:
        problem, hint = "this run has no checkpoint yet", "train it until the first checkpoint is saved"
        raise DataError(message(str(folder), problem, hint=hint))
    return checkpoint, tuple(checkpoints.notes)


def stored_scores(checkpoint: Checkpoint) -> dict[str, float]:
    """Return the validation scores of a checkpoint, such as {"bleu": 31.2}.

    Return {} if the checkpoint has no scores, or if its state.json is damaged: its weights can be used
    without the scores.
    """
    try:
        state = checkpoint.state
        if "scores" in state:  # a copy of a checkpoint by regard average
            return {name: float(value) for name, value in state["scores"].items()}
        evaluations = state["log"]["state"]["evaluations"]
        scores = [each["scores"] for each in evaluations if each["step"] == checkpoint.step]
        return {name: float(value) for name, value in scores[-1].items()}
    except (DataError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return {}


def open_stored(task: type[RunTask], folder: Path, checkpoint: str | int = "best") -> StoredRun:
    """Open a run folder for loading, and check its settings, its files and the shapes of its weights.

    checkpoint: "best", "latest", or the number of a training step, such as 500 or "500".
    """
    check_one_seed(folder)
    settings = checked_settings(task, folder)
    found, notes = find_checkpoint(folder, checkpoint)
    check_weights(task, found, settings.model, task.stored_sizes(folder, settings))
    return StoredRun(folder, settings, found, notes)


def outline(task: type[RunTask], settings: ModelSettings, sizes: tuple[int, ...], folder: Path) -> nn.Module:
    """Build the model of a run on the meta device: its tensors have names and shapes, but use no memory.

    sizes: the sizes of the data that the model depends on, such as vocabulary sizes.
    """
    try:
        with on_meta_device():
            return task.build_model(settings, sizes)
    except Exception as error:  # constructors raise many kinds of errors for invalid options
        problem = f"[model] cannot be built: {error}"
        raise DataError(message(str(folder / CONFIG), problem)) from None


def check_weights(
    task: type[RunTask], checkpoint: Checkpoint, settings: ModelSettings, sizes: tuple[int, ...]
) -> None:
    """Raise DataError if the weights of a checkpoint do not fit the model that `settings` describe.

    Names and shapes must be equal. The checkpoint may also have the weights of an estimator, because training
    adds an estimator to the model (see sampled_loss.add_estimator()).
    """
    weights, folder = checkpoint.shapes("weights"), checkpoint.path.parent
    expected = outline(task, settings, sizes, folder).state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise _misfit(checkpoint, f"{name} is missing")
        if weights[name].shape != tuple(tensor.shape):
            shapes = f"{weights[name].shape}, but {tuple(tensor.shape)} in the model of config.toml"
            raise _misfit(checkpoint, f"{name} has shape {shapes}")
    for name in weights:
        if name not in expected and not name.startswith(f"{ESTIMATOR}."):
            raise _misfit(checkpoint, f"the model has no {name[:80]!r}")


def check_newest(task: type[RunTask], folder: Path, settings: ModelSettings, sizes: tuple[int, ...]) -> None:
    """Check the weights of the newest readable checkpoint of a run (see check_weights()).

    Damaged checkpoints are skipped. Checkpoints.latest() reports them.
    """
    for checkpoint in reversed(Checkpoints(folder).all()):
        try:
            checkpoint.shapes("weights")
        except DataError:
            continue
        check_weights(task, checkpoint, settings, sizes)
        return


def _misfit(checkpoint: Checkpoint, problem: str) -> DataError:
    hint = "restore config.toml and the tokenizers that this run was trained with"
    return DataError(
        message(str(checkpoint.path), f"the weights do not fit config.toml: {problem}", hint=hint)
    )


Module = TypeVar("Module", bound=nn.Module)


class LoadedRun:
    """A trained model with the run that it comes from.

    folder: the run folder.
    settings: the settings of the run.
    checkpoint: the checkpoint from which the weights were loaded.
    notes: messages about checkpoints that were skipped because they are damaged.
    """

    folder: Path
    settings: Any
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()

    def from_run(self, run: StoredRun) -> Self:
        """Copy folder, settings, checkpoint and notes of `run` to this object, and return this object."""
        self.folder, self.settings, self.checkpoint, self.notes = (
            run.folder,
            run.settings,
            run.checkpoint,
            run.notes,
        )
        return self

    def shown(self) -> dict[str, object]:
        """Return the values that __repr__() shows after the folder, such as {"step": 500, "model": "luong"}.

        A subclass may add entries.
        """
        return {"step": self.checkpoint.step, "model": self.settings.model.name}

    def validation_texts(self, count: int) -> list[str]:
        """Return the inputs of up to `count` examples of the validation set; [] for tasks without texts."""
        return []

    def export(
        self,
        to: str,
        output: str | Path,
        *,
        quantization: str | None = None,
        texts: Sequence[str] | None = None,
    ) -> Any:
        """Export this run for another program; print() shows the result of the self-check.

        For the arguments, see regard.export.export_run().
        """
        export_run = importlib.import_module("regard.export").export_run  # a layer above this one
        return export_run(self, to, output, quantization=quantization, texts=texts)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.shown().items())
        return f"{type(self).__name__}({str(self.folder)!r}, {values})"


class LoadedModel(LoadedRun):
    """A trained model without anything else, in eval mode: what regard.load() returns by default.

    model: the model.
    device: where it is.
    """

    def __init__(self, model: nn.Module):
        self.model = model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def with_weights(model: Module, run: StoredRun, device: str) -> Module:
    """Load the weights of a run into a model; return the model on the device, in eval mode."""
    model.load_state_dict(run.checkpoint.model_weights())
    return model.to(torch.device(choose_device(device))).eval()
