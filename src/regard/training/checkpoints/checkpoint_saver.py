"""CheckpointSaver: write the state of a training run to checkpoints, and load it from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from regard.errors import DataError, message
from regard.files.folder_lock import FolderLock, FolderMoved
from regard.training.checkpoints.checkpoints import STATE, Checkpoint, Checkpoints
from regard.training.logs.log import Log
from regard.training.nonfinite_steps import first_nonfinite
from regard.training.optimizer import Average, load_optimizer, optimizer_tensors
from regard.training.progress import Progress, check_surroundings
from regard.training.task import Task

__all__ = ["CheckpointSaver"]

TASK = "task"
"""The name of the tensor file for the state of a task."""


class CheckpointSaver:
    """Writes and loads checkpoints: weights, optimizer state, moving average, progress and log state.

    checkpoints: the folder of checkpoints.
    optimizer: the optimizer. Its state is saved.
    log: the log. Its position in log.jsonl is saved.
    task: the task. The weights of its model are saved. The result of task.state.tensors() is saved in the
        tensor file "task", if it is not empty.
    average: the moving average of the weights, or None. With a moving average, the tensor file "weights" of a
        checkpoint contains the averages, and the tensor file "raw" contains the weights themselves.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        task: Task,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        log: Log,
    ):
        self.checkpoints, self.task, self.optimizer = checkpoints, task, optimizer
        self.model, self.average, self.log = task.model, average, log
        self._saved: tuple[Any, ...] = ()  # Progress.state() of the last checkpoint
        self._tensors_step: int | None = None  # the last step whose tensors this process has saved

    def load(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> Progress:
        """Load weights, moving average, optimizer and task state from a checkpoint; return the progress.

        state: the content of state.json of the checkpoint.
        """
        place = str(checkpoint.path / STATE)
        check_surroundings(state, place)
        averaged = checkpoint.tensors("weights")
        try:
            self.model.load_state_dict(checkpoint.tensors("raw") if checkpoint.has("raw") else averaged)
        except RuntimeError as error:
            hint = "restore the model settings with which the run was started, or start a new run"
            raise DataError(message(str(checkpoint.path), str(error).splitlines()[0], hint=hint)) from None
        if self.average is not None:
            self.average.load(averaged)
        load_optimizer(self.model, self.optimizer, checkpoint.tensors("optimizer"), str(checkpoint.path))
        kept = checkpoint.tensors(TASK) if checkpoint.has(TASK) else {}
        self.task.state.load(kept, str(checkpoint.path))
        progress = Progress.read(state, place)
        self._saved = progress.state()
        return progress

    def restore_log(self, checkpoint: Checkpoint, state: Mapping[str, Any], best_step: int) -> None:
        """Restore the log to its state at a checkpoint, and log which checkpoints are damaged.

        checkpoint: the checkpoint from which the run is resumed.
        state: the content of its state.json.
        best_step: the step of the best checkpoint. If this checkpoint exists, it is marked as the best.
        """
        self.log.restore(state["log"].get("state"), str(checkpoint.path / STATE))
        self.log.rewind(state["log"]["position"])
        for note in self.checkpoints.notes:
            self.log.event("damaged", note)
        if any(each.step == best_step for each in self.checkpoints.all()):
            self.checkpoints.mark_best(
                best_step
            )  # the process may have been killed before it marked the best checkpoint

    def write(self, progress: Progress, surroundings: Mapping[str, Any]) -> None:
        """Write a checkpoint. If the tensors of this step are already saved, write only state.json.

        progress: the counters of the run.
        surroundings: further values for state.json, such as the number of threads.
        """
        log = {"position": self.log.position(), "state": self.log.state()}
        state = {**progress.written(), "log": log, **surroundings}
        if self.has_tensors(progress.step):  # the tensors have not changed since they were saved
            with suppress(DataError):
                self.checkpoints.save_state(progress.step, state)
                return
        weights = self.model.state_dict()
        tensors = {"weights": weights, "optimizer": optimizer_tensors(self.model, self.optimizer)}
        if self.average is not None:
            with self.average.applied():
                averaged = {name: value.clone() for name, value in self.model.state_dict().items()}
            tensors |= {"weights": averaged, "raw": weights}
        if kept := self.task.state.tensors():
            tensors[TASK] = kept
        self.log.saved(progress.step, self.checkpoints.save(progress.step, tensors, state).path)

    def follow_folder(self, lock: FolderLock | None) -> FolderMoved | None:
        """Check whether the run folder was deleted or moved since training started.

        If the folder was deleted, raise FolderMoved. If it was moved, use the new path from now on, and
        return the error. The caller first saves a checkpoint in the new path, so that no step is lost, and
        then raises the error. Return None if the folder was not moved.

        lock: the lock of the run folder. None: there is nothing to check.
        """
        try:
            if lock is not None:
                lock.check()
            return None
        except FolderMoved as moved:
            if moved.place is None:
                raise
            self.checkpoints.folder = moved.place
            self.log.move(moved.place)
            return moved

    def mark_saved(self, progress: Progress) -> None:
        """Remember that a checkpoint of this progress is saved. Call it in every process of a run."""
        self._saved, self._tensors_step = progress.state(), progress.step

    def is_saved(self, progress: Progress) -> bool:
        """Return whether the last checkpoint has this progress. Then it is not necessary to save it again."""
        return self._saved == progress.state()

    def has_tensors(self, step: int) -> bool:
        """Whether the tensors of this training step were saved since the run was started or resumed."""
        return self._tensors_step == step

    def last(self) -> str:
        """Return a text for error messages, such as "the last checkpoint is step 100"."""
        return (
            f"the last checkpoint is step {self._saved[0]}" if self._saved else "there is no checkpoint yet"
        )

    def nonfinite(self) -> str:
        """Return the name of a parameter that is NaN or infinite, or of such a moving average; else ""."""
        averages = {} if self.average is None else self.average.tensors()
        return first_nonfinite(dict(self.model.named_parameters())) or first_nonfinite(averages)
