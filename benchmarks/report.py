"""A benchmark record as Markdown: one table per case; peers that did not run are rows too."""

from __future__ import annotations

from typing import Any

__all__ = ["measured_on", "number", "table_of", "tables"]

Found = dict[str, Any]


def tables(found: Found) -> str:
    """Return all cases of a record as Markdown."""
    parts = [f"## {name}\n\n{about(case)}\n\n{table_of(case)}" for name, case in found["cases"].items()]
    return "\n".join([*parts, f"{measured_on(found)}\n"])


def measured_on(found: Found) -> str:
    """Return one sentence about the machine."""
    where = ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    return f"Measured on: {where}."


def about(case: Found) -> str:
    """Return sentences about a case: what it is, its limit, its correctness check and the clock rate."""
    sentences = [f"{case['about']}."]
    if case.get("limit"):
        sentences.append(f"Limit of {case['limited by']}: {number(case['limit'])} ms forward.")
    for dtype, gate in case["gates"].items():
        if "failed" in gate:
            sentences.append(f"The correctness check failed in {dtype}: {gate['failed']}.")
        else:
            sentences.append(f"Error in {dtype}: {number(gate['strict'])} of the budget{_allowance(gate)}.")
    clocks = [rate for row in case["rows"] for rate in row.get("clock", [])]
    if clocks:
        sentences.append(f"Clock: {min(clocks):.0f} to {max(clocks):.0f} MHz.")
    return " ".join(sentences)


def _allowance(gate: Found) -> str:
    same = abs(gate["strict"] - gate["allowed"]) < 0.005 * max(gate["strict"], 1e-9)
    return "" if same else f" ({number(gate['allowed'])} with the rounding step allowed for large scores)"


def table_of(case: Found) -> str:
    """Return the table of a case: one row per peer, or per length if the case has several lengths."""
    rows = case["rows"]
    return _by_length(rows) if any("length" in row for row in rows) else _by_peer(case)


def _by_peer(case: Found) -> str:
    rows, limit = case["rows"], case.get("limit")
    passes = {"forward": "forward ms", "both": "forward + backward ms"}
    passes = {each: heading for each, heading in passes.items() if any(each in row for row in rows)}
    dtypes = len({row["dtype"] for row in rows}) > 1
    headings = ["peer", *["dtype"] * dtypes]
    for each, heading in passes.items():
        headings += [heading, "quartiles", *["of the limit"] * bool(limit and each == "forward")]
    headings += ["peak MiB", ""]
    lines = []
    for row in rows:
        line = [row["peer"], *[row["dtype"]] * dtypes]
        for each in passes:
            line += _timing(row.get(each))
            if limit and each == "forward":
                line.append(f"{100 * limit / row[each]['median']:.0f} %" if each in row else "")
        said = "; ".join(filter(None, (row.get("note"), row.get("missing"), _launched(row))))
        lines.append([*line, f"{row['peak_mib']:,.0f}" if "peak_mib" in row else "", said])
    if not any(line[-1] for line in lines):
        headings, lines = headings[:-1], [line[:-1] for line in lines]
    return markdown(headings, lines)


def _by_length(rows: list[Found]) -> str:
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    lengths = sorted({row["length"] for row in rows})
    at = {(row["peer"], row["length"]): row for row in rows}
    headings = ["length", *(f"{peer} ms" for peer in peers), *(f"{peer} MiB" for peer in peers)]
    lines = []
    for length in lengths:
        some = [at.get((peer, length), {}) for peer in peers]
        times = [number(row["both"]["median"]) if "both" in row else _stopped(row) for row in some]
        peaks = [f"{row['peak_mib']:,.0f}" if "peak_mib" in row else "" for row in some]
        lines.append([f"{length:,}", *times, *peaks])
    return markdown(headings, lines)


def _stopped(row: Found) -> str:
    """Return why a peer stopped at this length; "" at longer lengths."""
    missing = str(row.get("missing", ""))
    return "" if missing.startswith("stopped at") else missing


def _timing(timing: Found | None) -> list[str]:
    if timing is None:
        return ["", ""]
    return [number(timing["median"]), f"{number(timing['low'])} to {number(timing['high'])}"]


def _launched(row: Found) -> str:
    """Return a note if the time includes launches from Python."""
    ways = {row[each]["how"] for each in ("forward", "both") if each in row}
    return next((f"{way}" for way in ways if way.startswith("launched (")), "")


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.4f}"
