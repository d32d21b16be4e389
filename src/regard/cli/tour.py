"""regard tour: show every attention mechanism, drawn in the terminal."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from regard.cli.printable_console import printable_console
from regard.cli.tour_steps import TOUR_STEPS, TourStep
from regard.viewing import beside

__all__ = ["tour"]

QUICK = 3
"""Number of steps that `regard tour --quick` shows: the first of the TOUR_STEPS."""


def tour(
    quick: Annotated[bool, typer.Option("--quick", help=f"Show the first {QUICK} steps only.")] = False,
) -> None:
    """Show every attention mechanism in the terminal: a short text, the call, and a drawing of the weights.

    Examples:

    * `regard tour`

    * `regard tour --quick`
    """
    console = printable_console()
    steps = TOUR_STEPS[:QUICK] if quick else TOUR_STEPS
    console.print(Text("Attention you can see: compare, mask, select, read.", style="bold"))
    console.print(Text("The vectors are written by hand or random; no trained model is used.", style="dim"))
    for number, make in enumerate(steps, start=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            show(console, number, make())
    if quick:
        console.print(Text(f"\n{len(TOUR_STEPS) - QUICK} more steps: regard tour", style="dim"))


def show(console: Console, number: int, step: TourStep) -> None:
    """Print one step of the tour: its text, its call and its drawings (side by side if they fit)."""
    console.print()
    console.rule(Text(f" {number}  {step.title} ", style="bold"), align="left", style="dim")
    console.print(Text(step.text), width=min(console.width, 92))
    if step.call:
        console.print(Text(f"> {step.call}", style="cyan"))
    if len(step.pictures) == 1:
        console.print(Padding(step.pictures[0], (1, 0, 0, 2)))
    else:
        console.print(Padding(beside(*step.pictures), (1, 0, 0, 2)), end="")
