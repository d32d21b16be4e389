"""regard doctor: what this machine has, what it lacks, and whether the essentials work."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import regard
from regard.cli.backends import devices
from regard.data import korean_english, train_tokenizer
from regard.runs.system_report import SECTIONS, Fact

__all__ = ["doctor"]

STYLES = {"well": ("ok", "green"), "lacking": ("--", "yellow"), "wrong": ("!!", "bold red")}

TOLERANCE = 1e-3
"""Kernels round differently; what is broken is further off than this."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for bug reports.")] = False,
) -> None:
    """Check the installation: versions, devices, optional packages and a small computation.

    Exits with 0 if all that is necessary is well, with 1 if not. No folder or user is named.

    Examples:

    * `regard doctor`

    * `regard doctor --json > report.json`
    """
    found: dict[str, list[Fact]] = {}
    console = Console(highlight=False)
    for section, facts in {**SECTIONS, "check": checks}.items():
        found[section] = list(facts())
        if not as_json:
            console.print(_table(section, found[section]))
    every = [fact for facts in found.values() for fact in facts]
    well = all(fact.state != "wrong" for fact in every)
    if as_json:
        listed = {section: list(map(asdict, facts)) for section, facts in found.items()}
        typer.echo(json.dumps({"well": well, **listed}, indent=2))
    else:
        lacking = sum(fact.state == "lacking" for fact in every)
        verdict = (
            f"all that is necessary is well; {lacking} of use could be added" if lacking else "all is well"
        )
        console.print(Text(verdict if well else "something is wrong: see !! above", style="bold"))
    if not well:
        raise typer.Exit(1)


def _table(section: str, facts: list[Fact]) -> Table:
    table = Table(box=None, show_header=False, title=section, title_justify="left", title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for fact in facts or [Fact("", "nothing that matters")]:
        mark, style = STYLES[fact.state]
        value = Text(fact.value)
        if fact.hint:
            value.append(f"  ({fact.hint})", style="dim")
        table.add_row(Text(mark, style=style), Text(fact.name, style="cyan"), value)
    table.add_row("")
    return table


def checks() -> Iterator[Fact]:
    """Small runs of what everything else stands on."""
    for device in devices():
        yield _checked(f"attention on {device}", functools.partial(_attention_agrees, device))
    yield _checked("tokenizer", _tokenizer_returns)


def _checked(name: str, check: Callable[[], str]) -> Fact:
    try:
        return Fact(name, check())
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        return Fact(name, first, "wrong", "please report it with: regard doctor --json")


def _attention_agrees(device: str) -> str:
    """Output and gradient of the backend that auto takes, against the reference."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scores = {name: regard.build_score(name, 32, 32) for name in ("scaled_dot", "additive")}
        x = torch.randn(2, 2, 17, 32).to(device)
    taken = []
    for name, score in scores.items():
        if isinstance(score, torch.nn.Module):
            score.to(device)
        ours, theirs = (_run(x, score, backend) for backend in ("auto", "reference"))
        far = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
        backend = regard.explain(x, x, score=score, mask=regard.causal()).backend
        if not far <= TOLERANCE:
            raise ArithmeticError(f"{backend} differs from the reference by {far:.2g} for {name}")
        taken.append(f"{name} by {backend}")
    return f"agrees with the reference: {', '.join(taken)}"


def _run(x: torch.Tensor, score: regard.Score, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    query = x.clone().requires_grad_()
    output = regard.attention(query, x, x, score=score, mask=regard.causal(), backend=backend).output
    (gradient,) = torch.autograd.grad(output.square().sum(), query)
    return output.detach(), gradient


def _tokenizer_returns() -> str:
    lines = [example.source for example in korean_english("valid", 50)]
    tokenizer = train_tokenizer("unigram", lines, size=500)
    if any(tokenizer.decode(tokenizer.encode(line)) != line for line in lines):
        raise ArithmeticError("a sentence does not come back from its tokens")
    return f"{len(lines)} sentences come back from their tokens"
