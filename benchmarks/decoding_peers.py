"""Peers of benchmarks/decoding.py: Hugging Face generate(), and beam search in plain PyTorch for Bahdanau."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, UNK, Batch
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import Size

__all__ = ["eager_beam_search", "hugging_face"]


def hugging_face(
    size: Size, words: int, batch: Batch, beams: int, length: int, dtype: torch.dtype, attention: str
) -> Callable[[], object] | None:
    """Return a call of generate() of a Marian model with random weights; None without transformers.

    attention: "sdpa" or "eager".
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import MarianConfig, MarianMTModel

    layers = {"encoder_layers": size.layers, "decoder_layers": size.layers}
    inner = {"encoder_ffn_dim": size.inner, "decoder_ffn_dim": size.inner}
    heads = {"encoder_attention_heads": size.heads, "decoder_attention_heads": size.heads}
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    sizes: dict[str, Any] = {**layers, **inner, **heads, **ids, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=words, decoder_vocab_size=words, d_model=size.width, **sizes)
    config._attn_implementation = attention
    with batch.source.device:  # random weights are generated faster on a GPU
        model = MarianMTModel(config).eval().to(dtype)
    limits: dict[str, Any] = {"min_new_tokens": length, "max_new_tokens": length, "num_beams": beams}
    return lambda: model.generate(batch.source, do_sample=False, **limits)


def eager_beam_search(model: Bahdanau, batch: Batch, beams: int, length: int) -> Callable[[], Tensor]:
    """Return beam search in plain PyTorch: outputs of `length` tokens, with the weights of the model.

    The memory of a source is repeated for its beams, the log-softmax covers the whole vocabulary, and the
    state is reordered by index_select(): how such a search is usually written.
    """
    encoder: Any = model.encoder
    gru, width = encoder.layers.layers, model.width
    cell: Any = model.cell
    score: Any = model.score
    sentences, device = len(batch), batch.source.device

    def run() -> Tensor:
        states = gru(model.source(batch.source))[0]
        state = torch.tanh(model.first(states[:, 0, width:])).repeat_interleave(beams, 0)
        padding = torch.arange(states.shape[1], device=device) >= batch.source_lengths[:, None]
        keys = (states @ score.key_weight).repeat_interleave(beams, 0)
        values, padding = states.repeat_interleave(beams, 0), padding.repeat_interleave(beams, 0)
        sums = torch.full((sentences, beams), -torch.inf, device=device)
        sums[:, 0] = 0.0
        first_row = torch.arange(sentences, device=device)[:, None] * beams
        tokens = torch.zeros(sentences * beams, 0, dtype=torch.long, device=device)
        last = torch.full((sentences * beams,), BOS, device=device)
        for _ in range(length):
            embedded = model.target(last)
            query = state @ score.query_weight
            scores = (torch.tanh(query[:, None] + keys) @ score.vector).masked_fill(padding, -torch.inf)
            context = (torch.softmax(scores, -1)[:, None] @ values)[:, 0]
            gates = cell.input(embedded) + cell.context(context)
            take, reset = torch.sigmoid(gates[:, : 2 * width] + cell.gate(state)).chunk(2, -1)
            new = torch.tanh(gates[:, 2 * width :] + cell.state(reset * state))
            state = (1 - take) * state + take * new
            pairs = model.readout.pairs(torch.cat((state, context, embedded), -1)).unflatten(-1, (-1, 2))
            logits = model.readout.output(pairs.amax(-1)).float()
            scored = logits.log_softmax(-1)
            scored[:, [PAD, UNK, BOS, EOS]] = -torch.inf
            totals = (sums[..., None] + scored.view(sentences, beams, -1)).flatten(1)
            sums, place = totals.topk(beams)
            rows = (place // scored.shape[-1] + first_row).flatten()
            last = (place % scored.shape[-1]).flatten()
            state = state.index_select(0, rows)
            tokens = torch.cat((tokens.index_select(0, rows), last[:, None]), 1)
        return tokens.view(sentences, beams, -1)[:, 0]

    return run
