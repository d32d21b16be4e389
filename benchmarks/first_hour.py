"""First hour: BLEU of `regard train --minutes N` without other settings, and of settings tuned by hand.

python -m benchmarks.first_hour --tsv eng-deu.txt --cells 5k-2 20k-2 --slots 0,1 2,3
python -m benchmarks.first_hour --tsv eng-deu.txt --cells gpu-2 --slots 0,1,2,3

The file has English and German in its first two columns, as the file of Tatoeba. 1,000 pairs are held out as
the test set; none of their sentences is in the training data. Each slot is a list of CPU cores to which one
training run at a time is pinned; the slots run in parallel. BLEU is sacreBLEU on the 1,000 test pairs, with
greedy decoding and the best checkpoint. Results of other cells from the same day are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory

from benchmarks.measure import RESULTS, environment

__all__ = ["CELLS", "HAND", "Cell", "Trained", "summary", "table"]

PLAIN = "plain command"
TEST = 1000
TRANSFORMERS = ("transformer 128 x 2", "transformer 192 x 3")


@dataclass(frozen=True)
class Cell:
    """A budget: number of training pairs (None for all), minutes, and device.

    hand: names of the settings tuned by hand, from HAND[device]; None for all of them.
    """

    pairs: int | None
    minutes: float
    device: str = "cpu"
    hand: tuple[str, ...] | None = None

    def settings(self) -> tuple[str, ...]:
        """Return the names of all settings to train: the plain command and those tuned by hand."""
        return (PLAIN, *(HAND[self.device] if self.hand is None else self.hand))


SMALL = ("bahdanau 96", "bahdanau 128", "bahdanau 192", "bahdanau 256", *TRANSFORMERS)

CELLS = {
    "5k-2": Cell(5_000, 2, hand=SMALL),
    "20k-2": Cell(20_000, 2, hand=SMALL),
    "20k-5": Cell(20_000, 5, hand=("bahdanau 128", "bahdanau 192", "bahdanau 256", "transformer 128 x 2")),
    "all-5": Cell(None, 5, hand=("bahdanau 128", "bahdanau 256", *TRANSFORMERS)),
    "all-15": Cell(None, 15, hand=("bahdanau 256", "bahdanau 384", *TRANSFORMERS)),
    "gpu-2": Cell(None, 2, "cuda"),
}


def _recurrent(width: int, tokens: int, rate: float, dropout: float) -> list[str]:
    return [f"model.width={width}", *_training(tokens, rate, dropout)]


def _transformer(width: int, layers: int, tokens: int, rate: float, dropout: float) -> list[str]:
    size = [f"model.width={width}", f"model.layers={layers}", "model.heads=4", f"model.inner={4 * width}"]
    return ["model.name=transformer", *size, *_training(tokens, rate, dropout)]


def _training(tokens: int, rate: float, dropout: float) -> list[str]:
    return [f"training.batch_tokens={tokens}", f"training.learning_rate={rate}", f"model.dropout={dropout}"]


HAND: dict[str, dict[str, list[str]]] = {
    "cpu": {
        "bahdanau 96": _recurrent(96, 1024, 6e-3, 0.1),
        "bahdanau 128": _recurrent(128, 1024, 8e-3, 0.05),
        "bahdanau 192": _recurrent(192, 512, 4e-3, 0.2),
        "bahdanau 256": _recurrent(256, 2048, 4e-3, 0.0),
        "bahdanau 384": _recurrent(384, 2048, 2e-3, 0.0),
        "transformer 128 x 2": _transformer(128, 2, 1024, 5e-3, 0.0),
        "transformer 192 x 3": _transformer(192, 3, 1024, 2e-3, 0.0),
    },
    "cuda": {
        "bahdanau 256": _recurrent(256, 4096, 3e-3, 0.1),
        "bahdanau 512": _recurrent(512, 8192, 2e-3, 0.2),
        "bahdanau 1000": _recurrent(1000, 8192, 1e-3, 0.2),
        "transformer 256 x 4": _transformer(256, 4, 4096, 1e-3, 0.1),
    },
}
"""Settings tuned by hand, by the kind of device."""


@dataclass(frozen=True)
class Trained:
    """The result of one training run. steps: step of the best checkpoint. plan: the chosen settings."""

    cell: str
    setting: str
    seed: int
    bleu: float
    steps: int
    plan: str
    seconds: float


def table(trained: Iterable[Trained]) -> list[tuple[str, float, str, float, float]]:
    """Return for each cell: BLEU of the plain command, the best setting by hand, its BLEU, and their ratio.

    BLEU is the mean over seeds.

    >>> first, second = Trained("5k-2", PLAIN, 0, 9.0, 1, "", 1.0), Trained("5k-2", "a", 0, 10.0, 1, "", 1.0)
    >>> table([first, second])
    [('5k-2', 9.0, 'a', 10.0, 0.9)]
    """
    found: dict[str, dict[str, list[float]]] = {}
    for each in trained:
        found.setdefault(each.cell, {}).setdefault(each.setting, []).append(each.bleu)
    rows = []
    for cell, settings in found.items():
        means = {setting: statistics.mean(values) for setting, values in settings.items()}
        others = {setting: value for setting, value in means.items() if setting != PLAIN}
        if PLAIN in means and others:
            best = max(others, key=others.__getitem__)
            rows.append((cell, means[PLAIN], best, others[best], means[PLAIN] / max(others[best], 1e-9)))
    return rows


def summary(trained: list[Trained], about: str = "") -> str:
    """Return the results as Markdown: the comparison, and every run. about: where they were measured."""
    title = "# First hour: the plain command compared with settings tuned by hand"
    lines = [title, "", about, ""] if about else []
    lines += ["| cell | plain command | best by hand | its BLEU | ratio |", "| --- | --- | --- | --- | --- |"]
    for cell, plain, setting, best, ratio in table(trained):
        lines.append(f"| {cell} | {plain:.1f} | {setting} | {best:.1f} | {ratio:.2f} |")
    lines += [
        "",
        "| cell | setting | seed | BLEU | best step | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in trained:
        name = f"{each.setting}: {each.plan}" if each.setting == PLAIN else each.setting
        lines.append(
            f"| {each.cell} | {name} | {each.seed} | {each.bleu:.1f} | {each.steps:,} | {each.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def split(tsv: Path, folder: Path) -> None:
    """Write train.en, train.de, test.en and test.de, and smaller training sets for the cells."""
    options = ["--tsv", str(tsv), "--names", "en,de", "--held-out", str(TEST), "--seed", "1"]
    subprocess.run(
        [sys.executable, "-m", "regard", "data", "split", *options, "--output", str(folder)], check=True
    )
    for name, pairs in {cell.pairs: cell.pairs for cell in CELLS.values() if cell.pairs}.items():
        for side in ("en", "de"):
            lines = (folder / f"train.{side}").read_text(encoding="utf-8").split("\n")[:-1]
            step = len(lines) / pairs
            some = [f"{lines[int(step * number)]}\n" for number in range(pairs)]
            (folder / f"train-{name}.{side}").write_text("".join(some), encoding="utf-8")


def train(name: str, setting: str, seed: int, data: Path, slot: str) -> Trained:
    """Train and evaluate one run, pinned to the cores of a slot."""
    cell = CELLS[name]
    stem = data / ("train" if cell.pairs is None else f"train-{cell.pairs}")
    chosen = [] if setting == PLAIN else HAND[cell.device][setting]
    environ = dict(os.environ, REGARD_CACHE=str(data / f"cache-{slot}"))
    if cell.device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    with TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [
            sys.executable,
            "-m",
            "regard",
            "train",
            "--source",
            f"{stem}.en",
            "--target",
            f"{stem}.de",
        ]
        command += ["--minutes", str(cell.minutes), "--seed", str(seed), "--device", cell.device]
        command += ["--output", str(run), *(part for one in chosen for part in ("--set", one))]
        pinned = ["taskset", "-c", slot]
        began = time.monotonic()
        subprocess.run([*pinned, *command], check=True, env=environ, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        scored = [sys.executable, "-m", "benchmarks.first_hour", "--score", str(run), "--test", str(data)]
        found = subprocess.run(
            [*pinned, *scored, "--device", cell.device],
            check=True,
            env=environ,
            capture_output=True,
            text=True,
        )
        values = json.loads(found.stdout.splitlines()[-1])
    return Trained(name, setting, seed, values["bleu"], values["steps"], values["plan"], round(seconds, 1))


def score(run: Path, data: Path, device: str) -> dict[str, object]:
    """Return the BLEU of a run on the test pairs, its best step, and the settings that were chosen."""
    from regard.decoding import Greedy
    from regard.evaluation import bleu
    from regard.tasks.translation import load_translator

    sources, targets = ((data / f"test.{side}").read_text("utf-8").split("\n")[:-1] for side in ("en", "de"))
    translator = load_translator(run, device=device, search=Greedy(), look=None)
    records = map(json.loads, (run / "log.jsonl").read_text(encoding="ascii").splitlines())
    plan = next((each["text"] for each in records if each["kind"] == "plan"), "")
    texts = [each.text for each in translator.translate(sources)]
    value = round(bleu(texts, targets).value, 2)
    return {"bleu": value, "steps": translator.checkpoint.step, "plan": plan.partition(":")[0]}


def main() -> None:
    """Train every setting of the selected cells, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tsv", type=Path, help="file with English, a tab and German on each line")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="default: all")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each setting (default: 1)")
    parser.add_argument(
        "--slots", nargs="+", default=["0,1"], help="CPU cores of each parallel training run, as in 0,1"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: benchmarks/results)"
    )
    parser.add_argument("--name", default="first-hour", help="file name after the date (default: first-hour)")
    parser.add_argument("--score", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--test", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.score is not None:
        print(json.dumps(score(arguments.score, arguments.test, arguments.device)))
        return
    if arguments.tsv is None or not arguments.tsv.is_file():
        parser.error("--tsv needs an existing file with English, a tab and German on each line")
    path = arguments.out / f"{datetime.date.today()}-{arguments.name}"
    record = path.with_suffix(".json")
    kept = json.loads(record.read_text(encoding="utf-8"))["trained"] if record.is_file() else []
    trained = [Trained(**each) for each in kept if each["cell"] not in arguments.cells]
    machine = environment()
    about = "\n".join(
        (
            f"Tatoeba, English to German; BLEU on {TEST:,} test pairs, greedy, with the best checkpoint.",
            ", ".join(f"{name} {value}" for name, value in machine.items()),
            f"{len(arguments.slots)} runs in parallel, pinned to these cores: {' '.join(arguments.slots)}.",
        )
    )
    with TemporaryDirectory() as folder:
        data = Path(folder)
        split(arguments.tsv, data)
        jobs: Queue[tuple[str, str, int]] = Queue()
        for name in sorted(arguments.cells, key=lambda name: -CELLS[name].minutes):
            for seed in range(arguments.seeds):
                for setting in CELLS[name].settings():
                    jobs.put((name, setting, seed))

        lock, failed = threading.Lock(), list[str]()

        def work(slot: str) -> None:
            while True:
                try:
                    job = jobs.get_nowait()
                except Empty:
                    return
                try:
                    done = train(*job, data, slot)
                except subprocess.CalledProcessError as error:
                    failed.append(f"{job}: {error}")
                    continue
                with lock:
                    trained.append(done)
                    print(f"{done.cell} {done.setting}: BLEU {done.bleu}, best step {done.steps}", flush=True)
                    written = {"environment": machine, "trained": [asdict(each) for each in trained]}
                    record.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
                    path.with_suffix(".md").write_text(summary(trained, about), encoding="utf-8")

        threads = [threading.Thread(target=work, args=(slot,)) for slot in arguments.slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(summary(trained))
    if failed:
        sys.exit("\n".join(("these training runs failed:", *failed)))


if __name__ == "__main__":
    main()
