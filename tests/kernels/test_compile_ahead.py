"""compile_ahead: kernels are compiled in threads instead of launched, and the training compiles no others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.kernels import compile_ahead
from regard.kernels.compile_ahead import compiled_launches, start_compiling
from regard.tasks.translation.first_kernels import LENGTHS, execute_steps, has_known_kernels
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build

MODEL = {"name": "transformer", "width": 32, "heads": 2, "inner": 64, "layers": 1}


def settings(**training: Any) -> TranslationSettings:
    return build(
        TranslationSettings, {"data": {"built_in": "korean"}, "model": MODEL, "training": training}, "test"
    )


class Kernel:
    """Stands for the class JITFunction of Triton: records how run() is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool, bool]] = []

    def run(self, number: int, *, grid: tuple[int, ...], warmup: bool) -> str:
        from triton.runtime._async_compile import active_mode

        self.calls.append((number, warmup, active_mode.get() is not None))
        return "compiled"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    from triton.runtime import jit

    monkeypatch.setattr(jit, "JITFunction", Kernel)
    return Kernel()


def test_launches_of_this_thread_are_only_compiled(kernel: Kernel):
    with compiled_launches():
        assert kernel.run(1, grid=(1,), warmup=False) is None
        other = threading.Thread(target=kernel.run, args=(2,), kwargs={"grid": (1,), "warmup": False})
        other.start()
        other.join()
    assert kernel.run(3, grid=(1,), warmup=False) == "compiled"
    assert kernel.calls == [(1, True, True), (2, False, False), (3, False, False)]


def test_launches_of_two_overlapping_threads(kernel: Kernel):
    """The first block ends while the second one is open; later launches run as usual."""
    original, opened, closed = Kernel.run, threading.Event(), threading.Event()

    def second() -> None:
        with compiled_launches():
            opened.set()
            assert closed.wait(10)
            assert kernel.run(2, grid=(1,), warmup=False) is None

    thread = threading.Thread(target=second)
    with compiled_launches():
        thread.start()
        assert opened.wait(10)
        assert kernel.run(1, grid=(1,), warmup=False) is None
    assert kernel.run(3, grid=(1,), warmup=False) == "compiled"
    closed.set()
    thread.join()
    assert [each[:2] for each in kernel.calls] == [(1, True), (3, False), (2, True)]
    assert Kernel.run is original


def test_launches_are_restored_after_an_error(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_ahead, "interpreting", lambda: False)

    def step() -> None:
        kernel.run(1, grid=(1,), warmup=False)
        raise ValueError("no memory")

    start_compiling(step)()
    kernel.run(2, grid=(1,), warmup=False)
    assert kernel.calls == [(1, True, True), (2, False, False)]


def test_steps_compute_all_gradients(monkeypatch: pytest.MonkeyPatch):
    lengths, grad = list[int](), torch.autograd.grad

    def checked(total: Any, parameters: Any, **options: Any) -> Any:
        gradients = grad(total, parameters, **options)
        assert all(each is not None and each.isfinite().all() for each in gradients)
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", checked)
    from regard.tasks.translation import first_kernels

    loss = first_kernels.model_loss
    monkeypatch.setattr(
        first_kernels, "model_loss", lambda *all: (lengths.append(all[2].shape[1]), loss(*all))[1]
    )
    execute_steps(settings(batch_tokens=64), torch.device("cpu"))
    assert lengths == list(LENGTHS)


def test_runs_with_other_losses_have_other_kernels():
    assert has_known_kernels(settings())
    assert not has_known_kernels(settings(guided_alignment=0.1))
    assert not has_known_kernels(settings(compile=True))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_compiles_no_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str):
    """All kernels of a step of any shape are compiled before, and the shapes of an epoch need no others."""
    from triton import knobs

    from regard.data.batch import Batch
    from regard.models import build_model
    from regard.training.losses import model_loss

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    chosen = settings(precision=precision, batch_tokens=2048)
    device = torch.device("cuda", torch.cuda.current_device())
    with compiled_launches():
        execute_steps(chosen, device)
    compiled: list[str] = []
    monkeypatch.setattr(
        knobs.runtime, "jit_cache_hook", lambda **named: compiled.append(named["repr"]) and False
    )
    model = build_model("transformer", 800, 800, **{k: v for k, v in MODEL.items() if k != "name"}).to(device)
    for length in (9, 12, 16, 20, 31, 32, 40, 63):
        pairs = [[5] * (length - 1 - row % 3) for row in range(2048 // length)]
        batch = Batch.collate(pairs, pairs).to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            total, _ = model_loss(model, batch, batch.labels, 0.1)
        total.backward()
        assert total.isfinite()
    assert compiled == []
