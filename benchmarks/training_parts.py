"""Parts of a training step for benchmarks/training_speed.py: each part is captured and timed on its own."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks.training_cases import DROPOUT, SMOOTHING, Case
from regard.fast.captured.graphs import new_pool, recorded, release_generator
from regard.fast.captured.steps import DeviceUpdate
from regard.fast.recurrent.bahdanau import attend_along
from regard.fast.twins import Twins
from regard.masks.constructors import causal, padding
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded, Model
from regard.models.transformer import Transformer
from regard.training.gradients import build_optimizer
from regard.training.losses import model_loss, output_loss

__all__ = ["device_time", "parts_of"]

SECONDS = 0.08
"""Measuring time per part."""


def parts_of(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the name of each part of a step of a case, and its device time in milliseconds."""
    model = case.build().train()
    for name, run in _parts(case, model):
        try:
            value = f"{device_time(run):.3f}"
        except Exception as error:
            value = f"{type(error).__name__}: {error}".splitlines()[0][:150]
            release_generator(torch.device("cuda"))
        yield name, value
        model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()


def device_time(run: Callable[[], object]) -> float:
    """Return the median time of a replay of the captured function, in milliseconds."""
    replay, _ = recorded(run, torch.device("cuda"), new_pool())
    replay()
    torch.cuda.synchronize()
    taken, begun = list[float](), time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - begun < SECONDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(100_000)  # the host prepares the next launches meanwhile
        start.record()
        replay()
        replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 2)
    return statistics.median(taken)


def _parts(case: Case, model: Model) -> Iterator[tuple[str, Callable[[], object]]]:
    batch = case.batch(0).to("cuda")
    parameters, twins = list(model.parameters()), Twins(model)

    def half(function: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.autocast("cuda", torch.bfloat16), twins:
                return function()

        return run

    def trained(
        function: Callable[[], list[Tensor]], inputs: list[Tensor] | None = None
    ) -> Callable[[], Any]:
        """Compute some tensors and the gradients of their sum."""

        def run() -> Any:
            with torch.autocast("cuda", torch.bfloat16), twins:
                results = function()
                ones = [torch.ones_like(each) for each in results]
            return torch.autograd.grad(results, inputs or parameters, ones, allow_unused=True)

        return run

    def encode() -> list[Tensor]:
        return _tensors(model.encode(batch.source, batch.source_lengths))

    def features() -> list[Tensor]:
        return [model.features(*model.first_step(batch))[1]]

    def loss() -> list[Tensor]:
        return [model_loss(model, batch, batch.labels, SMOOTHING)[0]]

    yield "loss, forward and backward (all but clipping and optimizer)", trained(loss)
    yield "encoder, forward", half(encode)
    yield "encoder, forward and backward", trained(encode)
    yield "encoder and decoder, forward", half(features)
    yield "encoder and decoder, forward and backward", trained(features)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), twins:
        states = features()[0].detach()
    layer: Any = model.output_layer()
    states.requires_grad_()
    inputs = [states, *layer.parameters()]
    yield (
        "vocabulary loss alone, forward and backward",
        trained(lambda: [output_loss(states, layer, batch.labels, SMOOTHING)[0]], inputs),
    )
    optimizer = build_optimizer(model, beta2=0.98, weight_decay=0.01)
    for group in optimizer.param_groups:
        group.update(lr=1e-4, capturable=True)
    for each in parameters:
        each.grad = torch.zeros_like(each)
    yield "clipping", lambda: nn.utils.clip_grad_norm_(parameters, 1.0)
    for each in parameters:
        each.grad = torch.zeros_like(each)
    yield "optimizer", optimizer.step
    by_trainer = DeviceUpdate(optimizer, None, torch.device("cuda"), 1.0)
    gradients, total = [torch.zeros_like(each) for each in parameters], torch.ones((), device="cuda")
    yield "clipping and optimizer of the trainer", lambda: by_trainer.apply(parameters, gradients, total)
    weights = [each for each in parameters if each.dim() > 1]
    yield "casting all weights to bfloat16", lambda: [each.detach().bfloat16() for each in weights]
    yield "matrix products alone, forward and backward", _products(model, case)
    if isinstance(model, Transformer):
        yield from _layer_parts(model, case, half, trained)
    if isinstance(model, Bahdanau):
        yield from _recurrent_parts(model, case, half, trained)


