"""Small trained runs that the tests of several commands share, and a way to give a command."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from regard.cli import main
from regard.tasks.translation import train_translation

SETTINGS = {
    "seed": 5,
    "data": {"built_in": "korean", "pairs": 400, "held_out": 20},
    "model": {"width": 16, "dropout": 0.1},
    "training": {
        "steps": 40,
        "learning_rate": 0.02,
        "warmup_steps": 5,
        "batch_tokens": 600,
        "evaluate_every": 20,
        "save_every": 10,
        "keep": 4,
    },
    "evaluation": {"sentences": 5, "samples": 0},
}
"""A run that is trained in two seconds, and has four checkpoints.

With this seed, the model of `trained` gives translations that are not empty.
"""


def train_small(factory: pytest.TempPathFactory, **model: object) -> Path:
    """Train a run with these options of the model, and return its folder."""
    folder = factory.mktemp("runs") / "tiny"
    given = {**SETTINGS, "model": {**SETTINGS["model"], **model}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder.with_name("cache")))
        train_translation(given, folder, console=Console(quiet=True))
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that looks at its source. Nobody changes it."""
    return train_small(tmp_path_factory, name="bahdanau")


@pytest.fixture(scope="session")
def unseeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that does not. Nobody changes it."""
    return train_small(tmp_path_factory, name="seq2seq")


class CommandResult(tuple):
    """What a command answered: its exit status, its standard output, and its standard error."""

    status = property(lambda self: self[0])
    out = property(lambda self: self[1])
    err = property(lambda self: self[2])

    @property
    def err_but_unknown(self) -> str:
        """Standard error without the report of unknown words: small runs know few words."""
        return "".join(line for line in self.err.splitlines(True) if "not in the vocabulary" not in line)

    @property
    def lines(self) -> list[str]:
        """The lines of standard output, split at \\n only."""
        assert self.out.endswith("\n") or not self.out
        return self.out.split("\n")[:-1]


@pytest.fixture
def command(capsys, monkeypatch) -> Iterator[Callable[..., CommandResult]]:
    """Run a command in this process, with `stdin` as standard input; assert that it prints no traceback."""
    threads = torch.get_num_threads()
    # On a GPU, translators use float32 too, so that their outputs can be compared with those of a CPU.
    monkeypatch.setattr("regard.tasks.translation.task.FIRST_HALF", (99, 0))

    def command(*arguments: object, stdin: bytes = b"", width: int = 100) -> CommandResult:
        monkeypatch.setenv("COLUMNS", str(width))
        reader = io.BufferedReader(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(reader, encoding="ascii"))
        with pytest.raises(SystemExit) as caught:
            main(list(map(str, arguments)))
        result = capsys.readouterr()
        assert "Traceback" not in result.err
        return CommandResult((caught.value.code, result.out, result.err))

    yield command
    torch.set_num_threads(threads)


HOSTILE = (
    b"",
    b"   ",
    b"\t",
    b"\x00",
    b"a\x00b",
    b"\x1b[31mred\x1b[0m",
    b"[bold]markup[/bold]",
    "👩‍👩‍👧‍👦🏳️‍🌈".encode(),
    "\u202eright to left\u2066 שלום عليكم".encode(),
    b"\xed\xa0\x80 half of a pair",
    b"\xff\xfa\xc3",
    "a\u2028b\u2029c\x85d\x0b\x0ce\x1c".encode(),
    b"word " * 10_000,
    "한".encode() * 3000,
    b"<script>alert(1)</script>",
    b"</s> <pad> <unk>",
    b"\r",
    b"a\rb",
    "\ufeffbegun".encode(),
    "나는 학교에 간다 .".encode(),
    b"no end of line",
)
"""Lines that nobody would write, and somebody will send."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file of hostile lines, two of them with bytes that are no UTF-8, the last without an end."""
    path = tmp_path / "hostile.txt"
    path.write_bytes(b"\n".join(HOSTILE))
    return path


@pytest.fixture
def korean(tmp_path: Path) -> Path:
    """A folder with test.ko, test.en and test.links, 12 sentences."""
    from regard.data import korean_english
    from regard.evaluation import Links

    examples = list(korean_english("test", 12))
    sides = {
        "ko": [each.source for each in examples],
        "en": [each.target for each in examples],
        "links": [Links(each.sure, each.possible).written() for each in examples],
    }
    for name, lines in sides.items():
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"test.{name}").write_text(text, encoding="utf-8", newline="\n")
    return tmp_path
