"""Write pictures of the heads of a neural Turing machine on the tape, for the options --output and --page."""

from __future__ import annotations

from pathlib import Path

from regard.data.line_io import say
from regard.errors import shown
from regard.tasks.algorithms.solution import Solution
from regard.tasks.picture_outputs import check_outputs
from regard.viewing.tape_page import RUNS, save_tape_page
from regard.viewing.tape_run import TapeRun

__all__ = ["SolutionPictures"]


class SolutionPictures:
    """Collects answers to sequences, and writes them as a picture, as an HTML page, or both.

    The picture shows the first sequence. The page shows at most RUNS sequences.

    picture: the picture file to write. None: no picture.
    page: the .html file to write. None: no page.
    sequences: number of sequences that will be answered. If they are read from a file, the number is not
        known yet; then use 1. With a picture, the number must be 1.
    """

    def __init__(self, picture: Path | None, page: Path | None, sequences: int):
        self.picture, self.page, self.count = picture, page, 0
        self._runs: list[TapeRun] = []
        check_outputs(picture, page, sequences, "sequence", "heads.html")

    @property
    def enabled(self) -> bool:
        """Whether a picture or a page is written."""
        return self.picture is not None or self.page is not None

    def add(self, solution: Solution) -> None:
        """Add the answer to one sequence. It is ignored if no file is written, or if the page is full."""
        self.count += 1
        if self.enabled and len(self._runs) < RUNS:
            self._runs.append(solution.tape_run())

    def save(self) -> None:
        """Write the picture and the page, and print their paths.

        If a file does not show all sequences, the message says how many it shows.
        """
        if not self.enabled or not self._runs:
            return
        if self.picture is not None:
            for hint in self._runs[0].save(self.picture):
                say(hint)
            first = f", the first of {self.count:,} sequences" if self.count > 1 else ""
            say(f"Wrote {shown(self.picture)}{first}")
        if self.page is not None:
            number = len(self._runs)
            left_out = f"{number} of {self.count:,} sequences" if number < self.count else ""
            save_tape_page(self.page, self._runs, about=left_out)
            say(f"Wrote {shown(self.page)}" + (f" with {left_out}" if left_out else ""))
