"""Compare the numbers and names of a Korean page with those of the English page that it translates.

make.py copies code, outputs and generated tables. This file compares the rest: headings, tables that are
written by hand, and numbers and inline code in the text. So a measured result or the name of an option cannot
change in the English page alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

SKIPPED = re.compile(r"^```.*?^```\n|<!-- made: \w+ -->.*?<!-- end -->|\]\([^)]*\)", re.M | re.S)
HEADING = re.compile(r"^(#+) .*\n?", re.M)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
SCALED = re.compile(rf"({NUMBER.pattern})(?: (million)|(만))")
CODE = re.compile(r"`[^`\n]+`")
FACTORS = {"million": 1_000_000, "만": 10_000}

Table = list[list[str]]
"""Rows of cells."""


def differences(english: str, korean: str) -> list[str]:
    """Return what differs between the headings, tables and numbers of two pages; empty if nothing does.

    Tables must have the same rows and columns. A cell with numbers in English must have the same numbers in
    Korean. The text of a section must have the same numbers in both languages. Numbers of one digit are not
    compared in text, because a translation often writes them as words. The inline code of a section, such as
    `--seeds`, must be in the Korean section too, which may have more.
    """
    english, korean = (SKIPPED.sub("", text) for text in (english, korean))
    wanted, present = ([len(found[1]) for found in HEADING.finditer(text)] for text in (english, korean))
    if wanted != present:
        return [f"the levels of the headings are {present}, on the English page {wanted}"]
    titles = ["the text before the first heading", *(found[0].strip() for found in HEADING.finditer(korean))]
    sections = zip(titles, _sections(english), _sections(korean), strict=True)
    return [
        f"{title}: {each}"
        for title, *texts in sections
        for each in (*_table_differences(*map(_tables, texts)), *_text_differences(*texts))
    ]


def _sections(text: str) -> list[str]:
    return HEADING.sub("\0", text).split("\0")


def _table_differences(english: list[Table], korean: list[Table]) -> Iterator[str]:
    sizes = [[[len(row) for row in table] for table in tables] for tables in (english, korean)]
    if sizes[0] != sizes[1]:
        yield "the tables have other sizes than those of the English page"
        return
    cells = (itertools.chain(*itertools.chain(*tables)) for tables in (english, korean))
    for wanted, present in zip(*cells, strict=True):
        if _numbers(wanted) not in ([], _numbers(present)):
            yield f'the numbers of the cell "{present.strip()}" differ from those of "{wanted.strip()}"'


def _text_differences(english: str, korean: str) -> Iterator[str]:
    wanted, present = (
        {number for number in _numbers(_without_tables(text)) if number >= 10 or number % 1}
        for text in (english, korean)
    )
    for numbers, language in ((wanted - present, "English"), (present - wanted, "Korean")):
        if numbers:
            yield f"only the {language} page has {', '.join(f'{each:,}' for each in sorted(numbers))}"
    if code := set(CODE.findall(english)) - set(CODE.findall(korean)):
        yield f"only the English page has {', '.join(sorted(code))}"


def _tables(text: str) -> list[Table]:
    """Return the tables of a text as lists of rows, and rows as lists of cells."""
    lines = itertools.groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    return [[re.split(r"(?<!\\)\|", row) for row in rows] for is_table, rows in lines if is_table]


def _without_tables(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def _numbers(text: str) -> list[float]:
    """Return the numbers of a text, sorted; 1,000 and 1000 are equal, and so are 2 million and 200만."""
    numbers = [_value(found[1]) * FACTORS[found[2] or found[3]] for found in SCALED.finditer(text)]
    return sorted(numbers + [_value(found[0]) for found in NUMBER.finditer(SCALED.sub("", text))])


def _value(number: str) -> float:
    return float(number.replace(",", ""))