def _layer_parts(model: Transformer, case: Case, half: Any, trained: Any) -> Iterator[tuple[str, Any]]:
    """Yield parts of one layer of a Transformer."""
    rows, length, width = case.rows, case.length, model.width
    layer: Any = model.decoder[0]
    x = torch.randn(rows, length, width, device="cuda", requires_grad=True)
    y = torch.randn(rows, length, width, device="cuda").bfloat16().requires_grad_()
    lengths = torch.full((rows,), length, device="cuda")
    heads, inputs = layer.itself.heads, [x, *layer.parameters()]
    query, key, value = (
        torch.randn(rows, length, width, device="cuda").bfloat16().requires_grad_() for _ in range(3)
    )

    def attend(mask: Any, backend: str) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            # The views are made here: the backward pass of views from outside a capture cannot be captured.
            split = [each.view(rows, length, heads, -1).transpose(1, 2) for each in (query, key, value)]
            return [regard.attention(*split, mask=mask, dropout=DROPOUT, backend=backend).output]

        return run

    single: dict[str, tuple[Callable[[], list[Tensor]], list[Tensor]]] = {
        "encoder layer": (
            lambda: [model.encoder[0](x, padding(lengths))[0]],
            [x, *model.encoder[0].parameters()],
        ),
        "decoder layer without cross-attention": (lambda: [layer(x, causal())[0]], inputs),
        **{
            f"attention() alone, {name}, {backend}": (attend(mask, backend), [query, key, value])
            for name, mask in {"padding": padding(lengths), "causal": causal()}.items()
            for backend in ("auto", "sdpa-flash")
        },
        "self-attention of MultiHead": (lambda: [layer.itself(x, mask=causal()).output], inputs),
        "feed-forward layer": (lambda: [layer.feedforward(x)], inputs),
        "layer normalisation": (lambda: [layer.norms[0](x)], inputs),
        "dropout and residual connection": (lambda: [x + layer.dropout(y)], [x, y]),
    }
    for name, (function, leaves) in single.items():
        yield f"one {name}, forward" if "layer" in name else f"{name}, forward", half(function)
        yield f"{name}, forward and backward", trained(function, leaves)


def _recurrent_parts(model: Bahdanau, case: Case, half: Any, trained: Any) -> Iterator[tuple[str, Any]]:
    """Yield parts of Bahdanau's model."""
    score: Any = model.score
    rows, length, width = case.rows, case.length, model.width
    lengths, tokens = torch.full((rows,), length, device="cuda"), case.batch(0).source.cuda()

    def random(*sizes: int) -> Tensor:
        return torch.randn(rows, *sizes, device="cuda").bfloat16().requires_grad_()

    states, first, gates = random(length, 2 * width), random(width), random(length, 3 * width)
    embedded, features = random(length, 620), random(length, 3 * width + 620)

    def decode() -> list[Tensor]:
        memory = regard.prepare(states, score=model.score, mask=padding(lengths))
        steps = attend_along(model.cell, gates, first, memory)
        assert steps is not None
        return list(steps)

    single: dict[str, tuple[Callable[[], list[Tensor]], list[Tensor]]] = {
        "encoder states": (
            lambda: list(model.encoder(embedded, lengths)),
            [embedded, *model.encoder.parameters()],
        ),
        "decoder steps": (
            decode,
            [gates, first, states, *score.parameters(), *list(model.cell.parameters())[2:]],
        ),
        "input part of the gates": (
            lambda: [model.cell.gates(embedded)],
            [embedded, *model.cell.input.parameters()],
        ),
        "maxout layer": (lambda: [model.readout(features)], [features, model.readout.pairs.weight]),
        "embeddings": (lambda: [model.source(tokens)], [model.source.weight]),
    }
    for name, (function, leaves) in single.items():
        yield f"{name}, forward", half(function)
        yield f"{name}, forward and backward", trained(function, leaves)


def _tensors(encoded: Encoded) -> list[Tensor]:
    """Return the tensors of an encoded batch that have gradients."""
    found = [*encoded.first]
    for memory in encoded.memories:
        found += [memory.key, memory.value]
    return found


def _products(model: Model, case: Case) -> Callable[[], object]:
    """Return the products of all linear layers with all tokens, forward and backward, in bfloat16."""
    shapes = [tuple(each.weight.shape) for each in model.modules() if isinstance(each, nn.Linear)]
    made: dict[tuple[int, ...], list[Tensor]] = {}
    for shape in set(shapes):
        outer, inner = shape
        sizes = ((case.tokens, inner), (case.tokens, outer), shape)
        made[shape] = [torch.randn(size, device="cuda").bfloat16() for size in sizes]

    def run() -> None:
        for shape in shapes:
            x, y, weight = made[shape]
            x @ weight.T
            y @ weight
            y.T @ x

    return run
