"""Checkpoints: what a run can go on from, whatever moment its process was killed at.

    step-000100/  weights.safetensors  optimizer.safetensors  state.json
                  manifest.json        the size and the SHA-256 of each of them
    latest, best                       pointers: the name of a checkpoint

A checkpoint is written beside its place, flushed to the disk and renamed; then `latest` is replaced, and only
then are old ones deleted. One process writes to a run folder at a time; reading writes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError, DataError, message
from regard.files import atomic_io
from regard.files.untrusted import read_limited
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
    """The checkpoints of a run folder: written whole or not at all, the last ones kept.

    folder: made when it is needed; what others keep in it is never touched. keep: how many whole checkpoints
    are left at least, 2 or more; and always the one that is marked as the best. notes: what had to be said,
    in words: damaged checkpoints that were passed over, old ones that could not be deleted.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder))
    ...     for step in (100, 200, 300):
    ...         made = checkpoints.save(step, {"weights": {"scale": torch.tensor(step / 8)}}, {"epoch": 1})
    ...     found = checkpoints.latest()
    ...     print([each.step for each in checkpoints.all()], found.tensors("weights"), found.state)
    [200, 300] {'scale': tensor(37.5000)} {'epoch': 1}
    """

    def __init__(self, folder: Path, keep: int = 2):
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 2:
            hint = "with one alone, nothing would be left if that one were damaged"
            raise ArgumentError(
                message("Checkpoints()", f"keep is {keep!r}", expected="2 or more", hint=hint)
            )
        self.folder, self.keep = Path(folder), keep
        self.notes: list[str] = []
        self._known_damaged: set[int] = set()

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
    ) -> Checkpoint:
        """Write a checkpoint, point `latest` at it, and delete old ones.

        tensors: the tensors of each file, {"weights": {...}, "optimizer": {...}}, on any device. state:
        whatever JSON can hold. A checkpoint of the same step is replaced. If anything fails, DataError says
        what, and the checkpoint before is still there and still the latest.
        """
        text = checked(step, tensors, state)
        size = sum(tensor.nbytes for group in tensors.values() for tensor in group.values())
        return self._write(step, lambda made: write_checkpoint(made, step, tensors, text), size)

    def save_state(self, step: int, state: Mapping[str, Any]) -> Checkpoint:
        """Replace the state of a checkpoint; its tensors stay, and are not written again.

        If anything fails, DataError says what, and the checkpoint is still there with its old state.
        """
        text = checked(step, {}, state)
        before = Checkpoint(step, self.folder / folder_name(step))
        return self._write(step, lambda made: write_state(made, before, text))

    def _write(self, step: int, write: Callable[[Path], None], size: int = 0) -> Checkpoint:
        """Write a checkpoint into a temporary folder, rename that, and point `latest` at it.

        size: bytes to write, for the error of a full disk.
        """
        place = self.folder / folder_name(step)
        made = atomic_io.beside(place, "part")
        try:
            try:
                self._prepare(place)
                write(made)
                if os.path.lexists(place):  # no system call exchanges folders: see _tidy() and all()
                    os.rename(place, atomic_io.beside(place, "earlier"))
                os.rename(made, place)
                atomic_io.flush_folder(self.folder)
                self._point("latest", step)
            except BaseException:
                self._tidy()
                raise
        except OSError as error:
            raise self._failed(step, f"no checkpoint of step {step} could be saved", error, size) from error
        self._known_damaged.discard(step)
        self._delete_old(step)
        return Checkpoint(step, place)

    def latest(self) -> Checkpoint | None:
        """The checkpoint to go on from: the newest that is whole, as far as `latest` points; None at first.

        Damaged ones are passed over, and notes say so. Checkpoints of which none is whole are an error: to
        begin anew would be no going on.
        """
        found = self.all()
        try:
            pointed = self._pointed("latest")
        except DataError as error:
            self._note(f"{error}; the newest whole checkpoint is taken")
            pointed = None
        else:
            if pointed is None and found:
                self._note(f"{self.folder / 'latest'} is missing; the newest whole checkpoint is taken")
        if not found:
            if os.path.lexists(self.folder / "latest"):
                raise self._none_is_whole("`latest` is there, and no checkpoint")
            return None
        if pointed is not None and pointed not in [each.step for each in found]:
            self._note(f"{self.folder / 'latest'} points at {folder_name(pointed)}, which is not there")
        # Beyond the pointer lies what a killed save did not finish, or what another beginning left.
        beyond = [each for each in found if pointed is not None and each.step > pointed]
        within = [each for each in found if each not in beyond]
        return self._first_whole([*reversed(within), *reversed(beyond)])

    def best(self) -> Checkpoint | None:
        """The checkpoint that was marked as the best; None if none was; the latest if that one is damaged."""
        try:
            step = self._pointed("best")
            if step is None:
                return None
            marked = {each.step: each for each in self.all()}.get(step)
            if marked is None:
                problem = f"points at {folder_name(step)}, which is not there"
                raise DataError(message(str(self.folder / "best"), problem))
            marked.verify()
            return marked
        except DataError as error:
            self._note(f"{error}; the latest checkpoint is taken for the best")
        latest = self.latest()
        if latest is None:
            raise self._none_is_whole("`best` is there, and no checkpoint")
        return latest

    def mark_best(self, step: int) -> None:
        """Point `best` at a checkpoint, which is kept until another is marked."""
        steps = [each.step for each in self.all()]
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none at all"
            raise DataError(message(str(self.folder), f"no checkpoint of step {step}", expected=there))
        try:
            self._point("best", step)
        except OSError as error:
            self._tidy()
            raise self._failed(step, f"step {step} could not be marked as the best", error) from error

    def all(self) -> list[Checkpoint]:
        """Every checkpoint there is, by step; verify() tells of each whether it is whole."""
        found: dict[int, Checkpoint] = {}
        for path, is_folder in self._entries().items():
            left = atomic_io.leftover(path.name)
            step = step_of(left.name if left and left.kind == "earlier" else path.name)
            # A save of the same step was killed before the new one was in its place: this is the old one.
            if step is not None and is_folder and (left is None or step not in found):
                found[step] = Checkpoint(step, path)
        return [found[step] for step in sorted(found)]

    def _entries(self) -> dict[Path, bool]:
        """What is in the run folder, by name, and whether it is a folder."""
        try:
            with os.scandir(self.folder) as entries:
                found = {Path(entry.path): entry.is_dir() for entry in entries}
        except FileNotFoundError:
            return {}
        except OSError as error:
            problem = f"this run folder cannot be read: {error.strerror}"
            raise DataError(message(str(self.folder), problem)) from error
        return {path: found[path] for path in sorted(found)}

    def _first_whole(self, candidates: list[Checkpoint]) -> Checkpoint:
        damaged = []
        for each in candidates:
            try:
                each.verify()
            except DataError as error:
                damaged.append(str(error))
                self._known_damaged.add(each.step)
                self._note(f"a damaged checkpoint is passed over: {error}")
                continue
            if damaged:
                self._note(f"{each.path} is taken instead")
            return each
        raise self._none_is_whole("none of the checkpoints is whole", damaged)

    def _none_is_whole(self, problem: str, damaged: list[str] | None = None) -> DataError:
        hint = "bring back a copy of a checkpoint, or begin anew in another folder"
        return DataError(message(str(self.folder), "\n  ".join([problem, *(damaged or [])]), hint=hint))

    def _prepare(self, place: Path) -> None:
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            atomic_io.flush_folder(self.folder.parent)
        if os.path.lexists(place) and not place.is_dir():
            raise DataError(message(str(place), "a file is where the checkpoint would be", hint="move it"))
        self._tidy()  # first, for what a killed save left may be all the room there is

    def _tidy(self) -> None:
        """Take away what is in no place; an earlier checkpoint whose place is empty goes back there."""
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
                self._note(f"{path} could not be tidied away: {error.strerror}")

    def _delete_old(self, newest: int) -> None:
        for each in self._old(newest):
            try:
                os.rename(each.path, atomic_io.beside(each.path, "part"))
            except OSError as error:
                self._note(f"{each.path} is old and could not be deleted: {error.strerror}")
        self._tidy()

    def _old(self, newest: int) -> list[Checkpoint]:
        """What is older than the last whole ones, but for the best; what lies beyond the newest stays."""
        try:
            best = self._pointed("best")
        except DataError as error:
            self._note(f"{error}; old checkpoints are kept, for one of them may be the best")
            return []
        candidates = [each for each in self.all() if each.step <= newest]
        whole = [each.step for each in candidates if self._seems_whole(each)]
        oldest = whole[-self.keep] if len(whole) >= self.keep else 0
        return [each for each in candidates if each.step < oldest and each.step != best]

    def _seems_whole(self, checkpoint: Checkpoint) -> bool:
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
            content = read_limited(path, "pointer")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from error
        step = step_of(content.decode("utf-8", "replace").strip())
        if step is None:
            raise DataError(message(str(path), f"holds {content[:30]!r}, which names no checkpoint"))
        return step

    def _failed(self, step: int, problem: str, error: OSError, size: int = 0) -> DataError:
        kept = ""
        with contextlib.suppress(DataError):
            pointed = self._pointed("latest")
            if pointed is not None and pointed != step:
                kept = f"; {folder_name(pointed)} is still the latest"
        return atomic_io.failed(str(self.folder), problem, error, size, kept)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
