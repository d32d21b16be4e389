"""Study "gradient": how much gradient reaches each source position, with and without attention.

The norms of d loss_t / d h_j and d loss_t / d x_j for all t and j come from one forward pass and one batched
vector-Jacobian product. d loss_t / d h_j is the total derivative: the encoder states after h_j are functions
of h_j. For this, recurrent encoders run step by step here, with the same weights and the same result.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.compare.study import (
    Row,
    Run,
    Study,
    StudyResult,
    Variant,
    differences,
    fitted_slope,
    seeds_text,
)
from regard.compare.study_context import (
    LENGTH,
    ROWS,
    VOCABULARY,
    StudyContext,
    model_options,
    random_batch,
)
from regard.data.batch import Batch
from regard.evaluation.agreement import spearman
from regard.fast.recurrent.recurrent import LOOPS
from regard.layers.lstmn import LSTMN
from regard.layers.recurrent import Recurrent
from regard.look import Look
from regard.models import Encoded, Model, build_model
from regard.models.transformer import Transformer
from regard.sites import declared_sites, record

MODELS = ("seq2seq", "bahdanau", "lstmn", "transformer")
FIXED, ATTENTIVE, PARALLEL = "seq2seq", "bahdanau", "transformer"
SMALLEST_WEIGHT = 1e-6
"""Lower bound of the lowest class of attention weights; it also has all smaller weights."""

BEFORE, AFTER = "at initialisation", "after training"
WHERE = {
    BEFORE: f"untrained models on random sentences of {LENGTH} words",
    AFTER: "trained models on test sentences of one length",
}
DISTANCE = "recurrent steps from j to t without attention: (S - j) + t"
CURVES = {
    "states": ("states", "Norm of d loss_t / d encoder state h_j", DISTANCE),
    "inputs": ("inputs", "Norm of d loss_t / d input x_j", DISTANCE),
    "jacobian": ("encoder", "Frobenius norm of d h_j / d x_i in the encoder by |i - j|", "|i - j|"),
}
"""Measured curve -> the name of its figure, what it is, and its horizontal axis."""


def _variants(context: StudyContext) -> list[Variant]:
    names = context.compared if context.quick else context.models or MODELS
    return [Variant(name, model_options(name)) for name in names]


def _initial(context: StudyContext, model: str, seed: int) -> Row:
    """Measure an untrained model on random sentences."""
    settings = {"width": context.width, **model_options(model)}
    about = {"model": settings, "seed": seed, "rows": ROWS, "length": LENGTH}

    def measure() -> Row:
        context.say(f"gradients of {model} at initialisation, seed {seed} ...")
        torch.manual_seed(seed)
        built = build_model(source_size=VOCABULARY, target_size=VOCABULARY, **settings)
        return measured_flow(built.double().eval(), random_batch(seed))

    measured = context.measured(f"gradient-2-{settings['name']}", about, measure)
    return {"stage": BEFORE, "model": model, "seed": seed, **measured}


def _trained(context: StudyContext, run: Run) -> Row:
    """Measure a trained model on test sentences of one length."""

    def measure() -> Row:
        context.say(f"gradients of {run.label} after training, seed {run.seed} ...")
        model, batch = context.reading(run, 2 * ROWS)
        return measured_flow(model.double(), batch)

    about = {"data": context.sentences.name, "rows": 2 * ROWS}
    return {"stage": AFTER, **context.measured("gradient-2", about, measure, run)}


def measured_flow(model: Model, batch: Batch) -> dict[str, Any]:
    """Return the gradients of a model as plain data: curves by distance, and values by weight."""
    flow = gradient_flow(model, batch)
    jacobian_BSS = encoder_jacobian(model, batch)
    positions = torch.arange(jacobian_BSS.shape[-1])
    steps_T = torch.arange(1, flow.states.shape[1] + 1)
    distance_TS = steps_T[:, None] + (len(positions) - 1 - positions)
    return {
        "states": _by_distance(flow.states, distance_TS),
        "inputs": _by_distance(flow.inputs, distance_TS),
        "jacobian": _by_distance(jacobian_BSS, (positions[:, None] - positions).abs()),
        "weight": _weight_correlation(flow),
        "value": _by_weight(flow),
    }


def _by_distance(norms: Tensor, distance: Tensor) -> list[list[float]]:
    """Return the mean norm for each distance, as pairs [distance, norm]."""
    mean = norms.mean(0)
    return [[int(d), mean[distance == d].mean().item()] for d in distance.unique()]


def _by_weight(flow: GradientFlow) -> list[list[float]]:
    """Return the mean norm of d loss_t / d v_j for classes of the weight of v_j: [class, weight, norm].

    A class is a quarter of a power of ten. `weight` is the mean weight of the class.
    """
    if flow.values is None or flow.weights is None:
        return []
    weights, norms = flow.weights.flatten(), flow.values.flatten()
    classes = (weights.clamp(min=SMALLEST_WEIGHT).log10() * 4).floor()
    kept = [(number.item(), classes == number) for number in classes.unique()]
    return [[number, weights[own].mean().item(), norms[own].mean().item()] for number, own in kept]


def _weight_correlation(flow: GradientFlow) -> float | None:
    """Return the rank correlation, over j, of |d loss_t / d v_j| and the weight of v_j; mean over t."""
    if flow.values is None or flow.weights is None:
        return None
    pairs = zip(flow.values.flatten(0, 1).tolist(), flow.weights.flatten(0, 1).tolist(), strict=True)
    found = [spearman(*pair) for pair in pairs]
    known = [each for each in found if each == each]  # NaN if all weights are equal
    return statistics.fmean(known) if known else None


def _flow(context: StudyContext, trained: list[Row], result: StudyResult) -> None:
    """Measure the untrained models, and return the curves of all models."""
    seeds = context.seeds_untrained
    names = context.models or MODELS
    initial = [_initial(context, name, seed) for name in names for seed in seeds]
    curves, weights, values = list[Row](), list[Row](), list[Row]()
    for row in (*initial, *trained):
        place = {name: row[name] for name in ("model", "seed", "stage")}
        for of in CURVES:
            curves += [{**place, "of": of, "distance": x, "norm": y} for x, y in row[of]]
            # How fast the gradient falls with the distance: the slope of the logarithm.
            x, y = zip(*row[of], strict=True)
            row[f"{of}_decay"] = fitted_slope(x, y, log="y")
        if row["weight"] is not None:
            weights.append({**place, "rank_correlation": row["weight"]})
        values += [{**place, "class": c, "weight": w, "norm": norm} for c, w, norm in row["value"]]
    where = "; ".join(
        (*WHERE.values(), f"{seeds_text(len(seeds))} {BEFORE}, {seeds_text(len(context.seeds))} {AFTER}")
    )
    correlated = "Rank correlation of the norm of d loss_t / d v_j with the attention weight of v_j"
    by_weight = "Norm of d loss_t / d v_j by the weight of v_j"
    result.table("gradient", f"Mean norm of the gradient by distance: {where}.", curves, shown=False)
    result.table("gradient-weight", f"{correlated}: {where}.", weights)
    result.table("gradient-value", f"{by_weight}: {where}.", values, shown=False)
    for stage, rows in ((BEFORE, initial), (AFTER, trained)):
        if rows:
            count = seeds_text(len({row["seed"] for row in rows}))
            _add_figures(result, curves, values, stage, count)
    _add_verdicts(result, initial, trained, names)


def _add_figures(
    result: StudyResult, curves: Sequence[Row], values: Sequence[Row], stage: str, seeds: str
) -> None:
    name = stage.split()[-1]
    for of, (kind, text, x) in CURVES.items():
        caption = f"{text}, {WHERE[stage]}, mean over sentences, geometric mean over {seeds}."
        own = [row for row in curves if (row["stage"], row["of"]) == (stage, of)]
        columns = ("model", "distance", "norm")
        result.lines(f"gradient-{kind}-{name}", caption, own, columns, (x, "norm"), "y", geometric=True)
    weighted = sorted((row for row in values if row["stage"] == stage), key=lambda row: row["class"])
    middles = [{**row, "middle": 10 ** ((row["class"] + 0.5) / 4)} for row in weighted]
    if middles:
        text = "Norm of d loss_t / d v_j by the attention weight of v_j"
        caption = f"{text}, {WHERE[stage]}, mean over {seeds}."
        columns, axes = ("model", "middle", "norm"), ("attention weight", "norm")
        result.lines(f"gradient-value-{name}", caption, middles, columns, axes, "xy", band=False)


def _add_verdicts(result: StudyResult, initial: list[Row], trained: list[Row], names: Sequence[str]) -> None:
    less = (
        "the gradient that reaches an encoder state falls less with the distance if the model has attention."
    )
    decay = "decay of log |d loss_t / d h_j| per step"
    path = (
        "Attention shortens the path to h_j only: from h_j to x_i, the gradient of a recurrent encoder still "
        "falls with |i - j|, and more than in a Transformer."
    )
    encoder = "decay of log |d h_j / d x_i| per word"
    for name, text, rows, first, second, of, what, stage in (
        (
            "initial",
            f"At initialisation, {less}",
            initial,
            ATTENTIVE,
            FIXED,
            "states",
            decay,
            BEFORE,
        ),
        ("trained", f"After training, {less}", trained, ATTENTIVE, FIXED, "states", decay, AFTER),
        ("recurrent", path, initial, PARALLEL, ATTENTIVE, "jacobian", encoder, BEFORE),
    ):
        if {first, second} <= set(names):
            gains = differences(rows, first, second, f"{of}_decay")
            what = f"{what}, {first} minus {second}, {stage}"
            result.judge(f"gradient.{name}", text, gains, what)
    if ATTENTIVE in names:
        own = [row["weight"] for row in trained if row["model"] == ATTENTIVE and row["weight"] is not None]
        what = f"rank correlation of |d loss_t / d v_j| and weight in {ATTENTIVE}, {AFTER}"
        text = "The gradient that reaches a value row follows its attention weight."
        result.judge("gradient.weight", text, own, what)


@dataclass(frozen=True)
class GradientFlow:
    """The norms of gradients of a model on a batch.

    states: |d loss_t / d h_j|, (B, T, S).
    inputs: |d loss_t / d x_j|, (B, T, S), where x_j is the embedding of source token j.
    values: |d loss_t / d v_j|, (B, T, S), where v_j is a value row of the first cross-attention, apart from
        its role as a key; None for a model without cross-attention.
    weights: the attention weights of the first cross-attention, mean over its heads, (B, T, S); or None.
    """

    states: Tensor
    inputs: Tensor
    values: Tensor | None
    weights: Tensor | None


@dataclass
class _Captured:
    """What an encoder computes.

    states: for each position of the source, the tensors (B, M) that are the state of the encoder there: h_j,
        its cell c_j if the layer has one, and both directions of a bidirectional encoder.
    inputs: the embeddings of the source.
    """

    states: list[list[Tensor]]
    inputs: list[Tensor]


def gradient_flow(model: Model, batch: Batch) -> GradientFlow:
    """Return the norms of the gradients of each loss -log p(y_t) of a batch.

    model: a translation model in eval mode, on the CPU.
    batch: sentence pairs without padding: all sources have the same length, and so have all targets.
    """
    with _capturing(model) as captured, _recorded(model) as seen:
        encoded = _with_own_values(model.encode(batch.source, batch.source_lengths))
        _, logits_BTV = model.step(model.start(encoded), batch.inputs, encoded)
    losses_BT = functional.cross_entropy(logits_BTV.transpose(1, 2), batch.labels, reduction="none")
    memory_values = [memory.value for memory in encoded.memories[:1]]
    wanted = [captured.inputs[0], *(tensor for state in captured.states for tensor in state), *memory_values]
    eye = torch.eye(losses_BT.shape[1], dtype=losses_BT.dtype)
    grads = torch.autograd.grad(losses_BT.sum(0), wanted, eye, is_grads_batched=True, allow_unused=True)
    squares = [  # (T, B, ...) each
        eye.new_zeros(len(eye), *tensor.shape[:-1]) if grad is None else grad.square().sum(-1)
        for grad, tensor in zip(grads, wanted, strict=True)
    ]
    length = len(captured.states)
    parts = torch.stack(squares[1 : len(squares) - len(memory_values)])
    states_BTS = parts.unflatten(0, (length, -1)).sum(1).sqrt().permute(2, 1, 0)
    inputs_BTS = squares[0].sqrt().transpose(0, 1)
    values_BTS = weights_BTS = None
    if memory_values:
        own = squares[-1] if squares[-1].dim() == 3 else squares[-1].sum(2)  # (T, B, S) or (T, B, H, S)
        values_BTS = own.sqrt().transpose(0, 1)
        calls = next(calls for site, calls in seen.items() if site.endswith("cross"))
        weights = torch.cat([call.weights for call in calls], -2)
        weights_BTS = weights.mean(1) if weights.dim() == 4 else weights
    if getattr(model, "reverse", False):  # from the order of reading to the order of the words; EOS is last
        order = [*range(length - 2, -1, -1), length - 1]
        states_BTS, inputs_BTS = states_BTS[..., order], inputs_BTS[..., order]
    return GradientFlow(states_BTS, inputs_BTS, values_BTS, weights_BTS)


def _with_own_values(encoded: Encoded) -> Encoded:
    """Return the encoded source with a copy of the values, so that their gradient excludes the keys."""
    if not encoded.memories:
        return encoded
    first, *others = encoded.memories
    return replace(encoded, memories=(replace(first, value=first.value.clone()), *others))


def encoder_jacobian(model: Model, batch: Batch, probes: int | None = 8, seed: int = 0) -> Tensor:
    """Return the Frobenius norms |d h_j / d x_i| of the encoder, (B, S, S), with j in the rows.

    batch: as in gradient_flow().
    probes: number of random vectors of signs u for each h_j, with which the squared norm is estimated: the
        mean of |u d h_j / d x_i|^2 is the squared norm. None computes it exactly, with one vector for each
        element of h_j.
    """
    with _capturing(model) as captured, _recorded(model, "encoder"):
        model.encode(batch.source, batch.source_lengths)
    states_BSE = torch.stack([torch.cat(position, -1) for position in captured.states], 1)
    rows, length, size = states_BSE.shape
    if probes is None:
        signs_PE, scale = torch.eye(size, dtype=states_BSE.dtype), 1.0
    else:
        generator = torch.Generator().manual_seed(seed)
        signs_PE = torch.randint(2, (probes, size), generator=generator).to(states_BSE.dtype) * 2 - 1
        scale = 1.0 / probes
    vectors = torch.einsum("js,pe->jpse", torch.eye(length, dtype=states_BSE.dtype), signs_PE)
    vectors = vectors.flatten(0, 1)[:, None].expand(-1, rows, -1, -1)
    (grads,) = torch.autograd.grad(
        states_BSE, captured.inputs[0], vectors, is_grads_batched=True, allow_unused=True
    )
    squares = grads.square().sum(-1).unflatten(0, (length, -1)).sum(1) * scale  # (S, B, S)
    return squares.sqrt().transpose(0, 1)


def _recorded(model: Model, start: str = "") -> Any:
    """Record the weights of all attention layers, if there is one whose site begins with `start`.

    A recorded LSTMN also computes one step at a time, as batched vector-Jacobian products need it.
    """
    sites = [site for site in declared_sites(model) if site.startswith(start)]
    return record(Look(weights=True)) if sites else nullcontext({})


@contextmanager
def _capturing(model: Model) -> Iterator[_Captured]:
    """Context manager in which model.encode() stores the embeddings of the source and the encoder states."""
    captured = _Captured([], [])

    def keep_states(module: Any, arguments: Any, output: Tensor) -> Tensor:
        captured.states = [[state] for state in output.unbind(1)]
        return torch.stack([state for (state,) in captured.states], 1)

    encoder: Any = model.encoded if isinstance(model, Transformer) else model.encoder
    with ExitStack() as stack:

        def patch(module: Any, name: str, function: Any) -> None:
            setattr(module, name, function)
            stack.callback(delattr, module, name)

        hook = model.source.register_forward_hook(lambda *call: captured.inputs.append(call[-1]))
        stack.callback(hook.remove)
        if isinstance(model, Transformer):
            stack.callback(encoder.register_forward_hook(keep_states).remove)
        for module in encoder.modules():
            if isinstance(module, Recurrent):
                patch(module, "encode", lambda x, lengths, own=module: _run_recurrent(own, x, captured))
            elif isinstance(module, LSTMN):
                patch(module, "run", lambda x, state, own=module: _run_lstmn(own, x, captured))
        yield captured


def _run_recurrent(layers: Recurrent, x: Tensor, captured: _Captured) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute Recurrent.encode() step by step for sequences without padding, and capture the states."""
    ways = 2 if layers.layers.bidirectional else 1
    step, _ = LOOPS[type(layers.layers)]
    outputs, last = x, []
    for layer in range(layers.depth):
        directions = []
        for way in range(ways):
            weights = layers.layers.all_weights[layer * ways + way]
            hidden = tuple(each[:, 0] for each in layers.zeros(x))
            steps: list[tuple[Tensor, ...]] = []
            for x_BI in (outputs.flip(1) if way else outputs).unbind(1):
                gates = functional.linear(x_BI, weights[0], weights[2])
                hidden = step(gates, functional.linear(hidden[0], weights[1], weights[3]), hidden)
                steps.append(hidden)
            last.append(hidden)
            directions.append(steps[::-1] if way else steps)
        outputs = torch.cat([torch.stack([step[0] for step in steps], 1) for steps in directions], -1)
    captured.states = [
        [tensor for steps in directions for tensor in steps[j]] for j in range(outputs.shape[1])
    ]
    return outputs, tuple(torch.stack(each, 1) for each in zip(*last, strict=True))


def _run_lstmn(layers: LSTMN, x: Tensor, captured: _Captured) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute LSTMN.run() of one layer step by step, and capture the entries [h_j; c_j] of its tape."""
    run = type(layers).run
    tape_B1SE, keys_B1SA, summary = layers.zeros(x)
    layer: Any = layers.layers[0]
    entries: list[Tensor] = []
    for j, x_B1I in enumerate(x.split(1, 1)):
        _, (tape, _, summary) = run(layers, x_B1I, (tape_B1SE, keys_B1SA, summary), j)
        entries.append(tape[:, 0, -1])
        # Compute the keys again from the entry, so that all paths from step j go through it.
        key = layer.score.project_key(entries[-1][:, : layers.width])
        tape_B1SE = torch.cat((tape_B1SE, entries[-1][:, None, None]), 2)
        keys_B1SA = torch.cat((keys_B1SA, key[:, None, None]), 2)
    captured.states = [[entry] for entry in entries]
    return tape_B1SE[:, 0, :, : layers.width], (tape_B1SE, keys_B1SA, summary)


GRADIENT = Study("gradient", "Gradient flow", variants=_variants, quality=False, each=_trained, extra=_flow)
