"""Study "positions": position schemes in a Transformer."""

from __future__ import annotations

from regard.compare.study import Claim, Study, Variant

SCHEMES = ("none", "noise", "learned", "sinusoidal", "relative", "rotary", "alibi")
BEYOND = "mean BLEU on sources longer than those of the training"

CLAIMS = (
    Claim("positions.needed", "A Transformer needs positions to translate well.", "sinusoidal", "none"),
    Claim(
        "positions.noise", "Positions must be regular: random vectors serve less well.", "sinusoidal", "noise"
    ),
    Claim(
        "positions.beyond",
        "Relative positions generalise better to sources longer than those of the training.",
        "relative",
        "learned",
        "bleu_beyond",
        BEYOND,
    ),
)

POSITIONS = Study(
    "positions",
    "Position schemes",
    CLAIMS,
    [
        Variant(
            scheme,
            {"name": "transformer", "layers": 2, "heads": 4}
            | ({} if scheme == "sinusoidal" else {"position": scheme}),
        )
        for scheme in SCHEMES
    ],
)
