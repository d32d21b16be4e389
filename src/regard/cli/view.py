"""regard view: the attention of a run for one sentence, in the terminal or as a picture."""

from __future__ import annotations

import fnmatch
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.run_options import (
    Device,
    Greedily,
    MaxLength,
    Penalty,
    Size,
    Threads,
    Which,
    chosen_search,
    opened,
)
from regard.data.line_io import say
from regard.decoding import Scored
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.viewing import VIEWS, Picture, Seen, picture

__all__ = ["view"]

STEPS = "steps"
"""The one view that needs the model: its numbers are not among the weights."""

KEPT, PAGE, PICTURES = ".seen", ".html", (".png", ".svg", ".pdf", ".gif")
UNKNOWN = "<unk>"
"""What a model reads for a word that it does not know."""

OWN = ("self", "rollout")
"""The views of what sentences look at in themselves."""

SPECIALS = ("show", "hide", "renormalise")

SEEING = "View"


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=SEEING, **more)


Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a file written with --out x.seen.")]
Sentence = Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="Source sentence.")]
Target = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Show the attention for this translation instead of the model's own."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write .png, .svg, .pdf, .gif, .html (every view) or .seen (data)."),
]
LISTED = ", ".join(name for name in (*VIEWS, STEPS) if name != "long")
View = Annotated[
    str,
    _option(f"One of {LISTED}; or long, for .seen files with long sequences."),
]
Place = Annotated[
    str | None, _option("Names of attention sites, * as wildcard. Default: those that attend to the source.")
]
Head = Annotated[
    int | None, _option("Number of a head, from 0. Default: the mean of all heads.", min=0, max=bounds.HEADS)
]
Word = Annotated[
    str | None,
    _option(
        "One word, as text (word:2 for its second occurrence) or by number: a source word for --view word, a "
        "target word for shaded and steps."
    ),
]
Subwords = Annotated[
    bool | None,
    _option(
        "Show tokens or words. Default: words; characters for a run with a character tokenizer.",
        "--subwords/--words",
    ),
]
Specials = Annotated[str, _option(f"Special tokens such as `</s>`: {', '.join(SPECIALS)}.")]
ByValues = Annotated[bool, _option("Multiply weights by the norms of the values.", "--by-values")]


