"""Backends: the forward pass. `auto` takes the first of BACKENDS whose reasons(call) is empty.

The order is meant to be by speed where they overlap. A new kernel is its file and one line here.
"""

from __future__ import annotations

from regard.backends import blocked, flex, fused, reference, sdpa
from regard.backends.backend import Backend
from regard.call import Call
from regard.errors import BackendError, UnknownName, message

__all__ = ["BACKENDS", "Backend", "choose_backend"]

_SDPA_ABOUT = {
    "sdpa-cudnn": "cuDNN's fused attention on CUDA",
    "sdpa-flash": "FlashAttention 2 on CUDA",
    "sdpa-efficient": "the memory-efficient kernel on CUDA: float32, masks and biases",
    "sdpa-cpu": "PyTorch's flash attention for CPU",
}

LARGE_TABLE = 1 << 24
"""From this many pairs on, auto prefers a kernel that skips what is hidden to one that is given a table."""


def _unasked(call: Call) -> list[str]:
    """Why auto passes over a fused kernel that would need its mask as a table."""
    _, _, queries, keys = call.sizes
    if call.query.device.type != "cuda" or not call.mask.parts or queries * keys < LARGE_TABLE:
        return []
    alone = call.mask.parts == ("causal",) and call.bias is None and call.start == 0 and queries == keys
    return [] if alone or flex.reasons(call) else ["its mask would be a table; flex skips what is hidden"]


BACKENDS: dict[str, Backend] = {
    **{n: Backend(k.reasons, k.run, _unasked, _SDPA_ABOUT[n], k.device) for n, k in sdpa.KERNELS.items()},
    "flex": Backend(
        flex.reasons, flex.run, flex.unasked, "FlexAttention: compiles masks and biases into the kernel"
    ),
    "fused": Backend(
        fused.reasons,
        fused.run,
        about="additive scores by kernels in Triton: memory linear in length",
        device="cuda",
        approximations=fused.approximations,
    ),
    "blocked": Backend(
        blocked.reasons, blocked.run, about="plain PyTorch, block by block: memory linear in length"
    ),
    "reference": Backend(
        reference.reasons, reference.run, about="the definition; materialises; takes everything"
    ),
}


def choose_backend(call: Call, name: str = "auto") -> str:
    """The name of the backend that will run this call; raises with the reasons where a named one cannot."""
    if name == "auto":
        for each, backend in BACKENDS.items():
            elsewhere = backend.device not in (None, call.query.device.type)
            if not elsewhere and not backend.reasons(call) and not backend.unasked(call):
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
        message("attention()", problem, hint=f"backend=\"auto\" takes '{choose_backend(call)}' here")
    )
