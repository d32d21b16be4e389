"""Build the notebooks in notebooks/ko and notebooks/en from their sources, with outputs.

    python notebooks/make.py              update the notebooks; run those whose code has changed
    python notebooks/make.py --run        run all of them again
    python notebooks/make.py --check      run all of them, write nothing; exit with 1 if something differs
    python notebooks/make.py 000 001      only these notebooks

A source is a Markdown file, notebooks/NAME.md. Each ```python block is a code cell. Between two blocks there
is the text in both languages: first `<!-- ko -->`, then `<!-- en -->`. first_cell.py is inserted as the first
code cell. Both notebooks have the same code, so the code runs once, and both get its outputs.

A check compares the code, the text and the outputs. Numbers in outputs may differ, because they differ
between machines; images are not compared. Outputs of blocks that begin with ```python varies are not compared
at all: they contain words that a trained model chose, or names of this machine.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LANGUAGES = ("ko", "en")
BLOCK = re.compile(r"^```python(?P<varies> varies)?\n(?P<code>.*?)^```\n", re.M | re.S)
TEXT = re.compile(r"\s*<!-- ko -->\n(?P<ko>.*?)<!-- en -->\n(?P<en>.*)", re.S)
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
SPACES = re.compile(r" +")
VARIES = "varies"
WIDEST = 900
"""Pixels; wider PNG images are made smaller."""

LONGEST_RUN = 1800
"""Seconds after which the run of one cell is stopped: something is wrong."""


@dataclass(frozen=True)
class Cell:
    """One cell of a source: the text of a Markdown cell in each language, or the code of a code cell."""

    text: dict[str, str] | None = None
    code: str = ""
    varies: bool = False


class SourceError(ValueError):
    """A source that cannot be read, or whose code fails."""


def sources() -> list[Path]:
    """Return the sources of all notebooks, in order."""
    return sorted(HERE.glob("[0-9]*.md"))


def notebook_path(source: Path, language: str) -> Path:
    """Return the path of the notebook that is built from a source."""
    return HERE / language / f"{source.stem}.ipynb"


def read_source(path: Path) -> list[Cell]:
    """Return the cells of a source."""
    source = path.read_text(encoding="utf-8")
    cells, end = list[Cell](), 0
    for block in BLOCK.finditer(source):
        cells += _text_cells(path, source, end, block.start())
        if end == 0:
            code = (HERE / "first_cell.py").read_text(encoding="utf-8")
            cells.append(Cell(code=code.strip("\n"), varies=True))
        if block["code"].strip():
            cells.append(Cell(code=block["code"].strip("\n"), varies=block["varies"] is not None))
        end = block.end()
    return [*cells, *_text_cells(path, source, end, len(source))]


def _text_cells(path: Path, source: str, start: int, end: int) -> Iterator[Cell]:
    """Yield the text between two blocks as a cell, if there is any."""
    if not source[start:end].strip():
        return
    text = TEXT.fullmatch(source[start:end])
    if text is None or not (text["ko"].strip() and text["en"].strip()):
        line = source[:start].count("\n") + 1
        raise SourceError(f"line {line}: the text after this line needs <!-- ko --> and then <!-- en -->")
    yield Cell({language: text[language].strip("\n") for language in LANGUAGES})


def build(source: Path, language: str) -> NotebookNode:
    """Return the notebook of a source in a language, without outputs."""
    cells = []
    for number, cell in enumerate(read_source(source)):
        if cell.text is not None:
            made = v4.new_markdown_cell(cell.text[language])
        else:
            made = v4.new_code_cell(cell.code, metadata={"tags": [VARIES]} if cell.varies else {})
        made["id"] = f"cell-{number:02}"
        cells.append(made)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return v4.new_notebook(cells=cells, metadata=metadata)


def run(notebook: NotebookNode) -> None:
    """Run a notebook in a new kernel, in an empty folder; its code cells get their outputs."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    # One thread: sums have the same order on every machine, and tests that run beside it do not compete.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=LONGEST_RUN,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
            config=Config(KernelManager=_private_sockets(folder)),
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise SourceError(f"a cell failed with {error.ename}: {error.evalue}") from None


def _private_sockets(folder: str) -> dict[str, str]:
    """Return settings of the kernel: sockets in a folder, which other users cannot open, where they exist."""
    return {"transport": "ipc", "ip": f"{folder}/kernel"} if os.name == "posix" else {}


def _cleaned(output: NotebookNode) -> NotebookNode:
    """Return an output with one form of each picture, and with PNG images that are at most WIDEST wide.

    An <img> with alternative text is preferred to other forms.
    """
    data = output.get("data", {})
    if "<img" in data.get("text/html", ""):
        for kind in ("image/svg+xml", "image/png"):
            data.pop(kind, None)
    if "image/png" in data:
        data["image/png"] = _smaller(data["image/png"])
    return output


