"""One checkpoint: the files in its folder, and the manifest with their sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files import atomic_io
from regard.files.atomic_io import Written
from regard.files.tensor_file import TensorInfo, check_tensors, read_header, read_tensors, tensor_blocks
from regard.files.untrusted import open_regular, parse_json, read_limited

__all__ = ["ESTIMATOR", "Checkpoint", "checked", "folder_name", "step_of", "write_checkpoint", "write_state"]

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"
VERSION = 1
"""The version of the manifest format."""

ESTIMATOR = "estimator"
"""The attribute of a model for the estimator of hard attention. In the state dict, the names of the weights
of the estimator begin with "estimator."."""

NAME = re.compile(rf"[a-z0-9_]+{re.escape(TENSORS)}|{re.escape(STATE)}")
WRONG = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


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
            try:
                with open(self.path / name, "rb", opener=open_regular) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
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
            try:
                size = (self.path / name).lstat().st_size
            except FileNotFoundError:
                raise self._damaged(f"{name} is missing") from None
            except OSError as error:
                raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
            if size != written.size:
                raise self._damaged(f"{name} has {size:,} bytes, expected {written.size:,}")
        return files

    @property
    def state(self) -> dict[str, Any]:
        """The content of state.json: the state that was saved, with lists instead of tuples."""
        return self._json(STATE)

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor file of this name, such as "weights"."""
        return name in self._named()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read a tensor file of the checkpoint into CPU memory; return a dict by tensor name.

        name: the name of the file, such as "weights".
        """
        if not self.has(name):
            raise UnknownName(f"file of tensors in {self.path}:", name, self._named())
        return read_tensors(self.path / f"{name}{TENSORS}")

    def model_weights(self) -> dict[str, Tensor]:
        """Read the weights of the model, but not of an estimator, because it is used only in training."""
        weights = self.tensors("weights")
        return {name: tensor for name, tensor in weights.items() if not name.startswith(f"{ESTIMATOR}.")}

    def shapes(self, name: str) -> dict[str, TensorInfo]:
        """Return the dtype and the shape of each tensor in a tensor file, by tensor name.

        Only the header of the file is read.

        name: the name of the file, such as "weights".
        """
        if not self.has(name):
            raise UnknownName(f"file of tensors in {self.path}:", name, self._named())
        return read_header(self.path / f"{name}{TENSORS}")

    def _named(self) -> list[str]:
        return [file.removesuffix(TENSORS) for file in self._manifest() if file.endswith(TENSORS)]

    def _manifest(self) -> dict[str, Written]:
        if self.path.is_symlink():
            raise self._damaged("is a symbolic link, not a folder")
        manifest = self._json(MANIFEST)
        try:
            files = {name: Written(int(f["size"]), str(f["sha256"])) for name, f in manifest["files"].items()}
            version, step = manifest["version"], manifest["step"]
        except WRONG:
            raise self._damaged(f"{MANIFEST} is damaged") from None
        if version != VERSION:
            raise self._damaged(f"{MANIFEST} has version {version!r}; this version of Regard reads {VERSION}")
        if step != self.step or STATE not in files or not all(map(NAME.fullmatch, files)):
            raise self._damaged(f"{MANIFEST} has the wrong step or wrong file names")
        return files

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content = parse_json(read_limited(self.path / name, "json"))
        except FileNotFoundError:
            raise self._damaged(f"{name} is missing") from None
        except OSError as error:
            raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self._damaged(f"{name} is damaged: {error}") from None
        if not isinstance(content, dict):
            raise self._damaged(f"{name} is damaged")
        return content

    def _damaged(self, problem: str) -> DataError:
        return DataError(message(str(self.path), problem))


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint folder: 100 for "step-000100", and None for other names."""
    match = re.fullmatch("step-([0-9]{6,18})", name)
    return int(match[1]) if match and name == folder_name(int(match[1])) else None


def checked(step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> bytes:
    """Check the arguments of Checkpoints.save(), and return the state as JSON.

    Raise ArgumentError if the step, the tensors or the state cannot be saved.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise ArgumentError(message("save()", f"step is {step!r}", expected="an integer, 0 or more"))
    for name, group in tensors.items():
        if not NAME.fullmatch(f"{name}{TENSORS}"):
            expected = "lower-case letters, digits and _"
            raise ArgumentError(message("save()", f"the file name {name!r} is invalid", expected=expected))
        check_tensors(f"save(), {name}", group)
    for key, value in state.items():
        try:
            json.dumps(value)
        except WRONG as error:
            hint = "pass tensors in `tensors`; `state` may hold only what JSON can store"
            raise ArgumentError(message("save()", f"state[{key!r}]: {error}", hint=hint)) from None
    return json.dumps(dict(state), indent=1).encode()


def write_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: bytes
) -> None:
    """Write the files of a checkpoint into a new folder, and flush them to the disk.

    tensors: the tensors of each tensor file, such as {"weights": {...}, "optimizer": {...}}.
    state: the content of state.json.
    """
    folder.mkdir()
    files = {
        f"{name}{TENSORS}": atomic_io.write(folder / f"{name}{TENSORS}", tensor_blocks(group))
        for name, group in tensors.items()
    }
    _write_manifest(folder, step, files, state)


def write_state(folder: Path, before: Checkpoint, state: bytes) -> None:
    """Write a checkpoint with the tensors of the checkpoint `before` and a new state into a new folder.

    Hard links to the tensor files of `before` are created, so that their content is not written again.
    """
    files = before.verify_sizes()
    folder.mkdir()
    for name in files:
        if name != STATE:
            atomic_io.link(before.path / name, folder / name)
    _write_manifest(folder, before.step, files, state)


def _write_manifest(folder: Path, step: int, files: dict[str, Written], state: bytes) -> None:
    """Write state.json and the manifest of a checkpoint whose tensor files are already written."""
    files[STATE] = atomic_io.write(folder / STATE, [state])
    listed = {name: written._asdict() for name, written in files.items()}
    manifest = {"version": VERSION, "step": step, "files": listed}
    atomic_io.write(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    atomic_io.flush_folder(folder)
