"""Calls on a CPU beside the PyTorch code of a user: windows, biases, dropout, Sparse, looks and a Memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.call_pairs import Pair, inputs

__all__ = ["cpu_pairs"]

DROPOUT = ((64, 4, 32, 64), (16, 8, 128, 64))
BIASED = ((1, 8, 32, 64), (4, 8, 256, 64), (1, 2, 16, 16))
WINDOW, WINDOWED = 256, (512, 1024, 2048, 4096, 8192)
ALIBI = (512, 4096)
LOOKED = ((1, 8, 128, 64), (8, 8, 128, 64))
STEP = (64, 50, 256)
SPARSE = (512, 2048)


def chunked(query: Tensor, key: Tensor, value: Tensor, left: int) -> Tensor:
    """Attention of each query to itself and `left` keys before it, with one call of SDPA."""
    batch, heads, length, width = query.shape
    count = length // left
    query = query.reshape(batch, heads * count, left, width)
    keys, values = (
        pad(each, (0, 0, left, 0))
        .unfold(2, 2 * left, left)
        .transpose(3, 4)
        .reshape(batch, -1, 2 * left, width)
        for each in (key, value)
    )
    i, j = torch.arange(left)[:, None], torch.arange(2 * left) - left
    seen = ((j <= i) & (j >= i - left)).expand(count, -1, -1).clone()
    seen[0] &= j >= 0
    bias = torch.where(seen, 0.0, -torch.inf).expand(heads, -1, -1, -1).flatten(0, 1)
    return sdpa(query, keys, values, attn_mask=bias[None]).view(batch, heads, length, width)


def weighted(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and its weights."""
    weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1)
    return weights @ value, weights


def described(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention, and what Look(alignment=True, entropy=True, mass=True) returns."""
    output, weights = weighted(query, key, value)
    weights.argmax(-1), -(weights * weights.clamp_min(1e-38).log()).sum(-1), weights.sum(-2)
    return output


def by_sort(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention with 1.5-entmax, whose threshold is found by sorting the scores (Peters et al. 2019)."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return regard.Sparse().choose(scores, torch.ones((), dtype=torch.bool)).weights @ value


def step_pair(gradients: bool) -> Pair:
    """Additive attention of one query for each sequence, from a Memory with padding."""
    batch, keys, width = STEP
    torch.manual_seed(0)
    score = regard.Additive(width, width, width)
    states = torch.randn(batch, keys, width, requires_grad=gradients)
    query = torch.randn(batch, 1, width, requires_grad=gradients)
    memory = regard.prepare(states, score=score, mask=regard.padding([keys - 1] * batch))
    projected, hidden = states @ score.key_weight, torch.arange(keys) >= keys - 1
    leaves = [query, states, score.query_weight, score.vector]

    def eager() -> Tensor:
        scores = torch.tanh(query @ score.query_weight + projected) @ score.vector.flatten()
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)[:, None] @ states

    def run(attend: Callable[[], Tensor]) -> Tensor:
        output = attend()
        if not gradients:
            return output
        found = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
        return torch.cat([each.flatten() for each in found])

    name = f"additive step from a Memory, {','.join(map(str, STEP))}"
    ours = partial(run, lambda: regard.attention(query, memory).output)
    return Pair(name, gradients, ours, partial(run, eager))


def both_passes(
    gradients: bool, tensors: list[Tensor], attend: Callable[..., Tensor]
) -> Callable[[], Tensor]:
    """Return a function that calls attend(*tensors) and, with gradients, its backward pass."""

    def run() -> Tensor:
        output = attend(*tensors)
        if not gradients:
            return output
        return torch.cat([each.flatten() for each in torch.autograd.grad(output.sum(), tensors)])

    return run


def cpu_pairs(gradients: bool) -> Iterator[Pair]:
    """Yield the pairs; with gradients, forward and backward pass are measured together."""

    def pair(
        name: str, shape: tuple[int, ...], ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
    ) -> Pair:
        tensors = inputs(shape, "cpu", torch.float32, gradients)
        runs = (both_passes(gradients, tensors, each) for each in (ours, theirs))
        return Pair(
            f"{name}, {','.join(map(str, shape))}", gradients, *runs, short=math.prod(shape) < 1 << 18
        )

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
        return regard.attention(query, key, value, **options).output  # type: ignore[arg-type]

    for shape in DROPOUT:
        # Different random numbers: agreement is tested without dropout.
        yield pair("dropout", shape, partial(attend, dropout=0.1), partial(sdpa, dropout_p=0.1))
    for shape in BIASED:
        bias = torch.randn(1, shape[1], shape[2], shape[2])
        yield pair("float bias", shape, partial(attend, bias=bias), partial(sdpa, attn_mask=bias))
    for length in WINDOWED:
        mask = regard.causal() & regard.window(left=WINDOW)
        yield pair(
            "window 256", (1, 8, length, 64), partial(attend, mask=mask), partial(chunked, left=WINDOW)
        )
        ids = torch.arange(length) // WINDOW
        seen = (ids[:, None] == ids)[None, None]
        documents = regard.documents(ids[None])
        yield pair(
            "documents", (1, 8, length, 64), partial(attend, mask=documents), partial(sdpa, attn_mask=seen)
        )
    for length in ALIBI:
        scheme = regard.ALiBi(8)
        distance = torch.arange(length) - torch.arange(length)[:, None]
        bias = -scheme.slope_H.view(8, 1, 1) * distance.abs()
        yield pair(
            "ALiBi", (1, 8, length, 64), partial(attend, bias=scheme), partial(sdpa, attn_mask=bias[None])
        )
    for length in SPARSE:
        yield pair("Sparse", (1, 4, length, 64), partial(attend, select=regard.Sparse()), by_sort)
    yield step_pair(gradients)
    if gradients:
        return
    for shape in LOOKED:
        every = regard.Look(alignment=True, entropy=True, mass=True)
        ours = partial(attend, look=regard.Look(weights=True))
        yield pair("look, weights", shape, ours, lambda *given: weighted(*given)[0])
        yield pair("look, alignment, entropy and mass", shape, partial(attend, look=every), described)
