"""CallPlan: run additive attention from a Memory without checking the call again, by the backend `fused`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from regard.attended import Attended
from regard.backends.backend import Backend
from regard.call import Call
from regard.dimensions import lift, lower
from regard.masks.mask import Mask
from regard.scores import Score

__all__ = ["CallPlan", "call_plan"]


class CallPlan(NamedTuple):
    """How to run the calls of one signature: an additive score and a Memory, by a backend that takes a Call.

    template: the checked Call of the first call, without its tensors.
    dims: number of dimensions of the query.
    """

    name: str
    backend: Backend
    dims: int
    template: Call

    def run(
        self, score: Score, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None
    ) -> Attended | None:
        """Compute the call. Return None if a length of the mask is above S; check() then raises the error."""
        assert mask is None or isinstance(mask, Mask)
        mask = Mask() if mask is None else mask
        if mask.lengths is not None and mask.lengths.is_cpu and max(mask.lengths.tolist()) > key.shape[-2]:
            return None
        query, vector = score.project_query(query), score.mixing_vector()
        call = replace(
            self.template, query=lift(query), key=lift(key), value=lift(value), vector=vector, mask=mask
        )
        attended = Attended(*self.backend.run(call)[:2])
        return attended if self.dims == 4 else attended.map(lower(self.dims))


def call_plan(call: Call, name: str, backend: Backend, dims: int) -> CallPlan:
    """Return the plan of a checked call."""
    none = call.query.new_empty(0)
    template = replace(call, query=none, key=none, value=none, vector=None, mask=Mask())
    return CallPlan(name, backend, dims, template)
