"""Speed of training steps of a neural Turing machine: our steps, a plain loop, and head modules."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import environment
from regard.data.batch import TapeBatch
from regard.data.tape_tasks import build_tape_task
from regard.fast.captured.graphs import new_pool, recorded
from regard.fast.twins import Twins
from regard.models.turing_machine import NeuralTuringMachine
from regard.runs.devices import choose_device
from regard.tasks.algorithms.task import answer_loss

__all__ = ["HeadModules", "speed_table"]

BATCH, LENGTH = 16, 20
SECONDS, WARM_UPS = 4.0, 2
"""Measuring time of each case, and number of steps before it."""


class HeadModules(nn.Module):
    """A neural Turing machine as loops of PyTorch modules: the structure of the package pytorch-ntm.

    Each head is a module with a linear layer of its own. At each step, one head after the other computes its
    weights; the circular convolution runs in a loop over the sequences of the batch. The equations and the
    sizes are those of NeuralTuringMachine. Written for this benchmark, with no code of that package.
    """

    def __init__(self, inputs: int, targets: int, width: int = 100, slots: int = 128, size: int = 20):
        super().__init__()
        self.sizes = width, slots, size
        self.controller = nn.LSTM(inputs + size, width)
        self.read_head = nn.Linear(width, size + 6)
        self.write_head = nn.Linear(width, 3 * size + 6)
        self.output = nn.Linear(width + size, targets)

    def forward(self, x_BTX: Tensor) -> tuple[Tensor, None]:
        width, slots, size = self.sizes
        batch = len(x_BTX)
        read, memory = x_BTX.new_zeros(batch, size), x_BTX.new_full((batch, slots, size), 1e-6)
        first = functional.one_hot(torch.zeros(batch, dtype=torch.long, device=x_BTX.device), slots)
        weights = [first.to(x_BTX.dtype)] * 2
        state = tuple(x_BTX.new_zeros(1, batch, width) for _ in range(2))
        outputs = []
        for x_BX in x_BTX.unbind(1):
            hidden, state = self.controller(torch.cat((x_BX, read), 1)[None], state)
            asked, told = self.read_head(hidden[0]), self.write_head(hidden[0])
            weights = [
                self.address(each[:, : size + 6], memory, old)
                for each, old in zip((asked, told), weights, strict=True)
            ]
            read = (weights[0][:, None] @ memory)[:, 0]
            erase, add = torch.sigmoid(told[:, size + 6 : 2 * size + 6]), torch.tanh(told[:, 2 * size + 6 :])
            write = weights[1][:, :, None]
            memory = memory * (1 - write * erase[:, None]) + write * add[:, None]
            outputs.append(self.output(torch.cat((hidden[0], read), 1)))
        return torch.stack(outputs, 1), None

    def address(self, values: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        """Return the weights of one head, (B, N)."""
        key, beta, gate, shift, gamma = values.split((values.shape[1] - 6, 1, 1, 3, 1), 1)
        near = functional.cosine_similarity(memory, key[:, None], dim=-1)
        content = torch.softmax(functional.softplus(beta) * near, 1)
        mixed = torch.sigmoid(gate) * content + (1 - torch.sigmoid(gate)) * before
        moves = torch.softmax(shift, 1)
        shifted = torch.stack([_convolved(mixed[row], moves[row]) for row in range(len(mixed))])
        powered = (shifted + 1e-16) ** (1 + functional.softplus(gamma))
        return powered / powered.sum(1, keepdim=True)


def _convolved(weights_N: Tensor, shift: Tensor) -> Tensor:
    padded = torch.cat((weights_N[-1:], weights_N, weights_N[:1]))
    return functional.conv1d(padded[None, None], shift[None, None])[0, 0]


def speed_table(device: str) -> tuple[str, list[dict[str, Any]]]:
    """Measure sequences per second of each case; return a Markdown table and the results."""
    place = torch.device(choose_device(device))
    task = build_tape_task("copy")
    batch = task.draw(BATCH, {"length": LENGTH}, torch.Generator().manual_seed(0)).to(place)
    sizes = task.input_size, task.target_size
    cases: dict[str, tuple[int, Callable[[], Any]]] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        machine = NeuralTuringMachine(*sizes).to(place)
        modules = HeadModules(*sizes).to(place)
    gate(machine, batch)
    cases["head modules, a loop over the batch (as pytorch-ntm)"] = BATCH, step_of(modules, modules, batch)

    def fast(x: Tensor) -> Any:
        with Twins(machine):
            return machine(x)

    cases["plain Python loop of attention() and read()"] = BATCH, step_of(machine, machine, batch)
    cases["machine_steps(), one model"] = BATCH, step_of(machine, fast, batch)
    if place.type == "cuda":
        replay, _ = recorded(step_of(machine, fast, batch), place, new_pool())
        cases["machine_steps(), one model, CUDA graph"] = BATCH, replay
    results = [_timed(name, count, step, place) for name, (count, step) in cases.items()]
    return _table(results), results


def step_of(model: nn.Module, run: Callable[[Tensor], Any], batch: TapeBatch) -> Callable[[], None]:
    """Return a function that computes the gradients of a batch."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        answer_loss(run(batch.inputs)[0], batch).sum().backward()

    return step


def gate(machine: NeuralTuringMachine, batch: TapeBatch) -> None:
    """Raise AssertionError unless both ways to run the machine give the same logits."""
    with torch.no_grad():
        plain, _ = machine(batch.inputs)
        with Twins(machine):
            fused, _ = machine(batch.inputs)
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-4)


def _timed(name: str, count: int, step: Callable[[], Any], place: torch.device) -> dict[str, Any]:
    def synchronised() -> float:
        if place.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(WARM_UPS):
        step()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < SECONDS and len(seconds) < 200):
        began = synchronised()
        step()
        seconds.append(synchronised() - began)
    median = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / median
    gpu = {"gpu": torch.cuda.get_device_name()} if place.type == "cuda" else {}
    return {
        "case": name,
        "milliseconds": round(1000 * median, 3),
        "sequences_per_second": round(count / median, 1),
        "spread": round(spread, 3),
        "device": place.type,
        "machine": {**environment(), **gpu},
    }


def _table(results: list[dict[str, Any]]) -> str:
    about = (
        f"Forward and backward pass of the copy task: length {LENGTH} ({2 * LENGTH + 1} steps), batch size "
        f"{BATCH}, 128 slots of size 20, an LSTM of width 100. Median of all steps of {SECONDS:g} s."
    )
    rows = [about, "", "| case | ms per step | sequences per second |", "| --- | --- | --- |"]
    rows += [
        f"| {each['case']} | {each['milliseconds']:.1f} | {each['sequences_per_second']:,.0f} |"
        for each in results
    ]
    machine = ", ".join(f"{name} {value}" for name, value in results[0]["machine"].items())
    return "\n".join([*rows, "", f"Measured on: {results[0]['device']}, {machine}.", ""])
