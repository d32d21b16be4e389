"""The help of every command: examples, width, and no import of torch."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len

from regard import cli
from regard.cli import app
from regard.tasks.task_table import TASKS
from tests.facts import commands, mentions

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(name for name in cli.COMMANDS if name != "data")
BELOW = (*(f"data {each}" for each in ("check", "split", "fetch", "korean", "sample")), "cache clear")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(command, name):
    result = command(name, "--help")
    assert (result.status, result.err) == (0, "")
    assert "Examples" in result.out and f"regard {name}" in result.out


@pytest.mark.parametrize("name", [*COMMANDS, "data", *BELOW])
@pytest.mark.parametrize("width", [60, 80])
def test_help_fits_the_terminal_without_truncated_words(command, name, width):
    result = command(*name.split(), "--help", width=width)
    assert result.status == 0 and max(map(cell_len, result.lines)) <= width and "…" not in result.out


@pytest.mark.parametrize("words", ["", "train", "data", "data check"])
def test_help_is_a_command_too(command, words):
    result, same = command("help", *words.split()), command(*words.split(), "--help")
    assert result.status == 0 and result == same
    assert command("help", "trian").status == 2


def test_help_lists_commands_in_groups(command):
    assert list(panels(command("--help").out)) == ["Options", *dict.fromkeys(cli.COMMANDS.values())]


def test_help_of_train_lists_the_most_used_options_first(command):
    found = panels(command("train", "--help").out)
    assert next(iter(found)) == "Most used" and list(found)[-1] == "Help"
    options = re.findall(r"^[ *]{1,4}(--[\w-]+)", "\n".join(found["Most used"]), re.MULTILINE)
    assert len(options) == 10 and {"--source", "--tsv", "--minutes"} <= set(options)


def panels(text: str) -> dict[str, list[str]]:
    """Return the lines of each panel of a help text, by its title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("╭─"):
            found[title := line.strip("╭─╮ ")] = []
        elif line.startswith("│"):
            found[title].append(line.strip("│"))
    return found


def test_commands_that_use_a_run_exist():
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
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == [False, False]


def test_help_read_from_source_equals_the_docstring():
    for name, lazy in typer.main.get_command(app).commands.items():
        from_source, from_module = lazy.help, lazy.loaded.help
        assert from_source and inspect.cleandoc(from_source) == inspect.cleandoc(from_module), name


def test_help_of_train_covers_every_task(command):
    text = " ".join(command("train", "--help", width=400).out.split())
    assert mentions(text, "classification", "--tsv") and "label,text,second" in text
    model = text.partition("[default: (bahdanau; ")[2].partition(")]")[0]
    assert set(model.split("; ")) == {
        "lstm for language, classification",
        "captioner for captioning",
        "end-to-end for answering",
        "ntm for algorithms",
    }
    for option in ("--tsv", "--jsonl", "--columns", "--train-file"):
        line = next(part for part in text.split("│") if part.split()[:1] == [option])
        assert "lassification" in line, option


def test_help_of_evaluate_covers_every_task(command):
    text = " ".join(command("evaluate", "--help", width=400).out.split())
    for task in TASKS:
        assert f"{task.capitalize()} models:" in text or f"{task.capitalize()}:" in text, task
    line = next(part for part in text.split("│") if part.split()[:1] == ["--jsonl"])
    assert "stories" in line


def test_help_covers_language_models_and_classifiers(command):
    text = command("--help", width=200).out
    assert mentions(text.lower(), "language", "classif", "caption", "memory")
    assert {"generate", "classify"} <= set(text.split()) and "help" in commands(text)
    text = command("generate", "--help", width=400).out
    lines = [line for line in text.splitlines() if "--length-penalty" in line or "--sample " in line]
    assert len(lines) >= 2 and not [line for line in lines if "translation" in line or "of beam" in line]
