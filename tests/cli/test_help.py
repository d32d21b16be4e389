"""Every command says what it does, with examples to copy."""

from __future__ import annotations

import pytest

from regard.cli import app

COMMANDS = sorted(each.callback.__name__ for each in app.registered_commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(command, name):
    said = command(name, "--help")
    assert (said.status, said.err) == (0, "")
    assert "Examples" in said.out and f"regard {name}" in said.out


def test_the_commands_that_use_a_run_are_there():
    assert set(COMMANDS) >= {"translate", "score", "evaluate", "align", "average", "show"}
