"""tests/processors.py runs tests with the instructions of other processors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.processors import NUMERICAL, SETTINGS, environment, main, supported
from tests.reading import ROOT

OTHERS = {"benchmarks", "browser", "cli", "data", "docs", "export", "files", "learning", "viewing"}
"""Folders of tests that are about text, files and pages, or that train for long."""


def test_every_folder_with_numerical_tests_is_listed():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    listed = {path.removeprefix("tests/") for path in NUMERICAL if path.count("/") == 1}
    assert folders - listed == OTHERS and not OTHERS & listed


def test_a_processor_runs_the_settings_of_older_ones():
    assert supported("AVX512") == list(SETTINGS)
    assert supported("AVX2") == ["DEFAULT", "AVX2"]
    assert supported("NO AVX") == []
    assert all((ROOT / path).exists() for path in NUMERICAL)


def test_a_failure_with_one_setting_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fails = "import os, sys; print('= 1 test ='); sys.exit(os.environ['ATEN_CPU_CAPABILITY'] == 'avx2')"
    start = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[str]:
        assert command[-2:] == ["-k", "masks"]
        return start([sys.executable, "-S", "-c", fails], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", instead)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for capability, status in (("DEFAULT", 0), ("AVX2", 1)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        assert main(["-k", "masks"]) == status
        of_settings = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[-3:]]
        assert [name for name, _ in of_settings] == list(SETTINGS)
        assert of_settings[0][1] == "1 test" and "not supported" in of_settings[2][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", supported(torch.backends.cpu.get_cpu_capability()))
def test_torch_uses_the_code_of_a_setting(name: str, tmp_path: Path):
    command = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    ours = environment(name, tmp_path)
    output = subprocess.run(command, env=ours, capture_output=True, text=True, check=True).stdout
    assert output.split() == [name] and ours["PATH"] == os.environ["PATH"]


@pytest.mark.slow
def test_reliability_page_has_about_the_number_of_tests():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    (number,) = re.findall(r"^\| processors: .* \| ([\d,]+) tests, three times \|", page, re.M)
    options = "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu"
    command = [sys.executable, "-m", "pytest", *options, *NUMERICAL]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    (count,) = re.findall(r"^(\d+)(?:/\d+)? tests collected", listed, re.M)
    assert len(SETTINGS) == 3 and int(count) == pytest.approx(int(number.replace(",", "")), rel=0.1)


def test_make_test_all_runs_the_tests_of_processors():
    assert "python -m tests.processors $(ARGS)" in (ROOT / "Makefile").read_text(encoding="utf-8")
