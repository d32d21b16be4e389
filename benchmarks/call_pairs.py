"""The calls that benchmarks/call_time.py measures, each beside the same in plain PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.backends.sdpa import KERNELS

__all__ = ["Pair", "pairs"]

Run = Callable[[], Any]

SMALL = {"S=4": (1, 2, 4, 16), "S=20": (1, 2, 20, 16), "S=32": (2, 4, 32, 32)}
PADDED = {"32,8,512,64": (32, 8, 512, 64), "8,16,2048,64": (8, 16, 2048, 64), "128,8,64,64": (128, 8, 64, 64)}
ADDITIVE = {
    "64,1,50,512": (64, 1, 50, 512),
    "64,50,50,1000": (64, 50, 50, 1000),
    "8,512,512,256": (8, 512, 512, 256),
}
GROWING = (600, 5000)
SCALES = (0.5, 1.0, 2.0, 8.0)


@dataclass(frozen=True)
class Pair:
    """A call of Regard, and the same in plain PyTorch.

    gradients: whether both calls build a graph.
    short: whether a call is so short that several are measured together.
    """

    name: str
    gradients: bool
    ours: Run
    theirs: Run
    short: bool = True


def inputs(shape: tuple[int, ...], device: str, dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    """Return query, key and value of one shape."""
    source = torch.Generator(device).manual_seed(0)
    made = [torch.randn(shape, generator=source, device=device).to(dtype) for _ in range(3)]
    return [each.requires_grad_(gradients) for each in made]


def small_pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield small dot-product calls, whose time is that of the host."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for name, shape in SMALL.items():
        query, key, value = inputs(shape, device, dtype, gradients)
        batch, _, keys, _ = shape
        pair = partial(_masked_pair, name, gradients, query, key, value)
        yield pair("plain", {}, {})
        yield _operator_pair(name, gradients, query, key, value)
        yield pair("causal", {"mask": regard.causal()}, {"is_causal": True})
        lengths = torch.full((batch,), keys - 1, device=device)
        seen = (torch.arange(keys, device=device) < lengths[:, None])[:, None, None]
        yield pair("padding", {"mask": regard.padding(lengths)}, {"attn_mask": seen})
        table = torch.ones(keys, keys, dtype=torch.bool, device=device).tril()
        yield pair("bool tensor", {"mask": table}, {"attn_mask": table})
        if device == "cpu":
            yield _changing_pair(name, gradients, query, key, value, seen, differ=False)
            if batch > 1:
                yield _changing_pair(name, gradients, query, key, value, seen, differ=True)


def _masked_pair(
    shape: str, gradients: bool, query: Tensor, key: Tensor, value: Tensor, kind: str, ours: dict[str, Any],
    theirs: dict[str, Any],
) -> Pair:  # fmt: skip
    return Pair(
        f"{kind}, {shape}",
        gradients,
        lambda: regard.attention(query, key, value, **ours).output,
        lambda: sdpa(query, key, value, **theirs),
    )


def _operator_pair(shape: str, gradients: bool, query: Tensor, key: Tensor, value: Tensor) -> Pair:
    """Attention without a mask, beside the aten operator that it runs, called from Python."""
    kernel = KERNELS[regard.explain(query, key, value).backend]
    scale = query.shape[-1] ** -0.5
    operator = getattr(torch, kernel.operator)
    return Pair(
        f"plain, beside the aten operator, {shape}",
        gradients,
        lambda: regard.attention(query, key, value).output,
        lambda: kernel.call(operator, (query, key, value), None, 0.0, False, scale)[0],
    )


def _changing_pair(
    shape: str, gradients: bool, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, differ: bool
) -> Pair:  # fmt: skip
    """Padding with other lengths than in the previous call, so that its mask tensors cannot be used again.

    differ: whether the lengths of a batch differ too.
    """
    batch, keys = query.shape[0], key.shape[2]
    masks = [regard.padding([keys - 1 - (turn + i * differ) % 2 for i in range(batch)]) for turn in range(2)]
    turn = [0]

    def ours() -> Tensor:
        turn[0] ^= 1
        return regard.attention(query, key, value, mask=masks[turn[0]]).output

    return Pair(
        f"padding, new lengths each call{', that differ' if differ else ''}, {shape}",
        gradients,
        ours,
        lambda: sdpa(query, key, value, attn_mask=seen),
    )


def growing_pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield decoding with a cache: each call has one key more than the call before, up to a maximum length.

    After the longest, the next call has one key again. No call has the sizes of the preceding one.
    """
    if gradients:
        return
    for longest in GROWING:
        query, key, value = inputs((1, 2, longest, 16), device, torch.float32, False)
        mask, seen = regard.padding(torch.tensor([1])), torch.arange(longest)[None] < 1
        calls = partial(_growing, query[:, :, :1], key, value)
        yield Pair(
            f"plain, keys growing to {longest:,}",
            gradients,
            calls(lambda query, key, value: regard.attention(query, key, value).output),
            calls(sdpa),
        )
        yield Pair(
            f"padding, keys growing to {longest:,}",
            gradients,
            calls(lambda query, key, value, mask=mask: regard.attention(query, key, value, mask=mask).output),
            calls(lambda query, key, value, seen=seen: sdpa(query, key, value, seen[:, : key.shape[2]])),
        )


def _growing(query: Tensor, key: Tensor, value: Tensor, attend: Callable[..., Tensor]) -> Run:
    """Return a function that calls attend() with one key more each time."""
    lengths = itertools.cycle(range(1, key.shape[2] + 1))

    def run() -> Tensor:
        keys = next(lengths)
        return attend(query, key[:, :, :keys], value[:, :, :keys])

    return run


