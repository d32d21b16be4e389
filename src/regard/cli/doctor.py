"""regard doctor: check the installation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch
import typer
from rich.table import Table
from rich.text import Text

import regard
from regard.cli.backends import devices
from regard.cli.options import JSON, command
from regard.cli.printing import print_json, printable_console
from regard.data import korean_english, train_tokenizer
from regard.fast.report import fast_code
from regard.files.requirements import without_paths
from regard.models import MODELS, build_model
from regard.runs.system_report import SECTIONS, Fact

STYLES = {"well": ("ok", "green"), "lacking": ("--", "yellow"), "wrong": ("!!", "bold red")}

TOLERANCE = 1e-3
"""Largest accepted difference between the results of two backends. It allows for rounding errors."""


@command(replace(JSON, help="Print JSON instead of tables, for bug reports."))
def doctor(json: bool) -> None:
    """Check the installation: versions, devices, optional packages and a small computation.

    The exit status is 0 if everything that is required works, and 1 otherwise. The report contains no paths
    and no user names, except for the path of Python in commands to run, which --json shortens to python.

    Examples:

    * `regard doctor`

    * `regard doctor --json > report.json`
    """
    report: dict[str, list[Fact]] = {}
    console = printable_console()
    for section, facts in {**SECTIONS, "fast code": fast_twins, "check": checks}.items():
        report[section] = list(facts())
        if not json:
            console.print(_table(section, report[section]))
    every = [fact for facts in report.values() for fact in facts]
    well = all(fact.state != "wrong" for fact in every)
    if json:
        listed = {section: list(map(asdict, facts)) for section, facts in report.items()}
        for fact in itertools.chain.from_iterable(listed.values()):
            fact["hint"] = without_paths(fact["hint"])
        print_json({"well": well, **listed})
    else:
        lacking = sum(fact.state == "lacking" for fact in every)
        items = "1 optional item is" if lacking == 1 else f"{lacking} optional items are"
        verdict = f"everything required works; {items} missing (--)" if lacking else "everything works"
        console.print(Text(verdict if well else "problems found: see the lines with !!", style="bold"))
    if not well:
        raise typer.Exit(1)


def _table(section: str, facts: list[Fact]) -> Table:
    table = Table(box=None, show_header=False, title=section, title_justify="left", title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for fact in facts or [Fact("", "none")]:
        mark, style = STYLES[fact.state]
        value = Text(fact.value)
        if fact.hint:
            value.append(f"  ({fact.hint})", style="dim")
        table.add_row(Text(mark, style=style), Text(fact.name, style="cyan"), value)
    table.add_row("")
    return table


def fast_twins() -> Iterator[Fact]:
    """Yield a Fact for training and for searching each translation model: its fast twins, or why it has none.

    The models are small and have default options. Other options are shown by regard train --dry-run.
    """
    for device, name in itertools.product(devices(), MODELS):
        size = {"size": "tiny"} if name == "transformer" else {"width": 16}
        for work, code in fast_code(build_model(name, 16, 16, **size).to(device)).items():
            yield Fact(f"{name} on {device}, {work}", code)


def checks() -> Iterator[Fact]:
    """Run small computations. Yield a Fact for each computation: whether it works, and otherwise its error.

    The computations are attention on each device, and encoding and decoding of sentences with a tokenizer.
    """
    for device in devices():
        yield _checked(f"attention on {device}", functools.partial(_check_attention, device))
    yield _checked("tokenizer", _check_tokenizer)


def _checked(name: str, check: Callable[[], str]) -> Fact:
    try:
        return Fact(name, check())
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        return Fact(name, first, "wrong", "please report this error, with the output of regard doctor --json")


def _check_attention(device: str) -> str:
    """Compare the default backend with the reference backend: outputs and gradients.

    Return a text that names the default backends of two score functions. Raise ArithmeticError if the results
    of a default backend differ from the reference by more than TOLERANCE.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scores = {name: regard.build_score(name, 32, 32) for name in ("scaled_dot", "additive")}
        x = torch.randn(2, 2, 17, 32).to(device)
    backends = []
    for name, score in scores.items():
        if isinstance(score, torch.nn.Module):
            score.to(device)
        ours, theirs = (_run(x, score, backend) for backend in ("auto", "reference"))
        error = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
        backend = regard.explain(x, x, score=score, mask=regard.causal()).backend
        if not error <= TOLERANCE:
            raise ArithmeticError(
                f"backend {backend} differs from the reference by {error:.2g} for score {name}"
            )
        backends.append(f"{name} by {backend}")
    return f"agrees with the reference: {', '.join(backends)}"


def _run(x: torch.Tensor, score: regard.Score, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    query = x.clone().requires_grad_()
    output = regard.attention(query, x, x, score=score, mask=regard.causal(), backend=backend).output
    (gradient,) = torch.autograd.grad(output.square().sum(), query)
    return output.detach(), gradient


def _check_tokenizer() -> str:
    lines = [example.source for example in korean_english("valid", 50)]
    tokenizer = train_tokenizer("unigram", lines, size=500)
    if any(tokenizer.decode(tokenizer.encode(line)) != line for line in lines):
        raise ArithmeticError("decoding the tokens of a sentence does not give the sentence")
    return f"{len(lines)} sentences are encoded and decoded without loss"
