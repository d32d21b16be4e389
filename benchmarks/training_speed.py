"""Benchmark of training: target tokens per second of whole training steps, compared with other libraries.

python -m benchmarks.training_speed --into FOLDER first compares loss and gradients with those of the model in
float64, then measures wall time on a CUDA device. A step is the copy of a batch to the device, the loss,
gradients, gradient clipping and AdamW. Captured rows of Regard update the weights as Regard's trainer does in
its captured steps (DeviceUpdate); the others use clip_grad_norm_() and torch's fused AdamW. --parts also
measures the parts of a captured step.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import fnmatch
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.measure import environment, write_results
from benchmarks.training_cases import CASES, SMOOTHING, Case
from benchmarks.training_parts import parts_of
from benchmarks.training_peers import compiled, eager_loop, hugging_face, time_limit
from regard.backends import BACKENDS
from regard.data.batch import Batch, copy_all, tensors_in
from regard.fast.captured.graphs import copied, new_pool, recorded
from regard.fast.captured.steps import DeviceUpdate, own_gradients
from regard.fast.twins import Twins
from regard.training.gradients import build_optimizer, coarse_products
from regard.training.loop import pinned
from regard.training.losses import model_loss

DEVICE = torch.device("cuda")
PLAIN = (
    "regard.training.losses.by_kernel",
    "regard.fast.transformer.by_kernel",
    "regard.fast.joint_linear.trains_in_half",
)
"""Functions that choose the kernels of training. Without them, a model runs in plain PyTorch, and the loss is
computed from float32 logits."""

Loss = Callable[[Batch], Tensor]


def our_loss(model: Any, fast: bool = True) -> Loss:
    """Return the loss of the translation task.

    fast: whether to use the twins of the model, as the trainer does without torch.compile.
    """
    twins = Twins(model) if fast else nullcontext()

    def loss(batch: Batch) -> Tensor:
        with twins:
            return model_loss(model, batch, batch.labels, SMOOTHING)[0]

    return loss


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Compute in bfloat16 (autocast), tf32 or float32."""
    with ExitStack() as stack:
        if precision == "bfloat16":
            stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        stack.enter_context(coarse_products("high" if precision == "tf32" else "highest"))
        yield


@contextmanager
def plain() -> Iterator[None]:
    """Turn the kernels of training off."""
    with ExitStack() as stack:
        for name in PLAIN:
            stack.enter_context(mock.patch(name, lambda *_: False))
        off = replace(BACKENDS["short"], not_requested=lambda call: ["it is turned off"])
        stack.enter_context(mock.patch.dict(BACKENDS, {"short": off}))
        yield


class Training:
    """A model that is trained on random batches.

    loss: returns the loss of a batch, summed over its tokens.
    batches: batches on the host.
    by_trainer: whether to update the weights as in the captured steps of Regard's trainer.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, batches: list[Batch], precision: str, by_trainer: bool = False
    ):
        self.model, self.loss, self.precision = model, loss, precision
        self.hosts = [list(tensors_in(pinned(batch))) for batch in batches]
        self.batch = copied(batches[0].to(DEVICE))
        self.inputs = list(tensors_in(self.batch))
        self.tokens = int(batches[0].target_lengths.sum())
        self.optimizer = build_optimizer(model, beta2=0.98, weight_decay=0.01)
        for group in self.optimizer.param_groups:
            group.update(lr=1e-4, capturable=True)
        self.parameters = list(model.parameters())
        self.by_trainer = DeviceUpdate(self.optimizer, None, DEVICE, 1.0) if by_trainer else None
        if self.by_trainer is not None:
            self.by_trainer.set_step(1, 1e-4)
        self.run: Callable[[], object] = self.update
        self.steps = 0

    def capture(self) -> None:
        """Capture the step in a CUDA graph."""
        self.run, _ = recorded(self.update, DEVICE, new_pool())

    def update(self) -> None:
        """Compute the loss and its gradients, and update the weights."""
        with precise(self.precision):
            total = self.loss(self.batch)
            mean = total * (1 / self.tokens)
            if self.by_trainer is not None:
                gradients = own_gradients(self.parameters, torch.autograd.grad(mean, self.parameters))
                self.by_trainer.apply(self.parameters, gradients, total.detach())
                return
            mean.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Copy the next batch to the device and run a step."""
        host = self.hosts[self.steps % len(self.hosts)]
        copy_all(self.inputs, host)
        self.run()
        self.steps += 1


