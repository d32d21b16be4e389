"""Peers of benchmarks/training_speed.py: Hugging Face Marian, and Bahdanau's model in plain PyTorch."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.eager_loop import eager_loss
from benchmarks.training_cases import DROPOUT, SMOOTHING, Case
from regard.data.batch import BOS, EOS, PAD, Batch
from regard.options.transformer_options import SIZES

__all__ = ["compiled", "eager_loop", "hugging_face", "marian_loss", "time_limit"]


def hugging_face(case: Case) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return a Marian model of the same size and with the same dropout, and its loss of a batch."""
    size = SIZES["base"]
    with torch.device("cuda"):
        return marian_loss(case.words, size.width, size.layers, size.heads, size.inner)


def marian_loss(
    words: int, width: int, layers: int, heads: int, inner: int
) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return a Marian model with one table of embeddings for both sides, and its loss of a batch."""
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads}
    for place in ("dropout", "attention_dropout", "activation_dropout"):
        sizes[place] = DROPOUT
    config = MarianConfig(
        vocab_size=words,
        decoder_vocab_size=words,
        d_model=width,
        activation_function="relu",
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **sizes,
    )
    config._attn_implementation = "sdpa"
    model = MarianMTModel(config)

    def loss(batch: Batch) -> Tensor:
        logits = model(
            input_ids=batch.source,
            attention_mask=batch.source != PAD,
            decoder_input_ids=batch.inputs,
            use_cache=False,
        ).logits
        options: dict[str, Any] = {"ignore_index": PAD, "reduction": "sum", "label_smoothing": SMOOTHING}
        return functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), **options)

    return model, loss


def eager_loop(model: Any) -> Callable[[Batch], Tensor]:
    """Return the loss of Bahdanau's model in plain PyTorch, with a Python loop over the target steps."""
    loss = eager_loss(model, one_length=True)
    return lambda batch: loss(batch)[0]


def compiled(loss: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
    """Compile the loss with torch.compile."""
    return torch.compile(loss, dynamic=False)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the `with` block after this many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not ready after {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
