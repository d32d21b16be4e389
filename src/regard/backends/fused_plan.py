"""FusedPlan: run additive attention by the backend `fused` without checking the call again."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attended import Attended
from regard.backends import fused
from regard.backends.backend import Backend
from regard.call import Call
from regard.dimensions import lift, lower
from regard.masks.mask import Mask
from regard.scores import Additive, Score

__all__ = ["FusedPlan", "fused_plan"]


class FusedPlan(NamedTuple):
    """How to run the calls of one signature: an additive score, by the kernels of the backend `fused`.

    scale: factor of the scores, 1 / temperature.
    dims: number of dimensions of the query.
    projects: whether the keys must be projected, because they are not those of a Memory.
    start: position of the first query.
    right: 0 for a causal mask, otherwise None.
    """

    name: str
    backend: Backend
    scale: float
    dims: int
    projects: bool
    start: int
    right: int | None

    def run(
        self, score: Score, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None
    ) -> Attended | None:
        """Compute the call. Return None if a length of the mask is above S; check() then raises the error."""
        lengths = mask.lengths if isinstance(mask, Mask) else None
        if lengths is not None and lengths.is_cpu and max(lengths.tolist()) > key.shape[-2]:
            return None
        if type(score) is Additive:  # reading parameters from this dict is faster
            parameters: Any = score._parameters
            query, vector = query @ parameters["query_weight"], parameters["vector"]
            key = key @ parameters["key_weight"] if self.projects else key
        else:
            query, vector = score.project_query(query), score.mixing_vector()
            key = score.project_key(key) if self.projects else key
        if self.dims == 2:
            query, key, value = lift(query), lift(key), lift(value)
        trains = torch.is_grad_enabled() and (
            query.requires_grad or key.requires_grad or value.requires_grad or vector.requires_grad
        )
        rest = (lengths, None, None, self.start, None, self.right, self.scale)
        output, lse = fused.attend((query, key, value, vector), rest, trains, None, None, 0.0)
        attended = Attended(output, lse)
        return attended if self.dims != 2 else attended.map(lower(self.dims))


def fused_plan(
    call: Call, name: str, backend: Backend, dims: int, score: type[Score], from_memory: bool, padded: bool
) -> FusedPlan | None:
    """Return the plan of a checked call; None if such calls are always checked.

    score: class of the score function.
    from_memory: whether the keys are those of a Memory.
    padded: whether the mask has lengths, and prepare() has not set the keys that they hide to 0.
    """
    mask, (_, _, queries, keys) = call.mask, call.sizes
    dtypes = {each.dtype for each in (call.query, call.key, call.value, call.vector) if each is not None}
    if not mask.only("causal", "lengths") or len(dtypes) > 1:
        return None
    if mask.causal and call.start + queries < keys:  # hides keys from all queries
        return None
    projects = not from_memory and score.project_key is not Score.project_key
    skips = fused.skips_hidden(call) and not projects
    if padded and not skips:
        return None
    right = 0 if mask.causal else None
    return FusedPlan(name, backend, 1.0 / call.temperature, dims, projects, call.start, right)
