"""Quality at equal time: test BLEU of the plain command after some minutes on a few cores, and of a Marian.

python -m benchmarks.equal_time --tsv eng-deu.txt.gz --systems bahdanau transformer marian-128x3 --seeds 0 1 2
python -m benchmarks.equal_time --tsv eng-deu.txt.gz --systems bahdanau --cores 0,1 --checkout ../before/src

The data: 20,000 pairs of Tatoeba, German to English, whose English side has at least four words. 1,000 other
English sentences are the test set, with one translation each. A run is `regard train --minutes M`, pinned to
the cores; --checkout runs the package of another folder. The checkpoint of a Regard run is chosen by its
validation set. marian-WIDTHxLAYERS is MarianMTModel of Hugging Face, in bfloat16 if the processor has
instructions for it, with the tokens and the batches of Regard, AdamW, a warm-up, and a cosine schedule that
ends after M minutes. Neither tokenizers nor imports count in its time. BLEU is sacreBLEU of beam search with
beam size 5. Each run prints a JSON line; --results prints a table of the mean over seeds from such lines.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TRAIN, TEST, WORDS = 20_000, 1_000, 4


def split(tsv: Path, folder: Path) -> None:
    """Write train.de, train.en, test.de and test.en. No English test sentence is in the training data."""
    groups: dict[str, list[str]] = defaultdict(list)
    with gzip.open(tsv, "rt", encoding="utf-8") as file:
        for line in file:
            english, german, *_ = line.rstrip("\n").split("\t")
            if len(english.split()) >= WORDS:
                groups[english].append(german)
    order = sorted(groups)
    random.Random(0).shuffle(order)
    pairs = {
        "test": [(groups[each][0], each) for each in order[:TEST]],
        "train": [(german, each) for each in order[TEST:] for german in groups[each]][:TRAIN],
    }
    for name, each in pairs.items():
        for side, texts in zip(("de", "en"), zip(*each, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def regard_run(
    system: str, seed: int, data: Path, minutes: float, threads: int, package: str
) -> dict[str, Any]:
    """Train and evaluate the plain command. package: a folder with another copy of the package, or ""."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    if package:
        environ["PYTHONPATH"] = os.pathsep.join([package, environ.get("PYTHONPATH", "")])
    with TemporaryDirectory() as scratch:
        run, environ["REGARD_CACHE"] = Path(scratch) / "run", f"{scratch}/cache"
        common = ["--device", "cpu", "--threads", str(threads)]

        def call(command: str, *options: str, kind: str) -> str:
            files = ["--source", str(data / f"{kind}.de"), "--target", str(data / f"{kind}.en")]
            line = [sys.executable, "-m", "regard", command, *options, *files, *common]
            return subprocess.run(line, env=environ, check=True, text=True, capture_output=True).stdout

        options = ("--model", system, "--seed", str(seed), "--minutes", str(minutes), "--output", str(run))
        began = time.perf_counter()
        call("train", *options, kind="train")
        seconds = time.perf_counter() - began
        report = call("evaluate", str(run), kind="test")
        bleu = re.search(r"^ *BLEU +([\d.]+)", report, re.MULTILINE)
        events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        valid = [each["bleu"] for each in events if "bleu" in each]
        plan = next((str(each.get("text", "")) for each in events if each.get("event") == "plan"), "")
        assert bleu is not None
        steps = max((each.get("step", 0) for each in events), default=0)
        return {"bleu": float(bleu[1]), "valid": max(valid), "steps": steps, "plan": plan, "seconds": seconds}