def view(
    run: Run,
    sentence: Sentence = None,
    target: Target = None,
    out: Out = None,
    view: View = "matrix",
    site: Place = None,
    head: Head = None,
    word: Word = None,
    subwords: Subwords = None,
    specials: Specials = "show",
    by_values: ByValues = False,
    beam: Size = None,
    length_penalty: Penalty = None,
    greedy: Greedily = False,
    max_length: MaxLength = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate one sentence and show its attention, in the terminal or in a file.

    An .html file is one page with every view; a .seen file keeps the numbers, which can be viewed later
    without the model. PNG, PDF and GIF need `pip install ".[view]"`.

    The line under a picture says how many nats of log-probability the target words lose if the source word
    that each attends to most is hidden, and how many if a random word is hidden; docs/faithfulness.md
    explains it. With --site and --head, this is measured for them.

    Examples:

    * `regard view runs/x "나는 고양이로소이다"`

    * `regard view runs/x "나는 고양이로소이다" --out look.png`

    * `regard view runs/x "나는 고양이로소이다" --target "I am a cat" --view lines --out look.svg`

    * `regard view runs/x "나는 고양이로소이다" --view player --out look.gif`

    * `regard view runs/x "나는 고양이로소이다" --view heads --site "*" --out heads.pdf`

    * `regard view runs/x "나는 고양이로소이다" --view steps --word cat`

    * `regard view runs/x "나는 고양이로소이다" --out look.seen`, then `regard view look.seen --view shaded`
    """
    _check(view, specials, out)
    search = chosen_search(beam, length_penalty, greedy=greedy, max_length=max_length)
    translator: Any = None
    found: Any = None
    if run.is_file():
        seen = _kept(run, sentence, target, view)
    else:
        if not (sentence or "").strip():
            raise ArgumentError(message("regard view", "no sentence is given", hint='regard view RUN "..."'))
        unit = "word" if subwords is False else "auto"
        translator = opened(run, checkpoint, device, threads, search=search, look="*", unit=unit)
        sentence = translator.prepare(sentence or "")
        found = translator.translate(sentence) if target is None else translator.score(sentence, target)
        seen = _measured(translator, found, view, site, head)
    if view in OWN and not any(each.name.endswith("self") for each in seen.sites):
        known = ", ".join(each.name for each in seen.sites) or "nothing"
        problem = f"there is no self-attention here; what looks is {known}"
        raise ArgumentError(message(f"--view {view}", problem, hint="a transformer has it"))
    if out is not None and out.suffix.lower() in (KEPT, PAGE):
        _write(seen, out)
        return
    if view == STEPS:
        from regard.decoding.attention_inputs import drawn_steps

        words = _with_unknown_words(seen.words(), found)
        drawn = drawn_steps(translator, seen, str(sentence), found.text, site, head, word, words)
    else:
        asked = _as_asked(seen, bool(subwords), specials, by_values)
        asked = asked if subwords or found is None else _with_unknown_words(asked, found)
        drawn = picture(asked, view, site=site, head=head, word=word)
    _show(drawn, out)


def _measured(translator: Any, found: Any, view: str, site: str | None, head: int | None) -> Seen:
    """What was looked at, and whether it was what counted: a sentence that stands under every picture.

    What is measured is the look at the source: at this site and by this head, where these are given and read
    it. Under a picture of something else, it says so.
    """
    from regard.evaluation import faithfulness

    seen = found.seen()
    if found.alignment is None or not found.text.strip() or len(found.source_units) < 2:
        return seen
    crossing = [each for each in seen.sites if each.kind == "cross"]
    drawn = [each for each in crossing if site is None or fnmatch.fnmatchcase(each.name, site)]
    if view in OWN or not drawn:
        return seen.noted(f"its look at the source: {faithfulness(translator, found)}")
    known = head is None or head < min(each.heads for each in drawn)
    return seen.noted(faithfulness(translator, found, at=site or "*cross", head=head if known else None))


def _check(view: str, specials: str, out: Path | None) -> None:
    """Refuse what cannot be done before a model is loaded."""
    if view not in (*VIEWS, STEPS):
        raise UnknownName("view", view, (*VIEWS, STEPS))
    if specials not in SPECIALS:
        raise UnknownName("way with special tokens", specials, SPECIALS)
    if out is None:
        return
    known = (*PICTURES, PAGE, KEPT)
    if out.suffix.lower() not in known:
        problem = f"{shown(out.name)} does not say what to write"
        raise ArgumentError(message("--out", problem, expected=f"a name ending in {', '.join(known)}"))
    if not out.resolve().parent.is_dir():
        raise DataError(message(shown(out), "there is no such folder", hint="create it first"))


def _kept(path: Path, sentence: str | None, target: str | None, view: str) -> Seen:
    """What was kept in a file, which holds weights and no model."""
    asked = {"a sentence": sentence, "--target": target, "--view steps": view == STEPS}
    for name, given in asked.items():
        if given:
            problem = f"{name} needs a model, and this file is what one saw"
            raise ArgumentError(message(shown(path), problem, hint="give the folder of a run"))
    return Seen.load(path)


def _as_asked(seen: Seen, subwords: bool, specials: str, by_values: bool) -> Seen:
    seen = seen.weighted_by_values() if by_values else seen
    seen = seen if subwords else seen.words()
    return seen if specials == "show" else seen.without_specials(renormalise=specials == "renormalise")


def _with_unknown_words(seen: Seen, found: Scored) -> Seen:
    """The same with the text of words that the model does not know, in place of <unk>."""
    spelled = {}
    sides = (
        ("source", found.source_units, seen.source_words),
        ("target", found.target_units, seen.target_words),
    )
    for side, words, numbers in sides:
        spelled[side] = words if len(words) == max(numbers, default=-1) + 1 else []

    def told(pieces: tuple[str, ...], numbers: tuple[int, ...] | None, side: str) -> tuple[str, ...]:
        known = zip(pieces, numbers or (), strict=True)
        words = spelled[side]
        return tuple(words[n] if words and n >= 0 and UNKNOWN in piece else piece for piece, n in known)

    sites = tuple(
        replace(
            site,
            rows=told(site.rows, site.row_words, "source" if site.kind == "encoder" else "target"),
            columns=told(site.columns, site.column_words, "target" if site.kind == "decoder" else "source"),
        )
        for site in seen.sites
    )
    return replace(seen, sites=sites)


def _write(seen: Seen, path: Path) -> None:
    """Everything that was seen, as a page or as data."""
    if path.suffix.lower() == KEPT:
        seen.save(path)
        say(f"Wrote {shown(path)}; to view it: regard view {shown(path)}")
        return
    from regard.viewing import explore

    explore(seen, path)
    say(f"Wrote {shown(path)}")


def _show(drawn: Picture, out: Path | None) -> None:
    if out is None:
        Console(highlight=False).print(drawn)
        return
    several = drawn.moves and out.suffix.lower() != ".gif"
    with Console(stderr=True).status(f"drawing {len(drawn.frames)} frames") if drawn.moves else nullcontext():
        hints = drawn.save(out)
    for hint in hints:
        say(hint)
    say(f"Wrote {len(drawn.frames)} files beside {shown(out)}" if several else f"Wrote {shown(out)}")
