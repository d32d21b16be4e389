"""check_first_lines(): find header lines in TSV and CSV files of sentence pairs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

from regard.data.line_io import STANDARD
from regard.data.read_text import checked_path
from regard.data.table_formats import COLUMNS, Row, column_rows
from regard.errors import DataError, Hint, RegardWarning, message, printable, shown
from regard.tasks.column_names import is_column_name

__all__ = ["check_first_lines"]

DEFAULT = (1, 2)
"""The value of --columns that is used if the user names no columns."""


def check_first_lines(tsv: Iterable[str], columns: Sequence[int | str], encoding: str | None = None) -> None:
    """Raise DataError if --columns has numbers, but the first line of a TSV or CSV file is a header line.

    Warn if one of the two columns has a number in the first line and there are more columns: it may be an id.

    A header line is recognized by usual column names, such as "source" or "en", in both columns.

    tsv: the files. Standard input (-) is not checked, because it can be read only once.
    columns: the value of --columns: two numbers or two names.
    encoding: the encoding of the files; None is UTF-8.
    """
    if isinstance(columns[0], str):
        return
    for path in tsv:
        rows = iter(()) if path == STANDARD else column_rows(checked_path(path), encoding)
        cells: list[str] = next(rows, Row(1, [""])).value
        names = [cells[column - 1].strip() for column in map(int, columns) if 0 < column <= len(cells)]
        if len(names) == 2 and all(map(is_column_name, names)):
            problem = f"the line looks like a header: {printable(' and '.join(names))}"
            named = replace(COLUMNS, value=printable(",".join(names)))
            hint: Hint = ("use ", named, "; or remove the line")
            if len(cells) > 2 and tuple(columns) == DEFAULT:
                hint = f"name two columns, --columns A,B, of {printable(', '.join(cells))[:200]}"
            raise DataError(message(f"{shown(path)}, line 1", problem, hint=hint))
        if len(cells) > 2 and sum(name.isdecimal() for name in names) == 1:
            used = f"columns {' and '.join(map(str, columns))}: {printable(' and '.join(names))[:100]}"
            problem = f"the file has {len(cells)} columns, and the pairs are in {used}"
            advice = ("if one of them is a number of the line, name other columns: ", COLUMNS)
            warnings.warn(message(shown(path), problem, hint=advice), RegardWarning, stacklevel=2)
