"""Benchmark of translation from text to text: a trained Transformer in Regard and in Hugging Face.

python -m benchmarks.decoding_text RUN SOURCE REFERENCE [--device cuda] [--into FOLDER] translates the lines
of SOURCE with beam size 5, tokenizing and detokenizing included. The peer is generate() of an M2M100 model of
transformers, whose layers are those of a pre-norm Transformer, with the weights of the run. Both use the
tokenizer of the run, and both sort the lines by length. It prints sentences and output tokens per second,
BLEU, and the share of texts that are equal to the first row.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from benchmarks.measure import environment, require_device, write_results
from regard.data.batch import BOS, EOS, PAD, Batch
from regard.decoding import Average, Beam
from regard.evaluation.bleu import bleu

BEAMS = 5
"""Beam size."""

PRECISIONS = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}

Texts = Callable[[], list[str]]


def hugging_face(model: Any, device: str, dtype: torch.dtype) -> Any:
    """Return an M2M100 model with the weights of a pre-norm Transformer with sinusoidal positions."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    layer = model.decoder[0]
    heads, inner, depth = layer.itself.heads, layer.feedforward.inner.out_features, len(model.decoder)
    config = M2M100Config(
        vocab_size=max(model.source_size, model.target_size), d_model=model.width,
        encoder_layers=len(model.encoder), decoder_layers=depth,
        encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=inner, decoder_ffn_dim=inner, activation_function="relu", scale_embedding=True,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS,
        max_position_embeddings=1024, tie_word_embeddings=False,
    )  # fmt: skip
    other = M2M100ForConditionalGeneration(config).eval()
    for theirs, table, layers, norm in (
        (other.model.encoder, model.source, model.encoder, model.encoded),
        (other.model.decoder, model.target, model.decoder, model.decoded),
    ):
        theirs.embed_tokens.weight = nn.Parameter(table.weight.detach().clone())
        places = theirs.embed_positions
        rows = model.position.rows(0, len(places.weights) - PAD - 1, places.weights)
        places.weights[PAD + 1 :] = rows
        theirs.layer_norm.load_state_dict(norm.state_dict())
        for own, their in zip(layers, theirs.layers, strict=True):
            _copy_layer(own, their)
    other.lm_head = nn.Linear(model.width, model.target_size)
    other.lm_head.load_state_dict(model.output.state_dict())
    other.generation_config.forced_eos_token_id = None
    return other.to(device, dtype).requires_grad_(False)


def _copy_layer(own: Any, their: Any) -> None:
    """Copy the weights of a layer to a layer of M2M100."""
    attentions = [(own.itself, their.self_attn, their.self_attn_layer_norm)]
    if own.cross is not None:
        attentions.append((own.cross, their.encoder_attn, their.encoder_attn_layer_norm))
    for (attention, other, norm), own_norm in zip(attentions, own.norms, strict=False):
        pairs = ((attention.query, "q_proj"), (attention.key, "k_proj"), (attention.value, "v_proj"))
        for linear, name in (*pairs, (attention.output, "out_proj")):
            getattr(other, name).load_state_dict(linear.state_dict())
        norm.load_state_dict(own_norm.state_dict())
    their.final_layer_norm.load_state_dict(own.norms[-1].state_dict())
    their.fc1.load_state_dict(own.feedforward.inner.state_dict())
    their.fc2.load_state_dict(own.feedforward.outer.state_dict())


def generated(other: Any, translator: Any, lines: list[str], batch_size: int, longest: int) -> Texts:
    """Return a function that translates the lines with generate()."""
    device = other.device

    @torch.no_grad()
    def run() -> list[str]:
        sources = translator.source_tokenizer.encode_lines([translator.prepare(line) for line in lines])
        order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
        texts = [""] * len(lines)
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = Batch.collate([sources[row] for row in rows]).to(device)
            outputs = other.generate(
                batch.source,
                attention_mask=(batch.source != PAD).long(),
                num_beams=BEAMS,
                max_new_tokens=longest,
                length_penalty=1.0,
                do_sample=False,
            ).tolist()
            for row, tokens in zip(rows, outputs, strict=True):
                end = tokens.index(EOS) if EOS in tokens else len(tokens)
                texts[row] = translator.target_tokenizer.decode(tokens[1:end])
        return texts

    return run


