"""Replay: a step whose loss was not finite, kept whole and computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from regard.errors import RegardError

__all__ = ["NonFinite", "keep_batches"]


class NonFinite(RegardError):
    """A loss that is not finite; the run was stopped before it could spoil the weights."""


def keep_batches(
    folder: Path,
    step: int,
    rank: int,
    batches: Sequence[Mapping[str, Tensor]],
    weights: Mapping[str, Tensor],
    seed: int,
) -> Path:
    """Write the batches of a step, and the weights it began with, into a folder of the run."""
    place = folder / f"nonfinite-{step:06d}"
    place.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches):
        save_file(_alone(batch), place / f"batch-{rank}-{number}.safetensors")
    if rank == 0:
        save_file(_alone(weights), place / "weights.safetensors")
        (place / "state.json").write_text(json.dumps({"step": step, "seed": seed}) + "\n", encoding="utf-8")
    return place


def _alone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: none shares its memory with another."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
