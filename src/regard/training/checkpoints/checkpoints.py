"""Checkpoints: save the state of a run, so that it can be resumed after its process was killed.

    step-000100/  weights.safetensors  optimizer.safetensors  state.json
                  manifest.json        the size and the SHA-256 of each of these files
    latest, best                       pointer files: the name of a checkpoint folder

A checkpoint is saved in five steps: write the files to a temporary folder, flush them to the disk, rename the
folder, replace `latest`, delete old checkpoints. Only one process at a time may write to a run folder.
Reading a checkpoint changes nothing in the run folder. mean_weights() averages checkpoints: the mean of
several often scores better than each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files import atomic_io
from regard.files.atomic_io import Written
from regard.files.tensor_file import TensorInfo, read_header, read_tensors, tensor_blocks
from regard.files.untrusted import naming_damage, open_regular, parse_json, read_limited

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"
VERSION = 1
"""The version of the manifest format."""

ESTIMATOR = "estimator"
"""The attribute of a model for the estimator of hard attention. In the state dict, the names of the weights
of the estimator begin with "estimator."."""

NAME = re.compile(rf"[a-z0-9_]+{re.escape(TENSORS)}|{re.escape(STATE)}")

POINTERS = ("latest", "best")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a run folder, with its tensor files and its state.json.

    step: the training step at which the checkpoint was saved.
    path: the folder of the checkpoint.

    >>> Checkpoint(100, Path("runs/x/step-000100"))
    Checkpoint(100, runs/x/step-000100)
    """

    step: int
    path: Path

    def __repr__(self) -> str:
        return f"Checkpoint({self.step}, {self.path})"

    def verify(self, tensors: Sequence[str] | None = None) -> None:
        """Compare the files of the checkpoint with the hashes in its manifest.

        Raise DataError if a file is damaged or missing.

        tensors: names of the tensor files to verify, such as "weights". Default: all. state.json is always
            verified.
        """
        for name, written in self.verify_sizes(tensors).items():
            with self._reading(name), open(self.path / name, "rb", opener=open_regular) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != written.sha256:
                found, expected = f"{digest[:12]}…", f"{written.sha256[:12]}…"
                raise self._damaged(f"{name} is damaged: its SHA-256 is {found}, expected {expected}")

    def verify_sizes(self, tensors: Sequence[str] | None = None) -> dict[str, Written]:
        """Compare the sizes of the files with the sizes in the manifest. The contents are not read.

        Return the size and hash of each file in the manifest, by file name. Raise DataError if a file is
        missing or has another size.

        tensors: names of the tensor files to compare, such as "weights". Default: all. state.json is always
            compared.
        """
        files = self._manifest()
        if tensors is not None:
            needed = {STATE, *(f"{name}{TENSORS}" for name in tensors)}
            files = {name: written for name, written in files.items() if name in needed}
        for name, written in files.items():
            with self._reading(name):
                size = (self.path / name).lstat().st_size
            if size != written.size:
                raise self._damaged(f"{name} has {size:,} bytes, expected {written.size:,}")
        return files

    @property
    def state(self) -> dict[str, Any]:
        """The content of state.json: the state that was saved, with lists instead of tuples."""
        with self._reading(STATE):
            return dict(parse_json(read_limited(self.path / STATE, "json")))

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor file of this name, such as "weights"."""
        return f"{name}{TENSORS}" in self._manifest()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read a tensor file of the checkpoint into CPU memory; return a dict by tensor name.

        name: the name of the file, such as "weights".
        """
        return read_tensors(self._tensor_file(name))

    def model_weights(self) -> dict[str, Tensor]:
        """Read the weights of the model, but not of an estimator, because it is used only in training."""
        weights = self.tensors("weights")
        return {name: tensor for name, tensor in weights.items() if not name.startswith(f"{ESTIMATOR}.")}

    def shapes(self, name: str) -> dict[str, TensorInfo]:
        """Return the dtype and the shape of each tensor in a tensor file, by tensor name.

        Only the header of the file is read.

        name: the name of the file, such as "weights".
        """
        return read_header(self._tensor_file(name))

    def _tensor_file(self, name: str) -> Path:
        if not self.has(name):
            known = [file.removesuffix(TENSORS) for file in self._manifest() if file != STATE]
            raise UnknownName(f"file of tensors in {self.path}:", name, known)
        return self.path / f"{name}{TENSORS}"

    def _manifest(self) -> dict[str, Written]:
        if self.path.is_symlink():
            raise self._damaged("is a symbolic link, not a folder")
        with self._reading(MANIFEST):
            manifest = parse_json(read_limited(self.path / MANIFEST, "json"))
            files = {name: Written(int(f["size"]), str(f["sha256"])) for name, f in manifest["files"].items()}
            version, step = manifest["version"], manifest["step"]
        if version != VERSION:
            raise self._damaged(f"{MANIFEST} has version {version!r}; this version of Regard reads {VERSION}")
        if step != self.step or STATE not in files or not all(map(NAME.fullmatch, files)):
            raise self._damaged(f"{MANIFEST} has the wrong step or wrong file names")
        return files

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Context manager: convert the errors of reading a file of the checkpoint to DataError."""
        try:
            yield
        except FileNotFoundError:
            raise self._damaged(f"{name} is missing") from None
        except OSError as error:
            raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise self._damaged(f"{name} is damaged: {error}") from None

    def _damaged(self, problem: str) -> DataError:
        return DataError(message(str(self.path), problem))


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint folder: 100 for "step-000100", and None for other names."""
    match = re.fullmatch("step-([0-9]{6,18})", name)
    return int(match[1]) if match and name == folder_name(int(match[1])) else None


