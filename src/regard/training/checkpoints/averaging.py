"""Checkpoint averaging: the mean of several checkpoints often scores better than each single checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, message
from regard.files.untrusted import naming_damage
from regard.training.checkpoints.checkpoints import Checkpoint


@dataclass(frozen=True)
class Averaged:
    """The checkpoints from which an averaged checkpoint was computed.

    run: the name of their run.
    steps: their training steps.

    >>> print(Averaged("korean", [100, 2000]))
    the mean of steps 100, 2,000 of korean
    >>> print(Averaged("korean", [100]))
    a copy of step 100 of korean
    """

    run: str
    steps: list[int]

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in self.steps)
        return f"{'a copy of step' if len(self.steps) == 1 else 'the mean of steps'} {steps} of {self.run}"


def averaged_from(state: Mapping[str, Any], place: str) -> Averaged | None:
    """Return which checkpoints were averaged to create this checkpoint, or None if it is not an average.

    state: the content of state.json of the checkpoint.
    place: the path of state.json, for error messages.
    """
    about = state.get("averaged")
    if about is None:
        return None
    with naming_damage(place, "the entry 'averaged' is damaged", "restore this file from a copy"):
        if not all(type(step) is int and 0 <= step < 10**18 for step in about["steps"]):
            raise ValueError
        return Averaged(str(about.get("run")), list(about["steps"]))


def mean_weights(checkpoints: Sequence[Checkpoint], name: str = "weights") -> dict[str, Tensor]:
    """Return the mean of each tensor over several checkpoints, as a dict by tensor name.

    name: the tensor file to average, such as "weights".

    Sums are computed in float64. The result has the dtypes of the checkpoints. Tensors that are not floating
    point, such as counters, are copied from the last checkpoint. Only one checkpoint is in memory at a time.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from regard.training.checkpoints.checkpoints import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Checkpoints(Path(folder))
    ...     for step in (1, 2):
    ...         saved = run.save(step, {"weights": {"scale": torch.tensor([step, 8.0])}}, {})
    ...     mean_weights(run.all())
    {'scale': tensor([1.5000, 8.0000])}
    """
    if not checkpoints:
        raise ArgumentError(message("mean_weights()", "there are no checkpoints to average"))
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        tensors = checkpoint.tensors(name)
        if last and _shapes(tensors) != _shapes(last):
            problem = f"names or shapes of the {name} differ from those of {checkpoints[0].path.name}"
            raise DataError(message(str(checkpoint.path), problem))
        for key, tensor in tensors.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                sums[key] = sums[key] + wide if key in sums else wide
        last = tensors
    count = len(checkpoints)
    return {key: (sums[key] / count).to(last[key].dtype) if key in sums else last[key] for key in last}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
