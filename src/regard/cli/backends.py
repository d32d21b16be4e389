"""regard backends: list the backend that is used for each score function on this machine."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import regard
from regard.backends import BACKENDS
from regard.cli.options import command
from regard.cli.printing import printable_console
from regard.looking import PASSES
from regard.training.command_options import flag


@command(flag("--why", "Also print why the other backends are not used."))
def backends(why: bool) -> None:
    """List the backend that computes attention with each score function on this machine.

    Examples:

    * `regard backends`

    * `regard backends --why`
    """
    console = printable_console()
    console.print(
        Text(f"torch {torch.__version__} on {', '.join(map(_device_name, devices()))}", style="bold")
    )
    console.print(_listed("backend", {name: each.about for name, each in BACKENDS.items()}))
    console.print(_listed("looking pass", {name: each.about for name, each in PASSES.items()}))
    for device in devices():
        console.print(_choices(device))
    if why:
        for device in devices():
            _print_reasons(console, device)
    else:
        console.print(Text("For the reasons: regard backends --why; for one call: regard.explain(...)"))


def devices() -> list[str]:
    """Return the types of device that torch can use on this machine: cpu, cuda, mps."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [name for name, usable in available.items() if usable]


def _device_name(device: str) -> str:
    return f"cuda ({torch.cuda.get_device_name()})" if device == "cuda" else device


def _explained(name: str, device: str, dtype: torch.dtype, trains: bool) -> regard.Explanation:
    """Return which backend computes a typical attention call, and why.

    The call has batch size 2, 4 heads of size 64, and length 128.

    name: the name of the score function.
    trains: whether gradients are needed.
    """
    score = regard.build_score(name, 64, 64)
    if isinstance(score, torch.nn.Module):
        score.to(device, dtype)
    x = torch.zeros(2, 4, 128, 64, device=device, dtype=dtype, requires_grad=trains)
    return regard.explain(x, x, score=score, look=regard.Look(entropy=True))


def explained(explanation: regard.Explanation) -> Table:
    """Return an explanation as a table: the backend that is used, and why each other backend is not used."""
    table = _table("", "backend", "")
    for name in BACKENDS:
        why = "; ".join(explanation.refused.get(name, []))
        used = name == explanation.backend
        state = Text("used", style="bold") if used else Text(why or "could run")
        table.add_row("->" if used else "", Text(name, style="cyan"), state)
    if explanation.looking is not None:
        table.add_row(
            "",
            Text("looking", style="dim"),
            Text(f"{explanation.looking}: {PASSES[explanation.looking].about}"),
        )
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _listed(heading: str, about: dict[str, str]) -> Table:
    table = _table(heading, "description")
    for name, text in about.items():
        table.add_row(Text(name, style="cyan"), Text(text))
    table.add_row("")
    return table


def _choices(device: str) -> Table:
    table = _table("score", "equation", "float32", "bfloat16", "training", title=f"auto on {device}")
    for name, score in regard.SCORES.items():
        explanations = [
            _explained(name, device, torch.float32, trains=False),
            _explained(name, device, torch.bfloat16, trains=False),
            _explained(name, device, torch.float32, trains=True),
        ]
        chosen = [Text(each.backend) for each in explanations]
        table.add_row(Text(name, style="cyan"), Text(score.equation), *chosen)
    table.add_row("")
    return table


def _print_reasons(console: Console, device: str) -> None:
    """Print, for each score function, why the other backends are not used.

    Score functions with the same reasons share a table.
    """
    groups: dict[str, tuple[regard.Explanation, list[str]]] = {}
    for name in regard.SCORES:
        explanation = _explained(name, device, torch.float32, trains=True)
        groups.setdefault(str(explanation), (explanation, []))[1].append(name)
    for explanation, names in groups.values():
        console.print(
            Text(f"reasons for {', '.join(names)} on {device}, in float32, with gradients", style="bold")
        )
        console.print(explained(explanation), "")
