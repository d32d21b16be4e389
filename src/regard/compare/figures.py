"""Draw the figures of a comparison with matplotlib, as PNG and SVG."""

from __future__ import annotations

import importlib.util
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from regard.compare.study import Figure, Series
from regard.viewing.pictures.fonts import written

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
