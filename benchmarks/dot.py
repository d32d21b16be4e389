"""Benchmark of scaled dot-product attention: PyTorch's kernels, FlexAttention, and the backend of `auto`.

Regard calls the fastest of these kernels, so the benchmark shows whether the call through Regard adds
overhead, and which backend is best for masks that no fixed kernel supports. The limit is that of matmul.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.cases import Case, Gate, Passes, Peer, both_ways, judged

__all__ = ["Heads", "auto", "chosen", "dot_case", "eager_of", "gate", "masked_case", "ours", "passes", "peer"]

MATMUL = 790e12
"""Floating-point operations per second of a large bfloat16 matrix product on an H200, measured."""

MATERIALISED_COPIES = 4.5
"""Approximate number of (B, H, T, S) tensors that forward and backward of eager PyTorch hold at once."""


@dataclass(frozen=True)
class Heads:
    """The sizes B, H, T = S and D = E of a case, and its mask.

    seen: "" for no mask, `causal`, `window` (causal, at most `reach` positions back) or `documents` (causal,
    within documents of length `reach`).
    """

    batch: int
    heads: int
    length: int
    width: int
    seen: str = ""
    reach: int = 0

    def __str__(self) -> str:
        sizes = f"B={self.batch} H={self.heads} T=S={self.length} D=E={self.width}"
        how = {"window": f", causal, {self.reach} back", "documents": f", causal, documents of {self.reach}"}
        return sizes + how.get(self.seen, f", {self.seen}" if self.seen else "")

    @property
    def size(self) -> tuple[int, int, int, int]:
        """The shape of query, key, value and output."""
        return self.batch, self.heads, self.length, self.width

    @property
    def pairs(self) -> float:
        """Number of (query, key) pairs that the mask allows."""
        a_head = {
            "": self.length**2,
            "causal": self.length * (self.length + 1) / 2,
            "window": sum(min(row, self.reach) + 1 for row in range(self.length)),
            "documents": self.length * (min(self.reach, self.length) + 1) / 2,
        }
        return float(self.batch * self.heads * a_head[self.seen])

    @property
    def limit(self) -> float:
        """Lower bound of the forward time in milliseconds: its two matrix products."""
        return 4 * self.pairs * self.width / MATMUL * 1e3

    @property
    def materialised(self) -> float:
        """Size in bytes of one (B, H, T, S) tensor in half precision."""
        return 2.0 * self.batch * self.heads * self.length**2

    def mask(self, device: str) -> regard.Mask | None:
        """The mask as a regard.Mask."""
        if self.seen == "window":
            return regard.causal() & regard.window(left=self.reach)
        if self.seen == "documents":
            ids = torch.arange(self.length, device=device) // self.reach
            return regard.causal() & regard.documents(ids.expand(self.batch, -1))
        return regard.causal() if self.seen else None

    def may_see(self) -> Callable[[Any, Any, Any, Any], Any] | None:
        """The mask as a mask_mod of FlexAttention."""
        reach = self.reach
        if self.seen == "window":
            return lambda batch, head, i, j: (j <= i) & (i - j <= reach)
        if self.seen == "documents":
            return lambda batch, head, i, j: (j <= i) & (i // reach == j // reach)
        return (lambda batch, head, i, j: j <= i) if self.seen else None

    def table(self, device: str) -> Tensor | None:
        """The mask as a bool tensor (T, S), True where attention is allowed."""
        may_see, places = self.may_see(), torch.arange(self.length, device=device)
        return may_see(None, None, places[:, None], places[None]) if may_see else None

    def inputs(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Query, key and value, with the same bfloat16-representable values in every dtype."""
        source = torch.Generator(device).manual_seed(0)
        numbers = [torch.randn(self.size, generator=source, device=device) for _ in range(3)]
        return [each.to(torch.bfloat16).to(dtype).requires_grad_() for each in numbers]


def eager(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None = None) -> Tensor:
    """Scaled dot-product attention in plain PyTorch."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if table is not None:
        scores = scores.masked_fill(~table, -torch.inf)
    return torch.softmax(scores, -1) @ value


def _sdpa(name: str, shape: Heads, device: str) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, name)
    causal = shape.seen == "causal"
    table = None if causal else shape.table(device)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(query, key, value, attn_mask=table, is_causal=causal)

    return run


def _flex(shape: Heads, device: str) -> Callable[..., Tensor]:
    """FlexAttention, compiled for this shape, with its block mask created in advance."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = (
        torch.compile(flex_attention, dynamic=False, fullgraph=True) if device == "cuda" else flex_attention
    )
    may_see, blocks = shape.may_see(), None
    if may_see is not None:
        blocks = create_block_mask(may_see, None, None, shape.length, shape.length, device=device)
    return lambda query, key, value: compiled(query, key, value, block_mask=blocks)


def ours(backend: str, shape: Heads, device: str, **options: Any) -> Callable[..., Tensor]:
    mask = shape.mask(device)
    return lambda query, key, value: (
        regard.attention(query, key, value, mask=mask, backend=backend, **options).output
    )


