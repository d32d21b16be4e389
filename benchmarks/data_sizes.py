"""Data sizes: BLEU and chrF of `regard train` by the number of training pairs.

python -m benchmarks.data_sizes --tatoeba eng-deu.txt.gz --multi30k folder
REGARD_DATA=folder python -m benchmarks.data_sizes --runs tatoeba:1000 multi30k:3000 built-in:1000
python -m benchmarks.data_sizes --runs tatoeba:100000 --device cuda --epochs 10 --name data-sizes-cuda

The corpora: Tatoeba, English to German, one pair for each English sentence; Multi30k, train.en and train.de;
the built-in corpus, whose language is narrow. N pairs are drawn at random. The default model is trained on
them with `regard train --epochs`, without other settings. A twentieth of the pairs, at most 1,000, is held
out for validation. The epochs decrease with N, so that a run takes minutes on one core; --epochs sets another
number, for a GPU. (A run without a budget has 30 epochs, but at least 2,000 steps.) BLEU and chrF on the
validation set come from the log of the run. The test set has other pairs, none of whose sentences is in the
training data. Results of other runs from the same day are kept.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import RESULTS, environment

__all__ = ["EPOCHS", "RUNS", "Trained", "draw", "read_tatoeba", "summary"]

TEST = 500
"""Number of test pairs."""

EPOCHS = {1_000: 20, 3_000: 10, 10_000: 6, 28_000: 3, 30_000: 3, 100_000: 2}
"""Number of epochs for each number of training pairs."""

SIZES = {
    "tatoeba": (1_000, 3_000, 10_000, 30_000, 100_000),
    "multi30k": (1_000, 3_000, 10_000, 28_000),  # of 29,000 pairs; the others are for the test set
    "built-in": (1_000, 3_000),
}

RUNS = tuple(f"{corpus}:{pairs}" for pairs in EPOCHS for corpus, sizes in SIZES.items() if pairs in sizes)
"""The runs, in the order in which they are measured: corpus and number of pairs."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Trained:
    """The result of one run, with the scores of its best checkpoint.

    pairs: number of pairs, with those held out for validation.
    valid: number of pairs held out for validation.
    unseen: share of the words of the validation targets that do not occur in the training targets.
    loss: the validation loss of each evaluation.
    valid_bleu, valid_chrf: on the validation pairs that the run translates.
    test_bleu, test_chrf: on the test set.
    samples: source, reference and translation of some test sentences.
    """

    corpus: str
    pairs: int
    valid: int
    unseen: float
    plan: str
    steps: int
    best_step: int
    loss: list[float]
    valid_bleu: float
    valid_chrf: float
    test_bleu: float
    test_chrf: float
    seconds: float
    samples: list[tuple[str, str, str]]

    @property
    def falling(self) -> bool:
        """Whether the validation loss was lowest at the last evaluation."""
        return self.loss[-1] == min(self.loss)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, which may be compressed with gzip."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def read_tatoeba(path: Path) -> list[Pair]:
    """Return the first translation of each English sentence: many English sentences repeat in the file."""
    first: dict[str, str] = {}
    for line in read_lines(path):
        english, german = line.split("\t")[:2]
        first.setdefault(english, german)
    return list(first.items())


def read_multi30k(folder: Path) -> list[Pair]:
    """Return the training pairs of Multi30k, English to German."""
    sides = []
    for side in ("en", "de"):
        path = folder / f"train.{side}"
        sides.append(read_lines(path if path.exists() else folder / f"train.{side}.gz"))
    return list(zip(*sides, strict=True))


def read_built_in() -> list[Pair]:
    """Return pairs of the built-in corpus, Korean to English."""
    from regard.data import korean_english

    return list(dict.fromkeys((each.source, each.target) for each in korean_english("train", 20_000)))


