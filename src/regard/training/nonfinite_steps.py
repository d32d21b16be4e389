"""Replay: a step whose loss was not finite, kept whole and computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import DataError, RegardError, message
from regard.files import atomic_io
from regard.files.tensor_file import read_tensors, tensor_blocks
from regard.files.untrusted import parse_json, read_limited
from regard.training.distributed import Processes
from regard.training.gradients import Gradients
from regard.training.task import Task

__all__ = ["NonFinite", "Replayed", "first_nonfinite", "keep_batches", "replay"]

STATE, WEIGHTS = "state.json", "weights.safetensors"


class NonFinite(RegardError):
    """A loss, a gradient or a weight that is NaN or infinite; the last good checkpoint is kept."""


@dataclass(frozen=True)
class Replayed:
    """A step that was computed again.

    losses: what was minimised, the sum of each batch, by process and place: {"batch-0-0": 7.1}. norm: of the
    gradient of them all, before it was clipped.

    >>> Replayed(7, {"batch-0-0": 5.0, "batch-0-1": math.inf}, math.nan).value
    inf
    """

    step: int
    losses: dict[str, float]
    norm: float

    @property
    def value(self) -> float:
        """What the run was stopped for: the loss, or the norm of its gradient where the loss is finite."""
        total = sum(self.losses.values())
        return self.norm if math.isfinite(total) else total


@torch.no_grad()
def first_nonfinite(tensors: Mapping[str, Tensor]) -> str:
    """The name of the first tensor with a NaN or an infinite value; "" if every value is finite.

    Where all values are finite, a GPU is synchronised with once, for all tensors together.

    >>> first_nonfinite({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, math.inf])})
    'b'
    """
    some = {name: each for name, each in tensors.items() if each.is_floating_point() and each.numel()}
    if not some:
        return ""
    # The largest absolute value: unlike a sum of squares it cannot overflow.
    norms = torch._foreach_norm(list(some.values()), math.inf)
    finite = torch.stack([norm.isfinite() for norm in norms])
    if bool(finite.all()):
        return ""
    return list(some)[finite.tolist().index(False)]


def keep_batches(
    folder: Path,
    rank: int,
    batches: Sequence[Mapping[str, Tensor]],
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write the batches of a step, and the weights it began with, into a folder of the run; for replay().

    state: the step, the seed, the tokens, and whether it was computed in half precision, or by coarse
    products.
    """
    place = folder / f"nonfinite-{state['step']:06d}"
    place.mkdir(parents=True, exist_ok=True)
    files = {f"batch-{rank}-{number}.safetensors": batch for number, batch in enumerate(batches)}
    for name, tensors in (files | ({WEIGHTS: weights} if rank == 0 else {})).items():
        (place / name).unlink(missing_ok=True)  # the run may have come here before
        atomic_io.write(place / name, tensor_blocks(tensors))
    if rank == 0:
        atomic_io.replace(place / STATE, json.dumps(dict(state)).encode() + b"\n")
    return place


def replay(folder: str | Path, task: Task, device: str | torch.device = "cpu") -> Replayed:
    """Compute a step again whose loss was not finite, with the same weights, batches and random numbers.

    folder: nonfinite-... in the run folder. task: of the same settings; its model takes the weights that the
    step began with, and has the gradients afterwards. The batches of all processes are computed in this one.
    On the device that the run used, the values are the same; where steps were captured, but for rounding.
    """
    place = Path(folder)
    try:
        state = parse_json(read_limited(place / STATE, "json"))
        step, seed, tokens, half = (state[name] for name in ("step", "seed", "tokens", "half"))
    except (OSError, ValueError, KeyError, TypeError):
        hint = "give a folder nonfinite-... of a run"
        raise DataError(message(str(place), "here is no step to replay", hint=hint)) from None
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
        batches = [task.restored(read_tensors(file)) for file in files]
        for number, loss in enumerate(gradients.each(step, batches, tokens)):
            losses[f"batch-{rank}-{number}"] = loss.total.item()
    norm = nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
    return Replayed(step, losses, float(norm))


def _by_process(place: Path) -> dict[int, list[Path]]:
    """The files of batches, those of each process in their order."""
    found: dict[int, dict[int, Path]] = {}
    for path in place.glob("batch-*-*.safetensors"):
        rank, number = map(int, path.stem.split("-")[1:])
        found.setdefault(rank, {})[number] = path
    return {rank: [files[number] for number in sorted(files)] for rank, files in found.items()}
