"""Backends: implementations of attention. "auto" selects the first entry of BACKENDS that supports the call.

BACKENDS is sorted by speed, fastest first. To add a kernel, write its file and add a line to BACKENDS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.backends import blocked, reference, sdpa
from regard.call import Call, Forward
from regard.errors import BackendError, UnknownName, message
from regard.lazy_package import on_first_use

__all__ = ["BACKENDS", "Backend", "choose_backend"]


def _flex() -> Any:
    from regard.backends import flex

    return flex


def _fused() -> Any:
    from regard.backends import fused

    return fused


def _masked() -> Any:
    from regard.backends import masked

    return masked


def _short() -> Any:
    from regard.backends import short

    return short


def _none(call: Call) -> list[str]:
    return []


def _no(call: Call) -> bool:
    return False


@dataclass(frozen=True)
class Backend:
    """One implementation of attention.

    reasons(call): why the backend cannot run this call, as a list of texts; empty if it can.
    run(call): compute the forward pass.
    not_requested(call): why "auto" skips the backend although it can run the call; empty if "auto" may select
        it.
    about: a short description.
    device: the only device type that the backend supports; None if it supports all types.
    skips_hidden(call): whether keys and values that the mask hides from all queries have no effect even if
        they are NaN, so that they need not be set to 0 before.
    """

    reasons: Callable[[Call], list[str]]
    run: Callable[[Call], Forward]
    not_requested: Callable[[Call], list[str]] = _none
    about: str = ""
    device: str | None = None
    skips_hidden: Callable[[Call], bool] = _no


_SDPA_ABOUT = {
    "sdpa-cudnn": "cuDNN's fused attention on CUDA",
    "sdpa-flash": "FlashAttention 2 on CUDA; with padding() it skips what is behind the padding",
    "sdpa-efficient": "memory-efficient attention on CUDA: float32, masks and biases",
    "sdpa-cpu": "PyTorch's flash attention for CPU; with a window or documents it reads only the keys nearby",
}

_flex_reasons = on_first_use(_flex, "reasons")

LARGE_TABLE = 1 << 24
"""If T x S is at least this number, "auto" prefers the backend flex to sdpa kernels that need a mask tensor
with T x S elements. flex does not need this tensor, and it skips masked blocks."""

CUDNN_TABLE = 1 << 14
"""If T x S is at least this number, "auto" prefers sdpa-cudnn to sdpa-efficient for a call with a mask tensor
or a bias. With 128,8,64,64 (B, H, T = S, D), sdpa-efficient takes 21 and sdpa-cudnn 34 microseconds; with
128,8,128,64, they take 65 and 40 (an NVIDIA H200, benchmarks/results/2026-11-19-simplified-calls-cuda.md)."""

HOPPER = (9, 0)
"""The compute capability from which "auto" uses sdpa-cudnn with a mask tensor; not measured on older GPUs."""


def _not_requested(call: Call) -> list[str]:
    """Return why "auto" skips an sdpa kernel that can run the call; empty if "auto" may select the kernel.

    There is only one possible reason: the kernel needs a large mask tensor, but the backend flex can run the
    call without a mask tensor.
    """
    _, _, queries, keys = call.sizes
    if call.query.device.type != "cuda" or not call.mask.parts or queries * keys < LARGE_TABLE:
        return []
    if sdpa.KERNELS["sdpa-flash"].skips_padding(call):
        return []
    return (
        []
        if sdpa.causal_alone(call) or _flex_reasons(call)
        else ["needs a T x S mask tensor, but flex needs none"]
    )


def _cudnn_not_requested(call: Call) -> list[str]:
    """Return why "auto" skips sdpa-cudnn; empty if "auto" may select it."""
    _, _, queries, keys = call.sizes
    masked = call.bias is not None or (bool(call.mask.parts) and not sdpa.causal_alone(call))
    if masked and (queries * keys < CUDNN_TABLE or sdpa.device_capability(call.query.device) < HOPPER):
        return ["is faster than sdpa-efficient only on a Hopper GPU, for T x S of at least 2^14"]
    return _not_requested(call)


BACKENDS: dict[str, Backend] = {
    "short": Backend(
        on_first_use(_short, "reasons"),
        on_first_use(_short, "run"),
        on_first_use(_short, "not_requested"),
        "Triton kernels for inner products of short sequences with dropout, for training",
        device="cuda",
        skips_hidden=lambda call: True,
    ),
    "masked": Backend(
        on_first_use(_masked, "reasons"),
        on_first_use(_masked, "run"),
        on_first_use(_masked, "not_requested"),
        "Triton kernels for inner products with masks; skips hidden blocks",
        device="cuda",
        skips_hidden=on_first_use(_masked, "skips_hidden"),
    ),
    **{
        name: Backend(
            kernel.reasons,
            kernel.run,
            _cudnn_not_requested if name == "sdpa-cudnn" else _not_requested,
            _SDPA_ABOUT[name],
            kernel.device,
            skips_hidden=kernel.skips_padding,
        )
        for name, kernel in sdpa.KERNELS.items()
    },
    "flex": Backend(
        _flex_reasons,
        on_first_use(_flex, "run"),
        on_first_use(_flex, "not_requested"),
        "FlexAttention: compiles mask and bias into the kernel",
    ),
    "fused": Backend(
        on_first_use(_fused, "reasons"),
        on_first_use(_fused, "run"),
        on_first_use(_fused, "not_requested"),
        about="Triton kernels for additive scores; memory linear in length",
        device="cuda",
        skips_hidden=on_first_use(_fused, "skips_hidden"),
    ),
    "blocked": Backend(
        blocked.reasons, blocked.run, about="plain PyTorch, block by block; memory linear in length"
    ),
    "reference": Backend(
        reference.reasons, reference.run, about="the definition; supports everything, allocates T x S"
    ),
}


def choose_backend(call: Call, name: str = "auto") -> str:
    """Return the name of the backend that runs this call.

    name: "auto", a key of BACKENDS, or "sdpa" for the first of the sdpa kernels that can run the call.

    Raises BackendError if the named backend cannot run the call.
    """
    if name == "auto":
        devices = (None, call.query.device.type)
        for each, backend in BACKENDS.items():
            if backend.device in devices and not backend.reasons(call) and not backend.not_requested(call):
                return each
    members = [each for each in BACKENDS if each == name or each.startswith(f"{name}-")]
    if not members:
        raise UnknownName("backend", name, ["auto", "sdpa", *BACKENDS])
    refused = {each: BACKENDS[each].reasons(call) for each in members}
    for each, reasons in refused.items():
        if not reasons:
            return each
    lines = [f"  {each}: {'; '.join(reasons)}" for each, reasons in refused.items()]
    problem = "\n".join([f"backend '{name}' cannot run this call", *lines])
    raise BackendError(
        message("attention()", problem, hint=f"backend=\"auto\" selects '{choose_backend(call)}' here")
    )
