"""Study "gradient": how much gradient reaches each source position, with and without attention.

The norms of d loss_t / d h_j and d loss_t / d x_j for all t and j come from one forward pass and one batched
vector-Jacobian product. d loss_t / d h_j is the total derivative: the encoder states after h_j are functions
of h_j. For this, recurrent encoders run step by step here, with the same weights and the same result.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.compare.comparison_options import Options, model_options, model_variant
from regard.compare.run_cache import TrainedRun
from regard.compare.study import (
    Claim,
    Figure,
    Row,
    Study,
    StudyResult,
    Table,
    Variant,
    Verdict,
    fitted_slope,
    judge,
    lines_of,
)
from regard.compare.study_base import differences, line_figure
from regard.compare.study_context import LENGTH, ROWS, VOCABULARY, StudyContext, random_batch, seeds_text
from regard.data.batch import Batch
from regard.evaluation.rank_correlation import spearman
from regard.fast.recurrent.recurrent import LOOPS
from regard.layers.lstmn import LSTMN
from regard.layers.recurrent import Recurrent
from regard.look import Look
from regard.models import Encoded, Model, build_model
from regard.models.transformer import Transformer
from regard.sites import declared_sites, record

__all__ = ["GRADIENT", "GradientFlow", "encoder_jacobian", "gradient_flow", "measured_flow"]

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

INITIAL, TRAINED, RECURRENT, WEIGHT = CLAIMS = (
    Claim(
        "gradient.initial",
        "At initialisation, the gradient that reaches an encoder state falls less with the distance if the "
        "model has attention.",
    ),
    Claim(
        "gradient.trained",
        "After training, the gradient that reaches an encoder state falls less with the distance if the "
        "model has attention.",
    ),
    Claim(
        "gradient.recurrent",
        "Attention shortens the path to h_j only: from h_j to x_i, the gradient of a recurrent encoder still "
        "falls with |i - j|, and more than in a Transformer.",
    ),
    Claim("gradient.weight", "The gradient that reaches a value row follows its attention weight."),
)


def _variants(options: Options) -> list[Variant]:
    names = options.compared if options.quick else options.models or MODELS
    return [model_variant(name) for name in names]


def _initial(context: StudyContext, model: str, seed: int) -> Row:
    """Measure an untrained model on random sentences."""
    settings = {"width": context.options.width, **model_options(model)}
    about = {"model": settings, "seed": seed, "rows": ROWS, "length": LENGTH}

    def measure() -> Row:
        context.say(f"gradients of {model} at initialisation, seed {seed} ...")
        torch.manual_seed(seed)
        built = build_model(source_size=VOCABULARY, target_size=VOCABULARY, **settings)
        return measured_flow(built.double().eval(), random_batch(seed))

    return _with_decay(context.measured(f"gradient-2-{settings['name']}", about, measure))


def _trained(context: StudyContext, run: TrainedRun, variant: Variant) -> Row:
    """Measure a trained model on test sentences of one length."""

    def measure() -> Row:
        context.say(f"gradients of {run.label} after training, seed {run.seed} ...")
        model, batch = context.reading(run, 2 * ROWS)
        return measured_flow(model.double(), batch)

    about = {"data": context.sentences.name, "rows": 2 * ROWS}
    return _with_decay(context.cache.measured(run, "gradient-2", about, measure))


def _with_decay(measured: Row) -> Row:
    """Add the slope of the logarithm of each curve: how fast the gradient falls with the distance."""
    decays = {}
    for of in CURVES:
        distances, norms = zip(*measured[of], strict=True)
        decays[f"{of}_decay"] = fitted_slope(distances, norms, log="y")
    return {**measured, **decays}


def measured_flow(model: Model, batch: Batch) -> dict[str, Any]:
    """Return the gradients of a model as plain data: curves by distance, and values by weight."""
    flow = gradient_flow(model, batch)
    jacobian_BSS = encoder_jacobian(model, batch)
    length = jacobian_BSS.shape[-1]
    positions = torch.arange(length)
    apart = (positions[:, None] - positions).abs()
    steps_T = torch.arange(1, flow.states.shape[1] + 1)
    distance_TS = steps_T[:, None] + (length - 1 - positions)
    return {
        "states": _by_distance(flow.states, distance_TS),
        "inputs": _by_distance(flow.inputs, distance_TS),
        "jacobian": _by_distance(jacobian_BSS, apart),
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
    values = flow.values.flatten(0, 1).tolist()
    weights = flow.weights.flatten(0, 1).tolist()
    found = [spearman(value, weight) for value, weight in zip(values, weights, strict=True)]
    known = [each for each in found if each == each]  # NaN if all weights are equal
    return statistics.fmean(known) if known else None


def _flow(context: StudyContext, trained: list[Row]) -> StudyResult:
    """Measure the untrained models, and return the curves of all models."""
    options, seeds = context.options, context.options.seeds_untrained
    names = options.models or MODELS
    initial = [
        {"model": name, "seed": seed, **_initial(context, name, seed)} for name in names for seed in seeds
    ]
    measured = [{"stage": BEFORE, **row} for row in initial] + [{"stage": AFTER, **row} for row in trained]
    places = [{name: row[name] for name in ("model", "seed", "stage")} for row in measured]
    both = list(zip(places, measured, strict=True))
    curves = [
        {**place, "of": of, "distance": x, "norm": y}
        for place, row in both
        for of in CURVES
        for x, y in row[of]
    ]
    weights = [
        {**place, "rank_correlation": row["weight"]} for place, row in both if row["weight"] is not None
    ]
    values = [
        {**place, "class": number, "weight": weight, "norm": norm}
        for place, row in both
        for number, weight, norm in row["value"]
    ]
    where = "; ".join(
        (*WHERE.values(), f"{seeds_text(len(seeds))} {BEFORE}, {seeds_text(len(options.seeds))} {AFTER}")
    )
    correlated = "Rank correlation of the norm of d loss_t / d v_j with the attention weight of v_j"
    by_weight = f"Norm of d loss_t / d v_j by the weight of v_j: {where}."
    tables = (
        Table("gradient", f"Mean norm of the gradient by distance: {where}.", curves, shown=False),
        Table("gradient-weight", f"{correlated}: {where}.", weights),
        Table("gradient-value", by_weight, values, shown=False),
    )
    figures = [
        figure
        for stage, count in ((BEFORE, len(seeds)), (AFTER, len({row["seed"] for row in trained})))
        for figure in _figures(curves, values, stage, seeds_text(count))
    ]
    verdicts = _verdicts(initial, trained, names)
    return StudyResult("gradient", "", tables, tuple(figures), tuple(verdicts))


def _figures(curves: Sequence[Row], values: Sequence[Row], stage: str, seeds: str) -> list[Figure]:
    figures, name = [], stage.split()[-1]
    for of, (kind, text, x) in CURVES.items():
        own = [row for row in curves if (row["stage"], row["of"]) == (stage, of)]
        caption = f"{text}, {WHERE[stage]}, mean over sentences, geometric mean over {seeds}."
        lines = lines_of(own, "model", "distance", "norm", geometric=True)
        figures.append(line_figure(f"gradient-{kind}-{name}", caption, lines, x, "norm", "y"))
    weighted = sorted((row for row in values if row["stage"] == stage), key=lambda row: row["class"])
    middles = [{**row, "middle": 10 ** ((row["class"] + 0.5) / 4)} for row in weighted]
    lines = lines_of(middles, "model", "middle", "norm", band=False)
    caption = f"Norm of d loss_t / d v_j by the attention weight of v_j, {WHERE[stage]}, mean over {seeds}."
    figures.append(line_figure(f"gradient-value-{name}", caption, lines, "attention weight", "norm", "xy"))
    return [figure for figure in figures if figure.series]


def _verdicts(initial: list[Row], trained: list[Row], names: Sequence[str]) -> list[Verdict]:
    decay = "decay of log |d loss_t / d h_j| per step"
    encoder = "decay of log |d h_j / d x_i| per word"
    verdicts = [
        judge(
            claim, differences(rows, first, second, f"{of}_decay"), f"{text}, {first} minus {second}, {stage}"
        )
        for claim, rows, first, second, of, text, stage in (
            (INITIAL, initial, ATTENTIVE, FIXED, "states", decay, BEFORE),
            (TRAINED, trained, ATTENTIVE, FIXED, "states", decay, AFTER),
            (RECURRENT, initial, PARALLEL, ATTENTIVE, "jacobian", encoder, BEFORE),
        )
        if {first, second} <= set(names)
    ]
    if ATTENTIVE in names:
        own = [row["weight"] for row in trained if row["model"] == ATTENTIVE and row["weight"] is not None]
        what = f"rank correlation of |d loss_t / d v_j| and weight in {ATTENTIVE}, {AFTER}"
        verdicts.append(judge(WEIGHT, own, what))
    return verdicts


States = list[list[Tensor]]
"""For each position of the source, the tensors (B, M) that are the state of the encoder there: h_j, its cell
c_j if the layer has one, and both directions of a bidirectional encoder."""


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
    states: States
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
    value = encoded.memories[0].value if encoded.memories else None
    parts = [tensor for position in captured.states for tensor in position]
    wanted = [captured.inputs[0], *parts, *([] if value is None else [value])]
    grads = _rows_of_jacobian(losses_BT.sum(0), wanted)
    (inputs_TBSM, *others), length = grads, len(captured.states)
    width = len(parts) // length
    squares = [each.square().sum(-1) for each in others[: len(parts)]]  # (T, B) each
    states = [torch.stack(squares[j * width : (j + 1) * width]).sum(0) for j in range(length)]
    values = None
    if value is not None:
        values_TBS = _rows(others[-1])
        values = values_TBS.transpose(0, 1)
    weights = _weights(seen, batch) if value is not None else None
    states_BTS = torch.stack(states, -1).sqrt().transpose(0, 1)
    inputs_BTS = inputs_TBSM.norm(dim=-1).transpose(0, 1)
    if getattr(model, "reverse", False):  # from the order of reading to the order of the words; EOS is last
        order = [*range(length - 2, -1, -1), length - 1]
        states_BTS, inputs_BTS = states_BTS[..., order], inputs_BTS[..., order]
    return GradientFlow(states_BTS, inputs_BTS, values, weights)


def _with_own_values(encoded: Encoded) -> Encoded:
    """Return the encoded source with a copy of the values, so that their gradient excludes the keys."""
    if not encoded.memories:
        return encoded
    first, *others = encoded.memories
    return replace(encoded, memories=(replace(first, value=first.value.clone()), *others))


def _rows(grads: Tensor) -> Tensor:
    """Return the norm of each value row, (T, B, S), from gradients (T, B, S, E) or (T, B, H, S, E)."""
    squares = grads.square().sum(-1)
    return (squares if squares.dim() == 3 else squares.sum(2)).sqrt()


def _weights(seen: Any, batch: Batch) -> Tensor | None:
    """Return the weights of the first recorded cross-attention, mean over heads, (B, T, S)."""
    calls = next((calls for site, calls in seen.items() if site.endswith("cross")), None)
    if calls is None:
        return None
    weights = torch.cat([call.weights for call in calls], -2)
    return weights.mean(1) if weights.dim() == 4 else weights


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


def _rows_of_jacobian(outputs_T: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """Return the gradient of each output with respect to each tensor, with T in front; 0 if it has none."""
    eye = torch.eye(len(outputs_T), dtype=outputs_T.dtype)
    grads = torch.autograd.grad(outputs_T, wanted, eye, is_grads_batched=True, allow_unused=True)
    return [
        torch.zeros(len(eye), *tensor.shape, dtype=tensor.dtype) if grad is None else grad
        for grad, tensor in zip(grads, wanted, strict=True)
    ]


@contextmanager
def _capturing(model: Model) -> Iterator[_Captured]:
    """Context manager in which model.encode() stores the embeddings of the source and the encoder states."""
    captured = _Captured([], [])

    def keep_inputs(module: Any, arguments: Any, output: Tensor) -> None:
        captured.inputs.append(output)

    hooks = [model.source.register_forward_hook(keep_inputs)]
    patched: list[tuple[Any, str]] = []

    def patch(module: Any, name: str, function: Any) -> None:
        setattr(module, name, function)
        patched.append((module, name))

    if isinstance(model, Transformer):

        def keep_states(module: Any, arguments: Any, output: Tensor) -> Tensor:
            captured.states = [[state] for state in output.unbind(1)]
            return torch.stack([state for (state,) in captured.states], 1)

        hooks.append(model.encoded.register_forward_hook(keep_states))
    else:
        encoder: Any = model.encoder
        for module in encoder.modules():
            if isinstance(module, Recurrent):
                patch(module, "encode", lambda x, lengths, own=module: _run_recurrent(own, x, captured))
            elif isinstance(module, LSTMN):
                patch(module, "run", lambda x, state, own=module: _run_lstmn(own, x, captured))
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()
        for module, name in patched:
            delattr(module, name)


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


GRADIENT = Study("gradient", "Gradient flow", CLAIMS, _variants, quality=False, each=_trained, extra=_flow)
