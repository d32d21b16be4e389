"""One checkpoint: the files in its folder, and the manifest that says what they should be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files import atomic_io
from regard.files.atomic_io import Written
from regard.files.tensor_file import TensorInfo, check_tensors, read_header, read_tensors, tensor_blocks
from regard.files.untrusted import open_regular, parse_json, read_limited

__all__ = ["Checkpoint", "checked", "folder_name", "step_of", "write_checkpoint", "write_state"]

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"
VERSION = 1
"""Of the manifest."""

NAME = re.compile(rf"[a-z0-9_]+{re.escape(TENSORS)}|{re.escape(STATE)}")
WRONG = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a run folder: the step it was made at, its tensors and its state.

    >>> Checkpoint(100, Path("runs/x/step-000100"))
    Checkpoint(100, runs/x/step-000100)
    """

    step: int
    path: Path

    def __repr__(self) -> str:
        return f"Checkpoint({self.step}, {self.path})"

    def verify(self) -> None:
        """See that every file is as it was written; DataError says which is not, and how."""
        for name, written in self.verify_sizes().items():
            try:
                with open(self.path / name, "rb", opener=open_regular) as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
            if found != written.sha256:
                problem = f"{name} holds other bytes than were written: SHA-256 {found[:12]}…"
                raise self._damaged(f"{problem}, not {written.sha256[:12]}…")

    def verify_sizes(self) -> dict[str, Written]:
        """Every file of the manifest, all of them there in their sizes; what is in them is not read."""
        files = self._manifest()
        for name, written in files.items():
            try:
                size = (self.path / name).lstat().st_size
            except FileNotFoundError:
                raise self._damaged(f"{name} is missing") from None
            except OSError as error:
                raise self._damaged(f"{name} cannot be read: {error.strerror}") from error
            if size != written.size:
                raise self._damaged(f"{name} has {size:,} bytes, not the {written.size:,} that were written")
        return files

    @property
    def state(self) -> dict[str, Any]:
        """What save() was given as the state; tuples come back as lists."""
        return self._json(STATE)

    def has(self, name: str) -> bool:
        """Whether save() was given tensors under this name."""
        return name in self._named()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors that save() was given under this name, on the CPU."""
        if not self.has(name):
            raise UnknownName(f"file of tensors in {self.path}:", name, self._named())
        return read_tensors(self.path / f"{name}{TENSORS}")

    def shapes(self, name: str) -> dict[str, TensorInfo]:
        """The dtype and the shape of each of these tensors, from the header of their file."""
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
            raise self._damaged(f"{MANIFEST} is of version {version!r}, and this Regard knows {VERSION}")
        if step != self.step or STATE not in files or not all(map(NAME.fullmatch, files)):
            raise self._damaged(f"{MANIFEST} is not the one of this checkpoint")
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
    """The step that a folder is named for; None if it is no checkpoint's name."""
    found = re.fullmatch("step-([0-9]{6,18})", name)
    return int(found[1]) if found and name == folder_name(int(found[1])) else None


def checked(step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> bytes:
    """The state as JSON; whatever cannot be written is refused before anything is."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise ArgumentError(message("save()", f"step is {step!r}", expected="a whole number, 0 or more"))
    for name, group in tensors.items():
        if not NAME.fullmatch(f"{name}{TENSORS}"):
            expected = "small letters, digits and _"
            raise ArgumentError(message("save()", f"{name!r} would be a file's name", expected=expected))
        check_tensors(f"save(), {name}", group)
    for key, value in state.items():
        try:
            json.dumps(value)
        except WRONG as error:
            hint = "tensors go into tensors; of everything else, give what JSON can hold"
            raise ArgumentError(message("save()", f"state[{key!r}]: {error}", hint=hint)) from None
    return json.dumps(dict(state), indent=1).encode()


def write_checkpoint(
    made: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: bytes
) -> None:
    """Write the files of a checkpoint into a new folder, and see them onto the disk."""
    made.mkdir()
    files = {
        f"{name}{TENSORS}": atomic_io.write(made / f"{name}{TENSORS}", tensor_blocks(group))
        for name, group in tensors.items()
    }
    _write_manifest(made, step, files, state)


def write_state(made: Path, before: Checkpoint, state: bytes) -> None:
    """Write a checkpoint with another state into a new folder; its tensors are linked, not written again."""
    files = before.verify_sizes()
    made.mkdir()
    for name in files:
        if name != STATE:
            atomic_io.link(before.path / name, made / name)
    _write_manifest(made, before.step, files, state)


def _write_manifest(made: Path, step: int, files: dict[str, Written], state: bytes) -> None:
    """Write state.json and the manifest of a checkpoint whose other files are in place."""
    files[STATE] = atomic_io.write(made / STATE, [state])
    listed = {name: written._asdict() for name, written in files.items()}
    manifest = {"version": VERSION, "step": step, "files": listed}
    atomic_io.write(made / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    atomic_io.flush_folder(made)