def _smaller(png: str) -> str:
    """Return a PNG image, in base64, at most WIDEST pixels wide."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(png)))
    if image.width <= WIDEST:
        return png
    height = round(image.height * WIDEST / image.width)
    file = io.BytesIO()
    reduced = image.convert("RGB").resize((WIDEST, height), Image.Resampling.LANCZOS)
    reduced.quantize(128, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def take_outputs(notebook: NotebookNode, other: NotebookNode) -> None:
    """Copy the outputs of another notebook with the same code."""
    for cell, its in zip(code_cells(notebook), code_cells(other), strict=True):
        cell.outputs, cell.execution_count = [_cleaned(each) for each in its.outputs], its.execution_count


def read_notebook(path: Path) -> NotebookNode | None:
    """Return a notebook file, or None if there is none."""
    return nbformat.read(path, as_version=4) if path.exists() else None


def written(notebook: NotebookNode) -> str:
    """Return the text of a notebook file."""
    return nbformat.writes(notebook, version=4) + "\n"


def same_code(one: NotebookNode, other: NotebookNode | None) -> bool:
    """Return whether two notebooks have the same code, and the second has been run."""
    if other is None or any(cell.execution_count is None for cell in code_cells(other)):
        return False
    return [cell.source for cell in code_cells(one)] == [cell.source for cell in code_cells(other)]


def stale(source: Path) -> list[Path]:
    """Return the notebooks of a source that do not have its text, code and metadata; runs nothing."""
    result = []
    for language in LANGUAGES:
        notebook, path = build(source, language), notebook_path(source, language)
        there = read_notebook(path)
        if same_code(notebook, there):
            take_outputs(notebook, there)
        if there is None or written(notebook) != path.read_text(encoding="utf-8"):
            result.append(path)
    return result


def comparable(output: NotebookNode) -> list[str]:
    """Return what two runs of a cell must agree on: kinds of outputs, and text with every number as #."""
    if output.output_type == "stream":
        return ["stream", output.name, _without_numbers(output.text)]
    if output.output_type == "error":
        return ["error", output.ename]
    kinds = sorted(output.data)
    plain = [_without_numbers(output.data["text/plain"])] if kinds == ["text/plain"] else []
    return [output.output_type, *kinds, *plain]


def _without_numbers(text: str) -> str:
    return SPACES.sub(" ", NUMBER.sub("#", text))


def differences(source: Path, ran: NotebookNode, there: NotebookNode) -> Iterator[str]:
    """Yield a message for each cell whose outputs in a new run differ from the outputs in a file."""
    for number, (new, old) in enumerate(zip(code_cells(ran), code_cells(there), strict=True), 1):
        if VARIES in new.metadata.get("tags", ()):
            continue
        now, then = ([comparable(output) for output in cell.outputs] for cell in (new, old))
        if now != then:
            first = new.source.partition("\n")[0]
            yield f"{source.stem}, code cell {number} ({first}): the file has {then}, now it is {now}"


def make(source: Path, check: bool, again: bool) -> Iterator[str]:
    """Update or check the notebooks of one source, and yield its problems."""
    notebooks = {language: build(source, language) for language in LANGUAGES}
    there = read_notebook(notebook_path(source, LANGUAGES[0]))
    with_outputs = there
    if check or again or not same_code(notebooks[LANGUAGES[0]], there):
        print(f"running {source.stem} ...", flush=True)
        begin, used = time.monotonic(), os.times()
        with_outputs = build(source, LANGUAGES[0])
        run(with_outputs)
        spent = os.times()
        cpu = spent.children_user - used.children_user + spent.children_system - used.children_system
        print(f"ran {source.stem} in {time.monotonic() - begin:.0f} s ({cpu:.0f} s of CPU time)", flush=True)
    if check:
        yield from (f"{path.relative_to(ROOT)} is stale: run notebooks/make.py" for path in stale(source))
        if same_code(with_outputs, there):
            take_outputs(notebooks[LANGUAGES[0]], with_outputs)
            yield from differences(source, notebooks[LANGUAGES[0]], there)
        return
    for language, notebook in notebooks.items():
        take_outputs(notebook, with_outputs)
        path = notebook_path(source, language)
        path.parent.mkdir(exist_ok=True)
        path.write_text(written(notebook), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}", flush=True)


def main() -> int:
    """Update or check the notebooks."""
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources, with outputs.")
    parser.add_argument("--check", action="store_true", help="run, write nothing; exit with 1 if stale")
    parser.add_argument("--run", action="store_true", help="run again also if the code has not changed")
    parser.add_argument("notebooks", nargs="*", metavar="NAME", help="beginnings of names (default: all)")
    arguments = parser.parse_args()
    names = tuple(arguments.notebooks) or ("",)
    problems = []
    for source in sources():
        if not source.stem.startswith(names):
            continue
        try:
            problems += list(make(source, arguments.check, arguments.run))
        except SourceError as error:
            problems.append(f"{source.name}: {error}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
