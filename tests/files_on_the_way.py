"""Which files of src/regard a call, a training step, a search step and a command run through.

    python -m tests.files_on_the_way            print the lists
    python -m tests.files_on_the_way --write    and write them into docs/design.md, with the counts below
    python -m tests.files_on_the_way --commands print how many files `regard train` and `regard translate` use

A file counts if one of its functions runs; importing it does not count. A list has the files in the order of
their first call. Caches are filled by earlier calls, and all random seeds are fixed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console

import regard
from regard.data import korean_english
from regard.decoding import Beam
from regard.tasks.translation import train_translation
from regard.training.gradients import Gradients
from tests.reading import PACKAGE, ROOT

__all__ = ["DESIGN", "MOST", "block", "checked_call", "direct_call", "every_list", "written"]

DESIGN = ROOT / "docs" / "design.md"

MOST = {"direct call": 5, "checked call": 15, "training step": 22, "search step": 8}
"""The largest number of files that a list may have."""

TRACED = 3
"""The step that is traced: imports and caches of the first steps are left out."""

EXPLAINED = 25
"""Lists of at most this many files say what each file does."""


@contextlib.contextmanager
def traced(files: list[str]) -> Iterator[None]:
    """Add the files of the package whose functions run in this thread, in the order of their first call."""
    prefix = f"{PACKAGE}/"

    def profile(frame: Any, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(prefix) and frame.f_code.co_name != "<module>":
            name = path.removeprefix(prefix)
            if name not in files:
                files.append(name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def second_call(function: Callable[[], object]) -> list[str]:
    """Return the files of the second call of a function; the first call fills the caches."""
    function()
    files: list[str] = []
    with traced(files):
        function()
    return files


def direct_call() -> list[str]:
    """The files of attention(query, key, value) on a CPU."""
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    return second_call(lambda: regard.attention(query, key, value))


def checked_call() -> list[str]:
    """The files of a call with a causal mask that requests the weights, on a CPU."""
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    options: dict[str, Any] = {"mask": regard.causal(), "look": regard.Look(weights=True)}
    return second_call(lambda: regard.attention(query, key, value, **options))


def train(folder: Path) -> tuple[Path, list[str]]:
    """Train a small Transformer; return its run folder, and the files of a forward and backward pass."""
    pairs = list(korean_english("train", count=400))
    for name, lines in (("a.ko", [pair.source for pair in pairs]), ("a.en", [pair.target for pair in pairs])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings = {
        "data": {"source": [str(folder / "a.ko")], "target": [str(folder / "a.en")]},
        "model": {"name": "transformer", "size": "tiny"},
        "training": {"steps": TRACED + 1, "precision": "float32"},  # "auto" depends on the processor
        "evaluation": {"sentences": 4},
    }
    files: list[str] = []
    passes = [0]
    original = Gradients.of_one

    def of_one(self: Gradients, *arguments: Any, **options: Any) -> Any:
        passes[0] += 1
        with traced(files) if passes[0] == TRACED else contextlib.nullcontext():
            return original(self, *arguments, **options)

    with mock.patch.object(Gradients, "of_one", of_one):
        train_translation(settings, folder / "run", console=Console(quiet=True))
    return folder / "run", files


def search_step(run: Path) -> list[str]:
    """The files of one step of beam search with the model of train(), from one decoder step to the next."""
    translator = regard.load(run)
    translator.translate("나는 고양이로소이다", search=Beam(3))
    steps: list[list[str]] = []
    prefix = f"{PACKAGE}/"

    def profile(frame: Any, event: str, argument: object) -> None:
        path, function = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or not path.startswith(prefix):
            return
        name = path.removeprefix(prefix)
        if function == "step" and (name.startswith("models/") or name.endswith("_decoder.py")):
            steps.append([])
        if steps and name not in steps[-1]:
            steps[-1].append(name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        translator.translate("나는 고양이로소이다", search=Beam(3))
    finally:
        sys.setprofile(before)
    return steps[1]


def every_list() -> dict[str, list[str]]:
    """Return all lists, by the names that docs/design.md shows."""
    lists = {"direct call": direct_call(), "checked call": checked_call()}
    with tempfile.TemporaryDirectory() as folder:
        run, lists["training step"] = train(Path(folder))
        lists["search step"] = search_step(run)
    return lists


def summary(name: str) -> str:
    """Return the first sentence of the docstring of a file, or its beginning if it is long."""
    text = ast.get_docstring(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"\.\s", " ".join(text.split("\n\n")[0].split()))[0]
    return textwrap.shorten(sentence.rstrip("."), 78, placeholder=" ...")


def block(name: str, files: list[str]) -> str:
    """Return a list as docs/design.md shows it."""
    head = f"<!-- files: {name} -->\n\n    {name}: {len(files)} files\n\n"
    if len(files) > EXPLAINED:
        return head + textwrap.fill(
            ", ".join(files), 118, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False
        )
    width = max(map(len, files))
    return head + "\n".join(f"    {each.ljust(width)}  {summary(each)}".rstrip() for each in files)


def written(text: str, blocks: dict[str, str]) -> str:
    """Return the text of docs/design.md with these lists."""
    for name, lines in blocks.items():
        pattern = rf"<!-- files: {name} -->\n\n(?: {{4}}.*\n|\n(?= {{4}}))+"
        assert re.search(pattern, text), f"docs/design.md has no list for {name}"
        text = re.sub(pattern, lambda _, lines=lines: f"{lines}\n", text)  # type: ignore[misc]
    return text


def commands(folder: Path) -> dict[str, list[str]]:
    """Run `regard train` and `regard translate --text --draw`; return the files that each command uses."""
    from regard.cli import main

    run, _ = train(folder)
    pairs = ["--source", f"{folder / 'a.ko'}", "--target", f"{folder / 'a.en'}"]
    lines = {
        "regard train": ["train", "--steps", "2", *pairs, "--output", f"{folder / 'second'}"],
        "regard translate --text --draw": ["translate", f"{run}", "--text", "나는 고양이로소이다", "--draw"],
    }
    found: dict[str, list[str]] = {}
    for name, arguments in lines.items():
        found[name] = []
        with (
            mock.patch.object(sys, "argv", ["regard", *arguments]),
            contextlib.suppress(SystemExit),
            traced(found[name]),
        ):
            main()
    return found


def counts() -> str:
    """Return how many files each command uses, and in which folders, as docs/design.md shows it."""
    lines = ["<!-- files: commands -->\n"]
    with tempfile.TemporaryDirectory() as folder:
        for name, files in commands(Path(folder)).items():
            folders = sorted(Counter(each.partition("/")[0].removesuffix(".py") for each in files).items())
            text = f"{name}: {len(files)} files: {', '.join(f'{each}~{count}' for each, count in folders)}"
            lines.append(textwrap.fill(text, 118, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines).replace("~", " ")  # no line ends between a name and its count


def main() -> None:
    """Print the lists, write them, or count the files of commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the lists into docs/design.md")
    parser.add_argument("--commands", action="store_true", help="count the files of two commands")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.commands:
        print(counts())
        return
    blocks = {name: block(name, files) for name, files in every_list().items()}
    blocks |= {"commands": counts()} if arguments.write else {}
    print("\n\n".join(blocks.values()))
    if arguments.write:
        DESIGN.write_text(written(DESIGN.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
