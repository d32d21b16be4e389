"""MaskedPlan: run dot-product attention by the backend `masked` without checking the call again."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attended import Attended
from regard.backends import masked
from regard.backends.backend import Backend
from regard.backends.planned_masks import table_of
from regard.call import Call
from regard.dimensions import lift, lower
from regard.masks.mask import Mask
from regard.scores import Score

__all__ = ["MaskedPlan", "masked_plan"]


class MaskedPlan(NamedTuple):
    """How to run the calls of one signature by the backend `masked`, whose kernels read the mask themselves.

    The fields of plans.Plan, and:

    start: position of the first query.
    right: number of keys after its position that a query sees, 0 for a causal mask; None for no limit.
    """

    name: str
    backend: Backend
    scale: float
    dims: int
    trains: bool
    start: int
    right: int | None

    def run(
        self, score: Score, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None
    ) -> Attended | None:
        """Compute the call. Return None if a length of the mask is above S; check() then raises the error."""
        if self.dims != 4:
            query, key, value = lift(query), lift(key), lift(value)
        lengths = mask.lengths if isinstance(mask, Mask) else None
        if lengths is not None and lengths.is_cpu and max(lengths.tolist()) > key.shape[2]:
            return None
        table = None if isinstance(mask, Mask) and mask.table is None else table_of(mask)
        hidden = masked.hidden_of(lengths, table, None, None, self.start, None, self.right)
        results = masked.attend(query, key, value, hidden, self.scale, self.trains)
        return Attended(*results) if self.dims == 4 else Attended(*results).map(lower(self.dims))


def masked_plan(call: Call, backend: Backend, dims: int) -> MaskedPlan | None:
    """Return a plan for a checked call with a mask; None if the entry `masked` of BACKENDS was replaced."""
    if backend.run != masked.run:
        return None
    return MaskedPlan(
        name="masked",
        backend=backend,
        scale=call.scale / call.temperature,
        dims=dims,
        trains=call.trains,
        start=call.start,
        right=call.mask.sides[1],
    )
