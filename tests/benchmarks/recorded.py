"""Example records in the format of the suites, with invented numbers, to test targets, tables and plots."""

from __future__ import annotations

from typing import Any


def timing(median: float, spread: float = 0.01) -> dict[str, Any]:
    low, high = median * (1 - spread), median * (1 + spread)
    return {"median": median, "low": low, "high": high, "runs": 20, "how": "graph"}


def row(peer: str, forward: float, both: float, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    found = {"peer": peer, "dtype": dtype, "forward": timing(forward), "both": timing(both), **more}
    return {"peak_mib": 100.0, "clock": [1755.0, 1980.0], **found}


def missing(peer: str, why: str, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    return {"peer": peer, "dtype": dtype, "missing": why, **more}


def at(peer: str, length: int, both: float, peak: float, **more: Any) -> dict[str, Any]:
    return {
        "peer": peer,
        "dtype": "bfloat16",
        "length": length,
        "both": timing(both),
        "peak_mib": peak,
        **more,
    }


def case(about: str, rows: list[dict[str, Any]], limit: float | None = None, by: str = "") -> dict[str, Any]:
    gates = {"bfloat16": {"strict": 0.4, "allowed": 0.39}}
    return {"about": about, "limit": limit, "limited by": by, "gates": gates, "rows": rows}


def gpu() -> dict[str, Any]:
    """Return a record in which most peers were measured."""
    ours = {"ours": True}
    additive = [row("eager", 4.0, 8.0), row("torch.compile", 0.6, 4.5), row("regard", 0.13, 0.8, **ours)]
    wide = [row("eager", 16.8, 33.5), row("torch.compile", 2.5, 22.1), row("regard", 0.9, 5.0, **ours)]
    short = [row("eager", 1.1, 2.4), row("torch.compile", 0.27, 1.6), row("regard", 0.1, 0.5, **ours)]
    large = [missing("eager", "would hold 211 GiB of 139: not tried"), row("regard", 9.5, 66.0, **ours)]
    lengths = [
        *(at("eager", 2**n, 0.1 * 2 ** (n - 7), 512.0 * 2 ** (n - 7)) for n in range(7, 13)),
        missing("eager", "would hold 125 GiB of 139: not tried", length=8192),
        missing("eager", "stopped at 8,192", length=16384),
        *(
            at("regard", 2**n, 0.02 * 2 ** (n - 7), 40.0 * max(1, 2 ** (n - 14)), **ours)
            for n in range(7, 17)
        ),
    ]
    dot = [
        row("eager", 10.0, 23.8),
        missing("SDPA cuDNN", "forward: RuntimeError: No | backend"),
        row("SDPA flash", 1.62, 5.9),
        row("regard", 1.70, 5.91, note="sdpa-flash", **ours),
    ]
    window = [
        row("regard sdpa-efficient", 3.0, 9.0, **ours),
        row("regard flex", 0.5, 2.0, note="what auto takes", **ours),
    ]
    cases = {
        "short-50": case("Additive attention, B=64 T=50 S=50 D=E=1000", short, 0.0387, "tanh"),
        "long-512": case("Additive attention, B=8 T=512 S=512 D=E=256", additive, 0.13, "tanh"),
        "long-2048": case("Additive attention, B=4 T=2048 S=2048 D=E=128", wide, 0.52, "tanh"),
        "additive-16384": case("Additive attention, B=1 T=16384 S=16384 D=E=128", large, 8.32, "tanh"),
        "dot-4096": case("Scaled dot attention, B=4 H=16 T=S=4096 D=E=128", dot, 0.696, "matmul"),
        "window-16384": case("Scaled dot attention, causal, 1024 back", window, 0.084, "matmul"),
        "additive-lengths": case("Additive attention by length", lengths),
    }
    return {
        "suite": "gpu",
        "date": "2026-11-15",
        "environment": {"gpu": "A device", "torch": "2.13.0", "triton": "3.7.1"},
        "ceilings": {"matmul TFLOP/s": 700.0, "copy TB/s": 4.2},
        "cases": cases,
        "seconds": 180.0,
    }
