"""regard intervene: cut or force what a model looks at, and see what it says then."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli import bounds
from regard.cli.run_options import (
    Device,
    Greedily,
    MaxLength,
    Penalty,
    RunFolder,
    Size,
    Threads,
    Which,
    chosen_search,
    opened,
)
from regard.decoding import Scored, Translation
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.interventions import Cut, Force, Intervention, Scale, Uniform, read_interventions
from regard.interventions import intervene as changing
from regard.look import Look
from regard.sites import scope
from regard.viewing import Entry, draw
from regard.viewing.entry import ROWS

__all__ = ["intervene"]

NARROW = 36
"""Translations are given so many letters to a line at least, however narrow their drawing is."""

LINK = re.compile(r"(\d{1,6})-(\d{1,6})(?::([0-9.]{1,9}))?")
PLACE = re.compile(r"(.+?)(?::(\d{1,4}))?")

Sentence = Annotated[str, typer.Argument(metavar="SENTENCE", help="Source sentence.")]
Cuts = Annotated[list[str] | None, typer.Option("--cut", metavar="S-T", help="Hide word S from word T.")]
Forces = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="S-T",
        help="Force word T to attend to word S only; S-T:0.5 for half of the weight.",
    ),
]
Erased = Annotated[
    list[int] | None,
    typer.Option("--erase", metavar="S", help="Hide word S from every word.", min=0, max=bounds.LINES),
]
Evens = Annotated[
    list[str] | None,
    typer.Option("--uniform", metavar="SITE[:HEAD]", help="Make the attention there uniform."),
]
Drops = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="SITE[:HEAD]", help="Set the output of the attention there to zero."),
]
Place = Annotated[str, typer.Option(help="Sites where links are cut and forced, * as wildcard.")]
Head = Annotated[
    int | None, typer.Option(help="Number of a head, from 0. Default: all heads.", min=0, max=bounds.HEADS)
]
Data = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="JSON file of interventions, by token numbers.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a drawing.")]


def intervene(
    run: RunFolder,
    sentence: Sentence,
    cut: Cuts = None,
    force: Forces = None,
    erase: Erased = None,
    uniform: Evens = None,
    drop: Drops = None,
    site: Place = "*cross",
    head: Head = None,
    data: Data = None,
    as_json: AsJSON = False,
    beam: Size = None,
    length_penalty: Penalty = None,
    greedy: Greedily = False,
    max_length: MaxLength = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate a sentence with and without changes to its attention, side by side.

    Links are as regard align prints them, the source word first, counted from 0; in a run with a character
    tokenizer, characters are counted. A target word is one of the first translation; what follows it may
    change.

    Examples:

    * `regard intervene runs/x "나는 고양이로소이다" --cut 1-2`

    * `regard intervene runs/x "나는 고양이로소이다" --force 0-3 --erase 1`

    * `regard intervene runs/x "나는 고양이로소이다" --uniform "decoder.1.cross:0" --drop "decoder.0.cross"`
    """
    search = chosen_search(beam, length_penalty, greedy=greedy, max_length=max_length)
    translator = opened(run, checkpoint, device, threads, search=search, look="*cross")
    with scope(Look()) as sites:
        before = translator.translate(sentence)
    sentence = before.source  # prepared: its words are those that links are given for
    if len(before.passages) != 1:
        problem = (
            "there is nothing to read in it" if not before.passages else "it is too long to be read at once"
        )
        raise DataError(message("regard intervene", problem))
    where: dict[str, Any] = {"at": site, "head": head}
    wanted: list[Intervention] = [] if data is None else _read(data)
    for given in cut or ():
        keys, rows, _ = _linked("--cut", given, before)
        wanted += [Cut(row, key, **where) for row in rows for key in keys]
    for given in force or ():
        keys, rows, weight = _linked("--force", given, before)
        wanted += [Force(row, key, weight / len(keys), **where) for row in rows for key in keys]
    for word in erase or ():
        wanted += [Cut(None, key, **where) for key in _source("--erase", word, before)]
    wanted += [Uniform(**_place("--uniform", given)) for given in uniform or ()]
    wanted += [Scale(0.0, **_place("--drop", given)) for given in drop or ()]
    if not wanted:
        hint = "--cut, --force, --erase, --uniform, --drop or --data"
        raise ArgumentError(message("regard intervene", "nothing is to be changed", hint=hint))
    for place in {each.at: None for each in wanted}:
        if not fnmatch.filter(sites, place):
            hint = f"the model attends at {', '.join(sites) or 'no site'}"
            raise ArgumentError(message("regard intervene", f"nothing was changed at {place!r}", hint=hint))
    with changing(*wanted) as changed:
        after = translator.translate(sentence)
        kept = translator.score(sentence, before.text)
    for place in (place for place, count in changed.items() if not count):
        problem = f"nothing was changed at {place!r}: no such word was said"
        raise ArgumentError(message("regard intervene", problem))
    if as_json:
        written = _written(before, after, kept) | {"interventions": [each.written() for each in wanted]}
        typer.echo(json.dumps(written, indent=2, ensure_ascii=False))
    else:
        _print(Console(highlight=False), before, after, kept)


