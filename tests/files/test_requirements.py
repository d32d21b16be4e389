"""The packages of the extras, and the commands that install them."""

import importlib.metadata
import shlex
import subprocess
import sys

from packaging.requirements import Requirement

from regard.files import requirements
from regard.files.requirements import CLONE, install_command, pip_command, read_requirement
from tests.reading import PACKAGE, ROOT, settings


def optional() -> dict[str, list[str]]:
    """The extras of pyproject.toml that name packages, without those that only combine other extras."""
    extras = settings()["project"]["optional-dependencies"]
    return {name: lines for name, lines in extras.items() if not lines[0].startswith("regard[")}


def without_metadata(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_extras_equal_those_of_pyproject():
    asked = settings()["project"]["optional-dependencies"]
    assert set(requirements.requirements()) - {""} <= set(asked), "the metadata may be of an older install"
    read = list(map(read_requirement, requirements._from_source(ROOT / "pyproject.toml")))
    assert {each.extra for each in read} == {"", *asked}
    assert all(each.package and (each.least or each.package == "regard") for each in read)
    assert [each.system for each in read if each.package == "triton"] == ["Linux"]
    assert requirements._from_source(ROOT / "tests" / "pyproject.toml") == []


def test_install_commands_name_the_packages_of_the_extra_for_this_python(monkeypatch):
    for installed in (True, False):
        for extra, lines in optional().items():
            words = shlex.split(install_command(extra))
            assert words[:4] == [sys.executable, "-m", "pip", "install"]
            named = [(each.name, each.specifier) for each in map(Requirement, words[4:])]
            expected = [(each.name, each.specifier) for each in map(Requirement, lines)]
            assert named == expected, (extra, installed)
        monkeypatch.setattr(importlib.metadata, "requires", without_metadata)


def test_a_shell_reads_the_command_as_intended(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my folder/bin/python")
    command = pip_command("pillow>=10.3", "sacrebleu[ja]", "a; rm")
    ran = subprocess.run(f"printf '%s\\n' {command}", shell=True, capture_output=True, text=True)
    words = ["-m", "pip", "install", "pillow>=10.3", "sacrebleu[ja]", "a; rm"]
    assert ran.stdout.splitlines() == ["/my folder/bin/python", *words]


def test_unknown_extra_is_installed_from_the_clone():
    assert CLONE == ROOT and shlex.split(install_command("new"))[-1] == f"{ROOT}[new]"


def test_no_other_module_writes_a_pip_command():
    files = [path for path in PACKAGE.rglob("*.py") if "pip install" in path.read_text(encoding="utf-8")]
    assert [path.name for path in files] == ["requirements.py"]
