"""The commands of the README run, and its tree is complete; tests/docs/test_docs.py runs its Python."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from regard.cli import main
from tests.reading import PACKAGE, ROOT, settings, short, texts

COMMAND = r"(?:make|regard|pip3?|python3?|git|cd|sudo|\./[^\s`]+|\.venv/bin/[^\s`]+)(?: [^\s`]+)"
SHORTER = {"--minutes 5": "--steps 20", "--pairs 40000": "--pairs 400", "make demo": "make demo ARGS=--quick"}
"""Replacements that make long commands short."""

VIEW_MODEL = 'regard view --huggingface FOLDER "The animal did not cross the street"'

LEFT_OUT = {"make test", "make docs", "pip install .", VIEW_MODEL}
"""Commands that are not run here: the test suite, the site (tests/docs/test_site.py), an installation, and a
command that needs a model (tests/cli/test_view_huggingface.py)."""


def commands(text: str) -> Iterator[str]:
    """Yield the commands in shell blocks, in indented blocks and in the text of a page."""
    blocks = "".join(re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.M | re.S))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for line in blocks.splitlines():
        yield re.split(r" {2,}| #", line.removeprefix("$ ").strip())[0]
    yield from re.findall(rf"^ {{4}}({COMMAND}*)(?: {{2,}}|$)", prose, re.M)
    yield from re.findall(rf"`({COMMAND}+)`", prose)


README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS = [each for each in dict.fromkeys(commands(README)) if each]


def recipe(target: str) -> str:
    """Return the recipe of a make target."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert match, f"the Makefile has no recipe for {target}"
    return match[1].replace("\t", "").strip()


def here(command: str) -> list[str]:
    """Return a command as it can run here: without .venv, the recipe of a make target with this Python."""
    words = shlex.split(command)
    if words[0] == "make":
        fresh = shutil.which("make") and not call(["make", "--question", ".venv/base"]).returncode
        if fresh:
            return words
        arguments = " ".join(word.removeprefix("ARGS=") for word in words[2:])
        words = shlex.split(recipe(words[1]).replace("$(ARGS)", arguments))
    name = words[0].removeprefix(".venv/bin/")
    options = {"regard": ["-m", "regard"], "python": [], "python3": []}
    assert name in options, f"add a way to run {command!r} in this test"
    return [sys.executable, *options[name], *words[1:]]


def call(words: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command without the environment variables of the `make test` that runs this test."""
    ours = ("MAKE", "MFLAGS", "ARGS", "PYTEST_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTHONPATH": str(PACKAGE.parent), "PYTHONIOENCODING": "utf-8"}
    environment |= {"REGARD_CACHE": str(folder / "cache")} if folder != ROOT else {}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=3600
    )


def test_readme_has_make_demo_and_make_test():
    assert {"make demo", "make test"} <= set(COMMANDS)
    assert set(COMMANDS) >= LEFT_OUT


def test_readme_explains_how_to_put_the_command_on_the_path():
    assert "`. .venv/bin/activate`" in README and "`pip install .`" in README
    assert settings()["project"]["scripts"] == {"regard": "regard.__main__:main"}


@pytest.fixture
def run_regard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[list[str]], tuple[int, str, str]]]:
    """Run `regard` with arguments in this process, which has imported torch; return status and outputs."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def run(arguments: list[str]) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code, *capsys.readouterr()

    yield run
    torch.set_num_threads(threads)


def test_readme_commands_run_in_order(tmp_path: Path, run_regard: Callable):
    """`make` starts a process; other commands run here, without another import of torch."""
    for command in [each for each in COMMANDS if each not in LEFT_OUT]:
        short = command
        for long, tried in SHORTER.items():
            short = short.replace(long, tried)
        if short.startswith("make"):
            short = short.replace("ARGS=--quick", f"ARGS='--quick --output {tmp_path / 'demo'}'")
        words = shlex.split(short)
        if words[0] == "regard":
            status, output, errors = run_regard(words[1:])
        else:
            ran = call(here(short), ROOT if short.startswith("make") else tmp_path)
            status, output, errors = ran.returncode, ran.stdout, ran.stderr
        assert status == 0, f"{command}\n{errors}"
        assert (output + errors).strip() and "Traceback" not in errors, command


@pytest.mark.slow
def test_readme_training_reaches_90_bleu(tmp_path: Path):
    block = README[README.index("## Train your own") :]
    make, train, translate, _ = re.search(r"^```sh\n(.*?)^```", block, re.M | re.S)[1].splitlines()  # type: ignore[index]
    for command in (make, train, translate):
        ran = call(here(command), tmp_path)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    assert "I am a cat" in ran.stdout
    records = map(json.loads, (tmp_path / "runs/first/log.jsonl").read_text("ascii").splitlines())
    assert max(each["bleu"] for each in records if each["kind"] == "evaluation") >= 90


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "pytest"])
def test_make_test_fails_if_lint_types_or_tests_fail(tmp_path: Path, failing: str):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("ruff", "mypy", "pytest", "python"):
        tool = tmp_path / ".venv/bin" / name
        tool.write_text(f'#!/bin/sh\necho "report: {name} $*"\nexit {int(name == failing)}\n')
        tool.chmod(0o755)
    for name in ("base", "dev"):
        (tmp_path / ".venv" / name).touch()
    ran = call(["make", "test"], tmp_path)
    assert (ran.returncode == 0) == (not failing), ran.stderr
    reports = re.findall(r"^report: (\w+ ?\w*)", ran.stdout, re.M)
    assert sorted(reports) == sorted(
        ["ruff check"] if failing == "ruff" else ["ruff check", "ruff format", "mypy ", "pytest "]
    )
    assert ("mypy" in ran.stderr) == (failing == "mypy")


def test_ci_runs_make_test():
    ci = ROOT / ".ci" / "run"
    commands = [line for line in ci.read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make test", "make docs ARGS=--check", "make test-plain", "make test-users"]
    assert os.access(ci, os.X_OK)


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    named = {
        (short(path), command.split()[1])
        for path, text in texts().items()
        if path.suffix == ".md"
        for command in commands(text)
        if re.match(r"make [a-z]", command)
    }
    assert named and [(page, target) for page, target in named if target not in targets] == []


def test_readme_tree_has_every_module():
    tree = re.search(r"^ {4}src/regard/\n((?: {4}.*\n)+)", README, re.M)
    assert tree
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in modules | folders if not re.search(rf"\b{re.escape(name)}", tree[1])} == set()
