"""The packages that Regard requires, read from its metadata, and the commands that install them."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parents[3]
"""The folder that contains src/regard, if Regard runs from its source."""


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra (optional dependencies), such as "view".

    The command works in any folder, and installs into the environment of this Python. It names the packages
    of the extra and not regard[view], because Regard is not on a package index.

    >>> install_command("view")
    "...python... -m pip install 'matplotlib>=...' 'pillow>=...'"
    """
    packages = requirements().get(extra, [])
    return pip_command(*map(str, packages)) if packages else pip_command(f"{CLONE}[{extra}]")


def pip_command(*packages: str) -> str:
    """Return the shell command that installs packages into the environment of this Python.

    packages: arguments of pip install, such as "sacrebleu[ja]".
    """
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *packages])


def without_paths(command: str) -> str:
    """Replace the paths in a result of pip_command() by `python` and `regard`, to show it to other people."""
    return command.replace(shlex.quote(sys.executable or "python3"), "python").replace(str(CLONE), "regard")


@dataclass(frozen=True)
class Requirement:
    """A Python package that Regard requires, or that one of its extras requires.

    package: the name of the package.
    least: the lowest version that is accepted.
    system: the operating system on which the package is required. "": all systems.
    extra: the extra that requires the package. "": the package is always required.

    >>> read_requirement("triton>=3.6; platform_system == 'Linux' and extra == 'kernels'")
    Requirement(package='triton', least='3.6', system='Linux', extra='kernels')
    """

    package: str
    least: str
    system: str = ""
    extra: str = ""

    def __str__(self) -> str:
        return f"{self.package}>={self.least}" if self.least else self.package

    def newer_than(self, installed: str | None) -> bool:
        """Return whether the required version is newer than the installed version.

        The result is also True if the package is not installed.

        installed: the installed version, such as "3.6.1". None if the package is not installed.
        """
        return installed is None or _numbers(installed) < _numbers(self.least)


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", re.split(r"[+a-z]", written)[0])))


def read_requirement(line: str) -> Requirement:
    """Parse a requirement in package metadata, such as "triton>=3.6; extra == 'kernels'".

    Only two kinds of conditions after the semicolon are read: platform_system == and extra ==.
    """
    package = re.match(r"[\w.-]+", line)
    least = re.search(r">=\s*([\d.]+)", line.partition(";")[0])
    system, extra = (
        re.search(rf"{name}\s*==\s*['\"](\w+)", line) for name in ("platform_system", r"\bextra")
    )
    return Requirement(
        *(match[match.lastindex or 0] if match else "" for match in (package, least, system, extra))
    )


def requirements() -> dict[str, list[Requirement]]:
    """Return the packages that each extra requires, by the name of the extra. "" means no extra.

    The packages are read from the package metadata, or from pyproject.toml if Regard is not installed.
    """
    try:
        lines = importlib.metadata.requires("regard") or []
    except importlib.metadata.PackageNotFoundError:
        lines = _from_source(CLONE / "pyproject.toml")
    by_extra: dict[str, list[Requirement]] = {}
    for each in map(read_requirement, lines):
        by_extra.setdefault(each.extra, []).append(each)
    return by_extra


def _from_source(settings: Path) -> list[str]:
    try:
        project = tomllib.loads(settings.read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, ValueError):
        return []
    lines = list(project.get("dependencies", []))
    for extra, packages in project.get("optional-dependencies", {}).items():
        joined = (f"{line} and" if ";" in line else f"{line} ;" for line in packages)
        lines += [f"{each} extra == '{extra}'" for each in joined]
    return lines
