"""Every command says what it does, with examples to copy."""

from __future__ import annotations

import pytest
import typer
from rich.cells import cell_len

from regard.cli import TODAY, app

COMMANDS = sorted(each.callback.__name__ for each in app.registered_commands)
DATA = ("check", "split", "fetch", "korean", "sample")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(command, name):
    said = command(name, "--help")
    assert (said.status, said.err) == (0, "")
    assert "Examples" in said.out and f"regard {name}" in said.out


def declared() -> dict[str, set[str]]:
    """The options of every command, by its name."""
    whole = typer.main.get_command(app)
    commands = whole.commands | whole.commands["data"].commands
    return {name: {each for one in found.params for each in one.opts} for name, found in commands.items()}


def test_one_thing_has_one_name_in_every_command():
    assert {"split", "train", "view"} <= set(declared())
    for name, options in declared().items():
        assert not {f"--{old}" for old in TODAY} & options, name


@pytest.mark.parametrize(("old", "new"), TODAY.items())
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
