"""Load the model of an algorithms run from its run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, message, shown
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask, StoredRun
from regard.tasks.algorithms.data import read_sequence
from regard.tasks.algorithms.sequence_solver import SequenceSolver
from regard.tasks.algorithms.settings import AlgorithmsSettings
from regard.training.command_options import CommandOption
from regard.viewing import Picture

__all__ = ["AlgorithmsRun", "VIEW_OPTIONS", "solver_of", "view_algorithms"]


class AlgorithmsRun(LoadedRun, SequenceSolver):
    """A SequenceSolver that was loaded from a run folder, with the settings and the folder of its run."""

    settings: AlgorithmsSettings

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "task": self.task.name}


def solver_of(run: StoredRun, device: str, **options: Any) -> AlgorithmsRun:
    """Load the model of an algorithms run.

    run: the run folder, with its settings and the chosen checkpoint.
    device: where the model runs.
    options: further arguments of SequenceSolver, such as slots.
    """
    check_load_keywords(SequenceSolver, options)
    settings = run.settings
    task = settings.data.task()
    model = build_sequence_model(
        settings.model.name, task.input_size, task.target_size, **settings.model.options
    )
    return AlgorithmsRun(with_weights(model, run, device), task, **options).from_run(run)


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


def view_algorithms(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> RunView:
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
    if options["slot"] is not None and drawing.view != SLOT:
        raise ArgumentError(message("--slot", f"can only be used with --view {SLOT}"))
    run_on_tape = solution.tape_run()
    own: dict[str, Callable[[], Picture]] = {
        TAPE: run_on_tape.picture,
        SLOT: partial(run_on_tape.slot_picture, options["slot"]),
        "player": run_on_tape.animation,
    }
    return RunView(
        solution.seen(), default_view=TAPE, default_animation="player", own=own, page=run_on_tape.save
    )
