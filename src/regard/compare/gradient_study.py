"""Study "gradient": how much gradient reaches each source position, with and without attention."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.compare.comparison_options import Options, model_options, model_variant
from regard.compare.confidence import fitted_slope, judge, lines_of
from regard.compare.gradient_flow import GradientFlow, encoder_jacobian, gradient_flow
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, Row, Study, StudyResult, Table, Variant, Verdict
from regard.compare.study_base import differences, line_figure
from regard.compare.study_context import LENGTH, ROWS, VOCABULARY, StudyContext, random_batch, seeds_text
from regard.data.batch import Batch
from regard.evaluation.rank_correlation import spearman
from regard.models import Model, build_model

__all__ = ["GRADIENT"]

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


GRADIENT = Study("gradient", "Gradient flow", CLAIMS, _variants, quality=False, each=_trained, extra=_flow)
