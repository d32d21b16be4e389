"""Studies "softmax" and "hard": how scores become weights, and how hard attention trains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from regard.attention import attention
from regard.compare.gradient_study import equal_lengths
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, Series, StudyResult, Table
from regard.compare.study_context import StudyContext
from regard.compare.variant_study import Better, Variant, variant_study
from regard.data import korean_english
from regard.evaluation import Links, score_links
from regard.look import Look
from regard.select import Best, build_select
from regard.sites import record
from regard.tasks.task_table import load

__all__ = ["HARD", "SOFTMAX", "score_gradient"]

UNIFORM = {"name": "softmax", "temperature": 1e6}
SPREADS = (0.25, 1.0, 4.0, 16.0)
"""Standard deviations of the random scores for which the gradient is measured."""

SELECTIONS: dict[str, Any] = {
    "softmax": "softmax",
    "sparsemax": "sparsemax",
    "gate": "gate",
    "unnormalised": "linear",
    "uniform": UNIFORM,
}
"""Name of a variant -> its selection."""

NO_BASELINE = {"name": "reinforce", "baseline": {"name": "none"}}
PAIRS = 100
"""Number of test sentences with gold alignments."""


def _select(label: str, select: Any, **training: Any) -> Variant:
    return Variant(label, {"name": "bahdanau", "select": select}, training)


def score_gradient(select: Any, spread: float, seed: int = 0, keys: int = 16, rows: int = 64) -> float:
    """Return the mean norm of the gradient of an output sum with respect to random scores.

    select: a selection, as in a configuration file.
    spread: standard deviation of the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(rows, keys, generator=generator) * spread).requires_grad_()
    value, zeros = torch.randn(keys, 8, generator=generator), torch.zeros
    output = attention(
        zeros(rows, 8), zeros(keys, 8), value, bias=scores, select=build_select(select), backend="reference"
    ).output
    (gradient,) = torch.autograd.grad(output.sum(), scores)
    return gradient.norm(dim=-1).mean().item()


def _gradients(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    rows: list[dict[str, Any]] = [
        {"selection": name, "spread": spread, "seed": seed, "gradient": score_gradient(select, spread, seed)}
        for name, select in SELECTIONS.items()
        for spread in SPREADS
        for seed in range(3)
    ]
    lines = [
        Series(
            name,
            SPREADS,
            [
                statistics.fmean(
                    row["gradient"] for row in rows if (row["selection"], row["spread"]) == (name, spread)
                )
                for spread in SPREADS
            ],
        )
        for name in SELECTIONS
        if name != "uniform"  # its gradient is 0
    ]
    about = "random scores of 16 keys, mean over 64 rows and 3 seeds"
    ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in lines)
    figure = Figure(
        "softmax-gradient",
        f"Norm of the gradient that reaches the scores, against their standard deviation: {about}.",
        f"Lines of the gradient norm against the spread of the scores. {ends}.",
        lines,
        x="standard deviation of the scores",
        y="gradient norm",
        log="xy",
    )
    tables = (
        Table("softmax-gradient", f"Norm of the gradient that reaches the scores: {about}.", rows),
        _entropy_table(context, "softmax", trained),
    )
    return StudyResult("softmax", "", tables, (figure,))


def _entropy_table(context: StudyContext, name: str, trained: Sequence[TrainedRun]) -> Table:
    rows = [{"model": run.label, "seed": run.seed, **_weights(context, run)} for run in trained]
    title = "Entropy of the attention weights in bits (divided by their sum), and their sum: test sentences."
    return Table(f"{name}-weights", title, rows)


def _weights(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    def measure() -> dict[str, float]:
        translator = load(run.folder, checkpoint="latest", device="cpu")
        sides = (translator.source_tokenizer, translator.target_tokenizer)
        batch = equal_lengths(context.sentences.pairs, *sides, rows=16)
        with torch.no_grad(), record(Look(weights=True), at="cross") as seen:
            translator.model.eval()(batch)
        calls = next(iter(seen.values()))
        kept = [call.weights for call in calls if call.weights is not None]
        weights = torch.cat(kept, -2).double()
        share = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-12)
        entropy = -(share * share.clamp(min=1e-12).log2()).sum(-1).mean().item()
        return {"entropy_bits": entropy, "sum_of_weights": weights.sum(-1).mean().item()}

    result: dict[str, float] = context.cache.measured(run, "weights", context.sentences.name, measure)
    return result


def _alignments(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    """Measure entropy, the alignment error rate, and the quality with the best key instead of all keys."""
    rows = []
    for run in trained:
        row: dict[str, Any] = {"model": run.label, "seed": run.seed, **_weights(context, run)}
        if context.options.built_in:
            row |= _aligned(context, run)
        rows.append(row)
    title = "Entropy of the weights in bits, alignment error rate against gold alignments, and BLEU if the "
    title += f"decoder reads only the key with the highest score: {PAIRS} test sentences."
    notes = () if context.options.built_in else ("The data have no gold alignments, so none are compared.",)
    return StudyResult("hard", "", (Table("hard-alignment", title, rows),), notes=notes)


def _aligned(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    def measure() -> dict[str, float]:
        from regard.decoding import Greedy
        from regard.evaluation import bleu

        examples = list(korean_english("test", PAIRS))
        sources, targets = ([getattr(each, side) for each in examples] for side in ("source", "target"))
        gold = [Links(each.sure, each.possible) for each in examples]
        translator = load(run.folder, checkpoint="latest", device=context.cache.device, search=Greedy())
        links = [each.links for each in translator.align(sources, targets)]
        translator.model.select = Best()
        best = [each.text for each in translator.translate(sources, look=None)]
        return {
            "alignment_error_rate": score_links(links, gold).error_rate,
            "bleu_argmax": bleu(best, targets).value,
        }

    result: dict[str, float] = context.cache.measured(run, "alignment", {"pairs": PAIRS}, measure)
    return result


SOFTMAX = variant_study(
    "softmax",
    "Why softmax",
    [_select(label, select) for label, select in SELECTIONS.items()],
    [
        Better(Claim(f"softmax.{name}", f"Softmax beats {text}."), "softmax", name)
        for name, text in (
            ("sparsemax", "sparsemax"),
            ("gate", "a gate for each key"),
            ("unnormalised", "scores without normalisation"),
            ("uniform", "equal weights"),
        )
    ],
    _gradients,
)

HARD = variant_study(
    "hard",
    "Hard against soft attention",
    [
        _select("soft", "softmax"),
        _select("sparse", "sparsemax"),
        _select("straight-through", "straight-through"),
        _select("hard, REINFORCE", "hard", estimator={"name": "reinforce"}),
        _select("hard, REINFORCE without baseline", "hard", estimator=NO_BASELINE),
        _select("soft, gold alignments", "softmax", guided_alignment=1.0),
        Variant("luong, soft", {"name": "luong", "feeding": False}),
        Variant("luong, latent word", {"name": "luong", "feeding": False, "readout": "mixture"}),
    ],
    [
        Better(Claim("hard.soft", "Soft attention beats hard attention."), "soft", "hard, REINFORCE"),
        Better(
            Claim("hard.baseline", "A baseline helps hard attention."),
            "hard, REINFORCE",
            "hard, REINFORCE without baseline",
        ),
        Better(Claim("hard.gold", "Gold alignments help."), "soft, gold alignments", "soft"),
        Better(
            Claim("hard.latent", "A latent source word, summed exactly, beats soft attention."),
            "luong, latent word",
            "luong, soft",
        ),
    ],
    _alignments,
)
