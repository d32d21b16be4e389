"""LoadedRun: base class of the objects that regard.load() returns; with_weights() loads their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from regard.runs.devices import choose_device
from regard.runs.run_task import StoredRun
from regard.training.checkpoints.checkpoints import Checkpoint

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