def layer_pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield an additive step from a Memory, and MultiHead."""
    torch.manual_seed(0)
    batch, keys, width = 2, 10, 16
    score = regard.Additive(width, width, width).to(device).requires_grad_(gradients)
    states, query = (
        torch.randn(batch, keys, width, device=device),
        torch.randn(batch, 1, width, device=device),
    )
    lengths = torch.tensor([keys, keys - 2], device=device)
    hidden = (torch.arange(keys, device=device) >= lengths[:, None])[:, None]
    with torch.no_grad():
        projected = states @ score.key_weight
        memories = {"": regard.prepare(states, score=score)}
        memories[", padding"] = regard.prepare(states, score=score, mask=regard.padding(lengths))

    def eager(padded: bool) -> Tensor:
        scores = torch.tanh((query @ score.query_weight)[:, :, None] + projected[:, None]) @ score.vector
        return torch.softmax(scores.masked_fill(hidden, -torch.inf) if padded else scores, -1) @ states

    for name, memory in memories.items():
        yield Pair(
            f"additive step from a Memory{name}",
            gradients,
            lambda memory=memory: regard.attention(query, memory).output,
            partial(eager, bool(name)),
        )
    theirs = nn.MultiheadAttention(64, 4, batch_first=True).to(device).eval().requires_grad_(gradients)
    layer, x = (
        regard.MultiHead.from_torch(theirs).requires_grad_(gradients),
        torch.randn(2, 10, 64, device=device),
    )
    yield Pair(
        "MultiHead, self-attention",
        gradients,
        lambda: layer(x).output,
        lambda: theirs(x, x, x, need_weights=False)[0],
    )


def padded_pairs(gradients: bool) -> Iterator[Pair]:
    """Yield masked dot-product attention on CUDA, with the layout that linear layers return.

    Lengths are between S / 2 and S. With gradients, forward and backward pass are measured together.
    """
    for name, (batch, heads, length, width) in PADDED.items():
        lengths = torch.randint(length // 2, length + 1, (batch,), device="cuda")
        seen = (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None]
        table = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
        kinds: dict[str, tuple[regard.Mask | Tensor, Tensor]] = {
            "padding": (regard.padding(lengths), seen),
            "causal and padding": (regard.causal() & regard.padding(lengths), seen & table),
            "bool tensor": (table, table),
        }
        for kind, (ours, theirs) in kinds.items():
            yield _padded_pair(
                f"{kind}, {name}", (batch, length, width), heads, heads, ours, theirs, gradients
            )
        if length == 512:
            shape, masks = (batch, length, width), kinds["padding"]
            yield _padded_pair(f"padding, {name}, 2 key heads", shape, heads, 2, *masks, gradients)
            wide = torch.float32
            yield _padded_pair(f"padding, {name}, float32", shape, heads, heads, *masks, gradients, wide)


def _padded_pair(
    name: str, shape: tuple[int, int, int], heads: int, key_heads: int, ours: regard.Mask | Tensor,
    theirs: Tensor, gradients: bool, dtype: torch.dtype = torch.bfloat16,
) -> Pair:  # fmt: skip
    batch, length, width = shape
    source = torch.Generator("cuda").manual_seed(0)
    query, key, value = leaves = [
        torch.randn(batch, length, each, width, generator=source, device="cuda").to(dtype).transpose(1, 2)
        for each in (heads, key_heads, key_heads)
    ]
    grouped = {"enable_gqa": True} if key_heads != heads else {}
    runs: list[Run] = [
        lambda: regard.attention(query, key, value, mask=ours).output,
        lambda: sdpa(query, key, value, attn_mask=theirs, **grouped),
    ]
    if gradients:
        doutput = torch.randn_like(query)
        for leaf in leaves:
            leaf.requires_grad_()
        runs = [partial(_with_backward, run, leaves, doutput) for run in runs]
    return Pair(f"{name}, forward + backward" if gradients else name, gradients, *runs)


def _with_backward(run: Run, leaves: list[Tensor], doutput: Tensor) -> Tensor:
    """Return the gradient of the key, after a forward and a backward pass."""
    return torch.autograd.grad(run(), leaves, doutput)[1]


def additive_pairs(gradients: bool) -> Iterator[Pair]:
    """Yield additive attention from a Memory on CUDA in bfloat16, for several scales of the inputs.

    Both calls include the projection of the query: query @ score.query_weight.
    """
    for name, (batch, queries, keys, width) in ADDITIVE.items():
        for scale in SCALES:
            source = torch.Generator("cuda").manual_seed(0)
            shapes = [(batch, queries, width), (batch, keys, width), (batch, keys, width)]
            query, key, value = (
                (scale * torch.randn(shape, generator=source, device="cuda"))
                .bfloat16()
                .requires_grad_(gradients)
                for shape in shapes
            )
            score = regard.Additive(width, width).cuda().bfloat16()
            with torch.no_grad():
                memory = regard.prepare(key, value, score=score)
            vector = score.vector

            def eager(query: Tensor = query, memory: regard.Memory = memory, vector: Tensor = vector,
                      weight: Tensor = score.query_weight) -> Tensor:  # fmt: skip
                scores = torch.tanh((query @ weight).unsqueeze(2) + memory.key.unsqueeze(1)) @ vector
                return torch.softmax(scores, -1) @ memory.value

            yield Pair(
                f"additive {name} and projection of the query, standard deviation {scale:g}",
                gradients,
                lambda query=query, memory=memory: regard.attention(query, memory).output,
                eager,
            )


def pairs(device: str, gradients: bool) -> Iterator[Pair]:
    """Yield all pairs of this device."""
    yield from small_pairs(device, gradients)
    if device == "cpu":
        yield from growing_pairs(device, gradients)
    yield from layer_pairs(device, gradients)
    if device == "cuda":
        yield from padded_pairs(gradients)
        yield from additive_pairs(gradients)
