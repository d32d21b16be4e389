"""Small random models of transformers and inputs for them, one for each architecture that is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WORDS, SIZE = 40, {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
Built = tuple[torch.nn.Module, dict[str, Any]]


def tokens(*lengths: int, left: bool = False) -> dict[str, torch.Tensor]:
    """Return random token ids and their attention mask, with padding on one side."""
    longest = max(lengths)
    ids = torch.randint(4, WORDS, (len(lengths), longest))
    places = torch.arange(longest)
    seen = [places >= longest - n if left else places < n for n in lengths]
    return {"input_ids": ids, "attention_mask": torch.stack(seen).long()}


def bert() -> Built:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=WORDS, num_hidden_layers=2, **SIZE)), tokens(9, 5)


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=WORDS, num_hidden_layers=2, num_key_value_heads=2, **SIZE)
    return LlamaForCausalLM(config), tokens(9, 5, left=True)


def qwen() -> Built:
    """With a sliding window of 4 tokens in the second layer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=WORDS,
        num_hidden_layers=2,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        **SIZE,
    )
    return Qwen2ForCausalLM(config), tokens(9, 9)


def gemma() -> Built:
    """Gemma 2, with a soft cap on its scores and a sliding window of 4 tokens in the first layer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=WORDS,
        num_hidden_layers=2,
        num_key_value_heads=2,
        head_dim=8,
        attn_logit_softcapping=0.05,
        sliding_window=4,
        **SIZE,
    )
    return Gemma2ForCausalLM(config), tokens(9, 5, left=True)


def _decoded(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**inputs, "decoder_input_ids": torch.randint(4, WORDS, (2, 6))}


def marian() -> Built:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config), _decoded(tokens(9, 5))


def t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config), _decoded(tokens(9, 5))


def vit() -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=16, patch_size=4, num_hidden_layers=2, **SIZE)
    return ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def whisper() -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=10,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    inputs = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": torch.randint(4, WORDS, (2, 6))}
    return WhisperForConditionalGeneration(config), inputs


MODELS: dict[str, Callable[[], Built]] = {
    each.__name__: each for each in (bert, marian, llama, qwen, gemma, t5, vit, whisper)
}


def build(name: str) -> Built:
    """Return a small random model with large weights, so that its attention is not uniform, and inputs."""
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in path:
                weight.mul_(6)
    return model.eval(), inputs
