"""Runs with random weights, as regard.load() returns them, to export."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from regard.data import korean_english, train_tokenizers
from regard.data.batch import EOS
from regard.data.tokenizers import Tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.models import build_language_model, build_model
from regard.tasks.language.run import LanguageRun
from regard.tasks.language.settings import LanguageSettings
from regard.tasks.translation import TranslationRun, TranslationSettings

SIZE: dict[str, Any] = {"width": 32, "heads": 4, "inner": 48, "layers": 2, "dropout": 0.0}


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    return tuple((each.source, each.target) for each in korean_english("train", count=300))


@functools.cache
def tokenizers(kind: str, joint: bool = False) -> tuple[Tokenizer, Tokenizer]:
    return train_tokenizers(pairs(), kind, joint=joint)


def sources(count: int) -> list[str]:
    """Return source sentences of different lengths, and a line without words."""
    return [*(source for source, _ in pairs()[: count - 1]), ""]


def translation_run(
    kind: str = "word",
    *,
    joint: bool = False,
    lowercase: bool = False,
    name: str = "transformer",
    **options: Any,
) -> TranslationRun:
    """Return a translator whose weights are random, also those that are constant at the start of training."""
    size = SIZE if name == "transformer" else {"width": 16}
    options = {**size, **options}
    inner = tokenizers(kind, joint)
    source, target = map(Lowercased, inner) if lowercase else inner
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build_model(name, source.size, target.size, **options)
    run = TranslationRun(_randomized(model), source, target)
    data: dict[str, Any] = {"source": ["a.ko"], "target": ["a.en"], "lowercase": lowercase, "tokenizer": kind}
    run.settings = TranslationSettings.model_validate({"data": data, "model": {"name": name, **options}})
    return _stored(run)


def language_run(kind: str = "word", **options: Any) -> LanguageRun:
    """Return a language model with random weights."""
    options = {**SIZE, **options}
    tokenizer = tokenizers(kind)[1]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build_language_model("transformer", tokenizer.size, **options)
    run = LanguageRun(_randomized(model), tokenizer)
    data = {"train_file": ["train.txt"], "layout": "documents"}
    settings = {"task": "language", "data": data, "model": {"name": "transformer", **options}}
    run.settings = LanguageSettings.model_validate(settings)
    return _stored(run)


def _randomized(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (
                0.3 * torch.randn(parameter.shape, generator=generator) * parameter.std().nan_to_num(1)
            )
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        if hasattr(model, "output"):
            model.output.bias[:EOS] -= 20.0  # forbidden tokens: other engines renormalise without them
            model.output.bias[EOS] += 4.0  # so that outputs end before the maximum length
    return model.eval()


def _stored(run: Any) -> Any:
    run.folder = Path("run")
    run.checkpoint = SimpleNamespace(step=7, state={"scores": {"bleu": 12.5}})
    return run