def marian_run(system: str, seed: int, data: Path, minutes: float, threads: int) -> dict[str, Any]:
    """Train and evaluate a Marian, such as marian-128x3."""
    import torch

    from benchmarks.training_peers import marian_loss
    from regard.data.batch import EOS, PAD
    from regard.evaluation import bleu
    from regard.runs.run_task import sizes_of
    from regard.tasks.translation.settings import TranslationSettings
    from regard.tasks.translation.task import TranslationTask
    from regard.training.distributed import Processes
    from regard.training.precision import cpu_flags
    from regard.training.settings import build

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    width, layers = map(int, system.removeprefix("marian-").split("x"))
    files = {"source": [str(data / "train.de")], "target": [str(data / "train.en")], "tokenizer": "unigram"}
    content = {"seed": seed, "data": files, "model": {"width": 32}, "training": {"batch_tokens": 1024}}
    settings = build(TranslationSettings, content, "the settings")
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        corpus = TranslationTask.encode_data(TranslationTask.read_data(settings), settings, place, place)
        small = TranslationTask.build_model(settings.model, sizes_of(corpus))
        task = TranslationTask(small, corpus, settings, Processes(), "cpu")
        words = max(corpus.source.size, corpus.target.size)
        model: Any
        model, loss = marian_loss(words, width, layers, max(width // 64, 4), 4 * width)
        model.train()
        rate = min(3.5e-3 * 128 / width, 3.5e-3)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        step, epoch, began, budget = 0, 0, time.perf_counter(), 60 * minutes
        while (done := (time.perf_counter() - began) / budget) < 1:
            for batch in task.batches(epoch):
                done = (time.perf_counter() - began) / budget
                if done >= 1:
                    break
                step += 1
                for group in optimizer.param_groups:
                    group["lr"] = rate * min(step / 100, 0.5 * (1 + math.cos(math.pi * done)))
                with torch.autocast("cpu", torch.bfloat16, enabled=bool(cpu_flags())):
                    total = loss(batch)
                (total / task.count(batch)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            epoch += 1
        sources, references = (
            (data / f"test.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("de", "en")
        )
        texts, model = [""] * len(sources), model.eval()
        ids = [[*corpus.source.encode(line), EOS] for line in sources]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        for first in range(0, len(order), 50):
            places = order[first : first + 50]
            longest = len(ids[places[-1]])
            padded = torch.tensor([ids[at] + [PAD] * (longest - len(ids[at])) for at in places])
            with torch.no_grad():
                outputs = model.generate(
                    input_ids=padded,
                    attention_mask=padded != PAD,
                    num_beams=5,
                    max_new_tokens=longest + 10,
                )
            for at, row in zip(places, outputs.tolist(), strict=True):
                tokens = row[1:]
                tokens = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
                texts[at] = corpus.target.decode([each for each in tokens if each != PAD])
        return {"bleu": bleu(texts, references).value, "steps": step, "seconds": budget}


def table(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table: the mean of BLEU over seeds, and each seed.

    >>> one = {"system": "bahdanau", "version": "now", "cores": 1, "seed": 0, "bleu": 26.0}
    >>> print(table([one, {**one, "seed": 1, "bleu": 27.0}]))
    | system | version | cores | BLEU | each seed |
    | --- | --- | --- | --- | --- |
    | bahdanau | now | 1 | 26.5 | 26.0, 27.0 |
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for each in lines:
        groups[each["system"], each["version"], each["cores"]].append(each)
    rows = ["| system | version | cores | BLEU | each seed |", "| --- | --- | --- | --- | --- |"]
    for (system, version, cores), members in sorted(groups.items()):
        scores = [each["bleu"] for each in sorted(members, key=lambda each: each["seed"])]
        texts = ", ".join(f"{each:.1f}" for each in scores)
        rows.append(f"| {system} | {version} | {cores} | {statistics.mean(scores):.1f} | {texts} |")
    return "\n".join(rows)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--tsv", type=Path, help="eng-deu.txt.gz of Tatoeba")
    parser.add_argument("--data", type=Path, help="a folder with train.de, train.en, test.de and test.en")
    parser.add_argument("--systems", nargs="*", default=["bahdanau", "transformer"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--cores", default="0", help="the cores of a run, such as 0,1")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--checkout", default="", help="a folder with another copy of the package")
    parser.add_argument("--results", type=Path, help="only write the table of JSON lines in this file")
    arguments = parser.parse_args()
    if arguments.results:
        print(table([json.loads(line) for line in arguments.results.read_text().splitlines()]))
        return
    cores = [int(each) for each in arguments.cores.split(",")]
    os.sched_setaffinity(0, cores)
    with TemporaryDirectory() as scratch:
        data = arguments.data or Path(scratch)
        if arguments.data is None:
            split(arguments.tsv, data)
        for seed in arguments.seeds:
            for system in arguments.systems:
                given = (system, seed, data, arguments.minutes, len(cores))
                marian = system.startswith("marian")
                result = marian_run(*given) if marian else regard_run(*given, arguments.checkout)
                version = "" if marian else "before" if arguments.checkout else "now"
                about = {"system": system, "version": version, "cores": len(cores), "seed": seed}
                print(json.dumps({**about, **result}), flush=True)


if __name__ == "__main__":
    main()
