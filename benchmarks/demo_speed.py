"""Benchmark of training on a CPU: tokens per second of the demo, in one or several checkouts of Regard.

python benchmarks/demo_speed.py CHECKOUT ... trains the demo in one process for each checkout. The processes
take turns: each runs 25 steps while the others wait, so that other programs slow down all of them alike. The
first turn is not counted. It prints tokens per second of wall time and of CPU time, and both relative to the
first checkout (medians over the turns).
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
from pathlib import Path
from typing import Any

STEPS = 25
"""Number of training steps of a turn."""


def work() -> None:
    """Train the demo with the Regard of PYTHONPATH. A line on standard input starts a turn of 25 steps."""
    import torch
    from rich.console import Console

    from regard.cli.demo import SETTINGS
    from regard.tasks.translation import train_translation
    from regard.training.gradients import Gradients
    from regard.training.settings import merged

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    add, steps, tokens = Gradients.add, 0, 0
    wall, cpu = 0.0, 0.0

    def timed(self: Any, step: int, batches: Any, count: int) -> Any:
        nonlocal steps, tokens, wall, cpu
        if steps % STEPS == 0:
            row = [tokens, time.perf_counter() - wall, time.process_time() - cpu]
            print(json.dumps(row if steps else "ready"), flush=True)
            if not sys.stdin.readline().strip():
                os._exit(0)
            tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
        steps, tokens = steps + 1, tokens + count
        return add(self, step, batches, count)

    Gradients.add = timed  # type: ignore[method-assign, assignment]
    endless = {"training": {"steps": 10**6, "evaluate_every": 10**6}, "model": {"dropout": 0.05}}
    with tempfile.TemporaryDirectory() as folder:
        train_translation(merged(SETTINGS, endless), Path(folder) / "run", console=Console(quiet=True))


def measured(checkouts: list[Path], turns: int, threads: int) -> list[list[tuple[float, float, float]]]:
    """Return tokens, wall time and CPU time of each turn of each checkout, without the first turn."""
    workers = []
    for checkout in checkouts:
        source, number = checkout.resolve() / "src", f"{threads}"
        environment = os.environ | {"PYTHONPATH": f"{source}", "OMP_NUM_THREADS": number}
        command = [sys.executable, __file__, "--worker"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers.append(subprocess.Popen(command, env=environment, **pipes))
    rows: list[list[tuple[float, float, float]]] = [[] for _ in workers]
    for worker in workers:
        _answer(worker)
    for _ in range(turns + 1):
        for worker, own in zip(workers, rows, strict=True):
            own.append(tuple(_answer(worker, "go\n")))
    for worker in workers:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()
    return [own[1:] for own in rows]


def _answer(worker: Any, line: str = "") -> Any:
    """Send a line to a worker and return its answer. Exit with a message if the worker has ended."""
    try:
        worker.stdin.write(line)
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())
    except (BrokenPipeError, json.JSONDecodeError):
        raise SystemExit(f"process {worker.pid} failed; its error message is printed above") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "checkouts", type=Path, nargs="*", default=[Path()], help="folders with src/ [default: this folder]"
    )
    parser.add_argument("--turns", type=int, default=13, help="turns of each checkout [default: 13]")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="threads of a process [default: all cores]"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return 0
    rows = measured(arguments.checkouts, arguments.turns, arguments.threads)
    print("| checkout | tokens/s | per CPU second | times the first | by CPU time |")
    print("| --- | --- | --- | --- | --- |")
    for checkout, own in zip(arguments.checkouts, rows, strict=True):
        rates = [sum(row[0] for row in own) / sum(row[at] for row in own) for at in (1, 2)]
        pairs = list(zip(own, rows[0], strict=True))
        ratios = [
            statistics.median(mine[0] / mine[at] / (first[0] / first[at]) for mine, first in pairs)
            for at in (1, 2)
        ]
        cells = [f"{checkout}", *(f"{rate:,.0f}" for rate in rates), *(f"{ratio:.2f}" for ratio in ratios)]
        print(f"| {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
