"""Two processes train like one process with batches twice as large, and log everything once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.errors import ArgumentError, LostProcess
from regard.training.distributed import Processes, joined
from tests.reading import ROOT, import_path
from tests.training.toys import records
from tests.training.two_processes import losses, main


def train_processes(
    processes: int, folder: Path, tokens: int, steps: str = "plain"
) -> list[tuple[float, float, int]]:
    """Train with this many processes, started by torchrun as users do, and return the losses."""
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT / "src", ROOT), "OMP_NUM_THREADS": "1"}
    environment["REGARD_CACHE"] = str(folder / "cache")
    script = ["-m", "tests.training.two_processes", str(folder), str(tokens), steps]
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    command = [sys.executable, *start, *script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return losses(folder)


def train_here(folder: Path, tokens: int) -> list[tuple[float, float, int]]:
    """Train in this process and return the losses."""
    threads = torch.get_num_threads()
    try:
        main(folder, tokens)
    finally:
        torch.set_num_threads(threads)
    return losses(folder)


def test_two_processes_have_the_losses_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    one, two = train_here(tmp_path / "one", 400), train_processes(2, tmp_path / "two", 200)
    assert len(one) == len(two) == 12
    assert [tokens for _, _, tokens in one] == [tokens for _, _, tokens in two]
    for (loss_one, norm_one, _), (loss_two, norm_two, _) in zip(one, two, strict=True):
        assert loss_two == pytest.approx(loss_one, rel=1e-6)
        assert norm_two == pytest.approx(norm_one, rel=1e-4)
    # A thread that frees a tensor while Python exits aborts the process.
    threads = "".join((tmp_path / "two" / f"threads-{rank}").read_text() for rank in range(2))
    assert "gloo" not in threads


def test_captured_steps_of_two_processes_exchange_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a fake device. If one process cannot capture its steps, none does, and the weights are the same."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    logged = []
    for steps in ("captured", "refused"):
        folder = tmp_path / steps
        logged.append(train_processes(2, folder, 200, steps))
        replayed = [int((folder / f"replayed-{rank}").read_text()) for rank in range(2)]
        # Two batches and one update per step. In the refused run, only the batches of the first step.
        assert replayed == ([36, 36] if steps == "captured" else [2, 0])
        assert len(records(folder, "capture")) == (0 if steps == "captured" else 1)
    assert len(logged[0]) == 12
    for captured, plain in zip(*logged, strict=True):
        assert captured == pytest.approx(plain, rel=1e-5)


@pytest.mark.gpu
def test_two_processes_on_one_gpu_have_the_losses_of_one(tmp_path: Path):
    """Both processes capture their steps by default, and gloo exchanges the gradients."""
    one = train_processes(1, tmp_path / "one", 400, "one GPU")
    two = train_processes(2, tmp_path / "two", 200, "one GPU")
    assert records(tmp_path / "two", "capture") == [] and len(two) == 12
    for (loss_one, norm_one, _), (loss_two, norm_two, _) in zip(one, two, strict=True):
        assert loss_two == pytest.approx(loss_one, rel=2e-3)
        assert norm_two == pytest.approx(norm_one, rel=2e-2)


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which is ignored after LostProcess."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, signals: None) -> pytest.MonkeyPatch:
    """The environment of the first of two processes, without a connection."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: int(os.environ["RANK"]))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return monkeypatch


def fail(module: str, error: Exception) -> None:
    """Raise an error from a function of this module."""
    exec("raise error", {"__name__": module, "error": error})


@pytest.mark.parametrize(
    ("module", "error", "lost"),
    [
        ("torch.distributed.distributed_c10d", RuntimeError("[pair.cc:537] Connection reset by peer"), True),
        ("torch.autograd.graph", RuntimeError("[pair.cc:537] Connection closed by peer"), True),
        ("torch.nn.functional", RuntimeError("shapes differ"), False),
        ("torch.autograd.graph", torch.OutOfMemoryError("out of memory"), False),
        ("somewhere", torch.distributed.DistBackendError("NCCL error"), True),
    ],
)
def test_lost_connection_is_an_error_with_a_hint(alone, module: str, error: Exception, lost: bool):
    with pytest.raises(LostProcess if lost else type(error)) as raised, joined("cpu"):
        fail(module, error)
    assert ("--resume" in str(raised.value)) == lost
    assert (signal.getsignal(signal.SIGTERM) == signal.SIG_IGN) == lost


@pytest.mark.parametrize(("rank", "expected"), [(0, LostProcess), (1, SystemExit)])
def test_sigterm_from_torchrun_is_reported_by_the_first_process(alone, rank: int, expected: type):
    alone.setenv("RANK", str(rank))
    with pytest.raises(expected), joined("cpu"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_while_an_error_is_raised_does_not_hide_it(alone, rank: int):
    """A lost connection is reported by the first two processes, another error only by the first."""
    alone.setenv("RANK", str(rank))
    lost = RuntimeError("[pair.cc:537] Connection reset by peer")
    with pytest.raises(LostProcess), joined("cpu"):
        try:
            fail("torch.distributed.distributed_c10d", lost)
        finally:
            signal.raise_signal(signal.SIGTERM)
    with pytest.raises(ArgumentError if rank == 0 else SystemExit), joined("cpu"):
        try:
            raise ArgumentError("width is 0")
        finally:
            signal.raise_signal(signal.SIGTERM)


START = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
KILLED = """
import os, sys, threading, time
from pathlib import Path
from regard.__main__ import main
def kill():
    while not list(Path("run").glob("step-*")):
        time.sleep(0.05)
    os.kill(os.getpid(), 9)
if os.environ["RANK"] == "1":
    threading.Thread(target=kill, daemon=True).start()
main()
"""
OTHER_SEED = """
import os, sys
from regard.__main__ import main
sys.argv += ["--seed", os.environ["RANK"]]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "text"),
    [
        (KILLED, ["--steps", "5000"], "--resume"),
        (OTHER_SEED, ["--steps", "2"], "seed: 0 -> 1"),
        (None, ["--model", "nothing"], "nothing"),
    ],
    ids=["killed", "other seed", "wrong setting"],
)
def test_errors_of_torchrun_are_printed_once(tmp_path: Path, script: str | None, options: list, text: str):
    start = [*START, "-m", "regard"]
    if script is not None:
        (tmp_path / "script.py").write_text(script)
        start = [*START, "script.py"]
    small = ["--set", "data.pairs=200", "--set", "model.width=16", "--set", "training.save_every=20"]
    train = ["train", "--built-in", "korean", *small, "--set", "evaluation.samples=0", "--output", "run"]
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment["REGARD_CACHE"] = str(tmp_path / "cache")
    ran = subprocess.run(
        [*start, *train, *options], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode and ran.stderr.count("regard: ") == 1 and "gloo" not in ran.stderr
    assert text in ran.stderr
    assert (tmp_path / "run").exists() == (script == KILLED)


def test_share_returns_its_argument_for_a_single_process():
    alone = Processes()
    assert alone.share(None) is None and alone.share({"a": [1, "b"]}) == {"a": [1, "b"]}


def test_torchrun_with_one_process_is_a_run_without_torchrun(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with joined("cpu") as processes:
        assert processes == Processes() and not torch.distributed.is_initialized()
