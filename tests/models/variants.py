"""Small models: one for every kind of model and every option that changes step()."""

from __future__ import annotations

from typing import Any

from regard.models import Model, build_model
from regard.positions import POSITIONS
from regard.scores import SCORES

SMALL = {"width": 8, "heads": 2, "inner": 16, "layers": 2}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"seq2seq {cell}": ("seq2seq", {"width": 6, "cell": cell}) for cell in ("rnn", "gru", "lstm")},
    "seq2seq deep every reversed": (
        "seq2seq",
        {"width": 6, "depth": 2, "cell": "lstm", "context": "every", "reverse": True},
    ),
    "bahdanau": ("bahdanau", {"width": 6, "embedding": 5, "hidden": 7}),
    "bahdanau paper": ("bahdanau", {"width": 6, "encoder": "paper"}),
    **{f"luong {score}": ("luong", {"width": 6, "score": score}) for score in SCORES},
    **{
        f"luong {view} {'fed' if feeding else 'unfed'}": (
            "luong",
            {"width": 6, "view": view, "feeding": feeding, "cell": "gru"},
        )
        for view in ("local-m", "local-p")
        for feeding in (True, False)
    },
    "luong affine": ("luong", {"width": 6, "score": "dot", "readout": "affine", "feeding": False}),
    "luong mixture": ("luong", {"width": 6, "readout": "latent"}),
    "luong affine fed": ("luong", {"width": 6, "readout": "affine", "cell": "rnn"}),
    "luong both ways dot": ("luong", {"width": 6, "score": "dot", "both_ways": True, "depth": 2}),
    "luong both ways general": ("luong", {"width": 6, "both_ways": True, "embedding": 5}),
    "lstmn shallow": ("lstmn", {"width": 6, "embedding": 5, "fusion": "shallow"}),
    "lstmn deep": ("lstmn", {"width": 6, "embedding": 5, "depth": 2}),
    "lstmn both ways": ("lstmn", {"width": 6, "embedding": 5, "both_ways": True}),
    "lstmn gated dot": ("lstmn", {"width": 6, "depth": 2, "connections": "gated", "score": "dot"}),
    **{f"transformer {position}": ("transformer", {**SMALL, "position": position}) for position in POSITIONS},
    "transformer post swiglu": ("transformer", {**SMALL, "norm": "post", "activation": "swiglu"}),
    "transformer tied": ("transformer", {**SMALL, "tie": "all", "activation": "gelu", "decoder_layers": 1}),
}

SIZE = 11
"""Vocabulary size of these models."""


def make(name: str) -> Model:
    """Build the variant with this name, in float64 and eval mode."""
    kind, options = VARIANTS[name]
    return build_model(kind, SIZE, SIZE, **options).double().eval()
