"""Benchmark of checkouts of Regard on a CPU: training and translation of two versions, in turns.

python benchmarks/checkouts.py OLD NEW ... runs each of CASES in one process for each checkout. The processes
take turns: each works while the others wait, so that other programs slow down all of them alike. The first
turn is not counted. It prints the rate of each checkout by wall time and by CPU time, and both relative to
the first checkout (medians over the turns). The checkouts must agree first: the losses of the first steps of
training without dropout, and the hypotheses of the searches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

__all__ = ["CASES", "disagreement", "measured"]

STEPS = 25
"""Number of training steps of a turn."""

WIDE = {"width": 256, "dropout": 0.1}
TRAINING: dict[str, dict[str, Any]] = {
    "training, demo": {},
    "training, bahdanau 256": {"model": {"name": "bahdanau", **WIDE}},
    "training, luong 256": {"model": {"name": "luong", **WIDE}},
    "training, transformer small": {"model": {"name": "transformer", "size": "small", "dropout": 0.1}},
}
"""Training of the demo's data, with these settings instead of the demo's. The unit is target tokens."""

SEARCHES: dict[str, tuple[str, int, int]] = {
    f"translating, {model}, {rows} x beam {beams}": (model, rows, beams)
    for model in ("bahdanau", "transformer")
    for rows in (1, 16)
    for beams in (1, 5)
}
"""Model, number of sentences and beam size of searches. The unit is sentences."""

CASES = (*TRAINING, *SEARCHES)
TOLERANCE = 1e-3
"""Largest relative difference of the losses of two checkouts."""


def turns() -> Iterator[None]:
    """Yield for each line on standard input; an empty line is the end."""
    while sys.stdin.readline().strip():
        yield


def train(case: str) -> None:
    """Train with the Regard of PYTHONPATH. A line on standard input starts a turn of STEPS steps."""
    from rich.console import Console

    from regard.cli.demo import SETTINGS
    from regard.tasks.translation import train_translation
    from regard.training.gradients import Gradients
    from regard.training.settings import merged

    add, steps, tokens, losses = Gradients.add, 0, 0, list[float]()
    wall, cpu = 0.0, 0.0
    turn = turns()

    def timed(self: Any, step: int, batches: Any, count: int) -> Any:
        nonlocal steps, tokens, wall, cpu
        if steps == 0:
            losses.extend(first_losses(self, batches, count))
        if steps % STEPS == 0:
            passed = [tokens, time.perf_counter() - wall, time.process_time() - cpu]
            answer(passed if steps else losses)
            if next(turn, 0) == 0:
                os._exit(0)
            tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
        steps, tokens = steps + 1, tokens + count
        return add(self, step, batches, count)

    Gradients.add = timed  # type: ignore[method-assign, assignment]
    endless = {"training": {"steps": 10**6, "evaluate_every": 10**6}}
    settings = merged(merged(SETTINGS, endless), TRAINING[case])
    if "model" in TRAINING[case]:
        settings["model"] = TRAINING[case]["model"]
    with tempfile.TemporaryDirectory() as folder:
        train_translation(settings, Path(folder) / "run", console=Console(quiet=True))


def first_losses(gradients: Any, batches: Sequence[Any], count: int) -> list[float]:
    """Return the loss of the first batch without dropout, and the sum of the absolute gradients."""
    model = gradients.task.model
    model.train()
    kept = {module: module.p for module in model.modules() if type(module).__name__ == "Dropout"}
    inner = {module: module.dropout for module in model.modules() if type(module).__name__ == "MultiHead"}
    for module in kept:
        module.p = 0.0
    for module in inner:
        module.dropout = 0.0
    ready, _ = gradients.prepared(1, 0, batches[0])
    loss = gradients.loss(ready)
    (loss.total / count).backward()
    total = sum(float(each.grad.abs().sum()) for each in model.parameters() if each.grad is not None)
    model.zero_grad(set_to_none=True)
    for module, p in kept.items():
        module.p = p
    for module, p in inner.items():
        module.dropout = p
    return [float(loss.total.detach()) / count, total]


def search(case: str) -> None:
    """Translate with the Regard of PYTHONPATH. A line on standard input starts a turn of searches."""
    import torch

    from regard.data.batch import Batch
    from regard.decoding import Beam, Greedy, Rules
    from regard.decoding import search as run
    from regard.models.bahdanau import Bahdanau
    from regard.models.transformer import Transformer

    name, rows, beams = SEARCHES[case]
    torch.manual_seed(0)
    model = Transformer(8000, 8000, "small") if name == "transformer" else Bahdanau(8000, 8000, 256)
    model.eval()
    generator = torch.Generator().manual_seed(1)
    batch = Batch.collate(torch.randint(4, 8000, (rows, 19), generator=generator).tolist())
    rules = Rules(minimum=24, maximum=24)
    how = Greedy(rules) if beams == 1 else Beam(beams, rules=rules)
    found = run(model, batch, how, look=None)
    answer([token for hypotheses in found for token in hypotheses[0].tokens])
    count = max(1, round(32 / (rows * beams)))
    for _ in turns():
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            run(model, batch, how, look=None)
        answer([count * rows, time.perf_counter() - wall, time.process_time() - cpu])


def answer(values: Sequence[float]) -> None:
    """Print a line for measured()."""
    print(json.dumps(values), flush=True)


def measured(
    checkouts: Sequence[Path], case: str, count: int, threads: int
) -> tuple[list[list[float]], list[list[tuple[float, float, float]]]]:
    """Run one case in each checkout, in turns.

    Returns the losses or tokens of each checkout, which must agree, and amount, wall time and CPU time of
    each turn of each checkout, without the first turn.
    """
    workers = []
    for checkout in checkouts:
        source = checkout.resolve() / "src"
        environment = os.environ | {"PYTHONPATH": f"{source}", "OMP_NUM_THREADS": f"{threads}"}
        command = [sys.executable, __file__, "--worker", case]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        results = [_read(worker) for worker in workers]
        rows: list[list[tuple[float, float, float]]] = [[] for _ in workers]
        for _ in range(count + 1):
            for worker, own in zip(workers, rows, strict=True):
                own.append(tuple(_read(worker, "go\n")))
    finally:
        for worker in workers:
            worker.stdin.close()
            worker.wait()
            worker.stdout.close()
    return results, [own[1:] for own in rows]


def disagreement(case: str, results: Sequence[Sequence[float]]) -> str:
    """Return how the results of the checkouts differ; "" if they agree."""
    first = results[0]
    for own in results[1:]:
        if case in SEARCHES and own != first:
            return "the checkouts return different hypotheses"
        if any(abs(one - two) > TOLERANCE * abs(one) for one, two in zip(first, own, strict=True)):
            return f"loss and gradients are {first} and {own}"
    return ""


def _read(worker: subprocess.Popen[str], line: str = "") -> Any:
    """Send a line to a worker and return its answer. Exit with a message if the worker has ended."""
    pipes: tuple[TextIO | None, TextIO | None] = worker.stdin, worker.stdout
    assert pipes[0] is not None and pipes[1] is not None
    try:
        pipes[0].write(line)
        pipes[0].flush()
        return json.loads(pipes[1].readline())
    except (BrokenPipeError, json.JSONDecodeError):
        raise SystemExit(f"process {worker.pid} failed; its error message is printed above") from None


def table(checkouts: Sequence[Path], case: str, rows: Sequence[Sequence[tuple[float, float, float]]]) -> str:
    """Return the lines of the table of one case."""
    lines = []
    for checkout, own in zip(checkouts, rows, strict=True):
        rates = [statistics.median(row[0] / row[at] for row in own) for at in (1, 2)]
        pairs = list(zip(own, rows[0], strict=True))
        ratios = [
            statistics.median(mine[0] / mine[at] / (first[0] / first[at]) for mine, first in pairs)
            for at in (1, 2)
        ]
        cells = [
            case,
            f"{checkout}",
            *(f"{rate:,.1f}" for rate in rates),
            *(f"{each:.2f}" for each in ratios),
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "checkouts", type=Path, nargs="*", default=[Path()], help="folders with src/ [default: this folder]"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="run this case [default: all]")
    parser.add_argument("--turns", type=int, default=5, help="turns of each checkout [default: 5]")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="threads of a process [default: all cores]"
    )
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work: Callable[[str], None] = train if arguments.worker in TRAINING else search
        work(arguments.worker)
        return 0
    print("| case | checkout | a second | a CPU second | times the first | by CPU time |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    differ = []
    for case in arguments.case or CASES:
        results, rows = measured(arguments.checkouts, case, arguments.turns, arguments.threads)
        problem = disagreement(case, results)
        if problem:
            differ.append(f"{case}: not measured, because {problem}")
            continue
        print(table(arguments.checkouts, case, rows), end="", flush=True)
    print("\n".join(differ))
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
