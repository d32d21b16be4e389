"""`regard view` for algorithms: draw the slots that the heads write and read, or the contents of one slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from regard.errors import ArgumentError, message, shown
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask
from regard.tasks.algorithms.algorithms_run import AlgorithmsRun
from regard.tasks.algorithms.given_sequences import read_sequence
from regard.training.command_options import CommandOption
from regard.viewing import Picture
from regard.viewing.tape_run import TapeRun

__all__ = ["VIEW_OPTIONS", "SolutionView", "view_algorithms"]

TAPE, SLOT = "tape", "slot"

VIEW_OPTIONS: tuple[CommandOption | str, ...] = (
    CommandOption(
        "--length",
        "Algorithms: length of the generated sequence.",
        "INT",
        int,
        shown_default="the longest in training",
        least=1,
        most=10_000,
    ),
    CommandOption("--sequence", "Algorithms: the sequence to solve, as a JSON object.", "JSON"),
    CommandOption(
        "--slot",
        "Algorithms: number of the slot for --view slot; the first is 0.",
        "INT",
        int,
        shown_default="the slot whose contents were replaced most",
        least=0,
        most=1_000_000,
    ),
)
"""The options of `regard view` for algorithms, besides the drawing options, which all tasks have."""


@dataclass(frozen=True, eq=False)
class SolutionView(RunView):
    """The heads of a neural Turing machine while it answers one sequence.

    run: the recorded steps of the machine.
    slot: the slot of the tape whose contents are drawn (--slot).
    """

    run: TapeRun
    slot: int | None = None
    default_view: ClassVar[str] = TAPE
    default_animation: ClassVar[str | None] = "player"

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view that `options` selects. The view "player" is an animation of the steps."""
        view = options.view or self.default_view
        if self.slot is not None and view != SLOT:
            raise ArgumentError(message("--slot", f"can only be used with --view {SLOT}"))
        if view == TAPE:
            drawn: Picture = self.run.picture()
        elif view == SLOT:
            drawn = self.run.slot_picture(self.slot)
        elif view == "player":
            drawn = self.run.animation()
        else:
            drawn = super().picture(options)
        return drawn

    def write_page(self, path: Path) -> None:
        self.run.save(path)


def view_algorithms(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> SolutionView:
    """Answer one sequence with a neural Turing machine, and record its heads and its tape.

    options: the values of the command-line options VIEW_OPTIONS. Without --sequence, a sequence is generated.
    """
    solver: AlgorithmsRun = run.load(task)
    if not solver.has_tape:
        problem = f"a model with name = {solver.settings.model.name} has no tape"
        raise ArgumentError(message(shown(run.folder), problem, hint="use a run of the model ntm"))
    if options["sequence"] is not None:
        if options["length"] is not None:
            raise ArgumentError(message("--length", "cannot be combined with --sequence"))
        solution = solver.solve(read_sequence(options["sequence"], "--sequence"), "--sequence")
    else:
        length = {} if options["length"] is None else {"length": options["length"]}
        (solution,) = solver.generate(1, length)
    return SolutionView(solution.seen(), solution.tape_run(), options["slot"])
