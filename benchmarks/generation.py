"""Benchmark of text generation: tokens per second of a language model, compared with Hugging Face.

python -m benchmarks.generation [--device cuda] [--into FOLDER] first checks that search() returns the same
tokens as the simple search, then measures wall time. The models are Transformers with random weights; the
peer is a GPT-2 of the same size. Prompts have 8 tokens, and every output has 64 tokens.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.decoding import SIMPLE, seconds_of
from benchmarks.measure import environment, require_device, write_results
from regard.data.batch import EOS, PAD
from regard.decoding import Greedy, Prompts, Rules, Sample, Search, search
from regard.models import LanguageModel, build_language_model
from regard.options.transformer_options import SIZES

LENGTH, PROMPT = 64, 8
RULES = Rules(minimum=LENGTH, maximum=LENGTH)
METHODS: dict[str, tuple[Search, dict[str, Any]]] = {
    "greedy": (Greedy(RULES), {"do_sample": False}),
    "sample": (Sample(rules=RULES), {"do_sample": True, "top_k": 0}),
    "top-k": (Sample(top_k=50, rules=RULES), {"do_sample": True, "top_k": 50}),
    "top-p": (Sample(top_p=0.9, rules=RULES), {"do_sample": True, "top_k": 0, "top_p": 0.9}),
}
"""The search methods of Regard, and the equivalent options of Hugging Face's generate()."""


@dataclass(frozen=True)
class Case:
    """A model and a number of prompts.

    size: the name of the model size.
    words: the vocabulary size.
    dtype: the name of the dtype of the weights.
    """

    size: str
    words: int
    prompts: int
    dtype: str = "float32"

    def build(self, dtype: str, device: str) -> LanguageModel:
        """Return the model with random weights, the same each time."""
        torch.manual_seed(0)
        model = build_language_model("transformer", self.words, size=self.size).eval()
        return model.to(device, getattr(torch, dtype))

    def batch(self, device: str) -> Prompts:
        """Return random prompts."""
        source = torch.Generator().manual_seed(1)
        ids = torch.randint(4, self.words, (self.prompts, PROMPT), generator=source)
        return Prompts.collate(ids.tolist()).to(device)


CASES = {
    "cpu": {"small-1": Case("small", 10000, 1), "small-16": Case("small", 10000, 16)},
    "cuda": {"base-1": Case("base", 32000, 1, "float16"), "base-64": Case("base", 32000, 64, "float16")},
}


def simple(model: LanguageModel, prompts: Prompts, how: Search) -> Any:
    """Run the simple search, which search() uses if search_decoder() returns reasons."""
    with mock.patch(SIMPLE, lambda *_: ["the simple search is measured"]):
        return search(model, prompts, how, look=None)


def check(case: Case, how: Search, device: str) -> float:
    """Return the share of (at most 4) prompts whose tokens equal those of the simple search, in float64."""
    few = Case(case.size, case.words, min(case.prompts, 4))
    model, prompts = few.build("float64", device), few.batch(device)
    pairs = zip(search(model, prompts, how, look=None), simple(model, prompts, how), strict=True)
    return statistics.mean(one.tokens == two.tokens for (one,), (two,) in pairs)


def peers(case: Case, device: str, method: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each peer, and a function that generates the outputs."""
    (how, options), prompts = METHODS[method], case.batch(device)
    model = case.build(case.dtype, device)
    yield "regard", lambda: search(model, prompts, how, look=None)
    yield "regard, simple search", lambda: simple(model, prompts, how)
    if importlib.util.find_spec("transformers") is not None:
        yield "Hugging Face, sdpa", hugging_face(case, prompts, options)


def hugging_face(case: Case, prompts: Prompts, options: dict[str, Any]) -> Callable[[], object]:
    """Return a function that calls generate() of a GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    size = SIZES[case.size]
    sizes = {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads, "n_inner": size.inner}
    ids = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD}
    config = GPT2Config(vocab_size=case.words, n_positions=512, **sizes, **ids)
    config._attn_implementation = "sdpa"
    with prompts.tokens.device:
        model = GPT2LMHeadModel(config).eval().to(getattr(torch, case.dtype))
    mask, limits = torch.ones_like(prompts.tokens), {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH}
    return lambda: model.generate(prompts.tokens, attention_mask=mask, **limits, **options)


def measure(case: Case, device: str, seconds: float) -> dict[str, Any]:
    """Return a record of one case: for each search method, the result of check() and a row for each peer."""
    record: dict[str, Any] = {"same tokens, float64": {}, "rows": []}
    for method, (how, _) in METHODS.items():
        record["same tokens, float64"][method] = same = check(case, how, device)
        if same < 1:
            print(f"{method}: the check failed: {same:.0%} of the outputs are the same", file=sys.stderr)
            continue
        built = list(peers(case, device, method))
        times = seconds_of([call for _, call in built], device, seconds)
        for (peer, _), (wall, _) in zip(built, times, strict=True):
            tokens = case.prompts * LENGTH
            row = {"method": method, "peer": peer, "dtype": case.dtype, "runs": len(wall), "seconds": wall}
            row |= {"tokens/s": tokens / statistics.median(wall), "best tokens/s": tokens / min(wall)}
            record["rows"].append(row)
            print(f"{method}, {peer}: {row['tokens/s']:,.0f} tokens/s", file=sys.stderr, flush=True)
    return record


def table(record: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "# Text generation",
        "",
        f"`python -m benchmarks.generation`, {record['date']}: a Transformer language model with random",
        f"weights, prompts of {PROMPT} tokens, {LENGTH} tokens per output. Tokens per second of wall time:",
        "median of all calls, and fastest call. The peers alternate. In float64, all outputs equal those of",
        "the simple search with the same random numbers. With random weights, nearly all tokens are in the",
        "nucleus of top-p, so that the whole vocabulary is sorted.",
        "",
        "| case | method | peer | dtype | tokens/s | fastest call | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, case in record["cases"].items():
        for row in case["rows"]:
            cells = [name, row["method"], row["peer"], row["dtype"]]
            rates = [f"{row[key]:,.0f}" for key in ("tokens/s", "best tokens/s")]
            lines.append(f"| {' | '.join([*cells, *rates, str(row['runs'])])} |")
    where = ", ".join(f"{name} {value}" for name, value in record["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=sorted(CASES))
    parser.add_argument("--into", type=Path, help="folder of the result files; default: only print")
    parser.add_argument("--seconds", type=float, default=2.0, help="measurement time per peer, in seconds")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    where = environment()
    if arguments.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    record: dict[str, Any] = {"date": f"{datetime.date.today()}", "environment": where, "cases": {}}
    for name, case in CASES[arguments.device].items():
        record["cases"][name] = measure(case, arguments.device, arguments.seconds)
        if arguments.into:
            file = f"{record['date']}-generation-{arguments.device}"
            write_results(arguments.into, file, record, table(record))
    print(table(record))
    complete = all(len(case["rows"]) >= 2 * len(METHODS) for case in record["cases"].values())
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
