"""JSON output of all commands: standard JSON, without characters that a terminal could interpret."""

from __future__ import annotations

import json
from typing import Any

import typer

from regard.training.logs.json_log import strict

__all__ = ["json_text", "print_json"]


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON. NaN and infinity become strings; characters that are not printable are escaped.

    The escaped characters are control characters, characters that change the direction of the text, and
    invisible characters. json.dumps() alone escapes only the control characters below U+0020.

    indent: number of spaces per level. None: the result is one line.

    >>> json_text({"text": "고양이\\x9b", "score": float("nan")})
    '{"text": "고양이\\\\u009b", "score": "NaN"}'
    """
    text = json.dumps(strict(value), indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, see json_text()."""
    typer.echo(json_text(value, indent=2))
