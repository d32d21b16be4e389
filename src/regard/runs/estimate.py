"""Estimate the size, memory and duration of a run without training it (--dry-run)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from regard.fast.report import fast_code
from regard.runs.devices import choose_device
from regard.runs.prepare_run import Machine, build_from, check_run, complete, copy_files, set_threads
from regard.runs.run_task import RunTask, named_sizes, sizes_of
from regard.training.distributed import Processes
from regard.training.progress import total_steps

LINES = 10_000
"""For an estimate, tokenizers are trained on this number of lines. This is enough to estimate sentence
lengths."""


@dataclass(frozen=True)
class Estimate:
    """The settings, data, size, memory and duration of a planned run.

    settings: all settings of the run, including the settings that RunTask.plan() has chosen.
    notes: messages about the data, then a sentence about the settings that RunTask.plan() has chosen.
    parameters: number of model parameters.
    sizes: the sizes that the model depends on, such as the vocabulary sizes, as text.
    epoch: number of batches per epoch.
    steps: number of training steps of the run. If the length of the run is set in minutes, this is an
        estimate. For a resumed run with a length in minutes, it is None.
    memory: bytes that training on the largest batch needs, for weights, gradients, optimizer state and
        activations.
    seconds: estimated duration of the run. None if the run is resumed.
    code: what computes training steps and searches: names of fast twins, or why they do not apply.
    """

    settings: Any
    notes: tuple[Any, ...]
    parameters: int
    sizes: str
    epoch: int
    steps: int | None
    memory: int
    seconds: float | None
    code: Mapping[str, str]


def estimate(
    task: type[RunTask],
    settings: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    machine: Machine | None = None,
) -> Estimate:
    """Estimate the size, memory and duration of a run without training it. Nothing is written to `folder`.

    The data is read, tokenizers are trained on a part of it, and the speed of training steps is measured. For
    the arguments and the errors, see train_run().
    """
    machine, folder = machine or Machine(), Path(folder)
    device = choose_device(machine.device)
    run = check_run(task, settings, folder, Processes(), resume=resume, change=change)
    with TemporaryDirectory() as scratch:
        tokenizers = run.settings.init_from if run.is_new else folder
        place = Path(scratch)
        if tokenizers is not None:
            copy_files(task, Path(tokenizers), place)
        corpus = task.encode_data(run.data, run.settings, place, place / "cache", LINES)
        if run.is_new:
            set_threads(machine, folder, device, Processes())
        prepared = complete(task, run, corpus, device, Processes(), timed=True)
        chosen, plan = prepared.settings, prepared.plan
        model = build_from(task, chosen, corpus)
        built = task(model, corpus, chosen, Processes())
        parameters = sum(each.numel() for each in model.parameters())
        epoch = built.len_epoch(0)
        steps = total_steps(chosen.training, epoch)
        if steps is None and plan is not None and plan.epochs is not None:  # the length is set in minutes
            steps = round(plan.epochs * epoch / chosen.training.accumulation_steps)
        copies = 4 + bool(chosen.training.ema)  # weights, gradients, two moments of Adam, and EMA
        return Estimate(
            chosen,
            (*prepared.notes, *((plan.text,) if plan and plan.text else ())),
            parameters,
            named_sizes(task, sizes_of(corpus)),
            epoch,
            steps,
            4 * parameters * copies + _activation_bytes(built),
            None if plan is None else plan.seconds,
            fast_code(model.to(device)),
        )


def _activation_bytes(task: RunTask) -> int:
    """Return how many bytes of activations autograd saves in the forward pass of the largest batch."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    largest = task.largest_batch()
    task.model.train()
    weights = {each.untyped_storage().data_ptr() for each in task.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = task.loss(task.prepare(largest, "cpu"))
    del loss
    return sum(size for pointer, size in sizes.items() if pointer not in weights)


def duration_text(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, as text.

    >>> duration_text(1), duration_text(150), duration_text(9000)
    ('1 second', '2 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} second{'s' * (f'{seconds:.0f}' != '1')}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
