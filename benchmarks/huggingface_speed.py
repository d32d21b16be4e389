"""Benchmark of looks inside a Hugging Face model: tokens per second and peak memory, beside sdpa.

python -m benchmarks.huggingface_speed builds a Llama-shaped model with 1.1 billion random weights on a CUDA
device, runs it on random tokens, and prints a table in Markdown. Before the measurement, the hidden states of
a short text are compared with those of sdpa.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

import regard
from regard import huggingface

THREE = regard.Look(entropy=True, alignment=True, mass=True)
ROWS: dict[str, tuple[str, regard.Look | None]] = {
    "sdpa": ("sdpa", None),
    "regard, not recording": ("regard", None),
    "regard, entropy": ("regard", regard.Look(entropy=True)),
    "regard, alignment": ("regard", regard.Look(alignment=True)),
    "regard, entropy, alignment and mass": ("regard", THREE),
    "regard, pooled": ("regard", regard.Look(pooled=64)),
    "regard, all three and the 8 largest weights": ("regard", THREE | regard.Look(top=8)),
    "sdpa, again": ("sdpa", None),
    "eager, output_attentions": ("eager", None),
}
"""Name of a row -> the attention implementation, and what is recorded."""

MOST_EAGER = 8192
"""Most tokens for which eager attention is measured, with weights of all layers: 81 GiB for 8,192 tokens."""


def build(device: str, layers: int = 16, width: int = 2048) -> Any:
    """Return a Llama-shaped model without output layer, in bfloat16; heads have the size 64."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(width // 256, 1),
        max_position_embeddings=65536,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaModel(config).to(torch.bfloat16).eval()


def run(model: Any, ids: Tensor, implementation: str, look: regard.Look | None) -> Tensor:
    """Return the hidden states of the last layer."""
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        if look is None:
            weights = implementation == "eager"
            return model(ids, use_cache=False, output_attentions=weights).last_hidden_state
        with regard.record(look):
            return model(ids, use_cache=False).last_hidden_state


def gate(model: Any, ids: Tensor) -> None:
    """Raise ValueError if the hidden states inside record() differ from those of sdpa, except by rounding."""
    theirs, ours = (run(model, ids, *each).float() for each in (("sdpa", None), ("regard", THREE)))
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not error < 0.02:
        raise ValueError(f"the hidden states differ from those of sdpa: relative error {error:.3g}")


def measure(model: Any, ids: Tensor, repeats: int) -> None:
    """Print the table for these tokens, (1, T), row by row."""
    tokens, first = ids.shape[1], 0.0
    print(
        f"{tokens:,} tokens:\n\n| attention | tokens/s | of sdpa | ms | peak GiB |\n|{' --- |' * 5}",
        flush=True,
    )
    for name, (implementation, look) in ROWS.items():
        if implementation == "eager" and tokens > MOST_EAGER:
            continue
        run(model, ids, implementation, look)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            run(model, ids, implementation, look)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
        seconds = statistics.median(taken)
        first = first or seconds
        peak = torch.cuda.max_memory_allocated() / 2**30
        rate = f"{tokens / seconds:,.0f} | {first / seconds:.0%} | {1000 * seconds:.1f}"
        print(f"| {name} | {rate} | {peak:.2f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[8192], help="text lengths, one table for each"
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each row [default: 7]")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 2
    huggingface.register()
    model = build("cuda")
    for tokens in arguments.tokens:
        ids = torch.randint(0, 32000, (1, tokens), device="cuda")
        gate(model, ids[:, :512])
        measure(model, ids, arguments.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
