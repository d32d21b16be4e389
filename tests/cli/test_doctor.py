"""regard doctor: what it finds, what it says is lacking, and that what is broken fails."""

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
from regard.errors import install_command
from regard.runs import system_report
from regard.runs.system_report import SECTIONS, Fact, read_requirement, requirements
from tests.reading import settings


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `regard doctor` here; gives its exit status, what it printed and what it complained of."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(["doctor", *arguments])
        said = capsys.readouterr()
        return caught.value.code, said.out, said.err

    return run


def facts(section: str) -> dict[str, Fact]:
    return {fact.name: fact for fact in SECTIONS[section]()}


def test_it_says_what_there_is(run):
    status, shown, complaints = run()
    assert (status, complaints) == (0, "")
    for section in (*SECTIONS, "check"):
        assert f"\n{section}" in f"\n{shown}"
    for word in (
        "Python",
        torch.__version__.split("+")[0],
        "sacrebleu",
        "memory",
        "C++ compiler",
        "agrees with the reference",
    ):
        assert word in shown
    assert not re.search(r"\x1b", shown), "what is no terminal gets no colours"


@pytest.mark.parametrize("width", [50, 80, 140])
def test_nothing_is_wider_than_the_terminal(run, width):
    _, shown, _ = run(width=width)
    assert max(map(cell_len, shown.splitlines())) <= width


def test_json_holds_the_same(run):
    status, shown, complaints = run("--json")
    found = json.loads(shown)
    assert (status, complaints) == (0, "") and found.pop("well") is True
    assert list(found) == [*SECTIONS, "check"]
    for section in found.values():
        for fact in section:
            assert set(fact) == {"name", "value", "state", "hint"}
            assert fact["state"] in doctor.STYLES and fact["name"]
    assert {fact["name"] for fact in found["check"]} >= {"attention on cpu", "tokenizer"}


