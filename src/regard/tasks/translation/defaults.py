"""Defaults: what suits a model and an amount of data, where the user says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.data.korean.corpus import VERSION
from regard.training.settings import merged

__all__ = ["PAIRS", "filled", "with_grammar"]

FEW, SOME = 100_000, 1_000_000
"""Up to so many pairs, a model is kept small and regularised strongly, or somewhat."""

PAIRS = 20_000
"""Of a corpus that is made here."""

RATES = {"transformer": 1e-3}
RATE, TUNING = 2e-3, 3e-4
"""Of models that are not named above; and of one that starts with the weights of another run."""


def with_grammar(given: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a new run, with a version of the grammar if it uses the built-in corpus.

    other: the settings of the run whose weights it starts with; its version is kept, as its words are.

    >>> with_grammar({"data": {"built_in": "korean"}})["data"]
    {'grammar': 2, 'built_in': 'korean'}
    """
    if not given.get("data", {}).get("built_in"):
        return dict(given)
    before = (other or {}).get("data", {})
    version = before.get("grammar", 1) if before.get("built_in") else VERSION
    return merged({"data": {"grammar": version}}, given)


def filled(given: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    """Settings with what was not said filled in; what was said stays.

    >>> filled({"model": {"name": "transformer"}}, pairs=29_000)["model"]
    {'size': 'tiny', 'dropout': 0.3, 'name': 'transformer'}
    """
    name = given.get("model", {}).get("name", "bahdanau")
    few, some = pairs <= FEW, pairs <= SOME
    model: dict[str, Any] = {"dropout": 0.3 if few else 0.2 if some else 0.1}
    if name == "transformer":
        model = {"size": "tiny" if few else "small" if some else "base", **model}
    else:
        model = {"width": 256 if few else 512 if some else 1000, **model}
    rate = RATES.get(name, RATE) if given.get("init_from") is None else TUNING
    training = {"rate": rate, "warm_up": 400 if name == "transformer" else 100}
    said = given.get("data", {})
    data: dict[str, Any] = {"tokenizer": "unigram"}
    if said.get("built_in"):
        data = {"tokenizer": "word", "pairs": PAIRS}
    evaluation = {"lowercase": bool(said.get("lowercase"))}
    return merged({"data": data, "model": model, "training": training, "evaluation": evaluation}, given)
