"""Studies "positions" and "parts": position schemes, and parts of a model that are taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.compare.confidence import interval, judge, series_of
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, StudyResult, Table
from regard.compare.study_context import StudyContext
from regard.compare.two_lookups import STEPS, accuracy_with_heads
from regard.compare.variant_study import Better, Variant, variant_study

__all__ = ["PARTS", "POSITIONS"]


def _transformer(label: str, **options: Any) -> Variant:
    return Variant(label, {"name": "transformer", "layers": 2, "heads": 4, **options})


SCHEMES = ("none", "noise", "learned", "sinusoidal", "relative", "rotary", "alibi")

POSITIONS = variant_study(
    "positions",
    "Position schemes",
    [_transformer(name, **({} if name == "sinusoidal" else {"position": name})) for name in SCHEMES],
    [
        Better(
            Claim("positions.needed", "A Transformer needs positions to translate well."),
            "sinusoidal",
            "none",
        ),
        Better(
            Claim("positions.noise", "Positions must be regular: random vectors serve less well."),
            "sinusoidal",
            "noise",
        ),
        Better(
            Claim(
                "positions.beyond",
                "Relative positions generalise better to sources longer than those of the training.",
            ),
            "relative",
            "learned",
            "beyond",
        ),
    ],
)

WHOLE = "transformer"
NO_SCALING, ONE_HEAD, NO_FEEDFORWARD = "without scaling", "1 head", "without feed-forward layer"
NO_MASK, NO_PROJECTIONS = "without causal mask", "K = V = X"

READOUTS = {"linear readout": False, "Transformer layer": True}
"""The two models for the task with two look-ups -> whether they have a feed-forward layer."""

HEADS = {"linear readout": (1, 2, 4, 8), "Transformer layer": (1, 2)}

LOOKUPS = (
    Claim(
        "parts.lookups",
        "A word that needs two look-ups needs two heads, if a linear readout follows the attention.",
    ),
    Claim("parts.lookups-layer", "It also needs two heads in a complete Transformer layer."),
)


def _lookups(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    """Train one attention layer with 1 to 8 heads on a task with two look-ups per word."""
    seeds = context.options.seeds if len(context.options.seeds) > 2 else (0, 1, 2)
    rows = [
        {"readout": readout, "heads": heads, "seed": seed, **_accuracy(context, readout, heads, seed)}
        for readout in READOUTS
        for heads in HEADS[readout]
        for seed in seeds
    ]
    lines = []
    for readout in READOUTS:
        stats = [
            interval([row["both_letters"] for row in rows if (row["readout"], row["heads"]) == (readout, n)])
            for n in HEADS[readout]
        ]
        lines.append(series_of(readout, HEADS[readout], stats))
    about = f"one attention layer, random sequences that were not used for training, {len(seeds)} seeds"
    text = "share of words with both letters right"
    ends = "; ".join(f"{line.label}: {line.y[0]:.2f} with 1 head, {line.y[1]:.2f} with 2" for line in lines)
    figure = Figure(
        "parts-lookups",
        f"{text.capitalize()} by the number of heads, on a task with two look-ups per word: {about}.",
        f"Lines of the {text} by the number of heads. {ends}.",
        lines,
        x="heads",
        y=text,
        log="x",
    )
    verdicts = []
    for claim, readout in zip(LOOKUPS, READOUTS, strict=True):
        share = {
            (row["heads"], row["seed"]): row["both_letters"] for row in rows if row["readout"] == readout
        }
        values = [share[2, seed] - share[1, seed] for seed in seeds]
        verdicts.append(judge(claim, values, f"{text}, 2 heads minus 1 head, {readout}"))
    table = Table("parts-lookups", f"Task with two look-ups per word: {about}.", rows)
    return StudyResult("parts", "", (table,), (figure,), tuple(verdicts))


def _accuracy(context: StudyContext, readout: str, heads: int, seed: int) -> dict[str, Any]:
    feedforward, device = READOUTS[readout], context.cache.device

    def measure() -> dict[str, float]:
        context.say(f"training {heads} head{'s' * (heads > 1)} on two look-ups, {readout}, seed {seed} ...")
        return accuracy_with_heads(heads, seed, feedforward=feedforward, device=device)

    about = {"readout": readout, "heads": heads, "seed": seed, "steps": STEPS}
    result: dict[str, Any] = context.cache.measured(None, "two-lookups", about, measure)
    return result


PARTS = variant_study(
    "parts",
    "Parts of a model",
    [
        _transformer(WHOLE),
        _transformer(NO_SCALING, score="dot"),
        _transformer(ONE_HEAD, heads=1),
        _transformer("2 heads", heads=2),
        _transformer("8 heads", heads=8),
        _transformer(NO_FEEDFORWARD, without="feed-forward"),
        _transformer(NO_MASK, without="causal-mask"),
        _transformer(NO_PROJECTIONS, without="projections"),
        Variant("luong", {"name": "luong"}),
        Variant("luong without input feeding", {"name": "luong", "feeding": False}),
    ],
    [
        Better(
            Claim("parts.scaling", "A Transformer loses quality without the factor 1 / sqrt(d)."),
            WHOLE,
            NO_SCALING,
        ),
        Better(Claim("parts.heads", "Several heads are better than one."), WHOLE, ONE_HEAD),
        Better(Claim("parts.feedforward", "The feed-forward layer is needed."), WHOLE, NO_FEEDFORWARD),
        Better(Claim("parts.mask", "The decoder needs its causal mask."), WHOLE, NO_MASK),
        Better(
            Claim("parts.projections", "Learned projections of keys and values beat K = V = X."),
            WHOLE,
            NO_PROJECTIONS,
        ),
        Better(
            Claim("parts.feeding", "Input feeding helps Luong's model."),
            "luong",
            "luong without input feeding",
        ),
    ],
    extra=_lookups,
    more_claims=LOOKUPS,
)
