"""Draw the attention over a long document: python -m benchmarks.long_document FOLDER [--device cuda].

Writes a small Llama with random weights, its tokenizer and a document of 32,768 tokens to FOLDER. Then it
runs `regard view --huggingface FOLDER -`, which writes FOLDER/map.seen, and prints the time. `regard view
FOLDER/map.seen --view long --output map.png` draws it. The document is the beginning of this documentation.
The model has one layer with four heads; its projections of queries and keys are equal, so that a word attends
to the same word and to similar ones.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

TOKENS = 32768


def document(tokens: int = TOKENS) -> list[str]:
    """Return the first words and signs of the documentation, in the order of its file names."""
    words: list[str] = []
    for path in sorted((Path(__file__).parent.parent / "docs").glob("*.md")):
        words += re.findall(r"\w+|[^\w\s]", path.read_text(encoding="utf-8"))
    if len(words) < tokens:
        raise ValueError(f"the documentation has {len(words)} tokens, not {tokens}")
    return words[:tokens]


def write_model(folder: Path, words: list[str], width: int = 256, heads: int = 4) -> None:
    """Write the model, its tokenizer and document.txt to a folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[UNK]", *dict.fromkeys(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=len(words),
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        torch.nn.init.orthogonal_(attention.q_proj.weight)
        attention.k_proj.weight.copy_(attention.q_proj.weight)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    (folder / "document.txt").write_text(" ".join(words), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    write_model(arguments.folder, document(arguments.tokens))
    command = [sys.executable, "-m", "regard", "view", "--huggingface", str(arguments.folder), "-"]
    command += ["--device", arguments.device, "--output", str(arguments.folder / "map.seen")]
    start = time.perf_counter()
    with (arguments.folder / "document.txt").open("rb") as text:
        subprocess.run(command, stdin=text, check=True)
    print(f"{arguments.tokens:,} tokens on {arguments.device}: {time.perf_counter() - start:.1f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
