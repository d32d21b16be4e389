"""Follow the section "Add a score" of CONTRIBUTING.md in a copy of the project, and run its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Add a score") : TEXT.index("## Add something else")]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.M | re.S)


def put(path: Path, text: str, mark: str) -> None:
    """Insert text into a file before the match of a regular expression."""
    source = path.read_text(encoding="utf-8")
    at = re.search(mark, source, re.M)
    assert at, f"{path.name} has no {mark}"
    path.write_text(source[: at.start()] + text + source[at.start() :], encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the project and add the score of CONTRIBUTING.md: its class, its line and its equation."""
    written, line, by_hand = BLOCKS
    copy = tmp_path_factory.mktemp("project")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    scores = copy / "src" / "regard" / "scores.py"
    put(scores, f"{written}\n\n", r"^SCORES: ")
    put(scores, line, r"(?<=,\n)^\}\n\n\ndef build_score")
    put(copy / "tests" / "test_scores.py", by_hand, r"(?<=,\n)^\}\nPROJECT = ")
    return copy


def run(copy: Path, *arguments: str) -> str:
    """Run this Python in the copy and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONIOENCODING": "utf-8", "COLUMNS": "120"}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_existing_tests_run_the_new_score(copy: Path):
    agreement = ["tests/agreement/test_backends.py", "tests/agreement/test_looking.py"]
    places = ["src/regard/scores.py", "tests/test_scores.py", *agreement]
    report = run(copy, "-m", "pytest", "-rA", "-k", "distance", "-m", "not slow and not gpu", *places)
    passed = re.findall(r"^PASSED \S*?(\w+\.py)::(\S+)", report, re.M)
    files = [name for name, _ in passed]
    assert files.count("test_backends.py") > 10 and files.count("test_looking.py") > 10
    assert ("test_scores.py", "test_each_score_agrees_with_its_equation[distance]") in passed
    assert ("scores.py", "regard.scores.Distance") in passed


def test_scores_file_stays_within_the_length_limit(copy: Path):
    text = (copy / "src" / "regard" / "scores.py").read_text(encoding="utf-8")
    assert "class Distance(Score):" in text


@pytest.fixture(scope="module")
def printed(copy: Path) -> str:
    """The docs table of scores and `regard backends`, printed by one process."""
    table = "import sys; sys.path.append('docs'); import page_tables; print(page_tables.scores())"
    command = "from regard.cli import main; print('regard backends'); main(['backends'])"
    return run(copy, "-c", f"{table}; {command}")


def test_command_line_lists_the_new_score(printed: str):
    _, shown = printed.split("regard backends\n")
    assert "distance" in shown and "-|q - k|^2 / 2D" in shown


def test_docs_table_lists_the_new_score(printed: str):
    row = r"| `distance` | `Distance` | `-\|q - k\|^2 / 2D` | inner | Nadaraya 1964 |"
    assert row in printed.splitlines()