def ways(case: Case) -> Iterator[tuple[str, Callable[[], Training]]]:
    """Yield the name of each way to train, and a function that prepares it; the most important first."""

    def training(
        precision: str, captured: bool = False, peer: str = "", compile_it: bool = False
    ) -> Training:
        torch.manual_seed(0)
        if peer == "hugging face":
            model, loss = hugging_face(case)
        else:
            model = case.build(device=DEVICE.type)
            loss = eager_loop(model) if peer == "eager loop" else our_loss(model, not compile_it)
        batches = [case.batch(seed) for seed in range(4)]
        by_trainer = captured and not peer
        loss = compiled(loss) if compile_it else loss
        result = Training(model.train(), loss, batches, precision, by_trainer)
        if captured:
            result.capture()
        return result

    def plainly(**options: Any) -> Training:
        with plain():
            return training("bfloat16", **options)

    half = "bfloat16"
    yield "regard, captured", lambda: training(half, captured=True)
    yield "regard, eager", lambda: training(half)
    yield "regard, captured, without the kernels of training", lambda: plainly(captured=True)
    if case.model == "transformer":
        yield "Hugging Face, sdpa", lambda: training(half, peer="hugging face")
        yield "Hugging Face, sdpa, captured", lambda: training(half, captured=True, peer="hugging face")
    else:
        yield "eager loop, captured", lambda: training(half, captured=True, peer="eager loop")
        yield "eager loop", lambda: training(half, peer="eager loop")
    yield "regard, captured, tf32", lambda: training("tf32", captured=True)
    yield "regard, captured, float32", lambda: training("float32", captured=True)
    if case.model == "transformer":
        yield (
            "Hugging Face, sdpa, torch.compile",
            lambda: training(half, peer="hugging face", compile_it=True),
        )


def measured(case: Case, prepare: Callable[[], Training], seconds: float, limit: float) -> dict[str, Any]:
    """Return the wall time of a step: median and quartiles of windows of steps, for about `seconds`.

    limit: maximum number of seconds until the first steps are done, such as for torch.compile.
    """
    try:
        begun = time.perf_counter()
        with time_limit(limit):
            training = prepare()
            for _ in range(3):
                training.step()
            torch.cuda.synchronize()
        ready = time.perf_counter() - begun
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        training.step()
        torch.cuda.synchronize()
        each = max(2, int(0.1 / (time.perf_counter() - start)))
        taken, begun = list[float](), time.perf_counter()
        while len(taken) < 5 or time.perf_counter() - begun < seconds:
            start = time.perf_counter()
            for _ in range(each):
                training.step()
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - start) / each * 1000)
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    low, median, high = statistics.quantiles(taken, n=4)
    peak = torch.cuda.max_memory_reserved() / 2**20
    row = {"tokens/s": case.tokens / median * 1000, "milliseconds": median, "low": low, "high": high}
    return row | {"runs": len(taken) * each, "reserved MiB": peak, "seconds until ready": ready}


def gate(case: Case) -> dict[str, float]:
    """Return relative errors of the loss and of all gradients together, against the model in float64.

    The batch is small, with sequences of different lengths, and without dropout. Exits if the error in
    float32 is more than 1e-4, or the error in bfloat16 more than twice that of plain PyTorch plus a rounding
    step.
    """
    batch, results = case.batch(7, ragged=True, rows=24, length=23).to(DEVICE), dict[str, list[Tensor]]()
    initial = case.build(0.0, DEVICE.type)
    tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    for name in ("float64", "plain, bfloat16", "regard, bfloat16", "regard, float32"):
        model = copy.deepcopy(initial).to(torch.float64 if name == "float64" else torch.float32).train()
        with ExitStack() as stack:
            if name.startswith("plain"):
                stack.enter_context(plain())
            stack.enter_context(precise(name.split()[-1]))
            loss = our_loss(model)(batch)
            loss.backward()
        gradients = [each.grad.double().flatten() for each in model.parameters() if each.grad is not None]
        results[name] = [loss.detach().double().flatten(), torch.cat(gradients)]
        del model, loss, gradients
        gc.collect()
    torch.backends.cudnn.allow_tf32 = tf32
    oracle, errors = results.pop("float64"), dict[str, float]()
    for name, found in results.items():
        pairs = zip(found, oracle, strict=True)
        errors[name] = max(float((mine - right).norm() / right.norm()) for mine, right in pairs)
    allowed = 2 * errors["plain, bfloat16"] + torch.finfo(torch.bfloat16).eps
    if not (errors["regard, bfloat16"] <= allowed and errors["regard, float32"] <= 1e-4):
        sys.exit(f"correctness check failed: {errors}")
    return errors


