"""fast_code(): which fast twins train and search a model, and why others do not."""

from __future__ import annotations

from torch import nn

from regard.decoding.beam import Beam
from regard.fast import enabled
from regard.fast.search import search_decoder
from regard.fast.twins import Twins
from regard.models.base import Model
from regard.models.transformer import Transformer

__all__ = ["fast_code"]

FREQUENT = (nn.Embedding, nn.Linear, Transformer)
"""Classes that are not named if their twin does not apply: parts of most models, and a class whose layers
give the same reasons."""


def fast_code(model: nn.Module) -> dict[str, str]:
    """Return what computes training steps and beam search of a model: the names of twins, or the reasons.

    >>> from regard.models import build_model
    >>> fast_code(build_model("bahdanau", 9, 9, width=8, score="dot"))["training"]
    'FastRecurrent, FastDropout; plain Bahdanau, because the score is Dot()'
    """
    twins = Twins(model)
    used = ", ".join(dict.fromkeys(twin.__name__ for _, _, twin in twins.chosen))
    rows = {"training": "; ".join(([used] if used else []) + _refused(model, twins)) or "plain"}
    if isinstance(model, Model):
        decoder = search_decoder(model, Beam())
        if isinstance(decoder, list):
            rows["search"] = f"plain, because {'; '.join(decoder)}"
        else:
            rows["search"] = decoder.__name__
    return rows


def _refused(model: nn.Module, twins: Twins) -> list[str]:
    """Return the classes whose twin does not apply, and why, once each."""
    if not enabled():
        return ["plain, because REGARD_FAST=0 is set"] if twins.reasons else []
    modules, texts = dict(model.named_modules()), list[str]()
    for name, reasons in twins.reasons.items():
        kind = type(modules[name])
        if kind not in FREQUENT:
            texts.append(f"plain {kind.__name__}, because {'; '.join(reasons)}")
    return list(dict.fromkeys(texts))