def eager_of(shape: Heads, device: str) -> Callable[..., Tensor]:
    return partial(eager, table=shape.table(device))


def passes(
    make: Callable[[Heads, str], Callable[..., Tensor]], shape: Heads, dtype: str, device: str
) -> Passes:
    return both_ways(make(shape, device), shape.inputs(getattr(torch, dtype), device))


def chosen(shape: Heads, dtype: str, device: str) -> str:
    """Return the backend that auto chooses."""
    query, key, value = shape.inputs(getattr(torch, dtype), device)
    return regard.explain(query, key, value, mask=shape.mask(device)).backend


def _taken(backend: str, shape: Heads, device: str) -> str:
    return "what auto takes" if chosen(shape, "bfloat16", device) == backend else ""


def _backend(peer: Peer) -> str:
    return "auto" if peer.name == "regard" else peer.name.removeprefix("regard ")


def peer(
    name: str,
    make: Callable[[Heads, str], Callable[..., Tensor]],
    shape: Heads,
    device: str,
    dtype: str = "bfloat16",
    **more: Any,
) -> Peer:
    """Return a peer that runs forward, and forward with backward."""
    return Peer(name, partial(passes, make, shape, dtype, device), dtype, **more)


def auto(shape: Heads, device: str, dtype: str = "bfloat16", **more: Any) -> Peer:
    """Return the peer of Regard with the default backend, auto."""
    note = partial(chosen, shape, dtype, device)
    return peer("regard", partial(ours, "auto"), shape, device, dtype, ours=True, note=note, **more)


def gate(shape: Heads, dtype: torch.dtype, device: str, backend: str = "auto") -> Gate:
    """Check the output and gradients of Regard, run on the whole batch, for the first sequence and head."""
    found = []
    ways = ((ours(backend, shape, device), dtype, True), (eager_of(shape, device), dtype, False))
    source = torch.Generator(device).manual_seed(1)
    doutput = torch.randn(shape.size, generator=source, device=device).to(dtype)
    for function, kind, whole in (*ways, (eager_of(shape, device), torch.float64, False)):
        inputs, upstream = shape.inputs(kind, device), doutput.to(kind)
        if not whole:
            inputs = [each.detach()[:1, :1].requires_grad_() for each in inputs]
            upstream = upstream[:1, :1]
        output = function(*inputs)
        named = (output, *torch.autograd.grad(output, inputs, upstream))
        one = (each.detach()[:1, :1] for each in named)
        found.append(dict(zip(("output", "query", "key", "value"), one, strict=True)))
    return judged(*found, dtype)


def dot_case(shape: Heads, device: str = "cuda", flex: int = 2) -> Case:
    """Return a case with all kernels of PyTorch and the backend of auto; flex: the turn of FlexAttention."""
    math = MATERIALISED_COPIES * shape.materialised * 2  # in float32
    peers = (
        peer("eager", eager_of, shape, device, holds=MATERIALISED_COPIES * shape.materialised),
        peer("SDPA math", partial(_sdpa, "MATH"), shape, device, holds=math),
        peer("SDPA efficient", partial(_sdpa, "EFFICIENT_ATTENTION"), shape, device),
        peer("SDPA flash", partial(_sdpa, "FLASH_ATTENTION"), shape, device),
        peer("SDPA cuDNN", partial(_sdpa, "CUDNN_ATTENTION"), shape, device),
        peer("FlexAttention", _flex, shape, device, turn=flex),
        auto(shape, device),
    )
    return _case(f"Scaled dot attention, {shape}", peers, shape, device)


def masked_case(shape: Heads, device: str = "cuda", turn: int = 3) -> Case:
    """Return a case with a mask that no fixed kernel supports; turn: that of Regard's flex backend.

    The mask is evaluated in each tile (masked), compiled (flex), passed as a tensor (sdpa-efficient), or
    evaluated block by block (blocked).
    """
    mine = [
        peer(
            f"regard {name}",
            partial(ours, name),
            shape,
            device,
            ours=True,
            turn=when,
            note=partial(_taken, name, shape, device),
        )
        for name, when in (("masked", 0), ("sdpa-efficient", 0), ("blocked", 0), ("flex", turn))
    ]
    peers = (
        peer("eager", eager_of, shape, device, holds=MATERIALISED_COPIES * shape.materialised),
        peer("SDPA efficient, a table", partial(_sdpa, "EFFICIENT_ATTENTION"), shape, device),
        peer("FlexAttention", _flex, shape, device, turn=2),
        *mine,
    )
    return _case(f"Scaled dot attention, {shape}", peers, shape, device)


def _case(about: str, peers: tuple[Peer, ...], shape: Heads, device: str) -> Case:
    return Case(
        f"{about}, bfloat16",
        peers,
        lambda peer: gate(shape, getattr(torch, peer.dtype), device, _backend(peer)),
        shape.limit,
        "matmul",
    )
