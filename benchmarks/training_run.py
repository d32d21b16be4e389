"""Training run: speed of `regard train` from the start of the process, with and without CUDA graphs.

python -m benchmarks.training_run recipes/multi30k-en-de-transformer.toml --device cuda --into FOLDER

The recipe is trained with each of WAYS (variants of `regard train`) in a process of its own, until its end or
until --seconds have passed. The losses of all ways must agree at the last step that they have in common. Run
it in a folder in which the paths of the recipe exist.

python -m benchmarks.training_run RECIPE --seeds 1,2,3 --test data/multi30k/test_2016_flickr.en \\
    data/multi30k/test_2016_flickr.de --moses de

With --seeds, the recipe is trained once for each seed instead, and the translations of the test set are
scored after all trainings.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.measure import RESULTS, environment, write_results

__all__ = ["WAYS", "agreement", "summary", "table", "scores_of_runs"]


@dataclass(frozen=True)
class Way:
    """A variant of `regard train`.

    options: further options of the command.
    launcher: the arguments of Python before `train`.
    """

    options: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ("-m", "regard")


WAYS = {
    "regard train": Way(),
    "regard train, without CUDA graphs": Way(("--set", "training.capture=false")),
    "regard train, compiled": Way(("--set", "training.compile=true")),
    "torchrun, one process": Way(
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "regard")
    ),
}
"""The variants that are measured."""

TOLERANCE = 0.05
"""Largest relative difference of the losses of two variants. Their batches and random numbers differ."""

EVERY = 25
"""Number of steps between two records of the log."""

INTERRUPTED = 130
"""Exit status of `regard train` after Ctrl-C."""


def trained(recipe: Path, folder: Path, way: Way, device: str, seconds: float) -> dict[str, Any]:
    """Train a recipe in a new process, and return the summary of its log."""
    command = [sys.executable, *way.launcher, "train", "--recipe", str(recipe), "--output", str(folder)]
    command += ["--device", device, "--set", f"training.log_every={EVERY}", *way.options]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # save a checkpoint and stop
            _, errors = process.communicate()
    log = folder / "log.jsonl"
    if process.returncode not in (0, INTERRUPTED) or not log.exists():
        sys.exit(f"regard train failed: {errors.strip()[-500:]}")
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return summary(records, began, time.time())


def summary(records: Sequence[dict[str, Any]], began: float, ended: float) -> dict[str, Any]:
    """Return what the log of a run says about its speed.

    records: the records of log.jsonl.
    began, ended: when the process started and ended, as time.time() returns it.

    The speed is the median over the records after the first quarter, in which graphs are captured. The
    duration of an evaluation is the time since the record before it.
    """
    steps = [each for each in records if each["kind"] == "training"]
    evaluations = [
        after["time"] - before["time"]
        for before, after in itertools.pairwise(records)
        if after["kind"] == "evaluation" and before["kind"] == "training"
    ]
    last: dict[str, Any] = next((each for each in reversed(records) if each["kind"] == "evaluation"), {})
    later = steps[len(steps) // 4 :]
    return {
        "seconds": ended - began,
        "seconds until the first record": steps[0]["time"] - began if steps else None,
        "seconds until the last record": steps[-1]["time"] - began if steps else None,
        "steps": steps[-1]["step"] if steps else 0,
        "tokens/s": statistics.median(each["tokens_per_second"] for each in later) if later else None,
        "evaluation seconds": statistics.median(evaluations) if evaluations else None,
        "bleu": last.get("bleu"),
        "messages": [each["text"] for each in records if each["kind"] == "capture"],
        "losses": {str(each["step"]): each["loss"] for each in steps},
    }


def agreement(rows: dict[str, dict[str, Any]]) -> float:
    """Return the largest relative difference of the losses at the last step that all ways have in common."""
    common = set.intersection(*(set(row["losses"]) for row in rows.values()))
    if not common:
        return 0.0
    losses = [row["losses"][max(common, key=int)] for row in rows.values()]
    return (max(losses) - min(losses)) / max(min(losses), 1e-9)


def scores_of_runs(folders: Sequence[Path], test: Sequence[str], moses: str, device: str) -> list[float]:
    """Return the BLEU of each run on the test set, lower-cased and with Moses tokens, as papers report it.

    test: the source file and the target file. moses: language of the target. All runs are scored at the same
        time, in separate processes.
    """
    source, target = test
    options = ["--source", source, "--target", target, "--lowercase", "--length-penalty", "average:1"]
    options += ["--moses", moses, "--device", device, "--json"]
    start = [sys.executable, "-m", "regard", "evaluate"]
    ran = [
        subprocess.Popen([*start, str(folder), *options], stdout=subprocess.PIPE, text=True)
        for folder in folders
    ]
    reports = [json.loads(each.communicate()[0]) for each in ran]
    return [
        next(score["value"] for score in report["scores"] if score["name"] == "Moses BLEU")
        for report in reports
    ]


def table(found: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    shown = ["seconds", "seconds until the first record", "seconds until the last record", "steps"]
    shown += ["tokens/s", "evaluation seconds", "bleu"]
    shown += ["test BLEU"] if any("test BLEU" in row for row in found["rows"].values()) else []
    lines = [f"`regard train --recipe {found['recipe']}`, from the start of the process.", ""]
    lines += [f"| run | {' | '.join(shown)} |", f"| --- {'| --- ' * len(shown)}|"]
    for way, row in found["rows"].items():
        values = ["" if row[name] is None else f"{row[name]:,.1f}".removesuffix(".0") for name in shown]
        lines.append(f"| {way} | {' | '.join(values)} |")
    if "test BLEU" in shown:
        mean = statistics.fmean(row["test BLEU"] for row in found["rows"].values())
        lines += ["", f"bleu: on the validation set. Test BLEU: lower-cased, Moses tokens; mean {mean:.2f}."]
    else:
        lines += ["", f"Largest relative difference of the losses: {found['difference']:.1e}."]
    lines += [f"{way}: {text}" for way, row in found["rows"].items() for text in row["messages"]]
    where = ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def _gpu(device: str) -> dict[str, str]:
    """Return the name of the GPU, if the runs use one."""
    return {"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}


def main() -> None:
    """Measure training runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_run", description=main.__doc__)
    parser.add_argument("recipe", type=Path, help="a TOML file of a recipe")
    parser.add_argument("--device", default="cuda", help="device to train on")
    parser.add_argument("--seconds", type=float, default=120.0, help="maximum duration of each run")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(WAYS), help="name of a run (default: all)"
    )
    parser.add_argument(
        "--into", type=Path, default=RESULTS, metavar="FOLDER", help="folder of the result files"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="number of rounds; each round trains all variants"
    )
    parser.add_argument("--seeds", default="", help="train with these seeds, such as 1,2,3")
    parser.add_argument(
        "--test", nargs=2, metavar=("SOURCE", "TARGET"), help="test set to score with --seeds"
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep the run folders in this folder")
    parser.add_argument("--moses", default="de", help="language of the Moses tokenizer, for --test")
    arguments = parser.parse_args()
    ways = {name: WAYS[name] for name in arguments.only or WAYS}
    if arguments.seeds:
        ways = {f"seed {seed}": Way(("--seed", seed)) for seed in arguments.seeds.split(",")}
    if arguments.repeats > 1:
        numbers = range(1, arguments.repeats + 1)
        ways = {f"{name}, run {number}": way for number in numbers for name, way in ways.items()}
    rows: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as scratch:
        places = [(arguments.runs or Path(scratch)) / name.replace(" ", "-") for name in ways]
        for (name, way), place in zip(ways.items(), places, strict=True):
            rows[name] = trained(arguments.recipe, place, way, arguments.device, arguments.seconds)
            print(f"{name}: {json.dumps({**rows[name], 'losses': None})}", flush=True)
        if arguments.seeds and arguments.test:
            scores = scores_of_runs(places, arguments.test, arguments.moses, arguments.device)
            for row, score in zip(rows.values(), scores, strict=True):
                row["test BLEU"] = score
    difference = 0.0 if arguments.seeds else agreement(rows)
    found = {
        "date": f"{datetime.date.today()}",
        "recipe": str(arguments.recipe),
        "environment": environment() | _gpu(arguments.device),
        "rows": rows,
        "difference": difference,
    }
    if difference > TOLERANCE:
        sys.exit(f"the losses differ by {difference:.1%}, more than {TOLERANCE:.0%}")
    write_results(arguments.into, f"{found['date']}-training-run", found, table(found))
    print("\n" + table(found))


if __name__ == "__main__":
    main()
