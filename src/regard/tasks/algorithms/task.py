"""The algorithms task: train a model on generated sequences, and evaluate it by bits per sequence.

The loss is the cross-entropy of the right answers. Summed over a sequence, in bits, it is called bits per
sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import RenderableType
from torch import nn

from regard.data.batch import TapeBatch
from regard.data.tape_tasks import TapeTask
from regard.errors import ArgumentError, Setting, message
from regard.evaluation.sequence_bits import answer_loss, sequence_bits
from regard.fast.captured.graphs import capture_chosen
from regard.fast.twins import Twins
from regard.layers.tape_heads import check_tape
from regard.models.turing_machine import NeuralTuringMachine
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.run_commands import ChosenRun, RunReport, RunView, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun
from regard.tasks.algorithms.data import SequenceSource, named_sizes
from regard.tasks.algorithms.evaluate import (
    EVALUATE_OPTIONS,
    evaluate_algorithms,
)
from regard.tasks.algorithms.run import (
    VIEW_OPTIONS,
    AlgorithmsRun,
    solver_of,
    view_algorithms,
)
from regard.tasks.algorithms.sequence_solver import SequenceSolver
from regard.tasks.algorithms.settings import AlgorithmsSettings
from regard.tasks.epoch_plan import training_speed
from regard.training.budget import EVALUATION_PART, RESERVED
from regard.training.distributed import Processes
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Speed, Stopped

__all__ = ["AlgorithmsTask", "plan_algorithms"]

BUCKETS = 8
"""Maximum number of padded sequence lengths on a GPU. Each length needs its own CUDA graph."""


class AlgorithmsTask(RunTask):
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
    evaluate_options = EVALUATE_OPTIONS
    view_options = VIEW_OPTIONS

    def __init__(
        self,
        model: nn.Module,
        corpus: SequenceSource,
        settings: AlgorithmsSettings,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        super().__init__(model, corpus, settings)
        self._processes = processes or Processes()
        capture = capture_chosen(settings.training, "", device, self._processes.world)
        self._lengths: tuple[int, ...] = ()
        if capture.chosen or settings.training.compile or device == "cuda":
            self._lengths = _buckets(corpus)
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
        return solver_of(run, device, **options)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
        return evaluate_algorithms(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        return view_algorithms(cls, run, options, drawing)

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
        return plan_algorithms(cls, settings, corpus, device, processes, timed=timed)

    def batches(self, epoch: int, start: int = 0) -> Iterator[TapeBatch]:
        length = self.corpus.data.epoch_batches
        for place in range(start, length):
            yield self._batch(epoch * length + place)

    def _batch(self, number: int) -> TapeBatch:
        count, rank = self.settings.training.batch_size, self._processes.rank
        return self.corpus.batch(self.settings.seed, number, count, rank)

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


MOST_SHOWN = 130
"""Maximum number of steps of the sequence that is printed after an evaluation."""


def _fits(model: nn.Module, task: TapeTask, sizes: Mapping[str, int]) -> bool:
    """Return whether the tape has enough slots for sequences of these sizes; True if there is no tape."""
    return not isinstance(model, NeuralTuringMachine) or model.slots >= task.slots(sizes)


def _buckets(corpus: SequenceSource) -> tuple[int, ...]:
    """Return the sorted lengths, in steps, to which sequences are padded on a GPU: at most BUCKETS."""
    task = corpus.task
    smallest = {name: low for name, (low, _) in task.ranges.items()}
    low, high = task.steps(smallest), task.steps(task.longest)
    return tuple(sorted({high - (high - low) * part // BUCKETS for part in range(BUCKETS)}))


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


def plan_algorithms(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: SequenceSource,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set.

    task: the class of the task.
    given: the settings that the user has set.
    corpus: generates the training sequences.
    device: the device on which the training speed is measured.
    processes: the training processes, one for each device.
    timed: whether to measure the training speed, to estimate the training time. If the length of the run is
        set in minutes, the speed is always measured.
    """
    training, chosen_values = given.get("training", {}), dict[str, Any]()
    if corpus.task.name in BETA2 and training.get("beta2") is None:
        chosen_values["beta2"] = BETA2[corpus.task.name]
    minutes, steps = training.get("minutes"), training.get("steps")
    if minutes is None and steps is None and training.get("epochs") is None:
        steps = STEPS[corpus.task.name]
        chosen_values["steps"] = steps
    settings = merged(given, {"training": chosen_values})
    chosen = build(task.settings_type, settings, "the settings")
    size, rate = chosen.training.batch_size, chosen.training.learning_rate
    speed = None
    if timed or minutes is not None:
        measured = training_speed(task, settings, corpus, device) if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    per_step = sum(built_bits(corpus, number) for number in range(20)) / 20 * (size or 1)
    if minutes is not None and speed is not None:
        steps = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / per_step
    elif steps is None:
        steps = training["epochs"] * corpus.data.epoch_batches
    seconds = None if speed is None else steps * per_step / speed / (1 - EVALUATION_PART - RESERVED)
    text = f"plan: batches of {size:,} sequences, learning rate {rate:g}, about {steps:,.0f} steps"
    return Plan(settings, text, steps / corpus.data.epoch_batches, seconds)


def built_bits(corpus: SequenceSource, number: int) -> int:
    """Return the number of scored bits (bits that count in the loss) of one sequence of a training batch.

    number: the number of the batch, counted from the start of the run.
    """
    return corpus.batch(0, number, 1).scored_bits
