"""Study "scores": score functions in one model over several widths: quality, saturation, time and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from regard.compare.attention_weights import score_state
from regard.compare.comparison_options import Options
from regard.compare.confidence import interval, judge, series_of
from regard.compare.random_sentences import VOCABULARY, random_batch
from regard.compare.run_cache import TrainedRun
from regard.compare.score_gradients import sample_scores, score_statistics
from regard.compare.step_cost import step_cost
from regard.compare.study import Claim, Figure, Series, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext
from regard.compare.variant_study import Better, Variant, variant_study
from regard.models import build_model

__all__ = ["SCORES", "saturation"]

NAMES = ("additive", "concat", "general", "dot", "scaled_dot")
DOT, SCALED = "dot", "scaled_dot"
DIMENSIONS = (8, 16, 32, 64, 128, 256, 512, 1024)
STAGES = ("at initialisation", "after training")
STATE = {
    "score_variance": "variance of the scores of a row",
    "largest_weight": "largest weight of a row",
    "saturated": "share of rows with a weight above 0.99",
    "score_gradient": "norm of the gradient of the scores of a row",
}
"""Column of a table -> what it is."""

CLAIMS = (
    Claim(
        "scores.scaled",
        "Without the factor 1 / sqrt(d), the softmax saturates for large d, and the gradient of the scores "
        "becomes smaller.",
    ),
    Claim("scores.saturated", "In a trained model, the softmax is more saturated without the factor."),
    Claim("scores.gradient", "In a trained model, the gradient of the scores is smaller without the factor."),
    Claim("scores.time", "A training step takes less time with dot than with additive."),
    Claim("scores.memory", "A training step takes less memory with dot than with additive."),
)


def _label(options: Options, name: str, width: int) -> str:
    return name if width == options.width else f"{name}, width {width}"


def _variants(options: Options) -> list[Variant]:
    return [
        Variant(
            _label(options, name, width),
            {"name": "bahdanau", "width": width} | ({} if name == "additive" else {"score": name}),
            drawn=width == options.width,
        )
        for width in options.widths_compared
        for name in NAMES
    ]


def _better(options: Options) -> list[Better]:
    widest = max(options.widths_compared)
    return [
        Better(Claim("scores.dot", "Dot beats concat."), DOT, "concat"),
        Better(Claim("scores.general", "General beats concat."), "general", "concat"),
        Better(Claim("scores.additive", "Additive beats dot."), "additive", DOT),
        Better(
            Claim("scores.factor", "Scaled dot beats dot in the widest model."),
            _label(options, SCALED, widest),
            _label(options, DOT, widest),
        ),
    ]


def saturation(width: int, seed: int, keys: int = 32, rows: int = 256) -> dict[str, float]:
    """Measure dot products of random queries and keys of unit variance, with and without 1 / sqrt(d).

    Returns, for "dot" and "scaled_dot", the variance of the scores, the mean of the largest weight, and the
    mean norm of the gradient of a weight with respect to the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(size, width, generator=generator) for size in (rows, keys))
    result = {}
    for name, scale in ((DOT, 1.0), (SCALED, 1 / math.sqrt(width))):
        scores = (query @ key.T * scale).requires_grad_()
        weights = scores.softmax(-1)
        (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
        result[f"{name}_variance"] = scores.var().item()
        result[f"{name}_largest"] = weights.amax(-1).mean().item()
        result[f"{name}_gradient"] = gradient.norm(dim=-1).mean().item()
    return result


def _initial(context: StudyContext, name: str, width: int, seed: int) -> dict[str, Any]:
    """Measure the scores of an untrained model on random sentences."""

    def measure() -> dict[str, float]:
        torch.manual_seed(seed)
        model = build_model("bahdanau", VOCABULARY, VOCABULARY, width=width, score=name).double()
        samples = sample_scores(model, random_batch(seed))
        return score_statistics(samples.scores, samples.gradients[0])

    about = {"score": name, "width": width, "seed": seed}
    result: dict[str, Any] = context.cache.measured(None, "score-initial", about, measure)
    return result


def _extra(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    options = context.options
    tables, figures, verdicts = _random_vectors()
    states = _states(context, trained)
    seeds = f"{len(options.seeds)} seed{'s' * (len(options.seeds) != 1)}"
    where = f"bahdanau on random sentences at initialisation, on test sentences after training, {seeds}"
    tables.append(Table("scores-state", f"Scores, saturation of the softmax and gradient: {where}.", states))
    figures.append(_quality_figure(states, context))
    figures += [_state_figure(states, of, text, where) for of, text in STATE.items()]
    costs = _costs(context)
    about = f"one training step of bahdanau, forward and backward, 2,048 tokens, {context.cache.device}"
    tables.append(Table("scores-cost", f"Time and peak memory: {about}, 3 repetitions.", costs))
    figures += [_cost_figure(costs, of, text, about) for of, text in COSTS.items()]
    verdicts += _state_verdicts(states) + _cost_verdicts(options, costs)
    return StudyResult("scores", "", tuple(tables), tuple(figures), tuple(verdicts))


def _random_vectors() -> tuple[list[Table], list[Figure], list[Verdict]]:
    """Measure saturation for random vectors of unit variance, as in the argument for the factor."""
    rows: list[dict[str, Any]] = [
        {"d": d, "seed": seed, **saturation(d, seed)} for d in DIMENSIONS for seed in range(5)
    ]
    about = "random queries and keys of unit variance, 32 keys, mean over 5 seeds"
    figures = []
    for of, text in (
        ("variance", "variance of the scores"),
        ("largest", "largest weight"),
        ("gradient", "norm of the gradient of a weight with respect to the scores"),
    ):

        def value(row: dict[str, Any], name: str, of: str = of) -> float:
            return float(row[f"{name}_{of}"])

        lines = _lines(rows, (DOT, SCALED), "d", value)
        figures.append(_line_figure(f"scores-{of}", text, about, lines, "d"))
    values = [
        math.log(r["scaled_dot_gradient"] / r["dot_gradient"]) for r in rows if r["d"] == DIMENSIONS[-1]
    ]
    what = f"log of the gradient norm with over without the factor, d = {DIMENSIONS[-1]}"
    table = Table("scores-saturation", f"Saturation of the softmax: {about}.", rows)
    return [table], figures, [judge(CLAIMS[0], values, what)]


def _states(context: StudyContext, trained: Sequence[TrainedRun]) -> list[dict[str, Any]]:
    """Return the state of the scores at initialisation and after training, for each score, width and seed."""
    options = context.options
    places = {
        _label(options, name, width): (name, width) for name in NAMES for width in options.widths_compared
    }
    rows: list[dict[str, Any]] = []
    for name, width in places.values():
        for seed in options.seeds:
            place = {"score": name, "width": width, "seed": seed, "stage": STAGES[0]}
            rows.append(place | _initial(context, name, width, seed))
    for run in trained:
        name, width = places[run.label]
        place = {"score": name, "width": width, "seed": run.seed, "stage": STAGES[1]}
        bleu = statistics.fmean(row["bleu"] for row in context.quality(run))
        rows.append(place | {"bleu": bleu} | score_state(context, run))
    return rows


def _quality_figure(rows: Sequence[dict[str, Any]], context: StudyContext) -> Figure:
    def value(row: dict[str, Any], name: str) -> float:
        return float(row["bleu"]) if row["score"] == name and "bleu" in row else math.nan

    seeds = f"{len(context.options.seeds)} seed{'s' * (len(context.options.seeds) != 1)}"
    about = f"mean over the classes of source length, {context.sentences.name}, greedy search, {seeds}"
    return _line_figure("scores-width", "BLEU", about, _lines(rows, NAMES, "width", value), "width", "x")


def _state_figure(rows: Sequence[dict[str, Any]], of: str, text: str, where: str) -> Figure:
    names = [f"{name}, {stage}" for stage in STAGES for name in (DOT, SCALED)]
    kept = [{**row, "line": f"{row['score']}, {row['stage']}"} for row in rows]

    def value(row: dict[str, Any], name: str) -> float:
        return float(row[of]) if row["line"] == name else math.nan

    lines = _lines(kept, names, "width", value)
    logarithmic = "x" if of in ("largest_weight", "saturated") else "xy"
    return _line_figure(f"scores-model-{of.replace('_', '-')}", text, where, lines, "width", logarithmic)


COSTS = {"seconds": "seconds of a training step", "bytes": "peak memory of a training step in bytes"}


def _costs(context: StudyContext) -> list[dict[str, Any]]:
    rows = []
    for name in NAMES:
        for width in context.options.widths_compared:
            context.say(f"timing a training step with the score {name}, width {width} ...")
            cost = step_cost(context, {"name": "bahdanau", "width": width, "score": name})
            for number, seconds in enumerate(cost["seconds"]):
                row = {"score": name, "width": width, "repetition": number}
                rows.append({**row, "seconds": seconds, "bytes": cost["bytes"][number]})
    return rows


def _cost_figure(rows: Sequence[dict[str, Any]], of: str, text: str, about: str) -> Figure:
    def value(row: dict[str, Any], name: str) -> float:
        return float(row[of]) if row["score"] == name else math.nan

    about = f"{about}, mean of 3 repetitions"
    return _line_figure(f"scores-cost-{of}", text, about, _lines(rows, NAMES, "width", value), "width")


def _lines(
    rows: Sequence[dict[str, Any]],
    names: Iterable[str],
    x: str,
    value: Callable[[dict[str, Any], str], float],
) -> list[Series]:
    """Return a line for each name: the mean of value(row, name) against column x, without NaN."""
    lines = []
    for name in names:
        points: dict[int, list[float]] = {}
        for row in rows:
            if not math.isnan(found := value(row, name)):
                points.setdefault(row[x], []).append(found)
        stats = {at: interval(values) for at, values in sorted(points.items())}
        if stats:
            lines.append(series_of(name, list(stats), list(stats.values())))
    return lines


def _line_figure(
    name: str, text: str, about: str, lines: Sequence[Series], x: str, logarithmic: str = "xy"
) -> Figure:
    ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in lines)
    caption = f"{text[:1].upper()}{text[1:]} against {x}: {about}."
    alt = f"Lines of {text} against {x}. {ends}."
    return Figure(name, caption, alt, lines, x=x, y=text, log=logarithmic)


def _state_verdicts(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    trained = [row for row in rows if row["stage"] == STAGES[1]]
    of = {name: {row["width"] for row in trained if row["score"] == name} for name in (DOT, SCALED)}
    widest = max(of[DOT] & of[SCALED], default=max(row["width"] for row in rows))
    kept = {(row["score"], row["seed"]): row for row in trained if row["width"] == widest}
    seeds = [seed for name, seed in kept if name == DOT and (SCALED, seed) in kept]
    pairs = [(kept[DOT, seed], kept[SCALED, seed]) for seed in seeds]
    _, saturated, gradient, _, _ = CLAIMS
    larger = [plain["largest_weight"] - scaled["largest_weight"] for plain, scaled in pairs]
    ratios = [math.log(scaled["score_gradient"] / plain["score_gradient"]) for plain, scaled in pairs]
    return [
        judge(saturated, larger, f"mean of the largest weight, {DOT} minus {SCALED}, width {widest}"),
        judge(gradient, ratios, f"log of the gradient norm, {SCALED} over {DOT}, width {widest}"),
    ]


def _cost_verdicts(options: Options, rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    verdicts = []
    for claim, of in zip(CLAIMS[3:], COSTS, strict=True):
        values = {
            name: [row[of] for row in rows if (row["score"], row["width"]) == (name, options.width)]
            for name in ("additive", DOT)
        }
        ratios = [math.log(a / b) for a, b in zip(values["additive"], values[DOT], strict=True)]
        what = f"log of the {COSTS[of]}, additive over {DOT}, width {options.width}"
        verdicts.append(judge(claim, ratios, what, "repetitions"))
    return verdicts


SCORES = variant_study(
    "scores", "Score functions", _variants, _better, each=score_state, extra=_extra, more_claims=CLAIMS
)