def write_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]] | Checkpoint,
    state: Mapping[str, Any],
) -> None:
    """Write the files of a checkpoint into a new folder, and flush them to the disk.

    tensors: the tensors of each tensor file, such as {"weights": {...}, "optimizer": {...}}; or a checkpoint.
        Then hard links to its tensor files are created, so that their content is not written again.
    state: the content of state.json.
    """
    text = json.dumps(dict(state), indent=1).encode()
    files: dict[str, Written] = {}
    if isinstance(tensors, Checkpoint):
        files = {name: written for name, written in tensors.verify_sizes().items() if name != STATE}
    folder.mkdir()
    if isinstance(tensors, Checkpoint):
        for name in files:
            atomic_io.link(tensors.path / name, folder / name)
    else:
        for name, group in tensors.items():
            file = f"{name}{TENSORS}"
            files[file] = atomic_io.write(folder / file, tensor_blocks(group))
    files[STATE] = atomic_io.write(folder / STATE, [text])
    listed = {name: written._asdict() for name, written in files.items()}
    manifest = {"version": VERSION, "step": step, "files": listed}
    atomic_io.write(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    atomic_io.flush_folder(folder)


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
        self.folder, self.keep = Path(folder), keep
        self.notes: list[str] = []
        self._known_damaged: set[int] = set()

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]] | None, state: Mapping[str, Any]
    ) -> Checkpoint:
        """Write a checkpoint, write its name to the file `latest`, and delete old checkpoints.

        step: the training step.
        tensors: the tensors of each file, such as {"weights": {...}, "optimizer": {...}}. None:
            the tensor files of the checkpoint of this step are kept, and only its state is replaced.
        state: any values that JSON can store.

        A checkpoint of the same step is replaced. If writing fails, DataError is raised, and the previous
        checkpoint stays the latest.
        """
        place = self.folder / folder_name(step)
        temporary = atomic_io.beside(place, "part")
        size = sum(tensor.nbytes for group in (tensors or {}).values() for tensor in group.values())
        try:
            try:
                self._prepare(place)
                write_checkpoint(
                    temporary, step, Checkpoint(step, place) if tensors is None else tensors, state
                )
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
        """Do the work of latest(). If there are problems, add one message about all of them to `notes`.

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
        damaged: list[str] = []
        for each in (*reversed(older), *reversed(newer)):
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
        undamaged = []
        for each in candidates:
            with contextlib.suppress(DataError):
                each.verify_sizes()
                undamaged += [each.step] if each.step not in self._known_damaged else []
        oldest = undamaged[-self.keep] if len(undamaged) >= self.keep else 0
        return [each for each in candidates if each.step < oldest and each.step != best]

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


@dataclass(frozen=True)
class Averaged:
    """The checkpoints from which an averaged checkpoint was computed.

    run: the name of their run.
    steps: their training steps.

    >>> print(Averaged("korean", [100, 2000]))
    the mean of steps 100, 2,000 of korean
    >>> print(Averaged("korean", [100]))
    a copy of step 100 of korean
    """

    run: str
    steps: list[int]

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in self.steps)
        return f"{'a copy of step' if len(self.steps) == 1 else 'the mean of steps'} {steps} of {self.run}"


def averaged_from(state: Mapping[str, Any], place: str) -> Averaged | None:
    """Return which checkpoints were averaged to create this checkpoint, or None if it is not an average.

    state: the content of state.json of the checkpoint.
    place: the path of state.json, for error messages.
    """
    about = state.get("averaged")
    if about is None:
        return None
    with naming_damage(place, "the entry 'averaged' is damaged", "restore this file from a copy"):
        if not all(type(step) is int and 0 <= step < 10**18 for step in about["steps"]):
            raise ValueError
        return Averaged(str(about.get("run")), list(about["steps"]))


def mean_weights(checkpoints: Sequence[Checkpoint], name: str = "weights") -> dict[str, Tensor]:
    """Return the mean of each tensor over several checkpoints, as a dict by tensor name.

    name: the tensor file to average, such as "weights".

    Sums are computed in float64. The result has the dtypes of the checkpoints. Tensors that are not floating
    point, such as counters, are copied from the last checkpoint. Only one checkpoint is in memory at a time.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from regard.training.checkpoints.checkpoints import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Checkpoints(Path(folder))
    ...     for step in (1, 2):
    ...         saved = run.save(step, {"weights": {"scale": torch.tensor([step, 8.0])}}, {})
    ...     mean_weights(run.all())
    {'scale': tensor([1.5000, 8.0000])}
    """
    if not checkpoints:
        raise ArgumentError(message("mean_weights()", "there are no checkpoints to average"))
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        tensors = checkpoint.tensors(name)
        if last and _shapes(tensors) != _shapes(last):
            problem = f"names or shapes of the {name} differ from those of {checkpoints[0].path.name}"
            raise DataError(message(str(checkpoint.path), problem))
        for key, tensor in tensors.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                sums[key] = sums[key] + wide if key in sums else wide
        last = tensors
    count = len(checkpoints)
    return {key: (sums[key] / count).to(last[key].dtype) if key in sums else last[key] for key in last}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
