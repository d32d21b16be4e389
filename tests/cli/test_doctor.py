"""regard doctor: facts, missing optional items, and errors that set the exit status."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

import regard
from regard.cli import doctor, main
from regard.files import requirements
from regard.files.requirements import install_command, pip_command
from regard.runs import system_report
from regard.runs.system_report import SECTIONS, Fact


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `regard doctor` in this process; return exit status, standard output and standard error."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(["doctor", *arguments])
        result = capsys.readouterr()
        return caught.value.code, result.out, result.err

    return run


def facts(section: str) -> dict[str, Fact]:
    return {fact.name: fact for fact in SECTIONS[section]()}


def test_report_of_this_machine(run):
    status, shown, complaints = run()
    assert (status, complaints) == (0, "")
    for section in (*SECTIONS, "fast code", "check"):
        assert f"\n{section}" in f"\n{shown}"
    for word in (
        "Python",
        torch.__version__.split("+")[0],
        "sacrebleu",
        "memory",
        "C++ compiler",
        "agrees with the reference",
        "FastBahdanau",
    ):
        assert word in shown
    assert not re.search(r"\x1b", shown), "what is no terminal gets no colours"


@pytest.mark.parametrize("width", [50, 80, 140])
def test_output_fits_the_terminal(run, width):
    _, shown, _ = run(width=width)
    assert max(map(cell_len, shown.splitlines())) <= width


def test_json_has_the_same_facts(run):
    status, shown, complaints = run("--json")
    report = json.loads(shown)
    assert (status, complaints) == (0, "") and report.pop("well") is True
    assert list(report) == [*SECTIONS, "fast code", "check"]
    for section in report.values():
        for fact in section:
            assert set(fact) == {"name", "value", "state", "hint"}
            assert fact["state"] in doctor.STYLES and fact["name"]
    assert {fact["name"] for fact in report["check"]} >= {"attention on cpu", "tokenizer"}


def test_report_has_no_paths_or_user_names(run, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", "/somewhere/private")
    monkeypatch.setenv("MASTER_ADDR", "host.example.org")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["absent>=1; extra == 'lost'"])
    for arguments in ((), ("--json",)):
        _, shown, _ = run(*arguments)
        assert "REGARD_DATA" in shown and "absent>=1" in shown
        # The table has a command to copy, with the path of Python.
        paths = (str(Path.cwd()), sys.prefix, sys.executable) if arguments else ()
        for private in ("private", "example.org", "hush", *paths):
            assert private not in shown


def test_difference_from_the_reference_is_an_error(run, monkeypatch):
    right = regard.attention

    def wrong(*arguments, backend, **named):
        attended = right(*arguments, backend=backend, **named)
        return attended if backend == "reference" else attended._replace(output=attended.output * 1.01)

    monkeypatch.setattr(regard, "attention", wrong)
    status, shown, complaints = run(width=200)
    assert (status, complaints) == (1, "")
    assert "!!" in shown and "reference" in shown
    report = json.loads(run("--json")[1])
    assert report["well"] is False
    assert {fact["name"]: fact["state"] for fact in report["check"]}["attention on cpu"] == "wrong"


def test_nan_is_an_error(monkeypatch):
    monkeypatch.setattr(doctor, "_run", lambda x, score, backend: (x * float("nan"), x))
    fact, *_ = doctor.checks()
    assert fact.state == "wrong" and "differs from the reference by nan" in fact.value


def test_other_checks_run_after_one_raises(run, monkeypatch):
    def fail(*_, **__):
        raise OSError("the model is not there\nand more")

    monkeypatch.setattr(doctor, "train_tokenizer", fail)
    status, shown, _ = run("--json")
    attention, *_, tokenizer = json.loads(shown)["check"]
    assert status == 1 and attention["state"] == "well"
    assert (tokenizer["state"], tokenizer["value"]) == ("wrong", "the model is not there")


def test_random_state_is_unchanged():
    before = torch.get_rng_state()
    assert all(fact.state == "well" for fact in doctor.checks())
    assert torch.equal(before, torch.get_rng_state())


def made(monkeypatch, lines: list[str], installed: dict[str, str]) -> None:
    """Set the packages that Regard requires, and those that are installed."""

    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_missing_extras_have_an_install_command(monkeypatch):
    lines = [
        'matplotlib>=3.8; extra == "view"',
        'pillow>=10.3; extra == "view"',
        'absent>=0.111; extra == "lost"',
        'ancient>=4.3; extra == "old"',
        'elsewhere>=1; platform_system == "Elsewhere" and extra == "far"',
        'regard[lost,view]; extra == "all"',
    ]
    made(monkeypatch, lines, {"matplotlib": "3.11.2", "pillow": "10.3.0.post1", "ancient": "4.2.9"})
    report = facts("extras")
    assert set(report) == {"view", "lost", "old", "far"}
    assert report["view"] == Fact("view", "matplotlib 3.11.2, pillow 10.3.0.post1")
    assert report["lost"] == Fact("lost", "missing: absent", "lacking", install_command("lost"))
    assert report["old"].state == "lacking" and report["far"].value.startswith("not for ")


def test_missing_required_package_is_an_error(run, monkeypatch):
    made(monkeypatch, ["torch>=2.11", "sacrebleu>=2.4", "rich>=99"], {"torch": "2.13.0+cpu", "rich": "15.0"})
    report = facts("software")
    assert report["torch"].state == "well" and report["torch"].value.startswith("2.13.0+cpu, built for ")
    assert report["sacrebleu"] == Fact("sacrebleu", "not installed", "wrong", pip_command("sacrebleu>=2.4"))
    assert report["rich"].state == "wrong" and "at least 99" in report["rich"].value
    assert run()[0] == 1


def test_extras_are_unknown_without_metadata(monkeypatch):
    def fail(_):
        raise importlib.metadata.PackageNotFoundError("regard")

    monkeypatch.setattr(importlib.metadata, "requires", fail)
    monkeypatch.setattr(requirements, "_from_source", lambda _: [])
    assert [fact.state for fact in SECTIONS["extras"]()] == ["lacking"]


def test_gpu_facts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 4 << 30))
    named = types.SimpleNamespace(name="Big GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: named)
    report = facts("devices")
    expected = "Big GPU, 3.0 GiB free of 4.0 GiB, compute capability 9.0, bfloat16"
    assert report["cuda:0"].value == report["cuda:1"].value == expected

    def fail(_):
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert facts("devices")["cuda:1"].state == "wrong"


def test_gpu_that_torch_cannot_use_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    report = facts("devices")["cuda"]
    assert report.state == "lacking" and "nvidia-smi" in report.hint


def test_more_threads_than_cores_are_reported(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(system_report, "usable_cores", lambda: 2)
    report = facts("devices")["cpu"]
    assert (report.state, report.hint) == ("lacking", "OMP_NUM_THREADS=2")
    assert report.value.startswith("2 cores, torch uses 64 threads, ")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(system_report, "usable_cores", lambda: 1)
    assert facts("devices")["cpu"].value.startswith("1 core, torch uses 1 thread, ")


def test_limits_of_a_container(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal:  8388608 kB\nMemAvailable:  6291456 kB\n",
        "/sys/fs/cgroup/memory.max": f"{4 << 30}\n",
        "/sys/fs/cgroup/memory.current": f"{3 << 30}\n",
        "/sys/fs/cgroup/cpu.max": "50000 100000\n",
    }
    monkeypatch.setattr(system_report, "_read", lambda path: files.get(path, ""))
    assert system_report.memory() == (4 << 30, 1 << 30) and system_report.usable_cores() == 1
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert system_report.memory() == (8 << 30, 6 << 30)
    files.clear()
    assert system_report.memory()[0] >= 0 and system_report.usable_cores() >= 1


def test_missing_compiler_is_reported(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    report = facts("compiling")["C++ compiler"]
    assert report.state == "lacking" and "torch.compile" in report.value and "g++" in report.hint


def test_little_disk_space_is_reported(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 20))
    assert {fact.state for fact in SECTIONS["storage"]()} == {"lacking"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not writable" in facts("storage")["working folder"].value


def test_terminal_without_unicode_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert facts("terminal")["encoding"].state == "lacking"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    report = facts("terminal")
    assert report["encoding"].state == "well" and "a file or a pipe" in report["output"].value


def test_environment_variables_are_shown(monkeypatch):
    for name, value in (("OMP_NUM_THREADS", "3"), ("REGARD_SEED", ""), ("CUDA_VISIBLE_DEVICES", "0,1")):
        monkeypatch.setenv(name, value)
    report = facts("environment")
    assert report["OMP_NUM_THREADS"].value == "3" and report["REGARD_SEED"].value == "(empty)"
    assert report["CUDA_VISIBLE_DEVICES"].value == "0,1" and "PATH" not in report


def test_help_has_examples(run):
    status, shown, _ = run("--help")
    assert status == 0 and "Examples" in shown and "--json" in shown
