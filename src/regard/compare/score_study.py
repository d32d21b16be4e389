"""Study "scores": score functions in one model over several widths: quality, saturation and cost."""

from __future__ import annotations

import math

import torch

from regard.compare.layer_costs import REPEATED, ROUNDS, median_seconds, peak_memory
from regard.compare.score_gradients import sample_scores, score_state, score_statistics
from regard.compare.study import (
    Claim,
    Row,
    Run,
    Study,
    StudyResult,
    Variant,
    seeds_text,
)
from regard.compare.study_context import VOCABULARY, StudyContext, random_batch
from regard.models import build_model
from regard.training.losses import cross_entropy

NAMES = ("additive", "concat", "general", "dot", "scaled_dot")
DOT, SCALED = "dot", "scaled_dot"
WIDEST = "{} in the widest model"
DIMENSIONS = (8, 16, 32, 64, 128, 256, 512, 1024)
BEFORE, AFTER = "at initialisation", "after training"
STATE = ("score_variance", "largest_weight", "saturated", "score_gradient")
"""The columns of score_statistics()."""

CLAIMS = (
    Claim("scores.dot", "Dot beats concat.", DOT, "concat"),
    Claim("scores.general", "General beats concat.", "general", "concat"),
    Claim("scores.additive", "Additive beats dot.", "additive", DOT),
    Claim(
        "scores.factor",
        "Scaled dot beats dot in the widest model.",
        WIDEST.format(SCALED),
        WIDEST.format(DOT),
    ),
    Claim(
        "scores.saturated",
        "In a trained model, the softmax is more saturated without the factor.",
        WIDEST.format(DOT),
        WIDEST.format(SCALED),
        "largest_weight",
        "mean of the largest weight",
    ),
    Claim(
        "scores.gradient",
        "In a trained model, the gradient of the scores is smaller without the factor.",
        WIDEST.format(SCALED),
        WIDEST.format(DOT),
        "score_gradient",
        "gradient norm",
        log=True,
    ),
)
STEP_WORDS, STEP_TOKENS, STEP_VOCABULARY = 16, 2048, 2000
"""Sentence length, batch size in tokens and vocabulary size of the training step that is measured."""


def _variants(context: StudyContext) -> list[Variant]:
    widest = max(context.widths_compared)
    return [
        Variant(
            name if width == context.width else f"{name}, width {width}",
            {"name": "bahdanau", "width": width} | ({} if name == "additive" else {"score": name}),
            role=WIDEST.format(name) if width == widest else "",
            figure="" if width == context.width else None,
        )
        for width in context.widths_compared
        for name in NAMES
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


def _each(context: StudyContext, run: Run) -> Row:
    model = run.variant.model
    return {"score": model.get("score", "additive"), "width": model["width"], **score_state(context, run)}


def _initial(context: StudyContext, name: str, width: int, seed: int) -> Row:
    """Measure the scores of an untrained model on random sentences."""

    def measure() -> dict[str, float]:
        torch.manual_seed(seed)
        model = build_model("bahdanau", VOCABULARY, VOCABULARY, width=width, score=name).double()
        samples = sample_scores(model, random_batch(seed))
        return score_statistics(samples.scores, samples.gradients[0])

    place: Row = {"score": name, "width": width, "seed": seed}
    return {"stage": BEFORE, **place, **context.measured("score-initial", place, measure)}


def _step_cost(context: StudyContext, name: str) -> dict[str, list[float]]:
    """Measure the time and the peak memory of a training step on random sentences, for each repetition."""
    device = context.device
    model: Row = {"name": "bahdanau", "width": context.width, "score": name}

    def measure() -> dict[str, list[float]]:
        context.say(f"timing a training step with the score {name} ...")
        torch.manual_seed(0)
        built = build_model(source_size=STEP_VOCABULARY, target_size=STEP_VOCABULARY, **model).to(device)
        batch = random_batch(0, STEP_TOKENS // STEP_WORDS, STEP_WORDS, STEP_VOCABULARY).to(device)

        def step() -> None:
            built.zero_grad(set_to_none=True)
            cross_entropy(built(batch), batch.labels)[0].backward()

        step()  # memory is allocated and kernels are compiled in the first step
        return {
            "seconds": [median_seconds(step, device, 3) for _ in range(ROUNDS)],
            "bytes": [float(peak_memory(step, device)) for _ in range(ROUNDS)],
        }

    about = {"model": model, "device": device, "threads": context.threads, "tokens": STEP_TOKENS}
    return context.measured("step-cost", about, measure)


def _extra(context: StudyContext, trained: list[Row], result: StudyResult) -> None:
    """Measure saturation for random vectors, as in the argument for the factor, and in models by width."""
    seeds = seeds_text(len(context.seeds))
    random: list[Row] = [{"d": d, "seed": k, **saturation(d, k)} for d in DIMENSIONS for k in range(5)]
    vectors = "random queries and keys of unit variance, 32 keys, mean over 5 seeds"
    result.table("scores-saturation", f"Saturation of the softmax: {vectors}.", random)
    text = "Norm of the gradient of a weight with respect to the scores"
    gradients = [
        {"score": name, "d": row["d"], "gradient": row[f"{name}_gradient"]}
        for name in (DOT, SCALED)
        for row in random
    ]
    drawn = ("score", "d", "gradient")
    result.lines("scores-gradient", f"{text}: {vectors}.", gradients, drawn, ("d", "gradient"), "xy")
    gains = [
        math.log(row["scaled_dot_gradient"] / row["dot_gradient"])
        for row in random
        if row["d"] == DIMENSIONS[-1]
    ]
    text = (
        "Without the factor 1 / sqrt(d), the softmax saturates for large d, and the gradient of the scores "
        "becomes smaller."
    )
    what = f"log of the gradient norm with over without the factor, d = {DIMENSIONS[-1]}"
    result.judge("scores.scaled", text, gains, what)

    columns = ("score", "width", "seed", "bleu", *STATE)
    states = [
        _initial(context, name, width, seed)
        for name in NAMES
        for width in context.widths_compared
        for seed in context.seeds
    ] + [{"stage": AFTER, **{name: row[name] for name in columns}} for row in trained]
    where = f"bahdanau on random sentences at initialisation, on test sentences after training, {seeds}"
    result.table("scores-state", f"Scores, saturation of the softmax and gradient: {where}.", states)
    if trained:
        about = f"BLEU, mean over the classes of source length: {context.sentences.name}, {seeds}."
        result.lines("scores-width", about, trained, ("score", "width", "bleu"), ("width", "BLEU"), "x")

    costs = {name: _step_cost(context, name) for name in NAMES}
    steps: list[Row] = [
        {"score": name, "repetition": k, **{of: values[k] for of, values in costs[name].items()}}
        for name in NAMES
        for k in range(ROUNDS)
    ]
    step = f"one training step, forward and backward, 2,048 tokens, {context.device}"
    result.table("scores-cost", f"Time and peak memory: {step}, {ROUNDS} {REPEATED}.", steps)
    for of, name, text in (("seconds", "scores.time", "time"), ("bytes", "scores.memory", "memory")):
        claim = f"A training step takes less {text} with dot than with additive."
        both = zip(costs["additive"][of], costs[DOT][of], strict=True)
        what = f"log of the {of} of a training step, additive over {DOT}, width {context.width}"
        result.judge(name, claim, [math.log(a / b) for a, b in both], what, REPEATED)


SCORES = Study("scores", "Score functions", CLAIMS, _variants, each=_each, extra=_extra)
