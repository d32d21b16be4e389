"""Study "gradient": how much gradient reaches each source position, with and without attention."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.compare.comparison_options import Options, model_options
from regard.compare.confidence import interval, judge
from regard.compare.curve_fit import fitted_slope
from regard.compare.gradient_flow import GradientFlow, encoder_jacobian, gradient_flow
from regard.compare.random_sentences import LENGTH, ROWS, VOCABULARY, random_batch
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, PlannedRun, Series, Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext
from regard.data.batch import Batch
from regard.evaluation.rank_correlation import spearman
from regard.models import Model, build_model
from regard.tasks.task_table import load

__all__ = ["GRADIENT"]

MODELS = ("seq2seq", "bahdanau", "lstmn", "transformer")
FIXED, ATTENTIVE, PARALLEL = "seq2seq", "bahdanau", "transformer"
SMALLEST_WEIGHT = 1e-6
"""Lower bound of the lowest class of attention weights; it also has all smaller weights."""

STAGES = ("at initialisation", "after training")
WHERE = {
    STAGES[0]: f"untrained models on random sentences of {LENGTH} words",
    STAGES[1]: "trained models on test sentences of one length",
}
KINDS = {"states": "encoder state h_j", "inputs": "input x_j"}

CLAIMS = (
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


def _models(options: Options) -> tuple[str, ...]:
    return options.models or MODELS


def _runs(options: Options) -> list[PlannedRun]:
    names = options.compared if options.quick else _models(options)
    return [run for model in names for run in options.each(model)]


def _measure(context: StudyContext) -> StudyResult:
    options = context.options
    seeds = options.seeds if len(options.seeds) > 2 else (0, 1, 2)
    measured = [
        {"model": model, "seed": seed, "stage": STAGES[0], **_initial(context, model, seed)}
        for model in _models(options)
        for seed in seeds
    ]
    measured += [
        {"model": run.label, "seed": run.seed, "stage": STAGES[1], **_trained(context, run)}
        for run in context.finished(_runs(options))
    ]
    curves = [
        {
            "model": row["model"],
            "seed": row["seed"],
            "stage": row["stage"],
            "of": of,
            "distance": x,
            "norm": y,
        }
        for row in measured
        for of in (*KINDS, "jacobian")
        for x, y in row[of]
    ]
    weights = [
        {"model": row["model"], "seed": row["seed"], "stage": row["stage"], "rank_correlation": row["weight"]}
        for row in measured
        if row["weight"] is not None
    ]
    maps = [
        {"model": row["model"], "stage": row["stage"], "t": t, "j": j, "norm": norm}
        for row in measured
        if row["seed"] == seeds[0]
        for t, line in enumerate(row["map"])
        for j, norm in enumerate(line)
    ]
    values = [
        {
            "model": row["model"],
            "seed": row["seed"],
            "stage": row["stage"],
            "weight": weight,
            "norm": norm,
        }
        for row in measured
        for _, weight, norm in row["value"]
    ]
    counts = f"{len(seeds)} seeds at initialisation, {len(options.seeds)} after training"
    where = f"{'; '.join(WHERE.values())}; {counts}"
    correlated = "Rank correlation of the norm of d loss_t / d v_j with the attention weight of v_j"
    tables = (
        Table("gradient", f"Mean norm of the gradient by distance: {where}.", curves, shown=False),
        Table("gradient-map", f"Norm of d loss_t / d h_j: {where}; only the first seed.", maps, shown=False),
        Table("gradient-weight", f"{correlated}: {where}.", weights),
        Table(
            "gradient-value", f"Norm of d loss_t / d v_j by the weight of v_j: {where}.", values, shown=False
        ),
    )
    notes = context.unfinished_notes(_runs(options))
    return StudyResult("gradient", GRADIENT.title, tables, _figures(measured), _verdicts(measured), notes)


def _initial(context: StudyContext, model: str, seed: int) -> dict[str, Any]:
    """Measure an untrained model on random sentences."""
    settings = {"width": context.options.width, **model_options(model)}
    about = {"model": settings, "seed": seed, "rows": ROWS, "length": LENGTH}

    def measure() -> dict[str, Any]:
        context.say(f"gradients of {model} at initialisation, seed {seed} ...")
        torch.manual_seed(seed)
        options = {name: value for name, value in settings.items() if name != "name"}
        built = build_model(settings["name"], VOCABULARY, VOCABULARY, **options)
        return measured_flow(built.double().eval(), random_batch(seed))

    return context.cache.measured(None, f"gradient-2-{settings['name']}", about, measure)


def _trained(context: StudyContext, run: TrainedRun) -> dict[str, Any]:
    """Measure a trained model on test sentences of one length."""

    def measure() -> dict[str, Any]:
        context.say(f"gradients of {run.label} after training, seed {run.seed} ...")
        translator = load(run.folder, checkpoint="latest", device="cpu")
        sides = (translator.source_tokenizer, translator.target_tokenizer)
        batch = equal_lengths(context.sentences.pairs, *sides, rows=2 * ROWS)
        return measured_flow(translator.model.double().eval(), batch)

    return context.cache.measured(
        run, "gradient-2", {"data": context.sentences.name, "rows": 2 * ROWS}, measure
    )


def equal_lengths(pairs: Sequence[tuple[str, str]], source: Any, target: Any, rows: int) -> Batch:
    """Return a batch of pairs whose sources have the same number of tokens, and whose targets too.

    The lengths are the most frequent ones among the longer half of the pairs.
    """
    encoded = [(source.encode(left), target.encode(right)) for left, right in pairs[:2000]]
    middle = statistics.median(len(left) for left, _ in encoded)
    longer = [(left, right) for left, right in encoded if len(left) > middle] or encoded
    lengths = Counter((len(left), len(right)) for left, right in longer).most_common(1)[0][0]
    kept = [pair for pair in longer if (len(pair[0]), len(pair[1])) == lengths][:rows]
    return Batch.collate([left for left, _ in kept], [right for _, right in kept])


def measured_flow(model: Model, batch: Batch) -> dict[str, Any]:
    """Return the gradients of a model as plain data: curves by distance, a T x S map, a correlation."""
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
        "map": flow.states.mean(0).tolist(),
        "weight": _weight_correlation(flow),
        "value": _by_weight(flow),
    }


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


def _by_distance(norms: Tensor, distance: Tensor) -> list[list[float]]:
    """Return the mean norm for each distance, as pairs [distance, norm]."""
    mean = norms.mean(0)
    return [[int(d), mean[distance == d].mean().item()] for d in distance.unique()]


def _weight_correlation(flow: GradientFlow) -> float | None:
    """Return the rank correlation, over j, of |d loss_t / d v_j| and the weight of v_j; mean over t."""
    if flow.values is None or flow.weights is None:
        return None
    values = flow.values.flatten(0, 1).tolist()
    weights = flow.weights.flatten(0, 1).tolist()
    found = [spearman(value, weight) for value, weight in zip(values, weights, strict=True)]
    known = [each for each in found if each == each]  # NaN if all weights are equal
    return statistics.fmean(known) if known else None


def _figures(measured: Sequence[dict[str, Any]]) -> tuple[Figure, ...]:
    figures = []
    for stage in STAGES:
        rows = [row for row in measured if row["stage"] == stage]
        if not rows:
            continue
        name = stage.split()[-1]
        seeds = len({row["seed"] for row in rows})
        count = f"{seeds} seed{'s' * (seeds != 1)}"
        over = f"{WHERE[stage]}, mean over sentences, geometric mean over {count}"
        for of, text in KINDS.items():
            figures.append(
                _curves(rows, of, f"gradient-{of}-{name}", f"Norm of d loss_t / d {text}, {over}.")
            )
        caption = f"Frobenius norm of d h_j / d x_i in the encoder by |i - j|, {over}."
        figures.append(_curves(rows, "jacobian", f"gradient-encoder-{name}", caption))
        figures += _value_figure(rows, f"gradient-value-{name}", f"{WHERE[stage]}, mean over {count}")
        firsts = list({row["model"]: row for row in reversed(rows)}.values())[::-1]
        maps = [
            Series(row["model"], (), cells=[[max(v, 1e-30) for v in line] for line in row["map"]])
            for row in firsts
        ]
        alt = "Heat maps of the gradient norm: rows are target positions t, columns are source positions j."
        caption = f"Norm of d loss_t / d h_j for each t and j, {WHERE[stage]}, mean over sentences, one seed."
        figures.append(
            Figure(
                f"gradient-map-{name}", caption, alt, maps, "maps", "source position j", "target position t"
            )
        )
    return tuple(figures)


def _value_figure(rows: Sequence[dict[str, Any]], name: str, over: str) -> list[Figure]:
    """Return a figure of the gradient that reaches a value row against its weight, if there are weights."""
    series = []
    for model in dict.fromkeys(row["model"] for row in rows):
        classes: dict[float, list[tuple[float, float]]] = {}
        for row in rows:
            for number, weight, norm in row["value"] if row["model"] == model else ():
                classes.setdefault(number, []).append((weight, norm))
        points = [[statistics.fmean(each) for each in zip(*classes[k], strict=True)] for k in sorted(classes)]
        x, y = (
            [max(weight, SMALLEST_WEIGHT) for weight, _ in points],
            [max(norm, 1e-30) for _, norm in points],
        )
        if points:
            series.append(Series(model, x, y))
    if not series:
        return []
    ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in series)
    caption = f"Norm of d loss_t / d v_j by the attention weight of v_j, {over}, in classes of weights."
    alt = f"Lines of the gradient norm against the attention weight, on logarithmic scales. {ends}."
    return [Figure(name, caption, alt, series, x="attention weight", y="norm", log="xy")]


def _curves(rows: Sequence[dict[str, Any]], of: str, name: str, caption: str) -> Figure:
    series = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [dict(row[of]) for row in rows if row["model"] == model]
        x = sorted(set.intersection(*(set(each) for each in own)))
        stats = [interval([math.log(max(each[d], 1e-30)) for each in own]) for d in x]
        bounds = [(each.low, each.high) for each in stats if each.low is not None and each.high is not None]
        low, high = [math.exp(a) for a, _ in bounds], [math.exp(b) for _, b in bounds]
        y = [math.exp(each.mean) for each in stats]
        series.append(Series(model, x, y, low, high) if len(bounds) == len(x) else Series(model, x, y))
    ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in series)
    label = "|i - j|" if of == "jacobian" else "recurrent steps from j to t without attention: (S - j) + t"
    alt = f"Lines of the mean gradient norm by distance, on a logarithmic scale. {ends}."
    return Figure(name, caption, alt, series, x=label, y="norm", log="y")


def _verdicts(measured: Sequence[dict[str, Any]]) -> tuple[Verdict, ...]:
    initial, trained, recurrent, weight = CLAIMS
    verdicts = []
    for claim, stage in zip((initial, trained), STAGES, strict=True):
        what = f"decay of log |d loss_t / d h_j| per step, {ATTENTIVE} minus {FIXED}"
        values = _slope_differences(measured, stage, "states", ATTENTIVE, FIXED)
        if values or claim is initial:
            verdicts.append(judge(claim, values, what))
    what = f"decay of log |d h_j / d x_i| per word, {PARALLEL} minus {ATTENTIVE}, at initialisation"
    values = _slope_differences(measured, STAGES[0], "jacobian", PARALLEL, ATTENTIVE)
    verdicts.append(judge(recurrent, values, what))
    values = [row["weight"] for row in measured if row["model"] == ATTENTIVE and row["stage"] == STAGES[1]]
    if values:
        what = f"rank correlation of |d loss_t / d v_j| and weight in {ATTENTIVE}, after training"
        verdicts.append(judge(weight, [value for value in values if value is not None], what))
    return tuple(verdicts)


def _slope_differences(
    measured: Sequence[dict[str, Any]], stage: str, of: str, first: str, second: str
) -> list[float]:
    """Return the slope of log norm over distance of one model minus that of another, for each seed."""
    slopes = {
        (row["model"], row["seed"]): fitted_slope([x for x, _ in row[of]], [y for _, y in row[of]], log="y")
        for row in measured
        if row["stage"] == stage
    }
    seeds = [seed for model, seed in slopes if model == first and (second, seed) in slopes]
    return [slopes[first, seed] - slopes[second, seed] for seed in seeds]


GRADIENT = Study("gradient", "Gradient flow", CLAIMS, _runs, _measure, _trained)
