"""Training steps whose loss is NaN or infinite: save the batches of such a step, and replay it later."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import BatchRows
from regard.errors import DataError, RegardError, message
from regard.files import atomic_io
from regard.files.tensor_file import read_tensors, tensor_blocks
from regard.files.untrusted import make_folder, parse_json, read_limited
from regard.training.distributed import Processes
from regard.training.gradients import Gradients
from regard.training.settings import Training
from regard.training.task import Task

__all__ = [
    "NonFinite",
    "Replayed",
    "batch_tensors",
    "first_nonfinite",
    "keep_batches",
    "replay",
    "restored_batch",
    "step_error",
    "weight_error",
]

STATE, WEIGHTS = "state.json", "weights.safetensors"


class NonFinite(RegardError):
    """Raised if a loss, a gradient or a weight of a training step is NaN or infinite.

    step: number of the step, counted from 1.
    """

    step: int = 0


@dataclass(frozen=True)
class Replayed:
    """The result of replay(): the losses and the gradient norm of a training step that was computed again.

    step: number of the step.
    losses: the summed loss of each batch, by name. "batch-0-1" is process 0, batch 1; both are counted from
        0.
    norm: the norm of the gradient of all batches, before clipping.

    The property `value` is the sum of the losses, or the norm if the sum is finite:

    >>> Replayed(7, {"batch-0-0": 5.0, "batch-0-1": math.inf}, math.nan).value
    inf
    """

    step: int
    losses: dict[str, float]
    norm: float

    @property
    def value(self) -> float:
        """The NaN or infinite value that stopped the run.

        This is the loss of the step, summed over all batches, or the gradient norm if the loss is finite.
        """
        total = sum(self.losses.values())
        return self.norm if math.isfinite(total) else total


def batch_tensors(task: Task, batch: Any) -> dict[str, Tensor]:
    """Return a batch as named tensors, with the state that it continues from."""
    named = batch.named_tensors() if isinstance(batch, BatchRows) else dict(vars(batch))
    return {**named, **task.state.before(batch)}


def restored_batch(task: Task, tensors: dict[str, Tensor]) -> Any:
    """Rebuild a batch of a task from the result of batch_tensors()."""
    kind = type(next(iter(task.batches(0))))
    batch = kind.from_tensors(tensors) if issubclass(kind, BatchRows) else kind(**tensors)
    task.state.restore(batch, tensors)
    return batch


@torch.no_grad()
def first_nonfinite(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor with a NaN or an infinite value, or "" if all values are finite.

    If all values are finite, the CPU waits for the GPU only once, not once per tensor.

    >>> first_nonfinite({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, math.inf])})
    'b'
    """
    floats = {name: each for name, each in tensors.items() if each.is_floating_point() and each.numel()}
    if not floats:
        return ""
    # Use the infinity norm (largest absolute value), because a sum of squares could overflow.
    norms = torch._foreach_norm(list(floats.values()), math.inf)
    finite = torch.stack([norm.isfinite() for norm in norms])
    if bool(finite.all()):
        return ""
    return list(floats)[finite.tolist().index(False)]


