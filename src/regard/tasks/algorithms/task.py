"""The algorithms task: train a model on generated sequences, and evaluate it by bits per sequence.

The loss is the cross-entropy of the right answers. Summed over a sequence, in bits, it is called bits per
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import TapeBatch
from regard.data.line_io import advancing
from regard.data.tape_tasks import DynamicNGrams, Sizes, TapeTask
from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, RegardError, Setting, message
from regard.evaluation.attribution import attribution_views, page_of
from regard.fast.captured.graphs import capture_chosen
from regard.fast.twins import Twins
from regard.layers.tape_heads import READ_SITE, check_tape
from regard.models.turing_machine import NeuralTuringMachine
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.run_commands import Changeable, ChosenRun, RunReport, RunView, ViewOptions, score_table
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, StoredRun
from regard.runs.stored_runs import LoadedRun, with_weights
from regard.tasks.algorithms.data import SequenceSource, named_sizes, read_sequence
from regard.tasks.algorithms.sequence_solver import SequenceSolver, Solution
from regard.tasks.algorithms.settings import AlgorithmsSettings
from regard.tasks.batched_task import BatchedTask, training_speed
from regard.training.command_options import CommandOption
from regard.training.distributed import Processes
from regard.training.progress import EVALUATION_PART, RESERVED
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Speed, Stopped
from regard.viewing import Picture

BUCKETS = 8
"""Maximum number of padded sequence lengths on a GPU. Each length needs its own CUDA graph."""

TAPE, SLOT = "tape", "slot"


class AlgorithmsRun(LoadedRun, SequenceSolver):
    """A SequenceSolver that was loaded from a run folder, with the settings and the folder of its run."""

    settings: AlgorithmsSettings

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "task": self.task.name}


STEPS = {
    "copy": 20_000,
    "repeat-copy": 30_000,
    "associative-recall": 30_000,
    "n-grams": 30_000,
    "priority-sort": 30_000,
    "overwrite": 20_000,
}
"""The default number of training steps, for each task."""

BETA2 = {"associative-recall": 0.999, "overwrite": 0.999}
"""The default of training.beta2 for tasks in which the model has to look up a query. With this value, these
tasks converge in fewer steps. For other tasks, the value makes training less stable."""

MOST_SHOWN = 130
"""Maximum number of steps of the sequence that is printed after an evaluation."""


class AlgorithmsTask(BatchedTask):
    """Trains a neural Turing machine, an LSTM or a GRU on generated sequences of one algorithmic task."""

    settings_type = AlgorithmsSettings
    metrics = MappingProxyType(
        {
            "loss": "lower",
            "bits": "lower",
            "bits_longest": "lower",
            "bits_longer": "lower",
            "wrong_bits": "lower",
        }
    )
    best = "bits"
    counted = "answered bits"
    smallest_sizes = MappingProxyType({"inputs": 2, "answers": 1})
    evaluate_options = (
        CommandOption(
            "--lengths",
            "Algorithms: lengths of the sequences to evaluate on, separated by commas, e.g. 20,60,120.",
            "INT,INT",
            shown_default="random training lengths, the longest training length, and longer lengths",
        ),
        CommandOption(
            "--repeats",
            "Algorithms: number of repeats of the sequences to evaluate on; only for repeat-copy.",
            "INT",
            int,
            shown_default="the largest number in training",
            least=1,
            most=10_000,
        ),
        CommandOption(
            "--sequences",
            "Algorithms: number of sequences of each length.",
            "INT",
            int,
            256,
            least=1,
            most=1_000_000,
        ),
        CommandOption(
            "--slots",
            "Algorithms: number of slots of the tape.",
            "INT",
            int,
            shown_default="the number of slots in training",
            least=1,
            most=1_000_000,
        ),
    )
    intervene_options = (
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
    )
    view_options = (
        *intervene_options,
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

    def _set_up(self, device: str) -> None:
        capture = capture_chosen(self.settings.training, "", device, self._processes.world)
        self._lengths: tuple[int, ...] = ()
        if capture.chosen or self.settings.training.compile or device == "cuda":
            task = self.corpus.task
            low = task.steps({name: least for name, (least, _) in task.ranges.items()})
            high = task.steps(task.longest)
            lengths = {high - (high - low) * part // BUCKETS for part in range(BUCKETS)}
            self._lengths = tuple(sorted(lengths))
        self.speed = Speed(max(len(self._lengths), Speed.shapes), ahead=True, capture=capture)

    @classmethod
    def read_data(
        cls, settings: AlgorithmsSettings, fingerprints: Mapping[str, str] | None = None
    ) -> SequenceSource:
        return SequenceSource(settings.data)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: AlgorithmsSettings) -> tuple[int, ...]:
        return SequenceSource(settings.data).sizes

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> nn.Module:
        return build_sequence_model(model.name, *sizes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> AlgorithmsRun:
        check_load_keywords(SequenceSolver, options)
        task = run.settings.data.task()
        model = cls.build_model(run.settings.model, (task.input_size, task.target_size))
        return AlgorithmsRun(with_weights(model, run, device), task, **options).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        slots = {} if options["slots"] is None else {"slots": options["slots"]}
        solver: AlgorithmsRun = run.load(cls, **slots)
        source = SequenceSource(solver.settings.data)
        chosen = _chosen_sizes(source.task, options)
        count, left_out = options["sequences"], []
        scores = [] if chosen else [size_scores(solver, "training lengths", source.mixed(count))]
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
                scores.append(size_scores(solver, named_sizes(each), [source.fixed(count, each)]))
                report(number)
        task_name = source.task.name
        values = {
            "task": task_name,
            "bits": scores[0].bits,
            "wrong_bits": scores[0].wrong_bits,
            "sizes": [each.to_dict() for each in scores],
            "notes": left_out,
        }
        names = ("sequences of", "count", "bits per sequence", "wrong bits", "all bits right", "optimal bits")
        rows = [each.cells() for each in scores]
        table = score_table(rows, names[: max(map(len, rows))])
        return RunReport.of(
            solver, f"task {task_name}", values, table, *(Text(note, "dim") for note in left_out)
        )

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        solver: AlgorithmsRun = run.load(cls)
        if options["sequence"] is not None:
            if options["length"] is not None:
                raise ArgumentError(message("--length", "cannot be combined with --sequence"))
            solution = solver.solve(read_sequence(options["sequence"], "--sequence"), "--sequence")
        else:
            length = {} if options["length"] is None else {"length": options["length"]}
            (solution,) = solver.generate(1, length)
        if options["slot"] is not None and drawing.view != SLOT:
            raise ArgumentError(message("--slot", f"can only be used with --view {SLOT}"))
        if options["slot"] is not None and not solver.has_tape:
            problem = f"a model with name = {solver.settings.model.name} has no tape"
            raise ArgumentError(message("--slot", problem, hint="use a run of the model ntm"))
        views = attribution_views(partial(solver.attribute, solution))
        if not solver.has_tape:
            page = page_of(partial(solver.attribute, solution))
            return RunView(solution.seen(), default_view="erasure", own=views, page=page)
        views["erasure"] = lambda: solver.erase_slots(solution).picture()
        run_on_tape = solution.tape_run()
        own: dict[str, Callable[[], Picture]] = {
            TAPE: run_on_tape.picture,
            SLOT: partial(run_on_tape.slot_picture, options["slot"]),
            "player": run_on_tape.animation,
            **views,
        }
        return RunView(
            solution.seen(), default_view=TAPE, default_animation="player", own=own, page=run_on_tape.save
        )

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        solver: AlgorithmsRun = run.load(cls)
        if options["sequence"] is not None and options["length"] is not None:
            raise ArgumentError(message("--length", "cannot be combined with --sequence"))

        def solve() -> Solution:
            if options["sequence"] is not None:
                return solver.solve(read_sequence(options["sequence"], "--sequence"), "--sequence")
            length = {} if options["length"] is None else {"length": options["length"]}
            return next(solver.generate(1, length))

        solution = solve()
        steps = [f"step {place + 1}" for place in solution.scored.nonzero()[0].tolist()]
        slots = 0 if solution.read is None else solution.read.shape[-1]
        return Changeable(
            lambda: " ".join(solve().answer),
            steps,
            lambda: solver.answer_scores(solution),
            [[place] for place in range(len(solution.inputs))],
            [[slot] for slot in range(slots)],
            ("step", "slot"),
            READ_SITE,
        )

    @classmethod
    def check(cls, settings: AlgorithmsSettings, model: nn.Module | None = None) -> None:
        if settings.training.batch_tokens is not None:
            problem, hint = "all sequences of a batch have the same length", "set --batch-size instead"
            raise ArgumentError(message("training.batch_tokens", problem, hint=hint))
        if settings.training.estimator is not None:
            raise ArgumentError(
                message("training.estimator", "the models of this task have no hard attention")
            )
        if model is None:
            return
        task = settings.data.task()
        if isinstance(model, NeuralTuringMachine):
            sizes = task.longest
            longest = f"the longest sequence in training ({named_sizes(sizes)})"
            check_tape(model.slots, task.slots(sizes), "model.slots", longest)
        longer = task.longer[0]
        if settings.training.best == "bits_longer" and not _fits(model, task, longer):
            problem = f"the metric bits_longer needs sequences of {named_sizes(longer)}"
            advice = (
                "use ",
                Setting("model", "slots", task.slots(longer)),
                " or more, or choose another metric",
            )
            raise ArgumentError(
                message("training.best", f"{problem}, but the tape is too short", hint=advice)
            )

    @classmethod
    def plan(
        cls,
        settings: Mapping[str, Any],
        corpus: SequenceSource,
        device: str,
        processes: Processes,
        timed: bool = False,
    ) -> Plan:
        training, chosen_values = settings.get("training", {}), dict[str, Any]()
        if corpus.task.name in BETA2 and training.get("beta2") is None:
            chosen_values["beta2"] = BETA2[corpus.task.name]
        minutes, steps = training.get("minutes"), training.get("steps")
        if minutes is None and steps is None and training.get("epochs") is None:
            steps = STEPS[corpus.task.name]
            chosen_values["steps"] = steps
        complete = merged(settings, {"training": chosen_values})
        chosen = build(cls.settings_type, complete, "the settings")
        size, rate = chosen.training.batch_size, chosen.training.learning_rate
        speed = None
        if timed or minutes is not None:
            measured = training_speed(cls, complete, corpus, device) if processes.first else 0.0
            speed = processes.share(measured) * processes.world
        per_step = sum(corpus.batch(0, number, 1).scored_bits for number in range(20)) / 20 * (size or 1)
        if minutes is not None and speed is not None:
            steps = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / per_step
        elif steps is None:
            steps = training["epochs"] * corpus.data.epoch_batches
        seconds = None if speed is None else steps * per_step / speed / (1 - EVALUATION_PART - RESERVED)
        text = f"plan: batches of {size:,} sequences, learning rate {rate:g}, about {steps:,.0f} steps"
        return Plan(complete, text, steps / corpus.data.epoch_batches, seconds)

    def batches(self, epoch: int, start: int = 0) -> Iterator[TapeBatch]:
        length = self.corpus.data.epoch_batches
        count, rank = self.settings.training.batch_size, self._processes.rank
        for number in range(epoch * length + start, (epoch + 1) * length):
            yield self.corpus.batch(self.settings.seed, number, count, rank)

    def len_epoch(self, epoch: int) -> int:
        return self.corpus.data.epoch_batches

    def largest_batch(self) -> TapeBatch:
        task, count = self.corpus.task, self.settings.training.batch_size
        return task.draw(count, task.longest, torch.Generator().manual_seed(0))

    def count(self, batch: TapeBatch) -> int:
        return batch.scored_bits

    def prepare(self, batch: TapeBatch, device: Any) -> TapeBatch:
        if self._lengths:
            steps = next((each for each in self._lengths if each >= batch.steps), batch.steps)
            batch = batch.padded_to(len(batch), steps)
        return batch.to(device)

    def loss(self, batch: TapeBatch) -> Loss:
        logits_BTY, _ = self.model(batch.inputs)
        total = answer_loss(logits_BTY, batch).sum()
        return Loss(total, {"loss": total.detach()})

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        source, count = self.corpus, self.settings.evaluation.sequences
        longer = source.task.longer[0]
        parts = {
            "bits": [TapeBatch.joined(source.mixed(count))],
            "bits_longest": [source.fixed(count, source.task.longest)],
        }
        if _fits(self.model, source.task, longer):
            parts["bits_longer"] = [source.fixed(count, longer)]
        scores: dict[str, float] = {}
        for name, batches in parts.items():
            bits, wrong = 0.0, 0
            for batch in batches:
                with Twins(self.model):
                    scored = sequence_bits(self.model, batch, stopping)
                if scored is None:
                    raise Stopped
                bits, wrong = bits + float(scored.bits.double().sum()), wrong + int(scored.wrong.sum())
            scores[name] = bits / count
            if name == "bits":
                answered = sum(batch.scored_bits for batch in batches)
                scores["wrong_bits"] = wrong / count
                scores["loss"] = bits / max(answered, 1) * float(torch.log(torch.tensor(2.0)))
        return Evaluation({name: scores[name] for name in self.metrics if name in scores}, self._shown())

    def _shown(self) -> list[RenderableType]:
        """Return one validation sequence and the answer of the model, to print after an evaluation.

        A neural Turing machine is shown with its heads on the tape. The list is empty if the sequence would
        be longer than MOST_SHOWN steps.
        """
        source = self.corpus
        sizes = {name: min(high, 10) for name, (_, high) in source.task.ranges.items()}
        sizes = {name: max(value, source.task.ranges[name][0]) for name, value in sizes.items()}
        if source.task.steps(sizes) > MOST_SHOWN:
            return []
        solver = SequenceSolver(self.model, source.task)
        return [solver.solve_batch(source.fixed(1, sizes), sizes)[0]]


def _fits(model: nn.Module, task: TapeTask, sizes: Mapping[str, int]) -> bool:
    """Return whether the tape has enough slots for sequences of these sizes; True if there is no tape."""
    return not isinstance(model, NeuralTuringMachine) or model.slots >= task.slots(sizes)


class SizeScores(NamedTuple):
    """The scores of a model on sequences of one size.

    sizes: the sizes as text, for example "length 20".
    sequences: number of sequences.
    bits: mean cross-entropy of a sequence, in bits.
    wrong_bits: mean number of wrong bits of a sequence.
    right: fraction of sequences without a wrong bit.
    optimal_bits: for n-grams, the mean cross-entropy of the optimal Bayesian estimator. No model can be
        better on average. None for other tasks.
    """

    sizes: str
    sequences: int
    bits: float
    wrong_bits: float
    right: float
    optimal_bits: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON, without the optimum if there is none."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row: the sizes, the number of sequences, and the scores as text."""
        last = () if self.optimal_bits is None else (f"{self.optimal_bits:.2f}",)
        scores = f"{self.bits:.4f}", f"{self.wrong_bits:.3f}", f"{self.right:.3f}"
        return (self.sizes, f"{self.sequences:,}", *scores, *last)


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


