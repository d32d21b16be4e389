"""Print JSON to standard output."""

from __future__ import annotations

import json
from typing import Any

import typer

from regard.training.logs.json_log import strict

__all__ = ["print_json"]


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinity become strings, and control characters are escaped."""
    text = json.dumps(strict(value), indent=2, ensure_ascii=False)
    # json.dumps escapes only the control characters below U+0020, but terminals interpret others too.
    typer.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
