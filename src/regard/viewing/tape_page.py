"""Write sequences of a neural Turing machine, with its heads over the tape, to a self-contained page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard.errors import ArgumentError, message
from regard.viewing.html_document import Page, article_page, image_uri, safe, save_html
from regard.viewing.tape_run import TapeRun

__all__ = ["RUNS", "save_tape_page", "tape_fragment", "tape_page"]

RUNS = 100
"""Maximum number of sequences of a page."""

TITLE = "Sequences on the tape"


def tape_page(runs: Iterable[TapeRun], title: str = TITLE, about: str = "") -> Page:
    """Return a self-contained HTML page with a picture of each sequence.

    runs: the steps of each sequence, at most 100 sequences.
    title: the heading of the page.
    about: a line below the heading.

    >>> import numpy
    >>> eye = numpy.eye(2)
    >>> page = tape_page([TapeRun(eye, eye, [0, 1], eye[None], eye[None], title="<copy>")])
    >>> page.startswith("<!DOCTYPE html>"), "<copy>" in page, "&lt;copy&gt;" in page
    (True, False, True)
    """
    listed = list(runs)
    if not 1 <= len(listed) <= RUNS:
        problem = f"there are {len(listed)} sequences"
        raise ArgumentError(message("tape_page()", problem, expected=f"1 to {RUNS}"))
    body = (line for each in listed for line in ("<article>", tape_fragment(each), "</article>"))
    return article_page(title, body, about=about, images=True)


def tape_fragment(run: TapeRun) -> str:
    """Return one sequence as an HTML fragment: its title, the picture, and its notes."""
    drawn = run.picture()
    width, height = drawn.frames[0].size
    size = f'width="{width:.0f}" height="{height:.0f}"'
    about = f"inputs, answers, and the weights of the write and read heads at {run.steps} steps"
    lines = [
        f'<h2 dir="auto">{safe(run.title)}</h2>' if run.title else "",
        f'<img src="{image_uri("svg+xml", drawn.svg().encode())}" alt="{safe(about)}" {size}>',
        *(f'<p class="quiet" dir="auto">{safe(each)}</p>' for each in run.notes),
    ]
    return "\n".join(filter(None, lines))


def save_tape_page(path: str | Path, runs: Iterable[TapeRun], title: str = TITLE, about: str = "") -> None:
    """Write a page to a .html file, atomically. For the other arguments, see tape_page()."""
    save_html(path, lambda: tape_page(runs, title, about))
