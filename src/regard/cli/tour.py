"""regard tour: every attention mechanism, each one call, drawn in the terminal."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from regard.cli.tour_steps import STATIONS, Station
from regard.viewing import beside

__all__ = ["tour"]

QUICK = 3
"""How many stations the quick tour has."""


def tour(
    quick: Annotated[bool, typer.Option("--quick", help=f"Show the first {QUICK} stations only.")] = False,
) -> None:
    """Show every attention mechanism, one call each, drawn in the terminal.

    Examples:

    * `regard tour`

    * `regard tour --quick`
    """
    console = Console(highlight=False)
    stations = STATIONS[:QUICK] if quick else STATIONS
    console.print(Text("Attention you can see: compare, mask, select, read.", style="bold"))
    console.print(
        Text(
            "The vectors are made by hand or drawn from a seed; no trained model is behind them.", style="dim"
        )
    )
    for number, make in enumerate(stations, start=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            show(console, number, make())
    if quick:
        console.print(Text(f"\n{len(STATIONS) - QUICK} more stations: regard tour", style="dim"))


def show(console: Console, number: int, station: Station) -> None:
    """Print one station: what it is, the call, and the pictures side by side where they fit."""
    console.print()
    console.rule(Text(f" {number}  {station.title} ", style="bold"), align="left", style="dim")
    console.print(Text(station.text), width=min(console.width, 92))
    if station.call:
        console.print(Text(f"> {station.call}", style="cyan"))
    if len(station.pictures) == 1:
        console.print(Padding(station.pictures[0], (1, 0, 0, 2)))
    else:
        console.print(Padding(beside(*station.pictures), (1, 0, 0, 2)), end="")
