"""A minimal training loop, to test whether a model learns: no run folder, no checkpoints."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable

import torch
from torch.nn import functional

from regard.data.batch import PAD, Batch
from regard.decoding import Greedy, search
from regard.models import Model

__all__ = ["Progress", "accuracy", "perplexity", "seconds", "steps", "train"]

Progress = Callable[[int], float]
"""progress(number of steps taken) -> fraction of the training that is done; 1 at the end."""


def steps(count: int) -> Progress:
    """Return a progress function for a fixed number of steps."""
    return lambda step: step / count


def seconds(budget: float) -> Progress:
    """Return a progress function for a fixed number of seconds."""
    began = time.perf_counter()
    return lambda step: (time.perf_counter() - began) / budget


def train(
    model: Model,
    batches: Iterable[Batch],
    progress: Progress,
    *,
    rate: float = 3e-3,
    smoothing: float = 0.0,
    warm_up: int = 50,
) -> int:
    """Train with Adam, linear warm-up and cosine decay to 0; return the number of steps."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), fused=True)
    taken = 0
    for taken, batch in zip(itertools.count(), batches, strict=False):
        done = progress(taken)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min((taken + 1) / warm_up, (1 + math.cos(math.pi * done)) / 2)
        logits = model(batch).flatten(0, 1)
        loss = functional.cross_entropy(
            logits, batch.labels.flatten(), ignore_index=PAD, label_smoothing=smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return taken


@torch.no_grad()
def perplexity(model: Model, batch: Batch) -> float:
    """Return the perplexity per token under teacher forcing."""
    logits = model.eval()(batch).flatten(0, 1)
    return math.exp(functional.cross_entropy(logits, batch.labels.flatten(), ignore_index=PAD))


def accuracy(model: Model, batch: Batch) -> float:
    """Return the fraction of sentences whose greedy output is entirely correct."""
    found = search(model, batch, Greedy(), look=None)
    right = [
        list(best.tokens) == label[:length]
        for (best, *_), label, length in zip(
            found, batch.labels.tolist(), batch.target_lengths.tolist(), strict=True
        )
    ]
    return sum(right) / len(right)
