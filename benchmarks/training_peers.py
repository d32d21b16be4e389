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

__all__ = ["compiled", "eager_loop", "hugging_face", "time_limit"]


def hugging_face(case: Case) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return a Marian model of the same size and with the same dropout, and its loss of a batch."""
    from transformers import MarianConfig, MarianMTModel

    size = SIZES["base"]
    layers = {"encoder_layers": size.layers, "decoder_layers": size.layers}
    inner = {"encoder_ffn_dim": size.inner, "decoder_ffn_dim": size.inner}
    heads = {"encoder_attention_heads": size.heads, "decoder_attention_heads": size.heads}
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    dropout = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "activation_dropout": DROPOUT}
    sizes: dict[str, Any] = {**layers, **inner, **heads, **ids, **dropout, "forced_eos_token_id": None}
    config = MarianConfig(
        vocab_size=case.words,
        decoder_vocab_size=case.words,
        d_model=size.width,
        activation_function="relu",
        **sizes,
    )
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
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
