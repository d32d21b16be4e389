"""AdditivePlan: run a small additive attention over a Memory without checking the call again.

A recurrent decoder makes such a call in each step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attended import Attended, LateAttended
from regard.backends import small_inputs
from regard.backends.backend import Backend
from regard.backends.planned_masks import PlannedMask
from regard.call import Call
from regard.dimensions import lift, lower
from regard.masks.mask import Mask
from regard.masks.readable import PLAIN
from regard.memory import Memory
from regard.scores import Additive, Dot, ScaledDot, Score

__all__ = ["AdditivePlan", "Step", "additive_plan", "score_signature"]


class AdditivePlan(NamedTuple):
    """How to run the calls of one signature: an additive score, a Memory, and a small input.

    keys: S.
    attend: attend() of small_inputs.py for the dtype of the call.

    The other fields have the same meaning as in plans.Plan.
    """

    name: str
    backend: Backend
    temperature: float
    dims: int
    mask: PlannedMask | None
    keys: int
    attend: Any

    def run(
        self, score: Score, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None
    ) -> Attended | None:
        """Compute the call. Return None if a length is negative or above S; check() then raises the error."""
        bias = seeing = None
        if self.mask is not None:
            assert isinstance(mask, Mask) and mask.lengths is not None
            lengths, keys = mask.lengths.tolist(), self.keys
            least = min(lengths)
            if least < 0 or max(lengths) > keys:
                return None
            if least < keys:
                _, bias, seeing, _, bias_rows, seeing_rows = self.mask.of_lengths(
                    mask.lengths, lengths, least
                )
                if self.dims == 3:
                    bias, seeing = bias_rows, seeing_rows
        if type(score) is Additive:  # reading the dict is faster than reading the attributes of the module
            parameters: Any = score._parameters
            query, vector = query @ parameters["query_weight"], parameters["vector"]
        else:
            query, vector = score.project_query(query), score.mixing_vector()
        if self.dims == 2:
            query, key, value = lift(query), lift(key), lift(value)
        output, scores, weights = self.attend(query, key, value, vector, None, bias, seeing, self.temperature)
        if self.dims != 2 and output.is_cpu:  # on a GPU, a captured call must compute all its results
            return LateAttended.with_output(output, small_inputs.log_sum_exp, scores, weights, seeing)
        attended = Attended(output, small_inputs.log_sum_exp(scores, weights, seeing))
        return attended if self.dims != 2 else attended.map(lower(self.dims))


def additive_plan(
    call: Call, backend: Backend, dims: int, mask_part: tuple[Any, ...], prepared: bool
) -> AdditivePlan | None:
    """Return a plan for a checked call with a Memory; None if such calls are always checked.

    mask_part: the part of the signature that describes the mask.
    prepared: whether prepare() has set the keys that the mask hides to 0.
    """
    lengths = "lengths" in mask_part
    if call.mask.causal or "table" in mask_part or (lengths and not prepared):
        return None
    if lengths and not call.query.is_cpu:  # reading the lengths would wait for the device
        return None
    keys, wide = call.key.shape[2], call.value.dtype in small_inputs.WIDE
    return AdditivePlan(
        name="blocked",
        backend=backend,
        temperature=call.temperature,
        dims=dims,
        mask=PlannedMask(keys, 1, torch.float32, rows=dims == 3) if lengths else None,
        keys=keys,
        attend=small_inputs.attend_wide if wide else small_inputs.attend,
    )


class Step(NamedTuple):
    """The plan of the last call with a Memory. The Memory keeps it for the next step, to find it faster.

    A Memory does not change, so only the rest of the signature is compared.

    shape, dtype, device: those of the query.
    temperature, backend: those of the call.
    of_score: the result of _facts(): the parameters of the score can be replaced.
    """

    plan: AdditivePlan
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    temperature: float
    backend: str
    of_score: tuple[Any, ...] | None

    @classmethod
    def of(cls, plan: AdditivePlan, query: Tensor, memory: Memory, temperature: float, backend: str) -> Step:
        """Return a Step for this plan and the signature of its call."""
        return cls(plan, query.shape, query.dtype, query.device, temperature, backend, _facts(memory.score))

    def run(self, query: Tensor, memory: Memory, temperature: float, backend: str) -> Attended | None:
        """Compute the call if it has the same signature; otherwise return None."""
        plan, shape, dtype, device, known_temperature, known_backend, of_score = self
        if type(query) not in PLAIN or query.shape != shape:
            return None
        if query.dtype is not dtype or query.device != device or query.layout is not torch.strided:
            return None
        if temperature != known_temperature or backend != known_backend:
            return None
        score = memory.score
        if _facts(score) != of_score:
            return None
        return plan.run(score, query, memory.key, memory.value, memory.mask)


def _facts(score: Score) -> tuple[Any, ...] | None:
    """Return the properties of a score that can change and on which an AdditivePlan depends."""
    if type(score) is not Additive:
        return score_signature(score)
    parameters: Any = score._parameters
    weight, vector = parameters.get("query_weight"), parameters.get("vector")
    if weight is None or vector is None or _is_patched(score):
        return None
    return weight.shape, weight.dtype, weight.device, vector.shape, vector.dtype, vector.device


def _is_patched(score: Score) -> bool:
    """Whether a method of this score was replaced, on the instance."""
    own = getattr(score, "__dict__", ())
    return "project_query" in own or "project_key" in own or "mixing_vector" in own or "scale" in own


def score_signature(score: Score) -> tuple[Any, ...] | None:
    """Return the part of a signature that describes the score; None if calls with it are always checked.

    A score function of another class can declare it in a method plan_key().
    """
    if _is_patched(score):
        return None
    if type(score) is Additive:
        parameters: Any = score._parameters
        weight, vector = parameters.get("query_weight"), parameters.get("vector")
        if weight is None or vector is None:  # pruned, for example: no longer parameters
            return None
        return (
            score.query_size, score.key_size, score.heads,
            weight.shape, weight.dtype, weight.device, weight.requires_grad,
            vector.shape, vector.dtype, vector.device, vector.requires_grad,
        )  # fmt: skip
    if type(score) in (ScaledDot, Dot):
        return ()
    return score.plan_key() if hasattr(score, "plan_key") else None