def peers(arguments: argparse.Namespace, lines: list[str]) -> list[tuple[str, str, Callable[[], Texts]]]:
    """Return name, precision and a function that builds the translation of all lines, for each peer."""

    def loaded(precision: str) -> Any:
        how = Beam(BEAMS, length=Average(1.0))
        return regard.load(arguments.run, device=arguments.device, precision=precision, search=how)

    def ours(precision: str, look: str | None) -> Texts:
        translator = loaded(precision)

        def run() -> list[str]:
            translations = translator.translate(lines, look=look)
            if look is not None:
                _ = [each.alignment.links for each in translations]
            return [each.text for each in translations]

        return run

    def theirs(precision: str) -> Texts:
        translator = loaded("float32")
        other = hugging_face(translator.model.cpu(), arguments.device, getattr(torch, precision))
        longest = 2 * max(map(len, translator.source_tokenizer.encode_lines(lines))) + 10
        return generated(other, translator, lines, arguments.batch, longest)

    rows = list[tuple[str, str, Callable[[], Texts]]]()
    for precision in PRECISIONS[arguments.device]:
        rows.append(("Regard", precision, functools.partial(ours, precision, None)))
        rows.append(("Regard, word alignments", precision, functools.partial(ours, precision, "cross")))
        rows.append(("Hugging Face generate", precision, functools.partial(theirs, precision)))
    return rows


def measured(build: Callable[[], Texts], device: str, repeats: int) -> tuple[list[str], list[float]]:
    """Return the texts, and the time of each timed translation of all lines, after one that is not timed."""
    run, taken = build(), list[float]()
    for _ in range(repeats + 1):
        start = time.perf_counter()
        texts = run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return texts, taken[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=128, help="sentences per call of generate()")
    parser.add_argument("--lines", type=int, help="use only the first lines")
    parser.add_argument("--repeats", type=int, default=3, help="number of timed translations of all lines")
    parser.add_argument("--lowercase", action="store_true", help="ignore case in BLEU")
    parser.add_argument("--only", action="append", default=[], help="name of a peer to measure, with *")
    parser.add_argument("--into", type=Path, help="folder of the result file; default: only print")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    lines, references = (
        path.read_text(encoding="utf-8").splitlines()[: arguments.lines]
        for path in (arguments.source, arguments.reference)
    )
    tokenizer = regard.load(arguments.run, device="cpu").target_tokenizer
    first: list[str] = []
    where = environment() | ({"gpu": torch.cuda.get_device_name()} if arguments.device == "cuda" else {})
    print("| peer | precision | sentences/s | tokens/s | BLEU | equal to the first row |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = []
    for name, precision, build in peers(arguments, lines):
        if arguments.only and not any(fnmatch.fnmatch(name, each) for each in arguments.only):
            continue
        texts, taken = measured(build, arguments.device, arguments.repeats)
        first, seconds = first or texts, statistics.median(taken)
        tokens = sum(len(each) + 1 for each in tokenizer.encode_lines(texts))
        score = bleu(texts, references, lowercase=arguments.lowercase).value
        equal = statistics.mean(one == two for one, two in zip(texts, first, strict=True))
        row = {"peer": name, "precision": precision, "sentences/s": len(lines) / seconds}
        rows.append(row | {"tokens/s": tokens / seconds, "BLEU": score, "equal": equal, "seconds": taken})
        rates = f"{len(lines) / seconds:,.0f} | {tokens / seconds:,.0f}"
        print(f"| {name} | {precision} | {rates} | {score:.2f} | {equal:.1%} |", flush=True)
        if not arguments.into:
            continue
        record = {"date": f"{datetime.date.today()}", "environment": where, "lines": len(lines), "rows": rows}
        write_results(arguments.into, f"{record['date']}-decoding-text-{arguments.device}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
