"""A small corpus and a trained run, created once per session, with a cache of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tasks.small import settings, train, written


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(autouse=True)
def cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


@pytest.fixture(scope="session")
def data(place: Path) -> dict[str, list[str]]:
    """The files of a small corpus. Tests must not change them."""
    return written(place / "data")


@pytest.fixture(scope="session")
def links(data: dict[str, list[str]]) -> str:
    """The file of the corpus's gold alignments."""
    return str(Path(data["source"][0]).with_suffix(".links"))


@pytest.fixture(scope="session")
def finished(place: Path, data: dict[str, list[str]]) -> Path:
    """The folder of an ended run. Tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        train(settings(data), place / "run")
    return place / "run"


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the ended run, which tests may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
