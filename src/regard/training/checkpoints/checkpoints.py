"""Checkpoints: save the state of a run, so that it can be resumed after its process was killed.

    step-000100/  weights.safetensors  optimizer.safetensors  state.json
                  manifest.json        the size and the SHA-256 of each of these files
    latest, best                       pointer files: the name of a checkpoint folder

A checkpoint is saved in five steps: write the files to a temporary folder, flush them to the disk, rename the
folder, replace `latest`, delete old checkpoints. Only one process at a time may write to a run folder.
Reading a checkpoint changes nothing in the run folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError, DataError, message
from regard.files import atomic_io
from regard.files.untrusted import naming_damage, read_limited
from regard.training.checkpoints.checkpoint_files import (
    STATE,
    Checkpoint,
    checked,
    folder_name,
    step_of,
    write_checkpoint,
    write_state,
)

__all__ = ["STATE", "Checkpoint", "Checkpoints"]

POINTERS = ("latest", "best")


class Checkpoints:
    """The checkpoints of a run folder. They are written atomically. The newest and the best are kept.

    folder: the run folder. It is created when needed. Other files in the folder are never changed.
    keep: number of undamaged checkpoints to keep, 2 or more. The best checkpoint is kept too.
    notes: messages about damaged checkpoints that were skipped, and about old checkpoints that could not be
        deleted.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder))
    ...     for step in (100, 200, 300):
    ...         saved = checkpoints.save(step, {"weights": {"scale": torch.tensor(step / 8)}}, {"epoch": 1})
    ...     latest = checkpoints.latest()
    ...     print([each.step for each in checkpoints.all()], latest.tensors("weights"), latest.state)
    [200, 300] {'scale': tensor(37.5000)} {'epoch': 1}
    """

    def __init__(self, folder: Path, keep: int = 2):
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 2:
            hint = "keep at least 2, so that the run can be resumed if the last checkpoint is damaged"
            raise ArgumentError(
                message("Checkpoints()", f"keep is {keep!r}", expected="2 or more", hint=hint)
            )
        self.folder, self.keep = Path(folder), keep
        self.notes: list[str] = []
        self._known_damaged: set[int] = set()

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
    ) -> Checkpoint:
        """Write a checkpoint, write its name to the file `latest`, and delete old checkpoints.

        step: the training step.
        tensors: the tensors of each file, such as {"weights": {...}, "optimizer": {...}}, on any device.
        state: any values that JSON can store.

        A checkpoint of the same step is replaced. If writing fails, DataError is raised, and the previous
        checkpoint stays the latest.
        """
        text = checked(step, tensors, state)
        size = sum(tensor.nbytes for group in tensors.values() for tensor in group.values())
        return self._write(step, lambda folder: write_checkpoint(folder, step, tensors, text), size)

    def save_state(self, step: int, state: Mapping[str, Any]) -> Checkpoint:
        """Replace the state of a checkpoint. Its tensor files are not written again.

        If writing fails, DataError is raised, and the checkpoint keeps its old state.
        """
        text = checked(step, {}, state)
        before = Checkpoint(step, self.folder / folder_name(step))
        return self._write(step, lambda folder: write_state(folder, before, text))

    def _write(self, step: int, write: Callable[[Path], None], size: int = 0) -> Checkpoint:
        """Write a checkpoint to a temporary folder, rename the folder, and write its name to `latest`.

        write: a function that writes the files of the checkpoint to a folder.
        size: number of bytes to write, for the error message if the disk is full.
        """
        place = self.folder / folder_name(step)
        temporary = atomic_io.beside(place, "part")
        try:
            try:
                self._prepare(place)
                write(temporary)
                if os.path.lexists(place):  # two folders cannot be swapped atomically: see _tidy() and all()
                    os.rename(place, atomic_io.beside(place, "earlier"))
                os.rename(temporary, place)
                atomic_io.flush_folder(self.folder)
                self._point("latest", step)
            except BaseException:
                self._tidy()
                raise
        except OSError as error:
            raise self._failed(
                step, f"the checkpoint of step {step} could not be saved", error, size
            ) from error
        self._known_damaged.discard(step)
        self._delete_old(step)
        return Checkpoint(step, place)

    def latest(self, tensors: Sequence[str] | None = None) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None if the run has no checkpoint yet.

        The file `latest` contains the name of this checkpoint. If the checkpoint is damaged, a note is added,
        and another checkpoint is returned. If all checkpoints are damaged, DataError is raised. Otherwise,
        the run would start again from the beginning.

        tensors: names of the tensor files that are needed, such as "weights". Default: all. Damage to other
            tensor files is ignored.
        """
        return self._newest([], tensors)

    def _newest(self, problems: list[str], tensors: Sequence[str] | None) -> Checkpoint | None:
        """Do the work of latest(), and add one message about all problems to `notes`.

        problems: problems that the caller has already detected. The message includes them.
        tensors: as for latest().
        """
        checkpoints = self.all()
        try:
            pointed = self._pointed("latest")
        except DataError as error:
            problems.append(str(error))
            pointed = None
        else:
            if pointed is None and checkpoints:
                problems.append(f"{self.folder / 'latest'} is missing")
        if not checkpoints:
            if os.path.lexists(self.folder / "latest"):
                raise self._none_usable("the file `latest` exists, but there is no checkpoint")
            return None
        if pointed is not None and pointed not in [each.step for each in checkpoints]:
            problems.append(f"{self.folder / 'latest'} names {folder_name(pointed)}, which does not exist")
        # Checkpoints of later steps than `latest` come last: their save was interrupted, or an earlier run
        # wrote them.
        newer = [each for each in checkpoints if pointed is not None and each.step > pointed]
        older = [each for each in checkpoints if each not in newer]
        return self._first_undamaged([*reversed(older), *reversed(newer)], problems, tensors)

    def pointed_step(self, pointer: str) -> int | None:
        """Return the step that a pointer file names, or None if the file is missing or damaged.

        pointer: "latest" or "best". The checkpoint itself is not read.
        """
        with contextlib.suppress(DataError):
            return self._pointed(pointer)
        return None

    def best(self, tensors: Sequence[str] | None = None) -> Checkpoint | None:
        """Return the checkpoint that is marked as the best, or None if no checkpoint is marked.

        If the best checkpoint is damaged, the latest checkpoint is returned instead, with a note.

        tensors: as for latest().
        """
        try:
            step = self._pointed("best")
            if step is None:
                return None
            marked = {each.step: each for each in self.all()}.get(step)
            if marked is None:
                problem = f"names {folder_name(step)}, which does not exist"
                raise DataError(message(str(self.folder / "best"), problem))
            marked.verify(tensors)
            return marked
        except DataError as error:
            problem = str(error)
        latest = self._newest([f"the best checkpoint cannot be used: {problem}"], tensors)
        if latest is None:
            raise self._none_usable("the file `best` exists, but there is no checkpoint")
        return latest

    def mark_best(self, step: int) -> None:
        """Mark the checkpoint of this step as the best. It is kept until another checkpoint is marked."""
        steps = [each.step for each in self.all()]
        if step not in steps:
            existing = ", ".join(map(str, steps)) or "a step that was saved; none was saved yet"
            raise DataError(message(str(self.folder), f"no checkpoint of step {step}", expected=existing))
        try:
            self._point("best", step)
        except OSError as error:
            self._tidy()
            raise self._failed(step, f"step {step} could not be marked as the best", error) from error

    def all(self) -> list[Checkpoint]:
        """Return all checkpoints, ordered by step. They may be damaged: see Checkpoint.verify()."""
        checkpoints: dict[int, Checkpoint] = {}
        for path, is_folder in self._entries().items():
            left = atomic_io.leftover(path.name)
            step = step_of(left.name if left and left.kind == "earlier" else path.name)
            # To replace a checkpoint, save() first adds "earlier" to the name of the old folder, then renames
            # the new folder. If the process was killed in between, the old folder is the only checkpoint of
            # this step.
            if step is not None and is_folder and (left is None or step not in checkpoints):
                checkpoints[step] = Checkpoint(step, path)
        return [checkpoints[step] for step in sorted(checkpoints)]

    def _entries(self) -> dict[Path, bool]:
        """Return the sorted paths of the files and folders in the run folder. Values: is it a folder?"""
        try:
            with os.scandir(self.folder) as entries:
                paths = {Path(entry.path): entry.is_dir() for entry in entries}
        except FileNotFoundError:
            return {}
        except OSError as error:
            problem = f"this run folder cannot be read: {error.strerror}"
            raise DataError(message(str(self.folder), problem)) from error
        return {path: paths[path] for path in sorted(paths)}

    def _first_undamaged(
        self, candidates: list[Checkpoint], problems: list[str], tensors: Sequence[str] | None
    ) -> Checkpoint:
        """Return the first undamaged checkpoint of a list. Raise DataError if all are damaged.

        If checkpoints were skipped, or if there are other problems, add one message with all problems to
        `notes`.

        problems: problems that the caller has already detected.
        tensors: as for latest().
        """
        damaged = []
        for each in candidates:
            try:
                each.verify(tensors)
            except DataError as error:
                damaged.append(str(error))
                self._known_damaged.add(each.step)
                continue
            skipped = [text for text in damaged if not any(text in problem for problem in problems)]
            if problems or skipped:
                self._note("; ".join([*problems, *skipped, f"using {each.path}"]))
            return each
        raise self._none_usable("all checkpoints are damaged", damaged)

    def _none_usable(self, problem: str, damaged: list[str] | None = None) -> DataError:
        hint = "restore a checkpoint from a copy, or start a new run in another folder"
        return DataError(message(str(self.folder), "\n  ".join([problem, *(damaged or [])]), hint=hint))

    def _prepare(self, place: Path) -> None:
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            atomic_io.flush_folder(self.folder.parent)
        if os.path.lexists(place) and not place.is_dir():
            raise DataError(
                message(str(place), "a file has the name of the checkpoint folder", hint="move the file")
            )
        self._tidy()  # free the disk space of an interrupted save first

    def _tidy(self) -> None:
        """Delete temporary files and folders of interrupted saves.

        When save() replaces a checkpoint, it first renames the old checkpoint. If save() was interrupted
        after this, the old checkpoint gets its name back.
        """
        for path in self._entries():
            left = atomic_io.leftover(path.name)
            if left is None or (step_of(left.name) is None and left.name not in POINTERS):
                continue
            try:
                if left.kind == "earlier" and not os.path.lexists(self.folder / left.name):
                    os.rename(path, self.folder / left.name)
                else:
                    atomic_io.remove(path)
            except OSError as error:
                self._note(f"{path} could not be deleted: {error.strerror}")

    def _delete_old(self, newest: int) -> None:
        for each in self._old(newest):
            try:
                os.rename(each.path, atomic_io.beside(each.path, "part"))
            except OSError as error:
                self._note(f"the old checkpoint {each.path} could not be deleted: {error.strerror}")
        self._tidy()

    def _old(self, newest: int) -> list[Checkpoint]:
        """Return the checkpoints to delete: those before the last `keep` undamaged ones, except the best.

        newest: the step of the checkpoint that was just saved. Checkpoints of later steps do not count.
        """
        try:
            best = self._pointed("best")
        except DataError as error:
            self._note(f"{error}; old checkpoints are kept, because one of them may be the best")
            return []
        candidates = [each for each in self.all() if each.step <= newest]
        undamaged = [each.step for each in candidates if self._seems_undamaged(each)]
        oldest = undamaged[-self.keep] if len(undamaged) >= self.keep else 0
        return [each for each in candidates if each.step < oldest and each.step != best]

    def _seems_undamaged(self, checkpoint: Checkpoint) -> bool:
        try:
            checkpoint.verify_sizes()
        except DataError:
            return False
        return checkpoint.step not in self._known_damaged

    def _point(self, pointer: str, step: int) -> None:
        atomic_io.replace(self.folder / pointer, f"{folder_name(step)}\n".encode())

    def _pointed(self, pointer: str) -> int | None:
        path = self.folder / pointer
        try:
            with naming_damage(path):
                content = read_limited(path, "pointer")
        except FileNotFoundError:
            return None
        step = step_of(content.decode("utf-8", "replace").strip())
        if step is None:
            raise DataError(
                message(str(path), f"contains {content[:30]!r}, which is not the name of a checkpoint")
            )
        return step

    def _failed(self, step: int, problem: str, error: OSError, size: int = 0) -> DataError:
        pointed = self.pointed_step("latest")
        kept = "" if pointed in (None, step) else f"; {folder_name(pointed)} is still the latest"
        return atomic_io.failed(str(self.folder), problem, error, size, kept)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
