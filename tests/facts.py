"""Look for facts in what Regard prints: files, lines, options, numbers and commands, whatever the words."""

from __future__ import annotations

import re


def facts(*given: object) -> str:
    """Return a pattern for match= that finds these facts in this order; a number is found as a whole."""
    return "(?s)" + ".*".join(map(_fact, given))


def mentions(text: object, *given: object) -> bool:
    """Return whether a text has all these facts, in any order; a number is found as a whole."""
    return all(re.search(_fact(each), str(text)) for each in given)


def commands(text: str) -> list[str]:
    """Return the commands of Regard that a text names: "regard view a.seen" is "view"."""
    return re.findall(r"\bregard ([a-z]+)\b", " ".join(text.split()))


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables in a text of Markdown."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:1] == "|"]


def _fact(given: object) -> str:
    text = f"{given:,}" if isinstance(given, int) else str(given)
    before = r"(?<![\d.])" if text[:1].isdigit() else ""
    return before + re.escape(text) + (r"(?!\d|[.,]\d)" if text[-1:].isdigit() else "")
