"""Every command says what it does, with examples to copy."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len

from regard import cli
from regard.cli import OLD_NAMES, app

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(name for name in cli.COMMANDS if name != "data")
DATA = ("check", "split", "fetch", "korean", "sample")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(command, name):
    said = command(name, "--help")
    assert (said.status, said.err) == (0, "")
    assert "Examples" in said.out and f"regard {name}" in said.out


def declared() -> dict[str, set[str]]:
    """The options of every command, by its name."""
    whole = typer.main.get_command(app)
    commands = {name: lazy.loaded for name, lazy in whole.commands.items()}
    commands |= commands["data"].commands
    return {name: {each for one in found.params for each in one.opts} for name, found in commands.items()}


def test_one_thing_has_one_name_in_every_command():
    assert {"split", "train", "view"} <= set(declared())
    for name, options in declared().items():
        assert not {f"--{old}" for old in OLD_NAMES} & options, name


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_what_was_called_otherwise_before_is_still_taken(command, old, new):
    takers = [name for name, options in declared().items() if f"--{new}" in options]
    assert takers
    for name in takers:
        group = ("data",) if name in ("fetch", "korean", "split") else ()
        said = command(*group, name, f"--{old}")  # it is known, and what is missing is its value
        assert said.status == 2 and "No such option" not in said.err and "requires an argument" in said.err


@pytest.mark.parametrize("name", [*COMMANDS, "data", *(f"data {each}" for each in DATA)])
def test_help_fits_a_narrow_terminal_and_cuts_no_word(command, name):
    said = command(*name.split(), "--help", width=80)
    assert said.status == 0 and max(map(cell_len, said.lines)) <= 80 and "…" not in said.out


def test_the_commands_that_use_a_run_are_there():
    assert set(COMMANDS) >= {"translate", "score", "evaluate", "align", "average", "show"}


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("train", "--help"), ("--verison",), ("trian",), ()]
)
def test_help_and_version_do_not_import_torch(arguments):
    code = (
        "import json, sys; from regard.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print(json.dumps(['torch' in sys.modules, 'numpy' in sys.modules]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [False, False]


def test_the_short_help_is_that_of_the_commands():
    for name, lazy in typer.main.get_command(app).commands.items():
        shown, own = lazy.help, lazy.loaded.help
        assert shown and inspect.cleandoc(shown) == inspect.cleandoc(own), name
