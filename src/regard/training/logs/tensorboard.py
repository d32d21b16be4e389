"""Board: write the curves of a training run for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, message
from regard.files.requirements import install_command
from regard.files.untrusted import make_folder

__all__ = ["Board"]


class Board:
    """Write the curves of a training run, such as the loss over the steps, to files for TensorBoard.

    folder: the folder for the files. It is created with the first points.
    complain: a function that is called with a message if writing fails. After that, nothing more is written,
        and training continues.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "board"
    >>> board = Board(folder, print)
    >>> board.add(50, {"training/loss": 2.5})
    >>> board.close()
    >>> len(list(folder.iterdir()))
    1
    """

    def __init__(self, folder: Path, complain: Callable[[str], None]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                message("Log(board=...)", "TensorBoard is not installed", hint=install_command("board"))
            ) from error
        self._open: Callable[..., Any] | None = SummaryWriter
        self._writer: Any = None
        self.folder, self.complain = folder, complain

    def add(self, step: int, points: Mapping[str, float]) -> None:
        """Add a point to several curves.

        step: number of the training step.
        points: the value of each curve at this step, by the name of the curve, e.g. {"training/loss": 2.5}.
        """
        self._try(lambda: self._add(step, points))

    def flush(self) -> None:
        """Write all points that were added to curves to the disk."""
        self._try(lambda: self._writer and self._writer.flush())

    def close(self) -> None:
        """Write all points that were added to curves to the disk, and close the files."""
        self._try(lambda: self._writer and self._writer.close())
        self._writer = None

    def _add(self, step: int, points: Mapping[str, float]) -> None:
        if self._writer is None and self._open is not None:
            # A resumed run repeats the steps after its checkpoint. purge_step hides the earlier points of
            # these steps.
            make_folder(self.folder)
            self._writer = self._open(str(self.folder), purge_step=step)
        for name, value in points.items():
            self._writer.add_scalar(name, value, step)

    def _try(self, do: Callable[[], object]) -> None:
        if self._open is None:
            return
        try:
            do()
        except Exception as error:  # any type, because TensorFlow may write the files
            self._open = None
            self.complain(
                f"TensorBoard files in {self.folder.name} cannot be written: {error}; training continues"
            )
