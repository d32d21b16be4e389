"""The made parts of the page about performance: from the newest result file of each kind, nothing typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.plot import Plot, plot_of
from benchmarks.report import about, markdown, measured_on, number, table_of
from benchmarks.targets import losses, training, verdicts

__all__ = ["PARTS", "newest", "plots"]

NOTHING = "Not measured yet: no such result is committed.\n"
ADDITIVE, DOT = "Additive", ("Scaled dot", "Causal scaled dot")
PLACES = {
    "cpu": "on this page",
    "gpu": "on this page",
    "recurrent": "on this page",
    "faithfulness": "[Is attention faithful?](faithfulness.md)",
    "alignments": "[Viewing attention](seeing.md)",
    "korean": "[Data and decoding](translation.md)",
    "multi30k": "[Training](training.md)",
    "tatoeba": "[Training](training.md)",
}
"""The page that reports each kind of result."""


def newest(kind: str, ending: str = "json") -> Path | None:
    """The newest file of this kind, by the date in its name."""
    found = sorted(RESULTS.glob(f"????-??-??-{kind}.{ending}"))
    return found[-1] if found else None


def record(kind: str) -> dict[str, Any] | None:
    """What is in it; None where there is none."""
    path = newest(kind)
    return json.loads(path.read_text(encoding="utf-8")) if path else None


def measured() -> str:
    """On what, when, and how."""
    found = record("gpu")
    if found is None:
        return NOTHING
    said = [f"{measured_on(found)} On {found['date']}, in {found['seconds']:.0f} seconds."]
    clocks = [
        rate for case in found["cases"].values() for row in case["rows"] for rate in row.get("clock", [])
    ]
    if clocks:
        said.append(f"Its clock was between {min(clocks):.0f} and {max(clocks):.0f} MHz meanwhile.")
    if "ceilings" in found:
        best = ", ".join(f"{name} {value:g}" for name, value in found["ceilings"].items())
        said.append(f"At its best it does, measured in the same run: {best}.")
    return " ".join(said) + "\n"


def targets() -> str:
    """Each target, and what the numbers say."""
    gpu, recurrent = record("gpu"), record("recurrent")
    judged = [*(verdicts(gpu) if gpu else []), *(training(recurrent) if recurrent else [])]
    if not judged:
        return NOTHING
    rows = [[each.target, each.where, each.measured, each.said] for each in judged]
    return markdown(["target", "where", "measured", ""], [[_cell(text) for text in row] for row in rows])


def additive() -> str:
    """The cases of additive attention."""
    return _cases("gpu", lambda case: case["about"].startswith(ADDITIVE) and not _curve(case))


def lengths() -> str:
    """Cost against length."""
    return _cases("gpu", _curve)


def dot() -> str:
    """The cases of scaled dot attention, masks and looks among them."""
    return _cases("gpu", lambda case: case["about"].startswith(DOT) and not _curve(case))


def cpu() -> str:
    """The suite of the CPU."""
    found = record("cpu")
    return _cases("cpu", lambda case: True) + (f"\n{measured_on(found)}\n" if found else "")


def lost() -> str:
    """Where a peer is faster than what a user of ours gets."""
    rows = [
        [
            each.case,
            each.what,
            each.peer,
            number(each.theirs),
            each.which,
            number(each.ours),
            f"{each.ours / each.theirs:.2f}",
        ]
        for kind in ("gpu", "cpu")
        for each in losses(record(kind) or {"cases": {}})
    ]
    if not rows:
        return "Nowhere in the results above.\n" if record("gpu") or record("cpu") else NOTHING
    return markdown(["case", "pass", "who", "theirs, ms", "what of ours", "ours, ms", "ours / theirs"], rows)


def recurrent() -> str:
    """Training of a recurrent model, as its benchmark tells it."""
    path = newest("recurrent", "md")
    return path.read_text(encoding="utf-8").strip() + "\n" if path else NOTHING


def others() -> str:
    """Every kind of result that a page tells, with its newest file."""
    newest_of = {kind: newest(kind, "md") for kind in PLACES}
    rows = [
        [kind, f"`benchmarks/results/{path.name}`", PLACES[kind]] for kind, path in newest_of.items() if path
    ]
    return markdown(["kind", "newest file", "told"], rows)


def plots() -> dict[str, Plot]:
    """The pictures of the page, by name."""
    found = {}
    for kind in ("gpu", "cpu"):
        for name, case in (record(kind) or {"cases": {}})["cases"].items():
            drawn = plot_of(name, case)
            if drawn is not None:
                found[_picture(kind, name)] = drawn
    return found


PARTS: dict[str, Callable[[], str]] = {
    "measured": measured,
    "targets": targets,
    "additive": additive,
    "lengths": lengths,
    "dot": dot,
    "cpu": cpu,
    "lost": lost,
    "recurrent": recurrent,
    "results": others,
}


def _cases(kind: str, wanted: Callable[[dict[str, Any]], bool]) -> str:
    found = record(kind)
    if found is None:
        return NOTHING
    parts = []
    for name, case in found["cases"].items():
        if not wanted(case):
            continue
        rows = [
            {**row, **{key: _cell(row[key]) for key in ("missing", "note") if key in row}}
            for row in case["rows"]
        ]
        parts.append(f"### {name}\n\n{about(case)}\n\n{table_of({**case, 'rows': rows})}")
        if plot_of(name, case) is not None:
            what = "milliseconds and memory by length" if _curve(case) else "milliseconds of each peer"
            parts.append(f"![{name}: {what}](pictures/{_picture(kind, name)}.svg)\n")
    return "\n".join(parts) or NOTHING


def _curve(case: dict[str, Any]) -> bool:
    return any("length" in row for row in case["rows"])


def _picture(kind: str, name: str) -> str:
    return f"performance-{kind}-{name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
