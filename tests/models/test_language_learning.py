"""Language models learn a toy text in seconds: lines that repeat three random words after "and".

Each line has 8 tokens to predict, with EOS. Three of them are random, one of four words each: the lowest
possible loss is 3 log 4 / 8 = 0.52 per token. Without a memory of the words it is 6 log 4 / 8 = 1.04.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard.data.encoded_text import (
    DocumentBatches,
    EncodedText,
    SlidingWindows,
    StreamBatches,
    WindowBatches,
)
from regard.data.tokenizers import train_tokenizer
from regard.evaluation.perplexity import text_loss
from regard.models import LanguageModel, build_language_model
from regard.models.language_base import detached
from regard.training.losses import cross_entropy

LEARNED = 0.75
"""Loss per token on new lines, in nats."""


def made_lines(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    words = (" ".join(generator.choices("abcd", k=3)) for _ in range(count))
    return [f"{each} and {each}" for each in words]


TRAIN, TEST = made_lines(400, 0), made_lines(50, 1)
TOKENIZER = train_tokenizer("word", TRAIN)


def encoded(lines: list[str], layout: str) -> EncodedText:
    return EncodedText.from_lines(lines, TOKENIZER, layout=layout)


def train(model: LanguageModel, batches: Any, epochs: int, rate: float) -> None:
    """Train with Adam; the state is carried over where the batches say so."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for epoch in range(epochs):
        state = None
        for batch in batches.epoch(epoch):
            state, logits = model.read(batch, state)
            state = detached(state)
            loss, _ = cross_entropy(logits, batch.targets)
            optimizer.zero_grad()
            (loss / batch.count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


STREAMS = ("continuous", lambda text: StreamBatches(text, window=12, streams=8))
WINDOWS = ("continuous", lambda text: WindowBatches(text, window=24, tokens=256))
WHOLE = ("documents", lambda text: DocumentBatches(text, tokens=256))
SMALL = {"width": 32, "heads": 4, "inner": 64, "layers": 2, "dropout": 0.0}


@pytest.mark.parametrize(
    "name, options, data, epochs, rate",
    [
        ("lstm", {"width": 48, "depth": 1}, STREAMS, 16, 0.01),
        ("transformer", SMALL, WHOLE, 14, 0.005),
        pytest.param("gru", {"width": 48, "tie": True}, STREAMS, 10, 0.01, marks=pytest.mark.slow),
        pytest.param(
            "transformer", {**SMALL, "position": "rotary"}, WINDOWS, 20, 0.005, marks=pytest.mark.slow
        ),
    ],
)
def test_a_toy_text_is_learned(
    name: str,
    options: dict[str, Any],
    data: tuple[str, Callable[[EncodedText], Any]],
    epochs: int,
    rate: float,
):
    layout, batches = data
    model = build_language_model(name, TOKENIZER.size, **options)
    train(model, batches(encoded(TRAIN, layout)), epochs, rate)
    test = encoded(TEST, layout)
    stream = StreamBatches(test, window=50, streams=1).epoch(0) if data is STREAMS else None
    loss = text_loss(model, stream or SlidingWindows(test, window=24, stride=8), test)
    assert 0.5 < loss.total / loss.tokens < LEARNED