def draw(pairs: Iterable[Pair], count: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Return `count` random training pairs, and TEST test pairs.

    No sentence of the test pairs is in a training pair, on either side. The test pairs of different counts
    are mostly the same.
    """
    shuffled = list(pairs)
    random.Random(seed).shuffle(shuffled)
    train = shuffled[-count:]
    sources, targets = map(set, zip(*train, strict=True))
    rest = shuffled[: len(shuffled) - count]
    test = [(source, target) for source, target in rest if source not in sources and target not in targets]
    return train, test[:TEST]


def train(
    corpus: str, pairs: list[Pair], test: list[Pair], device: str = "cpu", epochs: int | None = None
) -> Trained:
    """Train the default model on the pairs, and evaluate it on the test pairs.

    epochs: the number of epochs; None: that of EPOCHS.
    """
    from regard.decoding import Greedy
    from regard.evaluation import bleu, chrf
    from regard.tasks.translation import load_translator
    from regard.tasks.translation.data import Data, read_split
    from regard.tasks.translation.settings import unseen_share

    with TemporaryDirectory() as scratch:
        folder, run = Path(scratch), Path(scratch) / "run"
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [sys.executable, "-m", "regard", "train", "--device", device, "--output", str(run)]
        command += ["--source", str(folder / "source"), "--target", str(folder / "target")]
        command += ["--epochs", str(epochs or EPOCHS.get(len(pairs), 1))]
        split = read_split(Data(source=[str(folder / "source")], target=[str(folder / "target")]))
        valid, unseen = len(split.valid), unseen_share(split.train, split.valid)
        environ = dict(os.environ, REGARD_CACHE=str(folder / "cache"))
        began = time.monotonic()
        subprocess.run(command, check=True, env=environ, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        records = list(map(json.loads, (run / "log.jsonl").read_text(encoding="ascii").splitlines()))
        translator = load_translator(run, device=device, search=Greedy(), look=None)
        texts = [each.text for each in translator.translate([source for source, _ in test])]
    targets = [target for _, target in test]
    evaluations = [each for each in records if each["kind"] == "evaluation"]
    best_step = translator.checkpoint.step
    best = next(each for each in evaluations if each["step"] == best_step)
    return Trained(
        corpus,
        len(pairs),
        valid,
        round(unseen, 4),
        next(each["text"] for each in records if each["kind"] == "plan").partition(":")[0],
        evaluations[-1]["step"],
        best_step,
        [round(each["loss"], 3) for each in evaluations],
        round(best["bleu"], 1),
        round(best["chrf"], 1),
        round(bleu(texts, targets).value, 1),
        round(chrf(texts, targets).value, 1),
        round(seconds, 1),
        [(*test[place], texts[place]) for place in (0, 1, 2)],
    )


def summary(trained: Iterable[Trained], about: str = "") -> str:
    """Return the results as Markdown: the scores of each run, and translations of test sentences."""
    rows = sorted(trained, key=lambda each: (each.corpus, each.pairs))
    lines = ["# BLEU and chrF by the number of training pairs", "", *([about, ""] if about else [])]
    lines += [
        "| corpus | pairs | unseen words | plan | steps | best step | validation loss | still falling "
        "| validation BLEU | validation chrF | test BLEU | test chrF | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in rows:
        loss = f"{each.loss[0]:.2f}, lowest {min(each.loss):.2f}, last {each.loss[-1]:.2f}"
        lines.append(
            f"| {each.corpus} | {each.pairs:,} | {each.unseen:.1%} | {each.plan} | {each.steps:,} "
            f"| {each.best_step:,} | {loss} | {'yes' if each.falling else 'no'} "
            f"| {each.valid_bleu} | {each.valid_chrf} "
            f"| {each.test_bleu} | {each.test_chrf} | {each.seconds:.0f} |"
        )
    lines += ["", "| corpus | pairs | source | reference | translation |", "| --- | --- | --- | --- | --- |"]
    for each in rows:
        for sample in each.samples:
            lines.append(f"| {each.corpus} | {each.pairs:,} | {' | '.join(sample)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train every selected run, one after the other, and write the results."""
    data = Path(os.environ.get("REGARD_DATA", "."))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", type=Path, default=data / "tatoeba/eng-deu.txt.gz", help="eng-deu.txt")
    parser.add_argument(
        "--multi30k", type=Path, default=data / "multi30k", help="folder with train.en and train.de"
    )
    parser.add_argument(
        "--runs", nargs="+", default=list(RUNS), help="CORPUS:PAIRS, as in tatoeba:1000 (default: all)"
    )
    parser.add_argument("--device", default="cpu", help="device, cpu or cuda (default: cpu)")
    parser.add_argument("--epochs", type=int, help="number of epochs (default: by the number of pairs)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    parser.add_argument("--name", default="data-sizes", help="file name after the date (default: data-sizes)")
    arguments = parser.parse_args()
    readers: dict[str, Callable[[], list[Pair]]] = {
        "tatoeba": lambda: read_tatoeba(arguments.tatoeba),
        "multi30k": lambda: read_multi30k(arguments.multi30k),
        "built-in": read_built_in,
    }
    chosen = [(corpus, int(pairs)) for corpus, _, pairs in (each.partition(":") for each in arguments.runs)]
    path = arguments.out / f"{datetime.date.today()}-{arguments.name}"
    record = path.with_suffix(".json")
    kept = json.loads(record.read_text(encoding="utf-8"))["trained"] if record.is_file() else []
    trained = [Trained(**each) for each in kept if (each["corpus"], each["pairs"]) not in chosen]
    machine = environment()
    if arguments.device != "cpu":
        import torch

        machine |= {"device": torch.cuda.get_device_name()}
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    for corpus, count in chosen:
        trained.append(train(corpus, *draw(readers[corpus](), count), arguments.device, arguments.epochs))
        done = trained[-1]
        print(f"{corpus} {count:,}: test BLEU {done.test_bleu}, {done.seconds:.0f} s", flush=True)
        written = {"environment": machine, "trained": [asdict(each) for each in trained]}
        record.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(summary(trained, about), encoding="utf-8")
    print(summary(trained, about))


if __name__ == "__main__":
    main()
