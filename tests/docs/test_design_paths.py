"""The lists of files in docs/design.md are the files that one call of each kind runs through, in order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from rich.console import Console

import regard
from regard.backends import plans
from regard.data import korean_english
from regard.tasks.translation import train_translation
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from tests.reading import PACKAGE, ROOT

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
TRACED_STEP = 3
"""The training step that is traced: imports and caches of the first steps are left out."""


def listed(name: str) -> list[str]:
    """The files of one list in docs/design.md."""
    block = re.search(rf"^<!-- path: {name} -->\n\n((?: {{4}}.*\n)+)", DESIGN, re.M)
    assert block, f"docs/design.md has no list of files for {name}"
    return re.findall(r"[\w/]+\.py", block[1])


@contextmanager
def traced(files: list[str]):
    """Add the files of the package whose functions are called, in order of the first call."""
    prefix = f"{PACKAGE}/"

    def profile(frame, event, argument):
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
    """The files that the second call of a function runs through; the first call fills the caches."""
    function()
    files: list[str] = []
    with traced(files):
        function()
    return files


@pytest.fixture(scope="module", autouse=True)
def no_plans() -> None:
    """Remove the plans of earlier tests, which would skip files."""
    plans._plans.clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run folder of a small Transformer, and the files that one of its training steps ran through."""
    folder = tmp_path_factory.mktemp("run")
    pairs = list(korean_english("train", count=400))
    for name, lines in (("a.ko", [pair.source for pair in pairs]), ("a.en", [pair.target for pair in pairs])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files: list[str] = []
    original = Trainer._step

    def step(self, *arguments):
        with traced(files) if self.progress.step + 1 == TRACED_STEP else nullcontext():
            yield from original(self, *arguments)

    settings = {
        "data": {"source": [str(folder / "a.ko")], "target": [str(folder / "a.en")]},
        "model": {"name": "transformer", "size": "tiny"},
        "training": {"steps": TRACED_STEP + 1},
        "evaluation": {"sentences": 4},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        patch.setattr(Log, "_show", lambda *_: None)  # on a busy machine a line may be due in the traced step
        train_translation(settings, folder / "run", console=Console(quiet=True))
    return folder / "run", files


def test_files_of_an_attention_call():
    query = torch.randn(2, 4, 5, 8)
    mask, look = regard.causal(), regard.Look(weights=True)
    assert second_call(lambda: regard.attention(query, query, query, mask=mask, look=look)) == listed(
        "attention"
    )
    plain = second_call(lambda: regard.attention(query, query, query))
    assert f"on a CPU in float32: {len(listed('attention'))} files" in DESIGN
    assert f"and look it is {len(plain)}:" in DESIGN


def test_files_of_a_training_step(trained: tuple[Path, list[str]]):
    assert trained[1] == listed("training")
    assert f"from `Trainer._step`: {len(trained[1])} files" in DESIGN


def test_files_of_a_translation(trained: tuple[Path, list[str]]):
    translator = regard.load(trained[0])
    files = second_call(lambda: translator.translate("나는 고양이로소이다").alignment)
    assert files == listed("translation")
    assert f"on a CPU: {len(files)} files after loading" in DESIGN
