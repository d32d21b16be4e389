"""`regard evaluate` for algorithms: the scores of a model at the training lengths and at longer lengths.

The main score is the cross-entropy of the right answer in bits, summed over a sequence (bits per sequence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.text import Text

from regard.data.batch import TapeBatch
from regard.data.progress_bar import advancing
from regard.data.tape_tasks import DynamicNGrams, Sizes, TapeTask
from regard.errors import ArgumentError, RegardError, message
from regard.evaluation.sequence_bits import sequence_bits
from regard.fast.twins import Twins
from regard.models.turing_machine import NeuralTuringMachine
from regard.runs.run_commands import ChosenRun, RunReport, score_table
from regard.runs.run_task import RunTask
from regard.tasks.algorithms.data import SequenceSource, named_sizes
from regard.tasks.algorithms.run import AlgorithmsRun
from regard.training.command_options import CommandOption

__all__ = [
    "EVALUATE_OPTIONS",
    "SizeScores",
    "evaluate_algorithms",
    "evaluate_sizes",
    "optimal_bits",
]

SEQUENCES, MOST_SEQUENCES = 256, 1_000_000

LENGTHS = CommandOption(
    "--lengths",
    "Algorithms: lengths of the sequences to evaluate on, separated by commas, e.g. 20,60,120.",
    "INT,INT",
    shown_default="random training lengths, the longest training length, and longer lengths",
)
REPEATS = CommandOption(
    "--repeats",
    "Algorithms: number of repeats of the sequences to evaluate on; only for repeat-copy.",
    "INT",
    int,
    shown_default="the largest number in training",
    least=1,
    most=10_000,
)
SLOTS = CommandOption(
    "--slots",
    "Algorithms: number of slots of the tape.",
    "INT",
    int,
    shown_default="the number of slots in training",
    least=1,
    most=1_000_000,
)

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (
    LENGTHS,
    REPEATS,
    CommandOption(
        "--sequences",
        "Algorithms: number of sequences of each length.",
        "INT",
        int,
        SEQUENCES,
        least=1,
        most=MOST_SEQUENCES,
    ),
    SLOTS,
)
"""The options of `regard evaluate` for algorithms."""


@dataclass(frozen=True)
class SizeScores:
    """The scores of a model on sequences of one size.

    name: the sizes as text, for example "length 20".
    sequences: number of sequences.
    bits: mean cross-entropy of a sequence, in bits.
    wrong: mean number of wrong bits of a sequence.
    right: fraction of sequences without a wrong bit.
    optimal: for n-grams, the mean cross-entropy of the optimal Bayesian estimator. No model can be better on
        average. None for other tasks.
    """

    name: str
    sequences: int
    bits: float
    wrong: float
    right: float
    optimal: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as text, the number of sequences and the mean scores as a dict for JSON."""
        values = {
            "sizes": self.name,
            "sequences": self.sequences,
            "bits": self.bits,
            "wrong_bits": self.wrong,
            "right": self.right,
        }
        return values | ({} if self.optimal is None else {"optimal_bits": self.optimal})

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row: the sizes, the number of sequences, and the scores as text."""
        last = () if self.optimal is None else (f"{self.optimal:.2f}",)
        scores = f"{self.bits:.4f}", f"{self.wrong:.3f}", f"{self.right:.3f}"
        return (self.name, f"{self.sequences:,}", *scores, *last)


def evaluate_algorithms(task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
    """Evaluate the model of a run on generated sequences.

    The options --lengths and --repeats set the sizes of the sequences. Without these options, there are three
    kinds of sequences: with random training sizes, with the largest training sizes, and with larger sizes.

    options: the values of the command-line options EVALUATE_OPTIONS.
    """
    assert run is not None
    slots = {} if options["slots"] is None else {"slots": options["slots"]}
    solver: AlgorithmsRun = run.load(task, **slots)
    source = SequenceSource(solver.settings.data)
    chosen = _chosen_sizes(source.task, options)
    count, left_out = options["sequences"], []
    scores = [] if chosen else [_scores("training lengths", solver, source.mixed(count))]
    sizes = chosen or [source.task.longest, *source.task.longer]
    with advancing("evaluating", len(sizes)) as report:
        for number, each in enumerate(sizes, 1):
            try:
                solver.check(each, "--lengths")
            except RegardError:
                if chosen:
                    raise
                left_out.append(f"{named_sizes(each)} is left out: the tape has too few slots")
                continue
            scores.append(_scores(named_sizes(each), solver, [source.fixed(count, each)]))
            report(number)
    task_name = source.task.name
    values = {
        "task": task_name,
        "bits": scores[0].bits,
        "wrong_bits": scores[0].wrong,
        "sizes": [each.to_dict() for each in scores],
        "notes": left_out,
    }
    names = ("sequences of", "count", "bits per sequence", "wrong bits", "all bits right", "optimal bits")
    rows = [each.cells() for each in scores]
    table = score_table(rows, names[: max(map(len, rows))])
    return RunReport.of(solver, f"task {task_name}", values, table, *(Text(note, "dim") for note in left_out))


def evaluate_sizes(solver: Any, source: SequenceSource, sizes: Sizes, count: int) -> SizeScores:
    """Return the scores of a model on `count` generated sequences of one size.

    solver: the model and its task.
    source: generates the sequences.
    sizes: the sizes of the sequences, for example {"length": 40}.
    count: number of sequences.
    """
    return _scores(named_sizes(sizes), solver, [source.fixed(count, sizes)])


def _chosen_sizes(task: TapeTask, options: Mapping[str, Any]) -> list[Sizes]:
    """Return the sizes that the options --lengths and --repeats select, or [] if both options are missing.

    For example, --lengths 20,60 gives [{"length": 20}, {"length": 60}].
    """
    if options["repeats"] is not None and "repeats" not in task.ranges:
        raise ArgumentError(message("--repeats", f"sequences of the task {task.name} have no repeats"))
    if options["lengths"] is None:
        if options["repeats"] is not None:
            return [{**task.longest, "repeats": options["repeats"]}]
        return []
    parts = [each.strip() for each in options["lengths"].split(",")]
    if not all(each.isdecimal() and len(each) < 9 for each in parts):
        problem = f"{options['lengths'][:80]!r} is not a list of numbers"
        raise ArgumentError(message("--lengths", problem, hint="--lengths 20,60,120"))
    more = {} if options["repeats"] is None else {"repeats": options["repeats"]}
    chosen = [{**task.longest, "length": int(each), **more} for each in parts]
    for each in chosen:
        task.check_sizes(each, "--lengths")
    return chosen


def _scores(name: str, solver: AlgorithmsRun, batches: list[TapeBatch]) -> SizeScores:
    model = solver.model
    if solver.slots is not None and isinstance(model, NeuralTuringMachine):
        model = _WithSlots(model, solver.slots)
    with Twins(model):
        parts = [sequence_bits(model, each) for each in batches]
    bits = torch.cat([each.bits for each in parts if each is not None]).double()
    wrong = torch.cat([each.wrong for each in parts if each is not None]).double()
    optimal = None
    if isinstance(solver.task, DynamicNGrams):
        optimal = float(torch.cat([optimal_bits(solver.task, each) for each in batches]).mean())
    right = float((wrong == 0).double().mean())
    return SizeScores(name, len(bits), float(bits.mean()), float(wrong.mean()), right, optimal)


class _WithSlots(torch.nn.Module):
    """A neural Turing machine in which the number of slots of the tape differs from training."""

    def __init__(self, machine: NeuralTuringMachine, slots: int):
        super().__init__()
        self.machine, self.slots = machine, slots

    def forward(self, x: torch.Tensor) -> Any:
        return self.machine(x, self.machine.start(len(x), self.slots))


def optimal_bits(task: DynamicNGrams, batch: TapeBatch) -> torch.Tensor:
    """Return the cross-entropy, in bits, of the optimal Bayesian estimator on each sequence of n-grams, (B,).

    The estimator knows how the sequences are generated. So no model can be better on average.
    """
    chances, targets = task.optimal_chances(batch).double(), batch.targets[..., 0].double()
    right = torch.where(targets > 0.5, chances, 1 - chances)
    return torch.where(batch.scored, -torch.log2(right), 0.0).sum(1)
