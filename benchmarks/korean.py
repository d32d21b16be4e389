"""The built-in corpus: a translator trained on it for a while, and how well it translates and aligns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from benchmarks.loop import seconds, train
from regard.batch import Batch
from regard.data.batches import Batches
from regard.data.encoded import EncodedPairs
from regard.data.korean.corpus import Example, korean_english
from regard.data.tokenizers import Tokenizer, train_tokenizers
from regard.decoding import Greedy, Translator
from regard.evaluation.alignment import Links, score_links
from regard.evaluation.bleu import bleu
from regard.models import Model, build_model

__all__ = ["Trained", "aligned", "examples", "train_for", "translated"]

PAIRS = 40000


@dataclass(frozen=True)
class Trained:
    """A translator, and how many steps it was trained for."""

    translator: Translator
    steps: int


@cache
def examples(split: str, count: int) -> list[Example]:
    """Sentences of a split of the built-in corpus."""
    return list(korean_english(split, count))


@cache
def training_data() -> tuple[Tokenizer, Tokenizer, EncodedPairs]:
    pairs = examples("train", PAIRS)
    source, target = train_tokenizers(pairs, "word", joint=False)
    encoded = EncodedPairs.in_memory(
        source.encode_lines([pair.source for pair in pairs]),
        target.encode_lines([pair.target for pair in pairs]),
    )
    return source, target, encoded


def train_for(
    budget: float, seed: int, name: str = "bahdanau", rate: float = 4e-3, **options: Any
) -> Trained:
    """A model trained for this many seconds, on words as they are."""
    source, target, encoded = training_data()
    torch.manual_seed(seed)
    model: Model = build_model(name, source.size, target.size, **options)
    batches = Batches(encoded, tokens=TOKENS, seed=seed)

    def endless() -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from batches.epoch(epoch)
            epoch += 1

    taken = train(model, endless(), seconds(budget), rate=rate)
    return Trained(Translator(model, source, target, search=Greedy()), taken)


TOKENS = 800


def translated(trained: Trained, split: str, count: int) -> float:
    """BLEU of greedy translations."""
    pairs = examples(split, count)
    found = trained.translator.translate([pair.source for pair in pairs])
    return bleu([each.text for each in found], [pair.target for pair in pairs]).value


def aligned(trained: Trained, split: str, count: int) -> float:
    """The alignment error rate, in per cent, of the attention when the right translation is given."""
    pairs = examples(split, count)
    found = trained.translator.align([pair.source for pair in pairs], [pair.target for pair in pairs])
    gold = [Links(pair.sure, pair.possible) for pair in pairs]
    return 100 * score_links([each.links for each in found], gold).error_rate
