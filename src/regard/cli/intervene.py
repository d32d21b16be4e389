"""regard intervene: change the attention of a model and compare its translations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.decoding_options import search_of, task_options
from regard.cli.open_runs import one_sentence, open_run, set_threads, task_in_regard
from regard.cli.options import JSON, LINES, OF_RUN, RUN, but, command, options_of
from regard.cli.printing import print_json, printable_console
from regard.decoding import Scored, Translation
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.interventions import Cut, Force, Intervention, Scale, Uniform, read_interventions
from regard.interventions import intervene as changing
from regard.look import Look
from regard.roles import CROSS, sites_matching
from regard.runs.run_commands import ChosenRun
from regard.runs.run_task import ChangeableTask, no_interventions, task_name
from regard.sites import scope
from regard.tasks.translation.alignment import ATTENTIVE
from regard.training.command_options import CommandOption, several
from regard.viewing import Entry, draw
from regard.viewing.entry import ROWS

NARROW = 36
"""Minimum width, in characters, of the columns in which the two translations are printed side by side."""

LINK = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?(?::(\d{0,4}\.?\d{1,9}))?")


@command(
    RUN,
    CommandOption("sentence", "Source sentence, instead of --text.", "SENTENCE"),
    CommandOption("--text", "Source sentence.", "TEXT"),
    several("--cut", "Mask source word S when target word T is predicted.", "S-T"),
    CommandOption(
        "--force",
        "Make target word T attend to source word S only. S-T:0.5 gives S half of the attention weight. "
        "May be repeated.",
        "S-T",
        list[str],
    ),
    CommandOption(
        "--erase",
        "Mask the source word with this number (the first word is 0) for all target words. May be repeated.",
        "INT",
        list[int],
        least=0,
        most=LINES,
    ),
    several(
        "--uniform",
        "Make the weights of an attention layer (site) uniform, e.g. decoder.1.cross, or of one head, "
        "e.g. decoder.1.cross:0.",
        "SITE[:HEAD]",
    ),
    several(
        "--drop",
        "Set the output of an attention layer (site), or of one of its heads, to zero.",
        "SITE[:HEAD]",
    ),
    CommandOption(
        "--site",
        "Attention layers (sites) that --cut, --force and --erase change: a role, e.g. cross, or a "
        "name; * matches any text.",
        "SITE",
        shown_default="cross; pool, hop.*, tape.read or self in other tasks",
    ),
    but(
        "head",
        "Attention head that --cut, --force and --erase change; the first is 0.",
        shown_default="all heads",
    ),
    CommandOption(
        "--data",
        "JSON file of interventions, e.g. the output of --json. It numbers tokens, not words.",
        "FILE.json",
        Path,
    ),
    replace(JSON, help="Print JSON instead of a drawing."),
    *task_options("intervene_options"),
    *OF_RUN,
)
def intervene(
    context: typer.Context, run: Path, sentence: str | None, text: str | None, **options: Any
) -> None:
    """Run a model with and without changes to its attention, and print what the changes cost.

    Every task: translation (both translations side by side), a text of a language model, a classified text,
    the caption of an image, an answer about a story, and a sequence of a neural Turing machine.

    S-T is a link of source word S and target word T, as in regard align; the first word is 0. In a run with a
    character tokenizer, S and T are numbers of characters. T is a word of the original translation. In the
    changed translation, word T and all later words may be different. S alone is a link to every T.

    In the other tasks, S is the number of a word, of a cell of the image (row by row), of a sentence of the
    story, or of a slot of the tape; T is the number of a word, or of a step of the sequence. The sites are
    named as in `regard view`: hop.0, decoder.0.self, pool, decoder.cross, tape.read.

    Examples:

    * `regard intervene runs/x --text "나는 고양이로소이다" --cut 1-2`

    * `regard intervene runs/x --text "나는 고양이로소이다" --force 0-3 --erase 1`

    * `regard intervene runs/x --text "나는 고양이로소이다" --uniform "decoder.1.cross:0"`

    * `regard intervene runs/x --text "나는 고양이로소이다" --drop "decoder.0.cross"`

    * `regard intervene runs/babi --story story.txt --question "Where is the milk?" --force 2 --site hop.0`

    * `regard intervene runs/language --text "the cat sat" --drop "decoder.0.self:1"`

    * `regard intervene runs/captioner --image dog.jpg --erase 12`

    * `regard intervene runs/copy --length 5 --force 0 --site tape.read`
    """
    kind = task_in_regard(run, "intervene")
    if not issubclass(kind, ChangeableTask):
        raise no_interventions(kind)
    values = options_of(context, kind, "intervene_options", options)
    if task_name(kind) != "translation":
        if "text" in values:
            values["text"] = one_sentence("regard intervene", sentence, text)
        elif sentence is not None or text is not None:
            problem = f"runs of the task {task_name(kind)} read no text"
            raise ArgumentError(message("--text", problem, hint="see regard intervene --help"))
        _intervene_run(kind, run, values, options)
        return
    options["site"] = options["site"] or CROSS
    search = search_of(options)
    sentence = one_sentence("regard intervene", sentence, text)
    translator = open_run(run, options, search=search, look=CROSS)
    with scope(Look()) as sites:
        before = translator.translate(sentence)
    sentence = before.source  # the preprocessed sentence, because the numbers in links count its words
    if len(before.passages) != 1:
        problem = "the sentence is empty" if not before.passages else "the sentence is too long"
        raise DataError(message("regard intervene", problem))
    where: dict[str, Any] = {"at": options["site"], "head": options["head"]}
    interventions: list[Intervention] = _read(options["data"]) if options["data"] else []
    for link in options["cut"] or ():
        keys, rows, _ = _linked("--cut", link, before)
        interventions += [Cut(row, key, **where) for row in rows for key in keys]
    for link in options["force"] or ():
        keys, rows, weight = _linked("--force", link, before)
        interventions += [Force(row, key, weight / len(keys), **where) for row in rows for key in keys]
    for word in options["erase"] or ():
        interventions += [Cut(None, key, **where) for key in _tokens("--erase", "source", word, before)]
    interventions += [Uniform(**_place(place)) for place in options["uniform"] or ()]
    interventions += [Scale(0.0, **_place(place)) for place in options["drop"] or ()]
    if not interventions:
        expected = "--cut, --force, --erase, --uniform, --drop or --data"
        raise ArgumentError(message("regard intervene", "there is no intervention", expected=expected))
    for place in {each.at: None for each in interventions}:
        if not sites_matching(sites, place):
            hint = f"the sites of the model: {', '.join(sites)}" if sites else ATTENTIVE
            raise ArgumentError(
                message("regard intervene", f"no attention site matches {place!r}", hint=hint)
            )
    with changing(*interventions) as changed:
        after = translator.translate(sentence)
        rescored = translator.score(sentence, before.text)
    for place in (place for place, count in changed.items() if not count):
        problem = f"nothing was changed at {place!r}: the translation has no such word"
        raise ArgumentError(message("regard intervene", problem))
    if options["json"]:
        print_json(
            {
                "source": before.source,
                "before": {"text": before.text, "score": before.score},
                "after": {"text": after.text, "score": after.score},
                "before_under_intervention": rescored.score,
                "tokens": [
                    {"piece": piece, "before": was, "after": now}
                    for piece, was, now in _token_scores(before, rescored)
                ],
                "interventions": [each.written() for each in interventions],
            }
        )
    else:
        _print(printable_console(), before, after, rescored)


def _intervene_run(
    kind: type[ChangeableTask], run: Path, values: dict[str, Any], options: dict[str, Any]
) -> None:
    """Change the attention of a run of any task but translation, and print what it costs.

    values: the values of the options of the task.
    options: the values of all options.
    """
    set_threads(options)
    subject = kind.change_run(ChosenRun(run, options["checkpoint"], options["device"]), values)
    where: dict[str, Any] = {"at": options["site"] or subject.site, "head": options["head"]}
    interventions: list[Intervention] = _read(options["data"]) if options["data"] else []
    for option, made in (("--cut", Cut), ("--force", Force)):
        for link in options[option.removeprefix("--")] or ():
            source, target, weight = _parsed(option, link)
            keys = _chosen(option, subject.what[1], subject.keys, source)
            rows = (
                _chosen(option, subject.what[0] or "target", subject.rows, target)
                if target is not None
                else [None]
            )
            more = (weight / len(keys),) if made is Force else ()
            interventions += [made(row, key, *more, **where) for row in rows for key in keys]
    for number in options["erase"] or ():
        keys = _chosen("--erase", subject.what[1], subject.keys, number)
        interventions += [Cut(None, key, **where) for key in keys]
    interventions += [Uniform(**_place(place)) for place in options["uniform"] or ()]
    interventions += [Scale(0.0, **_place(place)) for place in options["drop"] or ()]
    if not interventions:
        expected = "--cut, --force, --erase, --uniform, --drop or --data"
        raise ArgumentError(message("regard intervene", "there is no intervention", expected=expected))
    with scope(Look()) as sites:
        before = list(subject.scores())
    for place in {each.at: None for each in interventions}:
        if not sites_matching(sites, place):
            hint = f"the sites of the model: {', '.join(sites)}" if sites else "the model has no attention"
            raise ArgumentError(
                message("regard intervene", f"no attention site matches {place!r}", hint=hint)
            )
    outputs = [] if subject.output is None else [subject.output()]
    with changing(*interventions) as changed:
        after = list(subject.scores())
        outputs += [] if subject.output is None else [subject.output()]
    for place in (place for place, count in changed.items() if not count):
        raise ArgumentError(message("regard intervene", f"nothing was changed at {place!r}"))
    cost = sum(before) - sum(after)
    if options["json"]:
        named = {} if not outputs else dict(zip(("before", "after"), outputs, strict=True))
        parts = zip(subject.parts, before, after, strict=True)
        tokens = [{"piece": piece, "before": was, "after": now} for piece, was, now in parts]
        written = [each.written() for each in interventions]
        print_json({**named, "cost": cost, "parts": tokens, "interventions": written})
        return
    console = printable_console()
    for name, output in zip(("before", "after"), outputs, strict=False):
        console.print(Text(f"{name:6} {printable(output)}"))
    console.print(_changes(zip(subject.parts, before, after, strict=True)))
    effect = f"{'decreases' if cost > 0 else 'increases'} by {abs(cost):.1f} nats"
    console.print(Text(f"The log-probability of the original output {effect}."))


def _parsed(option: str, link: str) -> tuple[int, int | None, float]:
    """Parse a link, S, S-T or S-T:WEIGHT; return S, T (None: every target) and the weight, usually 1."""
    match = LINK.fullmatch(link)
    if match is None:
        expected = "a source and a target, counted from 0: 2-3"
        raise ArgumentError(message(option, f"'{printable(link[:40])}' is not a link", expected=expected))
    return int(match[1]), None if match[2] is None else int(match[2]), float(match[3] or 1.0)


def _chosen(option: str, what: str, places: Sequence[Sequence[int]], number: int) -> Sequence[int]:
    """Return the positions of the source or target with this number. what: its name, such as "cell"."""
    if number >= len(places):
        expected = f"0 to {len(places) - 1}" if places else "a link without a target, such as 2"
        raise ArgumentError(message(option, f"there is no {what} {number}", expected=expected))
    return places[number]


def _linked(option: str, link: str, before: Translation) -> tuple[list[int], list[int | None], float]:
    """Parse a link, S, S-T or S-T:WEIGHT. Without T, the row is None: every target word.

    Return the indices of the tokens of source word S, the indices of the tokens of target word T, and the
    weight. Without WEIGHT, the weight is 1.

    option: the option that the link is from, for error messages.
    before: the original translation.
    """
    source, target, weight = _parsed(option, link)
    rows = [None] if target is None else _tokens(option, "target", target, before)
    return _tokens(option, "source", source, before), [*rows], weight


def _tokens(option: str, side: str, word: int, before: Translation) -> list[int]:
    """Return the indices of the tokens that make up a word of the original translation.

    option: the option that names the word, for error messages.
    side: "source" or "target".
    word: the index of the word.
    """
    passage = before.passages[0]
    words = passage.source_words if side == "source" else passage.words
    places = [place for place, each in enumerate(words) if each == word]
    if not places:
        expected = f"the number of a word, from 0 to {max(words, default=-1)}"
        raise ArgumentError(message(option, f"there is no {side} word {word}", expected=expected))
    return places


def _place(text: str) -> dict[str, Any]:
    """Parse the name of an attention layer (site), with or without a head.

    >>> _place("decoder.1.cross:0"), _place("decoder.1.cross")
    ({'at': 'decoder.1.cross', 'head': 0}, {'at': 'decoder.1.cross', 'head': None})
    """
    name, _, head = text.rpartition(":")
    return {"at": name, "head": int(head)} if name and head.isdecimal() else {"at": text, "head": None}


def _read(path: Path) -> list[Intervention]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(message(shown(path), "the file is not valid JSON")) from None
    content = content.get("interventions") if isinstance(content, dict) else content
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        expected = '[{"kind": "cut", "row": 2, "key": 3, "at": "*cross"}, ...]'
        raise DataError(message(shown(path), "the file has no list of interventions", expected=expected))
    return read_interventions(content)


def _token_scores(before: Scored, rescored: Scored) -> list[tuple[str, float, float]]:
    """Return the tokens of the unchanged translation, with log-probabilities before and after the change.

    before: the unchanged translation.
    rescored: the same translation, scored with the changed attention. If its tokens differ from the tokens of
        `before`, the result is empty.
    """
    if before.pieces[: len(rescored.pieces)] != rescored.pieces:
        return []
    return list(zip(rescored.pieces, before.token_scores, rescored.token_scores, strict=False))


def _changes(scores: Iterable[tuple[str, float, float]], name: str = "output") -> Table:
    """Return a table of log-probabilities before and after a change. name: the title of the first column."""
    table = Table(box=None, header_style="dim")
    table.add_column(name, no_wrap=True)
    for title in ("log p before", "log p after", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for piece, was, now in scores:
        old, new, change = (round(number, 2) + 0.0 for number in (was, now, now - was))  # -0.0 becomes 0.0
        style = "bold" if change < -1 else ""
        table.add_row(Text(printable(piece)), f"{old:.2f}", f"{new:.2f}", f"{change:+.2f}", style=style)
    return table


def _side_by_side(console: Console, before: Entry, after: Entry) -> Table:
    """Return a table with two columns, the original and the changed translation, with one colour scale."""
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
    both.add_row(*(Text(f"log-probability {entry.score:z.2f}", style="dim") for entry in pair))
    notes = [(entry.drawn(*each.shape), *entry.notes) for each, entry in zip(weights, pair, strict=True)]
    both.add_row(*(Text(printable("; ".join(filter(None, each))), style="dim") for each in notes))
    return both


def _print(console: Console, before: Translation, after: Translation, rescored: Scored) -> None:
    """Print both translations with their attention, and the log-probabilities of the original translation.

    before: the original translation.
    after: the translation with changed attention.
    rescored: the original translation, scored with the changed attention.
    """
    console.print(_side_by_side(console, before.entry(), after.entry()))
    console.print()
    console.print(_changes(_token_scores(before, rescored), "token"))
    console.print(Text(f"The translation {'did not change' if after.text == before.text else 'changed'}."))
    cost = before.score - rescored.score
    effect = f"{'decreases' if cost > 0 else 'increases'} by {abs(cost):.1f} nats"
    console.print(Text(f"The log-probability of the original translation {effect}."))
