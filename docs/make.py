"""Update the pictures, outputs and generated tables of the documentation by running the code of its pages.

    python docs/make.py           write what is missing or out of date
    python docs/make.py --check   write nothing; exit with 1 if code fails or something is out of date
    python docs/make.py PAGE ...  only these pages, by name: performance

A page is Markdown. Its ```python blocks run from top to bottom in one namespace; every page starts with the
same seed. The ```text block after a python block is the output of that block. If a block sets `picture`, it
is drawn to pictures/PAGE-N.svg, which the page must show. The text between `<!-- made: NAME -->` and
`<!-- end -->` is written by the function of that name in page_tables.py, page_models.py or page_results.py;
the pictures there are the plots of page_results.py. learned.py draws the picture of the README.

A page in ko/ is the Korean translation of the page of the same name (ko/index.md: of the README). It has the
same blocks, generated tables and pictures in the same order. They are copied from the English page, so that
its code runs once. The numbers and the inline code of the rest must be equal in both languages
(translation_check.py). Every picture must have alternative text, on a Korean page in Korean.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
sys.path[:0] = [str(DOCS), str(ROOT / "src"), str(ROOT)]

import learned  # noqa: E402
from page_models import MODEL_TABLES  # noqa: E402
from page_results import PARTS, plots  # noqa: E402
from page_tables import TABLES  # noqa: E402
from translation_check import differences  # noqa: E402

from regard.viewing import to_svg  # noqa: E402

KOREAN = DOCS / "ko"
FENCE = re.compile(r"^```(?P<language>\w*)\n.*?^```\n", re.M | re.S)
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?P<said>\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S)
MADE = re.compile(r"(?P<open><!-- made: (?P<name>\w+) -->\n).*?(?P<close><!-- end -->)", re.S)
SHOWN = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<path>[^)]*\.svg)\)")
FIGURE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<path>[^)]*)\)")
COLOUR = re.compile(r"#[0-9a-f]{6}")
WRITERS = {**TABLES, **MODEL_TABLES, **PARTS}
NEAR = 6
"""Largest difference of a colour channel from the committed picture: weights vary between machines."""


@dataclass
class Made:
    """The new text of a page, its pictures, and its problems."""

    path: Path
    text: str = ""
    pictures: dict[Path, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def pages() -> list[Path]:
    """Return all pages to run, the README first; design.md has nothing to run."""
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "design.md")]


def original(path: Path) -> Path | None:
    """Return the English page that a Korean page translates; None for an English page."""
    if not path.is_relative_to(KOREAN):
        return None
    place = path.relative_to(KOREAN)
    return ROOT / "README.md" if place == Path("index.md") else DOCS / place


def translated(path: Path, english: str) -> Made:
    """Copy the blocks and the generated tables of an English page to its Korean translation.

    english: the text of the English page.
    """
    made, text = Made(path), path.read_text(encoding="utf-8")
    for pattern, name in ((FENCE, "fenced blocks"), (MADE, "generated tables")):
        wanted = [found[0] for found in pattern.finditer(english)]
        present = list(pattern.finditer(text))
        if len(wanted) != len(present):
            made.problems.append(
                f"{_short(path)}: has {len(present)} {name}, the English page has {len(wanted)}"
            )
            return made
        copies = iter(wanted if pattern is FENCE else [_relinked(each, path) for each in wanted])
        text = pattern.sub(lambda found, copies=copies: next(copies), text)
    pictures = [[Path(shown["path"]).name for shown in FIGURE.finditer(each)] for each in (english, text)]
    if pictures[0] != pictures[1]:
        made.problems.append(f"{_short(path)}: shows {pictures[1]}, the English page shows {pictures[0]}")
    made.problems += [f"{_short(path)}: {each}" for each in differences(english, text)]
    made.problems += without_alternative(path, text)
    made.text = text
    return made


def without_alternative(path: Path, text: str) -> list[str]:
    """Return a problem for each picture without alternative text, or on a Korean page without Korean text."""
    korean = original(path) is not None
    text = MADE.sub("", text) if korean else text  # generated parts are English
    problems = []
    for shown in FIGURE.finditer(text):
        words = shown["words"].strip()
        if not words or (korean and not re.search("[가-힣]", words)):
            needed = "alternative text in Korean" if korean else "alternative text: ![what it shows](picture)"
            problems.append(f"{_short(path)}: {shown[0]} needs {needed}")
    return problems


def _relinked(table: str, path: Path) -> str:
    """Return a generated table of an English page, with its relative links as seen from the Korean page."""
    folder = original(path).parent

    def moved(found: re.Match[str]) -> str:
        return f"]({os.path.relpath(folder / found[1], path.parent)}"

    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", moved, table)


def make(path: Path, fresh: dict[Path, str] | None = None) -> Made:
    """Run the code blocks of a page, then generate its tables. A translation is compared with its original.

    fresh: new texts of pages that are not written yet.
    """
    source_page = original(path)
    if source_page is not None:
        if not source_page.exists():
            return Made(path, problems=[f"{_short(path)}: {_short(source_page)} does not exist"])
        return translated(path, (fresh or {}).get(source_page) or source_page.read_text(encoding="utf-8"))
    made = Made(path)
    source = path.read_text(encoding="utf-8")
    words = {(path.parent / shown["path"]).resolve(): shown["words"] for shown in SHOWN.finditer(source)}
    namespace: dict[str, Any] = {"__name__": f"page:{path.name}"}
    pieces, end = [], 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in BLOCK.finditer(source):
            line = source[: block.start("code")].count("\n")
            printed = _run(block["code"], path, line, namespace, made)
            pieces += [source[end : block.end("code")], "```\n"]
            if printed:
                pieces.append(f"\n```text\n{printed}```\n")
            end = block.end()
            if "picture" in namespace:
                name = PICTURES / f"{page_name(path)}-{len(made.pictures) + 1}.svg"
                if name not in words:
                    made.problems.append(
                        f"{_short(path)}:{line}: pictures/{name.name} is drawn but not shown"
                    )
                made.pictures[name] = to_svg(namespace.pop("picture"), title=words.get(name, ""))
    pieces.append(source[end:])
    made.text = MADE.sub(lambda span: span["open"] + WRITERS[span["name"]]() + span["close"], "".join(pieces))
    made.problems += without_alternative(path, made.text)
    _draw_plots(made)
    return made


def _draw_plots(made: Made) -> None:
    """Add the pictures that no block has drawn: learned weights and plots; others are problems."""
    drawn: dict[str, Any] | None = None
    for shown in SHOWN.finditer(made.text):
        name = (made.path.parent / shown["path"]).resolve()
        if name in made.pictures or not name.name.startswith(f"{page_name(made.path)}-"):
            continue
        drawn = {**learned.pictures(), **plots()} if drawn is None else drawn
        if name.stem in drawn:
            made.pictures[name] = to_svg(drawn[name.stem], title=shown["words"])
        else:
            made.problems.append(f"{_short(made.path)}: shows {_short(name)}, which no block draws")


def page_name(path: Path) -> str:
    """Return the prefix of the picture names of a page."""
    place = path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path(path.name.lower())
    return "-".join(place.with_suffix("").parts)


def stale(made: Made) -> Iterator[tuple[Path, str]]:
    """Yield each file of a page that is out of date, with its new content."""
    if made.path.read_text(encoding="utf-8") != made.text:
        yield made.path, made.text
    for path, svg in made.pictures.items():
        if not path.exists() or not same_picture(path.read_text(encoding="utf-8"), svg):
            yield path, svg


def same_picture(one: str, other: str) -> bool:
    """Return whether two SVG pictures are equal, except for small differences of colour."""
    if COLOUR.sub("#", one) != COLOUR.sub("#", other):
        return False
    pairs = zip(COLOUR.findall(one), COLOUR.findall(other), strict=True)
    return all(abs(x - y) <= NEAR for a, b in pairs for x, y in zip(_rgb(a), _rgb(b), strict=True))


def orphans(made: list[Made]) -> list[Path]:
    """Return the picture files that no page shows."""
    shown = {name for each in made for name in each.pictures}
    return sorted(path for path in PICTURES.glob("*.svg") if path not in shown)


def _run(code: str, path: Path, line: int, namespace: dict[str, Any], made: Made) -> str:
    """Run one block and return what it printed; an error becomes a problem with the line of the page."""
    printed = io.StringIO()
    try:
        compiled = compile("\n" * line + code, str(path), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(compiled, namespace)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = frames[-1].lineno if frames else line
        made.problems.append(f"{_short(path)}:{place}: {type(error).__name__}: {error}")
    return "".join(f"{text.rstrip()}\n" for text in printed.getvalue().splitlines())


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main() -> int:
    """Update or check all pages."""
    parser = argparse.ArgumentParser(description="Update the pictures and tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names of pages (default: all)")
    arguments = parser.parse_args()
    check, names = arguments.check, arguments.pages or [path.stem for path in pages()]
    made, fresh = list[Made](), dict[Path, str]()
    for path in sorted(pages(), key=lambda path: original(path) is not None):  # translations last
        if path.stem in names:
            made.append(make(path, fresh))
            fresh[path] = made[-1].text
    problems = [problem for each in made for problem in each.problems]
    for each in made:
        if each.problems:
            continue  # a page that fails is not written
        for path, text in stale(each):
            if check:
                problems.append(f"{_short(path)} is stale: run python docs/make.py")
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(f"wrote {_short(path)}")
    for path in [] if arguments.pages else orphans(made):
        if check:
            problems.append(f"{_short(path)} is not shown on any page: run python docs/make.py")
        else:
            path.unlink()
            print(f"removed {_short(path)}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
