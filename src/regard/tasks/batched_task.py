"""BatchedTask: base class of the tasks that train on batches of examples, with a plan of their settings.

Modules of training are imported only where they are used, so that loading a run does not import them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from regard.runs.run_task import ChangeableTask, Plan, RunTask, on_meta_device, sizes_of
from regard.training.task import Stopped

if TYPE_CHECKING:
    from regard.training.distributed import Processes
    from regard.training.estimators import Reinforce
    from regard.training.length_buckets import Shapes

Batch = TypeVar("Batch")

WARMUP_PART, MOST_WARMUP = 0.05, 200
"""The warm-up takes the fraction WARMUP_PART of all steps, but at most MOST_WARMUP steps."""


@dataclass(frozen=True)
class EpochRules:
    """The default length of a run, and the default size of its batches.

    examples: the name of the training examples in messages, such as "texts".
    batch_size: number of examples per optimizer step, summed over all processes and accumulated batches.
    epochs, min_steps, max_steps: the run has this number of epochs, but at least min_steps and at most
        max_steps optimizer steps.
    """

    examples: str
    batch_size: int
    epochs: int = 10
    min_steps: int = 1000
    max_steps: int = 30_000


class BatchedTask(ChangeableTask):
    """Base class of the tasks whose examples are divided into batches before an epoch.

    _train: the training batches, such as LabelledBatches: an object with epoch(), largest() and len_epoch().
        None: the task has its own batches() and len_epoch(), and its first batch is the largest.
    _shapes: the few shapes that batches are padded to for CUDA graphs. None: they are not padded.
    """

    captures_samples = False
    """Whether steps with an estimator of hard attention can be captured in CUDA graphs."""

    _processes: Processes
    _train: Any = None
    _shapes: Shapes | None = None
    _estimator: Reinforce | None = None

    def __init__(
        self,
        model: Any,
        corpus: Any,
        settings: Any,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        from regard.training.distributed import Processes

        super().__init__(model, corpus, settings)
        self._processes = processes or Processes()
        self._set_up(device)

    def _set_up(self, device: str) -> None:
        """Set the attributes of the task, such as its batches, at the end of the constructor."""

    def _start(self, device: str, *tables: nn.Embedding, reason: str = "", **shapes: Any) -> dict[str, Any]:
        """Set the estimator of hard attention, `speed` and _shapes; return the arguments of the batches.

        tables: the embeddings of the input, for the baseline of the estimator.
        reason: why the loss cannot be captured in a CUDA graph, otherwise "".
        shapes: further arguments of few_shapes().
        """
        from regard.training.estimators import SAMPLED, add_estimator, features_size
        from regard.training.length_buckets import few_shapes

        processes, training = self._processes, self.settings.training
        features = 0 if training.estimator is None else features_size(*tables)
        self._estimator = add_estimator(self.model, training, features=features, processes=processes)
        if self._estimator is not None and not self.captures_samples:
            reason = SAMPLED
        longest = self.settings.data.max_length + 1
        speed = few_shapes(self.model, training, device, processes.world, longest, reason, **shapes)
        self.speed, self._shapes = speed
        return {
            "tokens": training.batch_tokens,
            "sentences": training.batch_size,
            "rounded": () if self._shapes is None else self._shapes.lengths,
            "seed": self.settings.seed,
            "rank": processes.rank,
            "world": processes.world,
        }

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        return self._train.epoch(epoch, start)

    def largest_batch(self) -> Any:
        return next(iter(self.batches(0, 0 if self._train is None else self._train.largest(0))))

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    @classmethod
    def usual(cls, settings: Mapping[str, Any], corpus: Any) -> tuple[EpochRules, dict[str, Any], int]:
        """Return what plan() needs.

        The result has the length of a run and the size of its batches, settings such as the learning rate,
        and the sum of count(batch) over all batches of an epoch. The settings of the user have priority.
        """
        raise NotImplementedError

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        from regard.training.progress import EVALUATION_PART, RESERVED, epochs_text
        from regard.training.settings import BATCHES, build, merged

        rules, chosen, counted = cls.usual(settings, corpus)
        training_part = 1 - EVALUATION_PART - RESERVED  # evaluations take the rest of the time
        training = settings.get("training", {})
        group = processes.world * training.get("accumulation_steps", 1)
        batch: dict[str, Any] = {}
        if all(training.get(name) is None for name in BATCHES):
            batch["batch_size"] = max(rules.batch_size // group, 1)
        complete = merged(settings, chosen, {"training": batch}, settings)
        minutes, speed = training.get("minutes"), None
        if timed or minutes is not None:
            measured = training_speed(cls, complete, corpus, device) if processes.first else 0.0
            speed = processes.share(measured) * processes.world
        with on_meta_device():  # no memory for the weights, which len_epoch() does not need
            epoch = _built(cls, complete, corpus, "cpu").len_epoch(0) / group
        length: dict[str, Any] = {}
        if minutes is not None and speed is not None:
            epochs = 60 * minutes * training_part * speed / counted
        elif training.get("steps") is not None:
            epochs = training["steps"] / epoch
        elif training.get("epochs") is not None:
            epochs = training["epochs"]
        else:
            epochs = min(max(rules.epochs, rules.min_steps / epoch), rules.max_steps / epoch)
            length = {"epochs": float(round(epochs, 2))}
        warmup = int(min(max(WARMUP_PART * epochs * epoch, 1), MOST_WARMUP))
        complete = merged(complete, {"training": {**length, "warmup_steps": warmup}}, settings)
        seconds = None if speed is None else epochs * counted / speed / training_part
        chosen_settings = build(cls.settings_type, complete, "the settings")
        size, tokens = chosen_settings.training.batch_size, chosen_settings.training.batch_tokens
        unit = f"{size:,} {rules.examples}" if size else f"{tokens:,} tokens"
        text = describe_plan(complete, chosen_settings.model.name, unit, f"about {epochs_text(epochs)}")
        return Plan(complete, text, epochs, seconds)


def training_speed(task: type[RunTask], settings: Mapping[str, Any], corpus: Any, device: str) -> float:
    """Train for a few steps, and return the speed of one process in the unit of task.count() per second.

    The model is discarded afterwards.
    """
    from regard.training.loop import tokens_per_second

    built = _built(task, settings, corpus, device)
    speed = tokens_per_second(built, built.settings.training, torch.device(device))
    del built
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return speed


def _built(task: type[RunTask], settings: Mapping[str, Any], corpus: Any, device: str) -> RunTask:
    from regard.training.distributed import Processes
    from regard.training.settings import build

    complete = build(task.settings_type, settings, "the settings")
    torch.manual_seed(0)
    model = task.build_model(complete.model, sizes_of(corpus))
    return task(model, corpus, complete, Processes(), torch.device(device).type)


def shared_plan(processes: Processes, make: Callable[[], Plan]) -> Plan:
    """Call make() in the first process, and return its plan in all processes."""
    shared: dict[str, Any] = asdict(make()) if processes.first else {}
    return Plan(**processes.share(shared))


def planned_tokens(training: Mapping[str, Any], tokens: int, step: float) -> float:
    """Return how many tokens a run trains on in total, if its length is not set in minutes.

    tokens: number of tokens of an epoch.
    step: number of tokens of a training step.
    """
    from regard.training.progress import EPOCHS, MAX_STEPS, MIN_STEPS

    if training.get("steps") is not None:
        return training["steps"] * step
    if training.get("epochs") is not None:
        return training["epochs"] * tokens
    return min(max(EPOCHS * tokens, MIN_STEPS * step), MAX_STEPS * step)


def peak_rate(highest: float, power: float, width: int, batch: float, steps: float) -> float:
    """Return the peak learning rate: lower for wider models and longer runs, higher for larger batches.

    highest: the rate for width 128 and batches of 1,024 tokens, and the upper limit.
    power: the rate is multiplied by (128 / width) ** power.
    batch: number of tokens of a training step.
    """
    rate = highest * (128 / width) ** power * (batch / 1024) ** 0.25
    return float(f"{min(rate * min(1.0, 1000 / max(steps, 1.0)) ** 0.25, highest):.2g}")


def describe_plan(settings: Mapping[str, Any], name: str, batch: str, amount: str) -> str:
    """Return a sentence about the chosen settings, for the log.

    name: the model, if the settings have no name.
    batch: the size of a batch. amount: how much the run trains.

    >>> settings = {"model": {"width": 128}, "training": {"learning_rate": 0.002}}
    >>> describe_plan(settings, "lstm", "32 texts", "about 10 epochs")
    'lstm with width 128, batches of 32 texts, learning rate 0.002: for about 10 epochs'
    """
    model, training = settings.get("model", {}), settings["training"]
    size = ", ".join(f"{each} {model[each]}" for each in ("size", "width", "layers") if model.get(each))
    name = model.get("name", name) + (f" with {size}" if size else "")
    dropout = [f"dropout {model['dropout']:g}"] if "dropout" in model else []
    parts = [name, *dropout, f"batches of {batch}", f"learning rate {training['learning_rate']:g}"]
    return f"{', '.join(parts)}: for {amount}"


def unless_stopped(stopping: Callable[[], bool], batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of an evaluation; raise Stopped as soon as stopping() returns True."""
    for batch in batches:
        if stopping():
            raise Stopped
        yield batch
