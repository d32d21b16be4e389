"""Read the files of the project, for tests about the project itself."""

from __future__ import annotations

import ast
import fnmatch
import functools
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regard"


def import_path(*folders: Path) -> str:
    """Return PYTHONPATH with these folders first, for a process that a test starts."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*map(str, folders), *inherited])


def short(path: Path) -> str:
    """Return a path relative to the root of the project."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def files() -> tuple[Path, ...]:
    """Return every file of the project that git tracks or would add; without git, by .gitignore."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if listed.returncode == 0:
            paths = (ROOT / name for name in listed.stdout.split("\0") if name)
            return tuple(sorted(path for path in set(paths) if path.is_file()))
    return tuple(sorted(_walk()))


def _walk() -> Iterator[Path]:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()] + [".git"]

    def kept(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]

    for folder, folders, names in os.walk(ROOT):
        folders[:] = kept(folders)
        yield from (Path(folder, name) for name in kept(names))


@functools.cache
def texts() -> dict[Path, str]:
    """Return the content of every text file."""
    found = {}
    for path in files():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), short(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the syntax tree of a Python file; many tests walk through the same files."""
    return tuple(ast.walk(parsed(path)))


def python(*folders: str) -> list[Path]:
    """Return the Python files under these folders of the project."""
    return [path for path in files() if path.suffix == ".py" and short(path).split("/")[0] in folders]


def settings() -> dict:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
