"""Board: write the curves of a training run for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, message
from regard.files.requirements import install_command
from regard.files.untrusted import make_folder

__all__ = ["Board"]


class Board:
    """A logger that writes the metrics of a training run, such as the loss over the steps, for TensorBoard.

    folder: the folder for the files. It is created with the first metrics.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "board"
    >>> board = Board(folder)
    >>> board("step", {"step": 50, "metrics": {"training/loss": 2.5}})
    >>> board("end", {"step": 50, "status": "ended"})
    >>> len(list(folder.iterdir()))
    1
    """

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                message("Log(board=...)", "TensorBoard is not installed", hint=install_command("board"))
            ) from error
        self.folder, self.name = folder, f"writing TensorBoard files to {folder.name}"
        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def __call__(self, event: str, values: Mapping[str, Any]) -> None:
        if "metrics" in values:
            if self._writer is None:
                make_folder(self.folder)
                # A resumed run repeats the steps after its checkpoint. purge_step hides the earlier points of
                # these steps.
                self._writer = self._open(str(self.folder), purge_step=values["step"])
            for name, value in values["metrics"].items():
                self._writer.add_scalar(name, value, values["step"])
        elif self._writer is not None and event == "checkpoint":
            self._writer.flush()
        elif self._writer is not None and event == "end":
            self._writer.close()
            self._writer = None