def table(found: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = [
        "Whole training steps: copy of a batch to the device, loss, gradients, clipping and AdamW. Captured",
        "rows of Regard use the AdamW of its trainer; all other rows use torch's fused AdamW. Random tokens,",
        "all sequences of the full length, dropout 0.1 (none in the recurrent model), label smoothing 0.1,",
        "bfloat16 autocast unless the row names a precision. Wall-clock time, median and quartiles.",
        "",
        "| case | implementation | target tokens/s | ms per step (quartiles) | reserved MiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, case in found["cases"].items():
        for way, row in case["rows"].items():
            if "missing" in row:
                lines.append(f"| {name} | {way} | {row['missing']} | | |")
                continue
            spread = f"{row['milliseconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
            lines.append(
                f"| {name} | {way} | {row['tokens/s']:,.0f} | {spread} | {row['reserved MiB']:,.0f} |"
            )
    for name, case in found["cases"].items():
        if case.get("parts"):
            lines += ["", f"Parts of the step of {name}, device time of CUDA graphs:", ""]
            lines += ["| part | ms |", "| --- | --- |"]
            lines += [f"| {part} | {value} |" for part, value in case["parts"].items()]
    lines.append("")
    for name, case in found["cases"].items():
        if case["gate"]:
            errors = ", ".join(f"{way} {error:.1e}" for way, error in case["gate"].items())
            lines.append(f"Error of loss and gradients against float64, {name}: {errors}.")
    if found.get("note"):
        lines += ["", found["note"]]
    where = ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    return "\n".join([*lines, "", f"Measured on: {where}.", ""])


def main() -> None:
    """Check correctness, then measure training steps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_speed", description=main.__doc__)
    parser.add_argument("cases", nargs="*", help=f"names of cases (default: all): {', '.join(CASES)}")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder of the result files")
    parser.add_argument("--only", action="append", default=[], help="name of a row to measure, with *")
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row")
    parser.add_argument("--compile-limit", type=float, default=240.0, help="seconds to prepare a row")
    parser.add_argument("--parts", action="store_true", help="also measure the parts of a step")
    parser.add_argument("--no-rows", action="store_true", help="measure no whole steps")
    parser.add_argument("--note", help="a sentence for the record, such as the commit")
    parser.add_argument("--no-gate", action="store_true", help="skip the correctness check")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    where = environment() | {"gpu": torch.cuda.get_device_name()}
    found: dict[str, Any] = {"date": f"{datetime.date.today()}", "environment": where, "cases": {}}
    found["note"] = arguments.note
    for name in arguments.cases or CASES:
        case = CASES[name]
        errors = {} if arguments.no_gate else gate(case)
        record: dict[str, Any] = {"gate": errors, "rows": {}, "parts": {}}
        found["cases"][name] = record
        print(f"{name}: errors against float64: {errors}", flush=True)
        for way, prepare in [] if arguments.no_rows else ways(case):
            if arguments.only and not any(fnmatch.fnmatch(way, each) for each in arguments.only):
                continue
            record["rows"][way] = measured(case, prepare, arguments.seconds, arguments.compile_limit)
            print(f"{name}, {way}: {json.dumps(record['rows'][way])}", flush=True)
            _keep(arguments.into, found)
            gc.collect()
            torch.cuda.empty_cache()
    for name, record in found["cases"].items() if arguments.parts else ():
        for part, value in parts_of(CASES[name]):
            record["parts"][part] = value
            print(f"{name}, {part}: {value}", flush=True)
            _keep(arguments.into, found)
    print("\n" + table(found))


def _keep(folder: Path | None, found: dict[str, Any]) -> None:
    """Write the results so far."""
    if folder is not None:
        write_results(folder, f"{found['date']}-training-speed", found, table(found))


if __name__ == "__main__":
    main()
