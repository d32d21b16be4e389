"""Averaging: the mean of the weights of several checkpoints, which is often better than any of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, message
from regard.training.checkpoint import Checkpoint

__all__ = ["mean_weights"]


def mean_weights(checkpoints: Sequence[Checkpoint], name: str = "weights") -> dict[str, Tensor]:
    """The mean of the tensors of checkpoints, summed in float64, each in the dtype that it had.

    name: which file of tensors. What is no floating-point number, a count say, is taken from the last
    checkpoint. One checkpoint is read at a time.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from regard.training.checkpoint import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Checkpoints(Path(folder))
    ...     for step in (1, 2):
    ...         made = run.save(step, {"weights": {"scale": torch.tensor([step, 8.0])}}, {})
    ...     mean_weights(run.all())
    {'scale': tensor([1.5000, 8.0000])}
    """
    if not checkpoints:
        raise ArgumentError(message("mean_weights()", "there are no checkpoints to average"))
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        found = checkpoint.tensors(name)
        if last and _shapes(found) != _shapes(last):
            problem = f"its {name} have other names or shapes than those of {checkpoints[0].path.name}"
            raise DataError(message(str(checkpoint.path), problem))
        for key, tensor in found.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                sums[key] = sums[key] + wide if key in sums else wide
        last = found
    count = len(checkpoints)
    return {key: (sums[key] / count).to(last[key].dtype) if key in sums else last[key] for key in last}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
