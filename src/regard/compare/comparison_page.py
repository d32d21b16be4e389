"""Write a comparison: one HTML page, a CSV file for each table, a PNG and an SVG file for each figure."""

from __future__ import annotations

import base64
import csv
import io
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.compare.figures import can_draw, missing_characters, png_of_figure, svg_of_figure
from regard.compare.study import Row, StudyResult
from regard.errors import RegardError, RegardWarning, message, shown
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited
from regard.runs.run_folder import made_folder
from regard.viewing.html_document import document, safe
from regard.viewing.pictures.fonts import hint_for

if TYPE_CHECKING:
    from regard.compare.comparison import Comparison

MANIFEST, WRITTEN = "files.json", (".csv", ".png", ".svg")
"""The list of the files of a comparison, and the endings of those that a later comparison may remove."""

ROWS_SHOWN = 60
"""Longer tables are cut on the page; the CSV file has all rows."""

STYLE = """
:root { color-scheme: light dark; --rule: #8884; --quiet: #777; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.5rem 5rem; font: 16px/1.6 system-ui, sans-serif; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1.5rem; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; background: white; }
figcaption, .quiet { color: var(--quiet); font-size: .9rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; border-bottom: 1px solid var(--rule); }
.supported { color: #2f7d32; } .contradicted { color: #c2410c; } .unclear { color: var(--quiet); }
"""


def write_page(comparison: Comparison, about: str, folder: Path) -> Iterator[Path]:
    """Write all files of a comparison to a folder, and yield their paths; the page is the first.

    about: sentences about the data and the training.

    files.json lists the files. Those that an earlier comparison wrote there, and this one does not, are
    removed.
    """
    made_folder(folder)
    images: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    drawn = can_draw()
    figures = [figure for result in comparison.results for figure in result.figures] if drawn else []
    if hint := hint_for(missing_characters(figures)):
        warnings.warn(message(shown(folder), hint), RegardWarning, stacklevel=2)
    for result in comparison.results:
        for figure in result.figures if drawn else ():
            images[figure.name] = files[f"{figure.name}.png"] = png_of_figure(figure)
            files[f"{figure.name}.svg"] = svg_of_figure(figure)
        files |= {f"{table.name}.csv": csv_of(table.rows).encode() for table in result.tables}
    files["verdicts.csv"] = csv_of(_verdict_rows(comparison)).encode()
    body = list(_body(comparison, about, images))
    page = document("Regard: comparison of attention models", STYLE, "", body)
    files = {"index.html": page.encode(), **files}
    _remove_stale(folder, set(files))
    files[MANIFEST] = (json.dumps(sorted(files), indent=1) + "\n").encode()
    for name, content in files.items():
        replace(folder / name, content)
        yield folder / name


def _remove_stale(folder: Path, kept: set[str]) -> None:
    """Remove the files that files.json lists and that are not in `kept`."""
    try:
        listed = parse_json(read_limited(folder / MANIFEST, "json"))
    except (OSError, ValueError, RegardError):
        return
    for name in listed if isinstance(listed, list) else ():
        plain = isinstance(name, str) and Path(name).name == name and Path(name).suffix in WRITTEN
        if plain and name not in kept and not (folder / name).is_symlink():
            (folder / name).unlink(missing_ok=True)


def csv_of(rows: Sequence[Row]) -> str:
    """Return the rows of a table as CSV, with a header line. The columns are those of all rows.

    >>> csv_of([{"model": "luong", "bleu": 31.5}, {"model": "seq2seq", "exact": 0.5}]).splitlines()
    ['model,bleu,exact', 'luong,31.5,', 'seq2seq,,0.5']
    """
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, _columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _verdict_rows(comparison: Comparison) -> list[Row]:
    return [
        {
            "claim": each.claim.name,
            "text": each.claim.text,
            "outcome": each.outcome,
            "decides": "yes" if each.decides else "no",
            "reason": each.reason,
            "low": each.low,
            "high": each.high,
            "values": " ".join(f"{value:.6g}" for value in each.values),
        }
        for result in comparison.results
        for each in result.verdicts
    ]


def _body(comparison: Comparison, about: str, images: dict[str, bytes]) -> Iterator[str]:
    yield "<h1>Comparison of attention models</h1>"
    yield f'<p class="quiet">{safe(about)}</p>'
    if not images and any(result.figures for result in comparison.results):
        text = "The figures were not drawn, because matplotlib is not installed; see regard doctor, extras."
        yield f"<p><strong>{safe(text)}</strong></p>"
    if comparison.interrupted:
        text = f"The comparison was stopped ({comparison.interrupted}). The same command continues it."
        yield f"<p><strong>{safe(text)}</strong></p>"
    rows = _verdict_rows(comparison)
    if rows:
        yield f"<h2>Claims</h2><p>{safe(comparison.decision)}</p>"
        columns = {"claim": "text", "result": "outcome", "measured": "reason", "decides": "decides"}
        yield from _table([{title: row[name] for title, name in columns.items()} for row in rows])
    for result in comparison.results:
        yield from _section(result, images)


def _section(result: StudyResult, images: dict[str, bytes]) -> Iterator[str]:
    yield f"<h2>{safe(result.title)}</h2>"
    for note in result.notes:
        yield f"<p>{safe(note)}</p>"
    for figure in result.figures:
        if figure.name in images:
            source = f"data:image/png;base64,{base64.b64encode(images[figure.name]).decode()}"
            yield f'<figure><img src="{source}" alt="{safe(figure.alt)}">'
            yield f"<figcaption>{safe(figure.caption)} ({safe(figure.name)}.svg)</figcaption></figure>"
    for table in result.tables:
        if table.shown and table.rows:
            yield f"<details><summary>{safe(table.title)} ({safe(table.name)}.csv)</summary>"
            yield from _table(table.rows)
            yield "</details>"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    columns = _columns(rows)
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{safe(name)}</th>" for name in columns) + "</tr></thead>"
    for row in rows[:ROWS_SHOWN]:
        # An outcome that decides a claim has its colour.
        kind = row["result"] if row.get("decides") == "yes" else "unclear"
        start = {"result": f'<td class="{kind}">'} if "decides" in row else {}
        cells = [f"{start.get(name, '<td>')}{safe(_cell(row.get(name)))}</td>" for name in columns]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"
    if len(rows) > ROWS_SHOWN:
        yield f'<p class="quiet">{len(rows) - ROWS_SHOWN:,} more rows are in the CSV file.</p>'


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
