"""Plans: what attention() has found out about a call, kept for later calls that differ only in values.

Checking the arguments of a call and choosing its backend take longer than a small attention. Both depend on
shapes, dtypes, devices and options, not on the values of tensors. So attention() keeps the result as a Plan,
with all of these as the key (Signature). A later call with the same signature runs the kernel at once.

Only frequent calls have a plan: softmax without bias, dropout and look. They have no mask, or the mask is
causal(), padding() or a bool tensor. The score is an inner product without projection (ScaledDot, Dot), or
the additive score: with a Memory, or by the backend fused. All other calls are checked each time. What
depends on values, such as lengths below 0 or above S, is checked in each call.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard import sites
from regard.attended import Attended
from regard.backends import BACKENDS, blocked, fused, sdpa, small_inputs
from regard.backends.additive_plan import AdditivePlan, Step, additive_plan, score_signature
from regard.backends.aten_attention import Operator
from regard.backends.backend import Backend
from regard.backends.fused_plan import FusedPlan, fused_plan
from regard.backends.masked_plan import MaskedPlan, masked_plan
from regard.backends.planned_masks import PlannedMask, table_of
from regard.backends.strides import dense
from regard.backends.transforms import refuse_double_backward
from regard.call import Call
from regard.dimensions import lift, lower
from regard.masks.mask import Mask
from regard.masks.readable import PLAIN
from regard.memory import Memory
from regard.scores import ScaledDot, Score
from regard.select import Select, Soft

__all__ = ["Plan", "Signature", "is_transformed", "keep_plan", "planned"]

PLANS = 512
"""Maximum number of plans. When it is reached, the oldest plan is removed."""

FEW, NUMPY = 1 << 13, (torch.float32, torch.float64)
"""NumPy computes the norms of keys and values with at most this many elements and one of these dtypes."""

Signature = tuple[Any, ...]
"""All that a plan depends on: shapes, dtypes, devices, gradients, and the options of the call."""

_plans: dict[Signature, Plan | MaskedPlan | AdditivePlan | FusedPlan] = {}
_lock = threading.Lock()


class Plan(NamedTuple):
    """How to run all calls that have the same signature, if their score is an inner product.

    name, backend: the key and the entry of BACKENDS that was chosen.
    kernel: the kernel to run.
    scale: factor of the inner product, divided by the temperature.
    is_causal: whether the kernel applies the causal part of the mask.
    direct: whether the operator of the kernel takes query, key and value as they are.
    few_keys: whether the kernel has so few keys that it may lose a NaN, see with_missing_nan().
    dims: number of dimensions of the query.
    part: the part of the mask that the kernel gets as a bias: "lengths", "table" or None.
    cleaned: whether the keys and values that the mask hides are already 0, because prepare() has set them.
    trains: whether an input requires a gradient.
    mask: reads the values of lengths or table; None without them.
    zero: 0 in the dtype of key and value.
    operate: the operator of the kernel, for calls that are not compiled.
    queries: T.
    small: whether NumPy computes the norms of keys and values, see _bounded().
    """

    name: str
    backend: Backend
    kernel: sdpa.Kernel
    scale: float
    is_causal: bool
    direct: bool
    few_keys: bool
    dims: int
    part: str | None
    cleaned: bool
    trains: bool
    mask: PlannedMask | None
    zero: Tensor
    operate: Operator
    queries: int
    small: bool

    def run(
        self, score: Score, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None
    ) -> Attended | None:
        """Compute the call. Return None if a length is negative or above S; check() then raises the error."""
        if self.dims != 4:
            query, key, value = lift(query), lift(key), lift(value)
        bias = seeing = seen = None
        hides = False  # whether some key is hidden from all queries
        if self.part == "lengths":
            tensor, planned_mask, keys = cast(Mask, mask).lengths, self.mask, key.shape[2]
            assert tensor is not None and planned_mask is not None
            lengths = tensor.tolist()
            least = min(lengths)
            if least < 0 or max(lengths) > keys:
                return None
            if least < keys:
                hides = True
                _, bias, seeing, _, _, _ = planned_mask.of_lengths(tensor, lengths, least)
        elif self.part == "table":
            assert self.mask is not None
            _, bias, seeing, seen, *_ = self.mask.of_table(table_of(mask))
            hides = seen is not None
        if hides and not self.cleaned and not _bounded(key, value, self.small):
            assert self.mask is not None
            same = value is key
            if seen is None:
                assert isinstance(mask, Mask) and mask.lengths is not None
                seen = self.mask.seen_by_lengths(mask.lengths)
            key = torch.where(seen, key, self.zero)
            value = key if same else torch.where(seen, value, self.zero)
        if self.direct:
            output, lse = self.operate(query, key, value, bias, 0.0, self.is_causal, self.scale)
            if self.trains:
                refuse_double_backward(output)
            if lse.shape[2] != self.queries:  # some kernels return a padded lse
                lse = lse[..., : self.queries]
            if self.few_keys and not sdpa.all_nonzero(lse):
                output, lse = sdpa.with_missing_nan(output, lse, query, key)
        else:
            output, lse = self.kernel.attend(query, key, value, bias, 0.0, self.is_causal, self.scale)
        if seeing is not None:
            output, lse = sdpa.empty_rows(output, lse, seeing)
        if self.dims == 3:
            return Attended(output.squeeze(1), lse.squeeze(1))
        attended = Attended(output, lse)
        return attended if self.dims == 4 else attended.map(lower(self.dims))


def planned(
    query: Tensor,
    key: Tensor | Memory,
    value: Tensor | None,
    mask: Mask | Tensor | None,
    score: Score,
    select: Select,
    start: int,
    backend: str,
) -> tuple[Signature | None, Attended | None]:
    """Run the call by a plan, if there is one; return its signature and the result.

    The signature is None if such calls are always checked. The result is None if there is no plan. Then the
    caller checks and runs the call, and passes the signature to keep_plan().
    """
    if torch.compiler.is_compiling() or sites._any_open or type(select) is not Soft:
        return None, None
    prepared, key_size, memory, by_memory = False, None, None, mask is None
    if isinstance(key, Memory):
        step: Step | None = key.__dict__.get("_step")
        if step is not None and by_memory and BACKENDS.get(step.plan.name) is step.plan.backend:
            valid = type(start) is int and start >= 0 and not is_transformed()
            attended = step.run(query, key, select.temperature, backend) if valid else None
            if attended is not None:
                return None, attended
        if not key.mask.empty:
            if mask is not None:
                return None, None
            mask, prepared = key.mask, key.cleaned
        memory = key
        score, key, value, key_size = memory.score, memory.key, memory.value, memory.key_size
    elif value is None:
        value = key
    of_score = () if type(score) is ScaledDot else score_signature(score)
    if of_score is None or type(start) is not int or start < 0 or type(backend) is not str:
        return None, None
    if type(query) not in PLAIN or type(key) not in PLAIN or type(value) not in PLAIN:
        return None, None
    assert isinstance(key, Tensor) and isinstance(value, Tensor)
    if query.is_nested or key.is_nested or value.is_nested:
        return None, None
    if not (query.layout is key.layout is value.layout is torch.strided):
        return None, None
    device, dtype = query.device, query.dtype
    mask_part = () if mask is None else _mask_signature(mask, device)
    if mask_part is None or is_transformed():
        return None, None
    if not (mask_part and mask_part[-1]):  # only a causal mask depends on the position of the first query
        start = 0
    signature = _signature(
        query, key, value, dtype, device, type(score), of_score, key_size, select.temperature, start,
        mask_part, prepared, backend,
    )  # fmt: skip
    plan = _plans.get(signature)
    if plan is None or BACKENDS.get(plan.name) is not plan.backend:
        return signature, None
    if memory is not None and by_memory and type(plan) is AdditivePlan:
        memory.__dict__["_step"] = Step.of(plan, query, memory, select.temperature, backend)
    return signature, plan.run(score, query, key, value, mask)


def _signature(
    query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype, device: torch.device, *options: Any
) -> Signature:
    """Return the signature of a call.

    dtype, device: those of the query. options: the part of the signature after the layout of the tensors.
    """
    trains = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    layout: Any
    if query.is_cuda:  # what dense() needs; comparing it takes less time than calling dense()
        places = query.data_ptr(), key.data_ptr(), value.data_ptr()
        unaligned = (places[0] | places[1] | places[2]) % 16 and tuple(each % 16 for each in places)
        layout = query.stride(), key.stride(), value.stride(), unaligned
    else:
        layout = dense(query) and dense(key) and dense(value)
    return (
        query.shape, key.shape, value.shape, dtype, key.dtype, value.dtype, device, key.device,
        value.device, trains, layout, *options,
    )  # fmt: skip


def keep_plan(signature: Signature, call: Call, name: str, dims: int) -> None:
    """Keep a plan for later calls with this signature, if the kernel of this call can be run by a plan.

    call, name: the checked call, and the backend that was chosen for it.
    dims: number of dimensions of the user's query.
    """
    plan: Plan | MaskedPlan | AdditivePlan | FusedPlan | None
    if name == "masked":
        plan = masked_plan(call, BACKENDS[name], dims) if signature[-3] else None
    else:
        plan = (
            _fused_plan(signature, call, name, dims)
            or _additive_plan(signature, call, name, dims)
            or _inner_plan(signature, call, name, dims)
        )
    if plan is None:
        return
    with _lock:
        while len(_plans) >= PLANS:
            del _plans[next(iter(_plans))]
        _plans[signature] = plan


def _inner_plan(signature: Signature, call: Call, name: str, dims: int) -> Plan | None:
    """Return a plan that runs an sdpa kernel; None if this call is not run by one."""
    kernel = sdpa.KERNELS.get(name)
    _, _, queries, keys = call.sizes
    mask_part, prepared = signature[-3:-1]
    if kernel is None or BACKENDS[name].run != kernel.run or kernel.skips_padding(call):
        return None
    is_causal = kernel.is_causal(call)
    if call.mask.causal != is_causal or (is_causal and queries < keys):  # the latter hides keys
        return None
    part = next((part for part in ("lengths", "table") if part in mask_part), None)
    if part is not None and not call.query.is_cpu:  # reading the mask would wait for the device
        return None
    tensors = (call.query, call.key, call.value)
    dtype = call.query.dtype
    of_bias = torch.promote_types(dtype, torch.float32)
    with torch.inference_mode(False):
        zero = torch.zeros((), dtype=dtype, device=call.query.device)
    return Plan(
        name=name,
        backend=BACKENDS[name],
        kernel=kernel,
        scale=call.scale / call.temperature,
        is_causal=is_causal,
        direct=all(map(dense, tensors)) and kernel.takes(*tensors),
        few_keys=kernel.may_lose_nan(keys),
        dims=dims,
        part=part,
        cleaned=prepared and part == "lengths",
        trains=call.trains,
        mask=None if part is None else PlannedMask(keys, call.key.shape[1], of_bias),
        zero=zero,
        operate=kernel.operators[1],
        queries=queries,
        small=max(call.key.numel(), call.value.numel()) <= FEW and dtype in NUMPY,
    )


def _fused_plan(signature: Signature, call: Call, name: str, dims: int) -> FusedPlan | None:
    """Return a plan that runs the kernels of the backend `fused`; None if this call is not run by them."""
    if name != "fused" or BACKENDS[name].run != fused.run:
        return None
    score, key_size, (mask_part, prepared) = signature[11], signature[13], signature[-3:-1]
    padded = "lengths" in mask_part and not prepared
    return fused_plan(call, name, BACKENDS[name], dims, score, key_size is not None, padded)


def _additive_plan(signature: Signature, call: Call, name: str, dims: int) -> AdditivePlan | None:
    """Return a plan that runs the small-input path of `blocked`; None if this call does not take it."""
    if name != "blocked" or BACKENDS[name].run != blocked.run or not small_inputs.fits(call):
        return None
    key_size, (mask_part, prepared) = signature[13], signature[-3:-1]
    if key_size is None:
        return None
    return additive_plan(call, BACKENDS[name], dims, mask_part, prepared)


def _mask_signature(mask: Mask | Tensor | None, device: torch.device) -> Signature | None:
    """Return the part of a signature that describes the mask; None if such masks are always checked.

    It is empty without a mask. Its last element says whether the mask has a causal part.
    """
    if mask is None:
        return ()
    causal, lengths, table = False, None, None
    if isinstance(mask, Tensor):
        table = mask
    else:
        if type(mask) is not Mask or mask.window is not None or mask.documents is not None:
            return None
        if mask.condition is not None:
            return None
        causal, lengths, table = mask.causal, mask.lengths, mask.table
        if lengths is None and table is None:
            return ("causal", True) if causal else ()
        if lengths is not None and table is not None:
            return None
    tensor: Any = table if lengths is None else lengths
    if type(tensor) not in PLAIN or not tensor.numel():
        return None
    if tensor.device != device or (lengths is None and tensor.dtype is not torch.bool):
        return None
    return ("table" if lengths is None else "lengths", tensor.shape, causal)


def _bounded(key: Tensor, value: Tensor, small: bool) -> bool:
    """Whether the norms of all keys and of all values are finite.

    Then their products with queries and with gradients of the output are finite too, unless those are
    extremely large. So a hidden key, whose weight is 0, has no effect and is not set to 0.

    small: whether both have few elements, for which NumPy takes less time to start.
    """
    if small and key.is_contiguous() and value.is_contiguous():
        array = key.numpy(force=True)
        finite = _isfinite(_vdot(array, array))
        if finite and value is not key:
            array = value.numpy(force=True)
            finite = _isfinite(_vdot(array, array))
        return finite
    records = torch.is_grad_enabled()
    if records:  # takes less time than detach() of both tensors
        _set_grad_enabled(False)
    try:
        norm = _vector_norm(key).item()
        if value is not key and math.isfinite(norm):
            norm = _vector_norm(value).item()
    finally:
        if records:
            _set_grad_enabled(True)
    return math.isfinite(norm)


def is_transformed() -> bool:
    """Whether a transform, a tracer or autocast is active, inside of which no plan is used."""
    return bool(
        _interpreter_stack()
        or forward_ad._current_level >= 0
        or _dispatch_modes()
        or _tracing_state() is not None
        or _autocast_enabled()
    )


# As global names, because looking up the attributes of torch._C in each call takes time.
_interpreter_stack = torch._C._functorch.get_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_autocast_enabled = torch._C._is_any_autocast_enabled
_set_grad_enabled = torch._C._set_grad_enabled
_vector_norm = torch.linalg.vector_norm
_vdot, _isfinite = np.vdot, math.isfinite
