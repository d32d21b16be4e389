"""tests/mutants.py draws faults, writes each to a copy of the project, and counts those that tests catch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mutants
from tests.mutant_places import Mutant, Places, draw, room
from tests.reading import ROOT

SOURCE = '''"""A module of 3 lines."""
LIMIT = 3


def shorter(one: list[int], other: "Literal[7]", most: float = 0.5) -> bool:
    """Whether one is shorter than 9."""
    if len(one) <= LIMIT and not other:
        raise ValueError(f"{len(one) + 1} of 12")
    return sorted(one, key=len) [0] - 1 < other
'''


def lines_of(source: str) -> set[str]:
    """The changed lines of all mutants that are valid Python."""
    return {each.changed.strip() for each in Places("src/regard/a.py", source).found if each.compiles(source)}


def test_places_are_behaviour_and_no_wording():
    changed = lines_of(SOURCE)
    assert {
        "LIMIT = 4",
        "if len(one) < LIMIT and not other:",
        "if len(one) <= LIMIT or not other:",
    } <= changed
    assert {"if len(one) <= LIMIT and (other):", "if not (len(one) <= LIMIT and not other):"} <= changed
    assert {"return sorted(one, ) [0] - 1 < other", "return sorted(one, key=len) [0] + 1 < other"} <= changed
    assert any("most: float = 1.0" in line for line in changed)
    assert not any("Literal[8]" in line or "A module" in line or line.startswith("raise") for line in changed)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a if b else c", "x = a if (not (b)) else c"),
        ("x = [a for a in b if a]", "x = [a for a in b if True]"),
        ("x = '한' * 1, a[-1]", "x = '한' * 1, a[(1)]"),
        ("x = min(a, 2)", "x = max(a, 2)"),
        ("x.append(True)", "pass"),
        ("x.append(True)", "x.append(False)"),
        ("x += a // b", "x += a * b"),
        ("x = a is not b", "x = a is b"),
        ("x = call(a, b=c, d=e)", "x = call(a, d=e)"),
    ],
)
def test_each_kind_of_change(line: str, changed: str):
    assert changed in lines_of(line)


@pytest.mark.parametrize(
    "line", ["assert a < 1", "x: Tuple[1]", "x = f'{a + 1}'", "zip(a, strict=True)", "__all__ = [1]"]
)
def test_assertions_annotations_and_texts_stay(line: str):
    assert lines_of(line) <= {"pass"}


def test_a_draw_covers_every_room_and_changes_only_with_the_code():
    sources = {f"src/regard/{name}/a.py": SOURCE for name in "abc"}
    sources["src/regard/b/a.py"] = "".join(SOURCE.replace("shorter", name) for name in "wxyz")
    drawn = draw(sources, seed=0, count=12)
    assert [room(each.file) for each in drawn] == ["a"] * 2 + ["b"] * 8 + ["c"] * 2
    assert drawn == draw(sources, seed=0, count=12) != draw(sources, seed=1, count=12)
    moved = draw({**sources, "src/regard/a/a.py": "LINE = 1\n\n\n" + SOURCE}, seed=0, count=12)
    assert [each for each in moved if room(each.file) != "a"] == [e for e in drawn if room(e.file) != "a"]


def test_files_of_tests_are_ranked_by_name_and_imports():
    sources = {
        "src/regard/data/__init__.py": "from regard.data.noise import add\n",
        "src/regard/data/noise.py": "def add(): return 1 + 1\n",
        "tests/data/test_noise.py": "from regard.data.noise import add\n",
        "tests/data/test_others.py": "from regard.data import noise\n",
        "tests/layers/test_pooling.py": "import regard.data\n",
        "tests/layers/test_nothing.py": "x = 1\n",
        "tests/kernels/interpreted.py": "import regard.data.noise\n",
        "tests/benchmarks/test_noise.py": "import regard.data.noise\n",
    }
    mutant = Places("src/regard/data/noise.py", sources["src/regard/data/noise.py"]).found[0]
    assert mutants.Closeness(sources).closest(mutant) == [
        "tests/data/test_noise.py",
        "tests/data/test_others.py",
        "tests/layers/test_pooling.py",
        "tests/layers/test_nothing.py",
    ]


def test_a_mutant_is_in_the_copy_only_while_its_tests_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, seen = tmp_path / "a.py", list[str]()
    path.write_text(SOURCE, encoding="utf-8")

    def first_failure(tests: list[str], root: Path, seconds: float) -> str:
        seen.append((root / "a.py").read_text(encoding="utf-8"))
        return "tests/test_a.py::test" if len(seen) == 2 else ""

    monkeypatch.setattr(mutants, "first_failure", first_failure)
    mutant = Mutant("a.py", "LIMIT", 2, 8, 9, "4", "LIMIT = 3")
    tests = ["tests/kernels/interpreted.py", "tests/test_a.py"]
    assert mutants.tested(mutant, tests, tmp_path, 1.0) == "tests/test_a.py::test"
    assert (
        seen == [SOURCE.replace("LIMIT = 3", "LIMIT = 4")] * 2 and path.read_text(encoding="utf-8") == SOURCE
    )
    assert mutants.tested(mutant, tests[1:], tmp_path, 1.0) == ""


def test_accepted_survivors_have_a_place_and_a_reason():
    for name, reason in mutants.ACCEPTED.items():
        file = name.split()[0]
        assert reason and (ROOT / file).is_file(), f"{file} is no longer there: remove {name}"
