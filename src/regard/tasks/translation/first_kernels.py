"""Training steps with artificial batches, to compile the kernels of a model while the data are read."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch
from regard.models import Model, build_model
from regard.tasks.translation.translation_settings import TranslationSettings, TranslationTraining
from regard.training.gradients import chosen_precision
from regard.training.losses import model_loss
from regard.training.r_drop import r_drop_loss

__all__ = ["execute_steps", "has_known_kernels"]

LENGTHS = (14, 32, 64)
"""Lengths of the batches. A kernel is compiled once for all lengths up to a power of two, at least 16. With
14, the number of tokens is not a multiple of 16, as in many batches."""

VOCABULARY = 8000
"""Vocabulary size if the settings contain none: a multiple of 16, as most sizes are."""

TOKENS, MOST_TOKENS = 4096, 16_384
"""Number of tokens of a batch if the settings contain none, and its maximum, to limit the memory."""


def has_known_kernels(settings: TranslationSettings) -> bool:
    """Whether execute_steps() launches the kernels of this run: for a Transformer with the usual loss."""
    training = settings.training
    special = training.compile or training.guided_alignment or training.estimator is not None
    return settings.model.name == "transformer" and not special


def execute_steps(settings: TranslationSettings, device: torch.device) -> None:
    """Compute the gradients of batches of some lengths, in the precision of the run, then free the memory."""
    try:
        _execute_steps(settings, device)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _execute_steps(settings: TranslationSettings, device: torch.device) -> None:
    data, training = settings.data, settings.training
    sizes = [size or VOCABULARY for size in (data.source_vocab_size, data.target_vocab_size)]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with torch.device(device):
        model = build_model(settings.model.name, *sizes, **settings.model.options).train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    half = chosen_precision(training.precision, device, model) == "bfloat16"
    for length in LENGTHS:
        if length >= 2 * data.max_length:
            break
        tokens = min(training.batch_tokens or TOKENS, MOST_TOKENS)
        batch = _batch(-(-tokens // length), length).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            total = _loss(model, batch, training)
        torch.autograd.grad(total, parameters, allow_unused=True)


def _loss(model: Model, batch: Batch, training: TranslationTraining) -> Tensor:
    if not training.r_drop:
        return model_loss(model, batch, batch.labels, training.label_smoothing)[0]
    twice = batch.repeat(2)
    return r_drop_loss(model, twice, twice.labels, training.label_smoothing, training.r_drop).total


def _batch(rows: int, length: int) -> Batch:
    """Return a batch in which all tokens are EOS, and the first sentence has padding."""
    tokens = torch.full((rows, length + 1), EOS)
    tokens[:, 0], tokens[0, -1] = BOS, PAD
    lengths = torch.full((rows,), length)
    lengths[0] -= 1
    return Batch(tokens[:, 1:].contiguous(), lengths, tokens, lengths, torch.arange(rows))
