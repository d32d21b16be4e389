"""A griffe extension: docstrings, which are plain text, as Markdown that keeps their lines.

A docstring of this project is paragraphs of prose, equations whose columns are aligned with spaces, and
examples. Prose is escaped; arguments in it ("size: a name. norm: pre or post.") become a list; equations
become preformatted blocks; examples are highlighted.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SPECIAL = re.compile(r"([\\*_{}\[\]<>#|~$!])")
ALIGNED = re.compile(r"\S {2,}\S")
EQUATION = re.compile(r"^\S+(?: \S+)? +(?:=|->) ")
CODE = re.compile(r"(`[^`]*`)")
ARGUMENT = re.compile(r"(?:^|(?<=[.;] ))([a-z_]\w*(?:, [a-z_]\w*)*): (?=\S)")


def to_markdown(text: str) -> str:
    """One docstring as Markdown."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if lines[0].lstrip().startswith(">>>"):
            blocks.append(_fenced("pycon", lines))
            continue
        blocks += _paragraphs(lines)
    return "\n\n".join(blocks)


def _paragraphs(lines: list[str]) -> list[str]:
    """Runs of prose and of preformatted lines, each as a block."""
    found: list[tuple[bool, list[str]]] = []
    for line in lines:
        kept = bool(line.startswith("    ") or ALIGNED.search(line.rstrip()) or EQUATION.search(line))
        if found and found[-1][0] == kept:
            found[-1][1].append(line)
        else:
            found.append((kept, [line]))
    return [_fenced("text", run) if kept else _prose(" ".join(map(str.strip, run))) for kept, run in found]


def _prose(text: str) -> str:
    """A paragraph; from its first argument on, a list of them."""
    before, *arguments = ARGUMENT.split(text)
    items = [
        f"- **{', '.join(f'`{name}`' for name in names.split(', '))}**: {_escaped(about)}"
        for names, about in zip(arguments[::2], arguments[1::2], strict=True)
    ]
    return "\n\n".join(filter(None, (_escaped(before), "\n".join(items))))


def _escaped(line: str) -> str:
    pieces = CODE.split(line.strip())
    return "".join(piece if at % 2 else SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces))


def _fenced(language: str, lines: list[str]) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join([f"```{language}", *(line[margin:].rstrip() for line in lines), "```"])


class DocstringMarkdown(griffe.Extension):
    """Rewrite every docstring after its object has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