def size_scores(solver: AlgorithmsRun, name: str, batches: list[TapeBatch]) -> SizeScores:
    """Return the scores of a model on generated sequences. name: their sizes as text."""
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


class SequenceBits(NamedTuple):
    """The scores of the answers to B sequences of an algorithmic task.

    Only the bits of scored steps are counted: the steps where the field `scored` of the TapeBatch is True.

    bits: (B,), the cross-entropy of these bits, in bits: the sum of -log2 p(target).
    wrong: (B,), the number of these bits that are wrong: the more probable value is not the target.
    """

    bits: Tensor
    wrong: Tensor


def answer_loss(logits: Tensor, batch: TapeBatch) -> Tensor:
    """Return the cross-entropy of each of B sequences, summed over its scored bits, in nats, (B,).

    logits: (B, T, Y), the outputs of the model for T steps of Y bits each.
    batch: the sequences, with the right bits and the steps whose bits are scored.

    >>> batch = TapeBatch(torch.zeros(1, 2, 3), torch.ones(1, 2, 2), torch.tensor([[False, True]]))
    >>> (answer_loss(torch.zeros(1, 2, 2), batch) / math.log(2)).tolist()  # one scored step of two bits
    [2.0]
    """
    each_BTY = functional.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="none")
    return torch.where(batch.scored, each_BTY.sum(-1), 0.0).sum(1)


@torch.no_grad()
def sequence_bits(
    model: nn.Module, batch: TapeBatch, stopping: Callable[[], bool] = lambda: False, rows: int = 256
) -> SequenceBits | None:
    """Run a model on sequences and return their scores, or None if stopping() returns True.

    model: model(inputs) returns logits (B, T, Y) and a state.
    batch: the sequences.
    stopping: called before each part of the batch; if it returns True, the evaluation ends.
    rows: the largest number of sequences that are computed at once.
    """
    device = next(model.parameters()).device
    bits, wrong = [], []
    for start in range(0, len(batch), rows):
        if stopping():
            return None
        part = batch.select(slice(start, start + rows)).to(device)
        logits_BTY, _ = model(part.inputs)
        bits.append(answer_loss(logits_BTY, part).cpu() / math.log(2))
        differ_BT = ((logits_BTY > 0) != (part.targets > 0.5)).sum(-1)
        wrong.append(torch.where(part.scored, differ_BT, 0).sum(1).cpu())
    return SequenceBits(torch.cat(bits), torch.cat(wrong))