def keep_batches(
    folder: Path,
    rank: int,
    batches: Sequence[Mapping[str, Tensor]],
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Save what replay() needs to compute a training step again, in a new folder inside the run folder.

    folder: the run folder. The new folder is nonfinite-000120 for step 120.
    rank: index of this process. Each process saves its own batches. Process 0 also saves weights and state.
    batches: the batches of the step, each as named tensors.
    weights: the weights before the step.
    state: further values to save: "step", "seed", "tokens", "half" (whether bfloat16 is used) and "coarse"
        (whether TF32 is used).

    Returns the path of the new folder.
    """
    place = folder / f"nonfinite-{state['step']:06d}"
    make_folder(place)
    files = {f"batch-{rank}-{number}.safetensors": batch for number, batch in enumerate(batches)}
    for name, tensors in (files | ({WEIGHTS: weights} if rank == 0 else {})).items():
        (place / name).unlink(missing_ok=True)  # left by an earlier process that failed at the same step
        atomic_io.write(place / name, tensor_blocks(tensors))
    if rank == 0:
        atomic_io.replace(place / STATE, json.dumps(dict(state)).encode() + b"\n")
    return place


def step_error(
    folder: Path,
    rank: int,
    batches: Sequence[Mapping[str, Tensor]],
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    value: float,
    last: str,
) -> NonFinite:
    """Save the batches of a step with a loss or gradient that is not finite; return the error to raise.

    folder, rank, batches, weights, state: see keep_batches().
    value: the loss or the gradient norm, whichever is NaN or infinite.
    last: a text for the message, such as "the last checkpoint is step 100".
    """
    try:
        place = keep_batches(folder, rank, batches, weights, state)
        replay = f"regard.training.nonfinite_steps.replay() computes the step again from {place.name}"
    except OSError as error:
        replay = f"the batch could not be saved for replay: {error.strerror}"
    hint = f"try a lower learning rate, a longer warm-up or precision='float32'; {replay}"
    problem = f"the loss or its gradient is {value}; {last}"
    return NonFinite(message(f"step {state['step']}", problem, expected="a finite loss", hint=hint))


def weight_error(step: int, name: str, settings: Training, last: str) -> NonFinite:
    """Return the error to raise if a weight is NaN or infinite after a training step.

    step: number of the step.
    name: the name of the weight. "" if the weight that is not finite is in another process.
    settings: the training settings, for the hint about learning_rate and max_grad_norm.
    last: a text for the message, such as "the last checkpoint is step 100".
    """
    problem = f"{name or 'a weight in another process'} is NaN or infinite; this step is not saved; {last}"
    rate, norm = settings.learning_rate, settings.max_grad_norm
    hint = f"resume with a lower learning rate (training.learning_rate is {rate:g}), a longer warm-up "
    hint += f"(training.warmup_steps) or gradient clipping (training.max_grad_norm is {norm:g})"
    return NonFinite(message(f"step {step}", problem, expected="finite weights", hint=hint))


def replay(folder: str | Path, task: Task, device: str | torch.device = "cpu") -> Replayed:
    """Repeat a training step whose loss was NaN or infinite.

    The weights, batches and random numbers are the same as in the run.

    folder: the folder that keep_batches() wrote, such as nonfinite-000120 in the run folder.
    task: a task with the settings of the run. Its model is set to the weights before the step. After the
        replay, its parameters have the gradients of the step.

    The batches of all processes are computed in this process. On the same type of device, the losses and
    gradients are the same as in the run. If the run used CUDA graphs, they can differ by rounding errors.
    """
    place = Path(folder)
    try:
        state = parse_json(read_limited(place / STATE, "json"))
        step, seed, tokens, half = (state[name] for name in ("step", "seed", "tokens", "half"))
    except (OSError, ValueError, KeyError, TypeError):
        hint = "use a folder nonfinite-... in a run folder"
        raise DataError(message(str(place), "this folder has no step to replay", hint=hint)) from None
    model = task.model.to(device)
    model.load_state_dict(read_tensors(place / WEIGHTS))
    model.train()
    model.zero_grad(set_to_none=True)
    losses: dict[str, float] = {}
    for rank, files in sorted(_by_process(place).items()):
        gradients = Gradients(
            task,
            seed=seed,
            device=torch.device(device),
            processes=Processes(rank),
            half=half,
            coarse=bool(state.get("coarse")),
        )
        batches = [restored_batch(task, read_tensors(file)) for file in files]
        for number, loss in enumerate(gradients.each(step, batches, tokens)):
            losses[f"batch-{rank}-{number}"] = loss.total.item()
    norm = nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
    return Replayed(step, losses, float(norm))


def _by_process(place: Path) -> dict[int, list[Path]]:
    """Return the sorted files of batches in a folder of keep_batches(), by the rank of the process."""
    batches: dict[int, dict[int, Path]] = {}
    for path in place.glob("batch-*-*.safetensors"):
        name = re.fullmatch(r"batch-(\d{1,9})-(\d{1,9})", path.stem, re.ASCII)
        if name is None:
            continue
        rank, number = int(name[1]), int(name[2])
        batches.setdefault(rank, {})[number] = path
    return {rank: [files[number] for number in sorted(files)] for rank, files in batches.items()}
