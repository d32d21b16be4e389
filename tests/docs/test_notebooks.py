"""The notebooks: up to date with their sources, complete, with alternative texts; a slow test runs them."""

from __future__ import annotations

import copy
import getpass
import importlib.util
import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.reading import ROOT, import_path

if importlib.util.find_spec("nbformat") is None or importlib.util.find_spec("nbclient") is None:
    pytest.skip('nbclient is not installed (pip install ".[dev]")', allow_module_level=True)

import nbformat

LARGEST = 400_000
"""Bytes of a notebook file."""

HANGUL = re.compile("[가-힣]")
PROGRESS = re.compile(r"\x1b|\r|it/s\b|\d+%\|")
MACHINE = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|Users|mnt|content)/\w|\b[A-Z]:\\\w")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def load():
    """Import notebooks/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "notebooks" / "make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_notebooks"] = module
    spec.loader.exec_module(module)
    return module


make = load()
SOURCES = make.sources()
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def pair(source: Path) -> list[nbformat.NotebookNode]:
    """Return the Korean and the English notebook of a source."""
    return [make.read_notebook(make.notebook_path(source, language)) for language in make.LANGUAGES]


def markdown(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


@each_source
def test_notebooks_are_up_to_date_and_valid(source):
    assert make.stale(source) == []
    korean, english = pair(source)
    for notebook in (korean, english):
        nbformat.validate(notebook)
    assert make.code_cells(korean) == make.code_cells(english)
    assert all(map(HANGUL.search, markdown(korean)))
    assert all(len(HANGUL.findall(text)) < len(text) / 20 for text in markdown(english))


@each_source
def test_every_cell_has_run_without_errors_or_traces_of_the_machine(source):
    notebook = pair(source)[0]
    cells = make.code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    names = [socket.gethostname(), *([] if getpass.getuser() == "root" else [getpass.getuser()])]
    for output in outputs:
        for text in [output.get("text", ""), *output.get("data", {}).values()]:
            shown = re.sub(r"base64,[^\"]*", "", text) if not _is_image(output) else ""
            assert not PROGRESS.search(shown) and not MACHINE.search(shown)
            assert not any(re.search(rf"\b{re.escape(name)}\b", shown) for name in names)
    for language in make.LANGUAGES:
        assert make.notebook_path(source, language).stat().st_size < LARGEST


def _is_image(output: nbformat.NotebookNode) -> bool:
    return "image/png" in output.get("data", {})


@each_source
def test_notebooks_have_pictures_with_alternative_texts_and_captions(source):
    notebooks, pictures = pair(source), 0
    for notebook in notebooks:
        for at, cell in enumerate(notebook.cells):
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                images = re.findall(r"<img\b[^>]*>", data.get("text/html", ""))
                assert all(re.search(r'alt="[^"]{5,}"', image) for image in images)
                if "image/png" in data:
                    assert len(output.metadata["image/png"]["alt"]) > 20
                assert "image/svg+xml" not in data  # JupyterLab does not show it before the cell has run
                if images or "image/png" in data:
                    pictures += 1
                    caption = notebook.cells[at + 1]
                    assert caption.cell_type == "markdown"
                    assert re.search(r"^\*(?:그림|Figure): ", caption.source, re.M), cell.source
    assert pictures >= 4


@each_source
def test_links_of_notebooks_lead_to_files(source):
    for notebook, language in zip(pair(source), make.LANGUAGES, strict=True):
        folder = make.notebook_path(source, language).parent
        links = [link for text in markdown(notebook) for link in LINK.findall(text)]
        assert links and [link for link in links if not (folder / link).exists()] == []


def test_there_is_a_notebook_for_each_source_and_no_other():
    files = {path.relative_to(make.HERE).as_posix() for path in make.HERE.glob("*/*.ipynb")}
    assert files == {f"{language}/{source.stem}.ipynb" for source in SOURCES for language in make.LANGUAGES}


def first_cell(monkeypatch, folder: Path, regard: str = "") -> list[list[str]]:
    """Run the first cell in a folder, as if Regard were not installed; return the commands that it starts."""
    monkeypatch.chdir(folder)
    commands: list[list[str]] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    code = (make.HERE / "first_cell.py").read_text(encoding="utf-8")
    for name in ("torch", "regard"):
        fake = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True))
        monkeypatch.setitem(sys.modules, name, fake)
    namespace: dict[str, object] = {}
    exec(code.replace('REGARD = ""', f"REGARD = {regard!r}"), namespace)
    assert namespace["device"] == "cuda"
    return commands


def test_first_cell_installs_from_a_wheel_a_clone_or_an_address(monkeypatch, tmp_path, capsys):
    clone, uploaded = tmp_path / "clone" / "notebooks" / "ko", tmp_path / "content"
    for folder in (clone, uploaded, tmp_path / "clone" / "src" / "regard"):
        folder.mkdir(parents=True)
    (uploaded / "regard-0.1.0-py3-none-any.whl").touch()
    install = [sys.executable, "-m", "pip", "install", "--quiet"]
    wheel = (uploaded / "regard-0.1.0-py3-none-any.whl").as_uri()
    assert first_cell(monkeypatch, clone) == [[*install, f"regard[view] @ {(tmp_path / 'clone').as_uri()}"]]
    assert first_cell(monkeypatch, uploaded) == [[*install, f"regard[view] @ {wheel}"]]
    address = "git+https://example.org/regard"
    assert first_cell(monkeypatch, uploaded, address) == [[*install, f"regard[view] @ {address}"]]
    with pytest.raises(SystemExit, match="REGARD"):
        first_cell(monkeypatch, tmp_path)


def test_check_finds_changed_words_but_not_changed_numbers():
    notebook = pair(SOURCES[0])[0]
    at = next(
        number
        for number, cell in enumerate(make.code_cells(notebook))
        if make.VARIES not in cell.metadata.get("tags", ()) and cell.outputs and "text" in cell.outputs[0]
    )
    changed = copy.deepcopy(notebook)
    output = make.code_cells(changed)[at].outputs[0]
    assert list(make.differences(SOURCES[0], changed, notebook)) == []
    output.text += "accuracy 0.25\n"
    assert len(list(make.differences(SOURCES[0], changed, notebook))) == 1
    there = copy.deepcopy(changed)
    output.text = output.text.replace("accuracy 0.25", "accuracy   -31.5")
    assert list(make.differences(SOURCES[0], changed, there)) == []
    make.code_cells(changed)[at].outputs.clear()
    assert len(list(make.differences(SOURCES[0], changed, there))) == 1


def test_source_without_one_language_is_an_error_with_its_line(tmp_path):
    page = tmp_path / "000.md"
    page.write_text(
        "<!-- ko -->\n가\n<!-- en -->\na\n```python\n1\n```\n\n<!-- ko -->\n나\n", encoding="utf-8"
    )
    with pytest.raises(make.SourceError, match="line 8"):
        make.read_source(page)


@pytest.mark.slow
@each_source
def test_notebook_runs_and_gives_the_same_results(source):
    command = [sys.executable, str(make.HERE / "make.py"), "--check", source.stem]
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT / "src")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