def test_no_folder_and_no_user_is_named(run, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", "/somewhere/private")
    monkeypatch.setenv("MASTER_ADDR", "host.example.org")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    for arguments in ((), ("--json",)):
        _, shown, _ = run(*arguments)
        assert "REGARD_DATA" in shown
        for private in ("private", "example.org", "hush", str(Path.cwd()), sys.prefix):
            assert private not in shown


def test_the_reference_and_auto_must_agree(run, monkeypatch):
    right = regard.attention

    def wrong(*arguments, backend, **named):
        found = right(*arguments, backend=backend, **named)
        return found if backend == "reference" else found._replace(output=found.output * 1.01)

    monkeypatch.setattr(regard, "attention", wrong)
    status, shown, complaints = run(width=200)
    assert (status, complaints) == (1, "")
    assert "!!" in shown and "differs from the reference by" in shown and "problems found" in shown
    assert json.loads(run("--json")[1])["well"] is False


def test_nan_is_no_agreement(monkeypatch):
    monkeypatch.setattr(doctor, "_run", lambda x, score, backend: (x * float("nan"), x))
    fact, *_ = doctor.checks()
    assert fact.state == "wrong" and "differs from the reference by nan" in fact.value


def test_a_check_that_raises_is_told_and_the_others_still_run(run, monkeypatch):
    def fail(*_, **__):
        raise OSError("the model is not there\nand more")

    monkeypatch.setattr(doctor, "train_tokenizer", fail)
    status, shown, _ = run("--json")
    attention, *_, tokenizer = json.loads(shown)["check"]
    assert status == 1 and attention["state"] == "well"
    assert (tokenizer["state"], tokenizer["value"]) == ("wrong", "the model is not there")


def test_it_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    assert all(fact.state == "well" for fact in doctor.checks())
    assert torch.equal(before, torch.get_rng_state())


def test_extras_are_those_of_the_project():
    asked = settings()["project"]["optional-dependencies"]
    assert set(requirements()) - {""} <= set(asked), "the metadata may be of an older install"
    lines = system_report._from_source(Path(__file__).parents[2] / "pyproject.toml")
    read = list(map(read_requirement, lines))
    assert {each.extra for each in read} == {"", *asked}
    assert all(each.package and (each.least or each.package == "regard") for each in read)
    assert [each.system for each in read if each.package == "triton"] == ["Linux"]
    assert system_report._from_source(Path(__file__).parent / "pyproject.toml") == []


def made(monkeypatch, lines: list[str], installed: dict[str, str]) -> None:
    """Let Regard ask for these packages, and those be installed."""

    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_extras_are_there_or_told_how_to_get(monkeypatch):
    lines = [
        'matplotlib>=3.8; extra == "view"',
        'pillow>=10.3; extra == "view"',
        'absent>=0.111; extra == "lost"',
        'ancient>=4.3; extra == "old"',
        'elsewhere>=1; platform_system == "Elsewhere" and extra == "far"',
        'regard[lost,view]; extra == "all"',
    ]
    made(monkeypatch, lines, {"matplotlib": "3.11.2", "pillow": "10.3.0.post1", "ancient": "4.2.9"})
    found = facts("extras")
    assert set(found) == {"view", "lost", "old", "far"}
    assert found["view"] == Fact("view", "matplotlib 3.11.2, pillow 10.3.0.post1")
    assert found["lost"] == Fact("lost", "missing: absent", "lacking", install_command("lost"))
    assert found["old"].state == "lacking" and found["far"].value.startswith("not for ")


def test_what_is_necessary_and_missing_is_wrong(run, monkeypatch):
    made(monkeypatch, ["torch>=2.11", "sacrebleu>=2.4", "rich>=99"], {"torch": "2.13.0+cpu", "rich": "15.0"})
    found = facts("software")
    assert found["torch"].state == "well" and found["torch"].value.startswith("2.13.0+cpu, built for ")
    assert found["sacrebleu"] == Fact("sacrebleu", "not installed", "wrong", "pip install 'sacrebleu>=2.4'")
    assert found["rich"].state == "wrong" and "at least 99" in found["rich"].value
    assert run()[0] == 1


def test_without_metadata_the_extras_are_not_known(monkeypatch):
    def fail(_):
        raise importlib.metadata.PackageNotFoundError("regard")

    monkeypatch.setattr(importlib.metadata, "requires", fail)
    monkeypatch.setattr(system_report, "_from_source", lambda _: [])
    assert [fact.state for fact in SECTIONS["extras"]()] == ["lacking"]


def test_a_gpu_is_told_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 4 << 30))
    named = types.SimpleNamespace(name="Big GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: named)
    found = facts("devices")
    expected = "Big GPU, 3.0 GiB free of 4.0 GiB, compute capability 9.0, bfloat16"
    assert found["cuda:0"].value == found["cuda:1"].value == expected

    def fail(_):
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert facts("devices")["cuda:1"].state == "wrong"


def test_a_gpu_that_torch_cannot_find_is_lacking(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = facts("devices")["cuda"]
    assert found.state == "lacking" and "nvidia-smi" in found.hint


def test_more_threads_than_cores_are_told_of(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(system_report, "usable_cores", lambda: 2)
    found = facts("devices")["cpu"]
    assert (found.state, found.hint) == ("lacking", "OMP_NUM_THREADS=2")


def test_a_container_has_what_it_may_use(monkeypatch):
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


def test_a_machine_without_a_compiler_is_told_what_it_cannot_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = facts("compiling")["C++ compiler"]
    assert found.state == "lacking" and "torch.compile" in found.value and "g++" in found.hint


def test_little_room_is_told_of(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 20))
    assert {fact.state for fact in SECTIONS["storage"]()} == {"lacking"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not writable" in facts("storage")["working folder"].value


def test_a_terminal_without_korean_is_told_of(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert facts("terminal")["encoding"].state == "lacking"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    found = facts("terminal")
    assert found["encoding"].state == "well" and "a file or a pipe" in found["output"].value


def test_variables_that_matter_are_shown(monkeypatch):
    for name, value in (("OMP_NUM_THREADS", "3"), ("REGARD_SEED", ""), ("CUDA_VISIBLE_DEVICES", "0,1")):
        monkeypatch.setenv(name, value)
    found = facts("environment")
    assert found["OMP_NUM_THREADS"].value == "3" and found["REGARD_SEED"].value == "(empty)"
    assert found["CUDA_VISIBLE_DEVICES"].value == "0,1" and "PATH" not in found


def test_help_has_examples(run):
    status, shown, _ = run("--help")
    assert status == 0 and "Examples" in shown and "regard doctor --json" in shown
