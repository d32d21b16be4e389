"""The options that commands with a trained run share: which weights, where, and how to search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.lines import say
from regard.decoding import LENGTHS, OVERLONG, Beam, Greedy, Rules, Sample, Search
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.penalties import GNMT, MOST_ALPHA, Length
from regard.decoding.rules import MOST_TOKENS
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["chosen_search", "described", "opened"]

SEARCHING, MACHINE = "Searching", "Which weights, and where"

BEAM = 5
"""How many beginnings are kept unless told otherwise."""


def _option(text: str, panel: str = SEARCHING, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_default=False, **limits)


SourceFile = Annotated[str, typer.Option(metavar="FILE", help="Sentences, one a line; - is standard input.")]
TargetFile = Annotated[str, typer.Option(metavar="FILE", help="Their translations, in the same order.")]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The file to write to, not standard output.")
]
PageFile = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write a page of alignments.")
]
Unit = Annotated[
    str,
    typer.Option(
        metavar="UNIT",
        help="Unit to align: word, character or auto (characters if the run has a character tokenizer).",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run: regard train --out.")]
Size = Annotated[
    int | None, _option(f"How many beginnings are kept; {BEAM} unless given.", min=1, max=MOST_BEAMS)
]
Penalty = Annotated[
    str | None, _option("Higher favours longer sentences; 0.6 unless given, average:1 by the mean.")
]
Best = Annotated[int, _option("So many translations of each line, the best first.", min=1, max=MOST_BEAMS)]
Greedily = Annotated[
    bool, typer.Option("--greedy", help="The best token each time.", rich_help_panel=SEARCHING)
]
Drawn = Annotated[
    bool, typer.Option("--sample", help="Draw tokens by their probability.", rich_help_panel=SEARCHING)
]
Temperature = Annotated[
    float | None, _option("Of --sample: below 1 the probable becomes more so.", callback=bounds.finite)
]
TopK = Annotated[int | None, _option("Of --sample: draw among so many.", min=0, max=bounds.LINES)]
TopP = Annotated[
    float | None,
    _option("Of --sample: draw among the first with so much probability.", callback=bounds.finite),
]
Seed = Annotated[int | None, _option("Of --sample: another seed draws others.", min=0, max=bounds.SEED)]
MaxLength = Annotated[
    int | None, _option("The most tokens that a translation may have.", min=1, max=MOST_TOKENS)
]
Longest = Annotated[
    int, _option("How many tokens are read at once; 512 unless given.", min=2, max=MOST_TOKENS)
]
Overlong = Annotated[str, _option(f"What is done with longer lines: {' or '.join(OVERLONG)}.")]
BatchTokens = Annotated[
    int, _option("Tokens that are worked on at once; 4096 unless given.", MACHINE, min=1, max=bounds.TOKENS)
]
Which = Annotated[str, _option("best, latest, or the number of a step; best unless given.", MACHINE)]
Device = Annotated[str, _option("cpu, cuda, mps, or auto for the best there is.", MACHINE)]
Threads = Annotated[int | None, _option("How many cores torch may use.", MACHINE, min=1, max=bounds.THREADS)]


def opened(run: Path, checkpoint: str, device: str, threads: int | None, **options: Any) -> Any:
    """The translator of a run, with what had to be passed over to load it said; options are Translator's."""
    import torch

    from regard.tasks.translation.loading import load_translator

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_translator(run, checkpoint=checkpoint, device=device, **options)
    for note in loaded.notes:
        say(note)
    return loaded


def chosen_search(
    beam: int | None,
    length_penalty: str | None,
    best: int = 1,
    greedy: bool = False,
    max_length: int | None = None,
    sample: bool = False,
    **drawing: float | None,
) -> Search:
    """The way of searching that the options say; those that do not go together are refused.

    >>> chosen_search(None, "average:1", best=9)
    Beam(size=9, best=9, length=Average(alpha=1.0), coverage=0.0, rules=Rules(minimum=1, ...))
    """
    drawn = {name: value for name, value in drawing.items() if value is not None}
    given = {
        "--beam": beam is not None,
        "--length-penalty": length_penalty is not None,
        "--greedy": greedy,
        "--sample": sample,
        "--best": best > 1,
        **{f"--{name.replace('_', '-')}": True for name in drawn},
    }
    together = {
        "--greedy": {"--greedy"},
        "--sample": {"--sample", "--best", "--temperature", "--top-k", "--top-p", "--seed"},
        "": {"--beam", "--length-penalty", "--best"},
    }
    way = "--greedy" if greedy else "--sample" if sample else ""
    wrong = [name for name, there in given.items() if there and name not in together[way]]
    if wrong:
        hint = "" if way else "--sample draws at random, and takes it"
        raise ArgumentError(message(wrong[0], f"this is no option of {way or 'beam search'}", hint=hint))
    rules = Rules(maximum=max_length)
    if greedy:
        return Greedy(rules)
    if sample:
        return Sample(**drawn, count=best, rules=rules)  # type: ignore[arg-type]
    return Beam(max(BEAM, best) if beam is None else beam, best, _length(length_penalty), rules=rules)


def described(search: Search) -> str:
    """How was searched, in a few words, to stand on a page.

    >>> described(Beam(size=5)), described(Greedy())
    ('found by a beam of 5', 'the best token each time')
    """
    if isinstance(search, Beam):
        return f"found by a beam of {search.size}"
    return "the best token each time" if isinstance(search, Greedy) else "drawn at random"


def _length(given: str | None) -> Length:
    """A length penalty from a number, or from a name and a number."""
    if given is None:
        return GNMT()
    name, colon, number = given.rpartition(":")
    if colon and name not in LENGTHS:
        raise UnknownName("length penalty", name, LENGTHS)
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not abs(alpha) <= MOST_ALPHA:
        expected = f"a number from -{MOST_ALPHA} to {MOST_ALPHA}, or a name and a number: average:1"
        raise ArgumentError(message("--length-penalty", f"{given[:60]!r}", expected=expected))
    return LENGTHS[name or "gnmt"](alpha)
