"""Benchmark of exported translators: Regard, CTranslate2, Hugging Face and ONNX, with the weights of one run.

python -m benchmarks.export RUN SOURCE REFERENCE [--sentences N] [--repeats N] [--threads N] [--into FOLDER]
exports the run to each target and translates the lines of SOURCE. First it checks that 200 validation
sentences are translated as by the run. Then it prints, for each engine, BLEU, the number of texts that are
equal to those of Regard with the same search, the size on disk, and sentences per second of CPU time (the
median; the engines take turns). Beam search has beam size 5 and length penalty average:1; ONNX decodes
greedily.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.measure import environment
from regard.data.batch import EOS
from regard.decoding import Average, Beam, Greedy
from regard.evaluation.bleu import bleu
from regard.export.ctranslate2 import exported_translator
from regard.export.onnx import OnnxDecoder

BEAMS, BATCH = 5, 32

Texts = Callable[[], list[str]]


def by_length(lengths: list[int]) -> list[list[int]]:
    """Return batches of rows of similar length, the longest first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]


def hugging_face(folder: Path, lines: list[str]) -> Texts:
    """Return a function that translates the lines with generate(), as the README of the export does."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def run() -> list[str]:
        texts, ids = [""] * len(lines), tokenizer(lines)["input_ids"]
        for rows in by_length([*map(len, ids)]):
            inputs = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True)
            longest = 2 * inputs["input_ids"].shape[1] + 10
            given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
            output = model.generate(**given, max_length=None, max_new_tokens=longest)
            for row, text in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
                texts[row] = text
        return texts

    return run


def onnx(folder: Path, run_: Any, lines: list[str]) -> Texts:
    """Return a function that translates the lines greedily with onnxruntime."""
    decoder = OnnxDecoder(folder, run_.model)

    def run() -> list[str]:
        texts, ids = [""] * len(lines), [[*each, EOS] for each in run_.source_tokenizer.encode_lines(lines)]
        for rows in by_length([*map(len, ids)]):
            for row, tokens in zip(rows, decoder.greedy([ids[row] for row in rows]), strict=True):
                texts[row] = run_.target_tokenizer.decode(tokens)
        return texts

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="export")
    parser.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = environment()
    lines, references = (
        path.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
        for path in (arguments.source, arguments.reference)
    )
    how = Beam(BEAMS, length=Average(1.0))
    run = regard.load(arguments.run, device="cpu", precision="float32", search=how)
    int8 = regard.load(arguments.run, device="cpu", precision="int8", search=how)
    lines = [run.prepare(line) for line in lines]
    weights = sum(each.numel() * 4 for each in run.model.parameters())

    def ours(translator: Any, search: Any) -> Texts:
        return lambda: [each.text for each in translator.translate(lines, look=None, search=search)]

    checks, rows = list[str](), dict[str, tuple[Texts, str, int]]()
    with tempfile.TemporaryDirectory() as folder:
        for to, quantization in (
            ("ctranslate2", None),
            ("ctranslate2", "int8"),
            ("huggingface", None),
            ("onnx", None),
            ("onnx", "int8"),
            ("safetensors", None),
        ):
            name = " ".join(filter(None, (to, quantization)))
            place = Path(folder) / name.replace(" ", "-")
            exported = run.export(to, place, quantization=quantization)
            checks.append(f"{name}: {exported.check}")
            print(checks[-1], file=sys.stderr)
            if to == "ctranslate2":
                other = exported_translator(run, place)
                rows[name] = ours(other, how), "beam", exported.size
            elif to == "huggingface":
                rows[name] = hugging_face(place, lines), "beam", exported.size
            elif to == "onnx":
                rows[name] = onnx(place, run, lines), "greedy", exported.size
            else:
                weights = exported.size
        rows = {
            "Regard": (ours(run, how), "beam", weights),
            "Regard int8": (ours(int8, how), "beam", weights),
            "Regard, greedy": (ours(run, Greedy()), "greedy", weights),
            **rows,
        }
        texts, seconds = dict[str, list[str]](), {name: list[float]() for name in rows}
        for repeat in range(arguments.repeats + 1):  # the first is not timed
            for name, (translate, _, _) in rows.items():
                before = time.process_time()
                texts[name] = translate()
                if repeat:
                    seconds[name].append(time.process_time() - before)
    lowercase = run.settings.evaluation.lowercase
    head = ["engine", "search", "BLEU", "equal texts", "MB on disk", "sentences / CPU second", "spread"]
    table = ["| " + " | ".join(head) + " |", "| --- | --- " + "| ---: " * 5 + "|"]
    for name, (_, search, size) in rows.items():
        base = texts["Regard" if search == "beam" else "Regard, greedy"]
        equal = sum(a == b for a, b in zip(base, texts[name], strict=True))
        value = bleu(texts[name], references, lowercase=lowercase).value
        speeds = sorted(len(lines) / each for each in seconds[name])
        cells = [name, search, f"{value:.2f}", f"{equal:,} of {len(lines):,}", f"{size / 1e6:.1f}"]
        cells += [f"{statistics.median(speeds):.1f}", f"{speeds[0]:.1f} to {speeds[-1]:.1f}"]
        table.append("| " + " | ".join(cells) + " |")
    settings = run.settings.model.options
    about = (
        f"{len(lines):,} sentences, {sum(p.numel() for p in run.model.parameters()):,} parameters, options "
        f"{settings}, step {run.checkpoint.step:,}, {arguments.threads} thread(s), batches of up to {BATCH} "
        f"(Regard and CTranslate2: 4,096 tokens), {arguments.repeats} timed repeats."
    )
    measured = "Measured on: " + ", ".join(f"{name} {value}" for name, value in where.items()) + "."
    checked = "\n".join(f"- {each}" for each in checks)
    text = f"{about}\n\nSelf-checks on validation sentences:\n\n{checked}\n\n" + "\n".join(table)
    text += f"\n\n{measured}\n"
    print(text)
    if arguments.into is not None:
        arguments.into.mkdir(parents=True, exist_ok=True)
        (arguments.into / f"{datetime.date.today()}-{arguments.name}.md").write_text(text)


if __name__ == "__main__":
    main()
