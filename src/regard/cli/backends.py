"""regard backends: which kernel runs what on this machine, and why not another."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import regard
from regard.backends import BACKENDS
from regard.looking import PASSES

__all__ = ["backends"]


def backends(
    why: Annotated[
        bool, typer.Option("--why", help="Also print why each of the other backends cannot run.")
    ] = False,
) -> None:
    """List which backend runs each score on this machine.

    Examples:

    * `regard backends`

    * `regard backends --why`
    """
    console = Console(highlight=False)
    console.print(Text(f"torch {torch.__version__} on {', '.join(map(_called, devices()))}", style="bold"))
    console.print(_listed("backend", {name: each.about for name, each in BACKENDS.items()}))
    console.print(_listed("looking pass", {name: each.about for name, each in PASSES.items()}))
    for device in devices():
        console.print(_choices(device))
    if why:
        for device in devices():
            _say_why(console, device)
    else:
        console.print(Text("regard backends --why gives the reasons; regard.explain(...) those of one call"))


def devices() -> list[str]:
    """The kinds of device that torch can use here."""
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [name for name, here in found.items() if here]


def _called(device: str) -> str:
    return f"cuda ({torch.cuda.get_device_name()})" if device == "cuda" else device


def _explained(name: str, device: str, dtype: torch.dtype, trains: bool) -> regard.Explanation:
    """What auto takes for an ordinary call: 2 sequences, 4 heads of 64, 128 long."""
    score = regard.build_score(name, 64, 64)
    if isinstance(score, torch.nn.Module):
        score.to(device, dtype)
    x = torch.zeros(2, 4, 128, 64, device=device, dtype=dtype, requires_grad=trains)
    return regard.explain(x, x, score=score, look=regard.Look(entropy=True))


def explained(found: regard.Explanation) -> Table:
    """An explanation as a table: the backend taken, and what the others say."""
    table = _table("", "backend", "")
    for name in BACKENDS:
        why = "; ".join(found.refused.get(name, []))
        taken = name == found.backend
        state = Text("taken", style="bold") if taken else Text(why or "could run")
        table.add_row("->" if taken else "", Text(name, style="cyan"), state)
    if found.looking is not None:
        table.add_row(
            "", Text("looking", style="dim"), Text(f"{found.looking}: {PASSES[found.looking].about}")
        )
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _listed(heading: str, about: dict[str, str]) -> Table:
    table = _table(heading, "what it is")
    for name, text in about.items():
        table.add_row(Text(name, style="cyan"), Text(text))
    table.add_row("")
    return table


def _choices(device: str) -> Table:
    table = _table("score", "equation", "float32", "bfloat16", "training", title=f"auto on {device}")
    for name, score in regard.SCORES.items():
        found = [
            _explained(name, device, torch.float32, trains=False),
            _explained(name, device, torch.bfloat16, trains=False),
            _explained(name, device, torch.float32, trains=True),
        ]
        chosen = [Text(each.backend) for each in found]
        table.add_row(Text(name, style="cyan"), Text(score.equation), *chosen)
    table.add_row("")
    return table


def _say_why(console: Console, device: str) -> None:
    """The reasons, told once for the scores that share them."""
    told: dict[str, tuple[regard.Explanation, list[str]]] = {}
    for name in regard.SCORES:
        found = _explained(name, device, torch.float32, trains=True)
        told.setdefault(str(found), (found, []))[1].append(name)
    for found, names in told.values():
        console.print(Text(f"{', '.join(names)} on {device}, float32, training", style="bold"))
        console.print(explained(found), "")
