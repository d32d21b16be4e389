"""Run the CUDA suite at tiny sizes on the CPU, with the kernels in the Triton interpreter.

test_suites.py runs this file in a new process and reads the record that it prints.
"""

from __future__ import annotations

import json
import time

import torch
from triton.runtime import interpreter

from benchmarks.additive import Shape, additive_case
from benchmarks.dot import Heads, dot_case, masked_case
from benchmarks.lengths import additive_lengths, dot_lengths
from benchmarks.looks import look_case
from benchmarks.measure import Processor, Timing
from benchmarks.running import Budget, Run

_patched = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor, scope):
    """Patch Triton 3.6, which passes arrays with one element to range(); newer numpy refuses them."""
    _patched(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


class Stand(Processor):
    """A fake device that runs on the CPU; its memory is 1 MiB, so that some peers do not fit."""

    memory = 2.0**20

    def __init__(self):
        pass

    def timed(self, run, seconds):
        start = time.perf_counter()
        run()
        taken = (time.perf_counter() - start) * 1000
        return Timing(taken, taken, taken, 1, "once")

    def peak(self, run, case, number):
        return 1.0

    def clean(self):
        torch._dynamo.reset()


CASES = {
    "short": lambda: additive_case(Shape(2, 5, 7, 16), device="cpu"),
    "padded": lambda: additive_case(Shape(2, 6, 9, 16, "padding"), ("float32",), (2,), "cpu"),
    "causal": lambda: additive_case(Shape(1, 9, 9, 16, "causal"), ("float32",), (2,), "cpu"),
    "large": lambda: additive_case(Shape(1, 100, 100, 32), ("bfloat16",), (2,), "cpu", "blocked"),
    "dot": lambda: dot_case(Heads(1, 2, 32, 16, "causal"), "cpu"),
    "window": lambda: masked_case(Heads(1, 2, 32, 16, "window", 8), "cpu", turn=0),
    "documents": lambda: masked_case(Heads(1, 2, 32, 16, "documents", 8), "cpu", turn=1),
    "looks": lambda: look_case(Heads(1, 2, 32, 16), "cpu"),
    "additive-lengths": lambda: additive_lengths((4, 8), 16, "cpu", 8),
    "dot-lengths": lambda: dot_lengths((16, 32), 2, 16, "cpu", 32),
}


def main() -> None:
    interpreter._patch_lang_tensor = _patch_lang_tensor
    cases = {name: make() for name, make in CASES.items()}
    run = Run(cases, Stand(), Budget(seconds=0.01, turns=0), lambda found: None, lambda line: None)
    print(json.dumps(run()))


if __name__ == "__main__":
    main()
