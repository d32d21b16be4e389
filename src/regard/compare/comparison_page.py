"""Write a comparison: one HTML page, a CSV file for each table, a PNG and an SVG file for each figure.

matplotlib draws the figures.
"""

from __future__ import annotations

import base64
import csv
import importlib.util
import io
import json
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.compare.study import Figure, Row, Series, StudyResult
from regard.errors import RegardError, RegardWarning, message, shown
from regard.files.atomic_io import replace
from regard.files.untrusted import parse_json, read_limited
from regard.runs.run_folder import made_folder
from regard.viewing.html_document import document, safe
from regard.viewing.pictures.matplotlib_writer import hint_for, written

if TYPE_CHECKING:
    from regard.compare.comparison import Comparison


COLORS = ("#0b6e99", "#c2410c", "#2f7d32", "#7b3fa0", "#b8860b", "#444444", "#d6336c", "#0f9d8f")
STYLES = ("-", "--", "-.", ":")
DPI = 110
TICKS = 10
"""Maximum number of integer values on a logarithmic x axis that all get a tick label."""


def can_draw() -> bool:
    """Return whether matplotlib is installed. Without it, a comparison has tables but no figures."""
    return importlib.util.find_spec("matplotlib") is not None


def missing_characters(figures: Iterable[Figure]) -> str:
    """Return the characters of the texts in figures that no installed font has."""
    return "".join(written(text).missing for figure in figures for text in _texts(figure))


def _texts(figure: Figure) -> list[str]:
    labels = [each.label for each in figure.series]
    return [figure.x, figure.y, *labels, *_names(figure.series), *figure.marks.values()]


def png_of_figure(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    description = figure.alt.encode("latin-1", "replace").decode("latin-1")
    return _drawn(figure, "png", {"Software": None, "Description": description})


def svg_of_figure(figure: Figure) -> bytes:
    """Return a figure as the bytes of an SVG file, with its alternative text."""
    about = {"Date": None, "Creator": None, "Title": figure.caption, "Description": figure.alt}
    return _drawn(figure, "svg", about)


def _drawn(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    """Return a figure as a file of this kind.

    Characters that no installed font has are replaced; see missing_characters().
    """
    from matplotlib import font_manager, rc_context
    from matplotlib.figure import Figure as Drawing

    fonts = {run.font: None for text in _texts(figure) for run in written(text).runs}
    for font in fonts.keys() - {each.fname for each in font_manager.fontManager.ttflist}:
        font_manager.fontManager.addfont(font)
    families = [font_manager.FontProperties(fname=font).get_name() for font in fonts]
    file = io.BytesIO()
    # With a salt, the same figure gives the same bytes.
    with rc_context({"font.family": ["DejaVu Sans", *families], "svg.hashsalt": "regard"}):
        drawing = Drawing(figsize=(7.2, 4.2), dpi=DPI, layout="constrained")
        axes = drawing.add_subplot()
        (_draw_bars if figure.kind == "bars" else _draw_lines)(axes, figure)
        axes.set_xlabel(written(figure.x).text)
        axes.set_ylabel(textwrap.fill(written(figure.y).text, 40))
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if figure.kind == "lines":
            axes.legend(frameon=False, fontsize=8)
        drawing.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def _draw_lines(axes: Any, figure: Figure) -> None:
    names = _names(figure.series)
    for number, series in enumerate(figure.series):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        x = [names.index(each) for each in series.x] if names else list(series.x)
        axes.plot(
            x, series.y, style, color=color, marker="o", markersize=3.5, label=written(series.label).text
        )
        if series.low:
            axes.fill_between(x, series.low, series.high, color=color, alpha=0.15, linewidth=0)
    if names:
        axes.set_xticks(range(len(names)), [written(name).text for name in names])
    if "x" in figure.log:
        values = sorted({x for series in figure.series for x in series.x})
        axes.set_xscale("log", base=2 if values[0] >= 1 else 10)
        if len(values) <= TICKS and all(value == int(value) for value in values):
            axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
    if "y" in figure.log:
        axes.set_yscale("log")
    for at, label in figure.marks.items():
        axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
        axes.annotate(
            written(label).text,
            (at, 0.98),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            ha="left",
            va="top",
        )


def _draw_bars(axes: Any, figure: Figure) -> None:
    (series,) = figure.series
    names, at = [written(str(each)).text for each in series.x], range(len(series.x))
    axes.bar(at, series.y, 0.8, color=COLORS[0], label=written(series.label).text)
    if series.low:
        axes.vlines(at, series.low, series.high, color="black", linewidth=0.8)
    slanted = {"rotation": 20, "ha": "right"} if max(map(len, names)) * len(names) > 60 else {}
    axes.set_xticks(at, names, **slanted)


def _names(series: Sequence[Series]) -> list[str]:
    """Return the names on the x axis in order, if x has texts; [] if x has numbers."""
    return list(dict.fromkeys(x for each in series for x in each.x if isinstance(x, str)))


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