def _linked(option: str, given: str, before: Translation) -> tuple[list[int], list[int], float]:
    """The tokens of the source and of the target that a link joins, and its weight."""
    found = LINK.fullmatch(given)
    if found is None:
        expected = "a source word and a target word, counted from 0: 2-3"
        raise ArgumentError(message(option, f"'{printable(given[:40])}' is no link", expected=expected))
    try:
        weight = 1.0 if found[3] is None else float(found[3])
    except ValueError:
        raise ArgumentError(message(option, f"{found[3]} is no number")) from None
    rows = _tokens(option, "target", int(found[2]), before.passages[0].words)
    return _source(option, int(found[1]), before), rows, weight


def _source(option: str, word: int, before: Translation) -> list[int]:
    return _tokens(option, "source", word, before.passages[0].source_words)


def _tokens(option: str, side: str, word: int, words: Sequence[int]) -> list[int]:
    """The places of the tokens of a word."""
    places = [place for place, each in enumerate(words) if each == word]
    if not places:
        count = max(words, default=-1) + 1
        problem = f"there is no {side} word {word}"
        raise ArgumentError(message(option, problem, expected=f"one of {count}, counted from 0"))
    return places


def _place(option: str, given: str) -> dict[str, Any]:
    """A site and a head from decoder.1.cross:0."""
    found = PLACE.fullmatch(given)
    if found is None:
        raise ArgumentError(
            message(option, "it names no site", expected="decoder.1.cross, or decoder.1.cross:0")
        )
    return {"at": found[1], "head": None if found[2] is None else int(found[2])}


def _read(path: Path) -> list[Intervention]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(message(shown(path), error.strerror or "it cannot be read")) from None
    except ValueError:
        raise DataError(message(shown(path), "this is not JSON")) from None
    found = found.get("interventions") if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        expected = '[{"kind": "cut", "row": 2, "key": 3, "at": "*cross"}, ...]'
        raise DataError(message(shown(path), "these are no interventions", expected=expected))
    return read_interventions(found)


def _costs(before: Scored, kept: Scored) -> list[tuple[str, float, float]]:
    """The pieces said before, with what each cost then and costs now; empty where they are cut otherwise."""
    if before.pieces[: len(kept.pieces)] != kept.pieces:
        return []
    return list(zip(kept.pieces, before.token_scores, kept.token_scores, strict=False))


def _written(before: Translation, after: Translation, kept: Scored) -> dict[str, Any]:
    sides = {
        name: {"text": each.text, "score": each.score}
        for name, each in (("before", before), ("after", after))
    }
    return {
        "source": before.source,
        **sides,
        "before_under_intervention": kept.score,
        "tokens": [{"piece": piece, "before": was, "after": now} for piece, was, now in _costs(before, kept)],
    }


def _side_by_side(console: Console, before: Entry, after: Entry) -> Table:
    """Two translations in two columns of one width, their weights in the same shades, row beside row."""
    pair = (before, after)
    weights = [entry.weights[:ROWS] for entry in pair]
    most = max((float(each.max(initial=0.0)) for each in weights), default=0.0)
    drawn = [
        draw(each, entry.target[: each.shape[0]], entry.source[: each.shape[1]], most=max(most, 1.0))
        for each, entry in zip(weights, pair, strict=True)
    ]
    side = max(cell_len(word) for each in drawn for word in ("", *each.rows))
    drawn = [
        replace(each, rows=tuple(" " * (side - cell_len(word)) + word for word in each.rows))
        for each in drawn
    ]
    own = max(console.measure(each).maximum for each in drawn)
    both = Table.grid(padding=(0, 4, 0, 0))
    for _ in pair:
        both.add_column(width=min(max(own, NARROW), (console.width - 8) // 2), overflow="fold")
    both.add_row(Text("before", style="bold"), Text("after", style="bold"))
    both.add_row(*(Text(printable(entry.target_text)) for entry in pair))
    both.add_row()
    both.add_row(*drawn)
    both.add_row()
    both.add_row(*(Text(f"log-probability {entry.score:.2f}", style="dim") for entry in pair))
    told = [(entry.drawn(*each.shape), *entry.notes) for each, entry in zip(weights, pair, strict=True)]
    both.add_row(*(Text(printable("; ".join(filter(None, notes))), style="dim") for notes in told))
    return both


def _print(console: Console, before: Translation, after: Translation, kept: Scored) -> None:
    """Both translations with their alignments, and what each word of the first costs now."""
    console.print(_side_by_side(console, before.entry(), after.entry()))
    console.print()
    table = Table(box=None, header_style="dim")
    table.add_column("said before", no_wrap=True)
    for name in ("log p then", "log p now", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for piece, was, now in _costs(before, kept):
        then, today, change = (round(number, 2) + 0.0 for number in (was, now, now - was))  # no -0.00
        style = "bold" if change < -1 else ""
        table.add_row(Text(printable(piece)), f"{then:.2f}", f"{today:.2f}", f"{change:+.2f}", style=style)
    console.print(table)
    same = "It says the same" if after.text == before.text else "It says something else"
    cost = before.score - kept.score
    less = f"{abs(cost):.1f} nats {'less' if cost > 0 else 'more'} probable now"
    console.print(Text(f"{same}; what it said before is {less}."))
