"""regard view: show the attention of a run for one sentence, in the terminal or in a file."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.run_options import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    BeamSize,
    CheckpointName,
    Device,
    GreedySearch,
    LengthPenalty,
    MaxLength,
    SentenceArgument,
    SentenceOption,
    Threads,
    build_search,
    one_sentence,
    open_run,
)
from regard.data.line_io import say
from regard.decoding import Scored
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.roles import CROSS, matches
from regard.viewing import VIEWS, Picture, Seen, picture

__all__ = ["view"]

STEPS = "steps"
"""A view that is not in VIEWS, because it needs the model: it draws scores, which .seen files do not have."""

KEPT, PAGE, PICTURES = ".seen", ".html", (".png", ".svg", ".pdf", ".gif")
UNKNOWN = "<unk>"
"""The unknown token."""

OWN = ("self", "rollout")
"""The views that draw self-attention."""

SPECIALS = ("show", "hide", "renormalise")

SEEING = "View"


def _option(text: str, *names: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=SEEING, **more)


Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder, or a .seen file, written by regard view --output.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TEXT",
        help="Show the attention for this translation, instead of the translation by the model.",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write to this file: a picture (.png, .svg, .pdf or .gif), a page with every view (.html) or "
        "the attention weights (.seen).",
    ),
]
ABOUT = {
    "matrix": "a row for each target word, a column for each source word",
    "lines": "lines between source and target words",
    "heads": "a matrix for each head",
    "word": "the weight of one source word at each target word",
    "shaded": "the source words, shaded by their weights",
    "self": "self-attention",
    "rollout": "attention through all layers of the encoder",
    "player": "an animation, word by word",
    "long": "long sequences in a .seen file",
    STEPS: "how the weights are computed from the scores",
}
"""A description of each view, for the help."""

VIEW_HELP = f"View: {'; '.join(f'{name} ({ABOUT[name]})' for name in (*VIEWS, STEPS))}."
View = Annotated[str, _option(VIEW_HELP, metavar="NAME")]
Place = Annotated[
    str | None,
    _option(
        "Attention layers (sites): a role, e.g. cross, or a name, e.g. decoder.5.cross; * matches any "
        "text. Several sites are averaged.",
        "--site",
        metavar="SITE",
        show_default="all cross-attention layers",
    ),
]
Head = Annotated[
    int | None,
    _option(
        "Number of an attention head; the first is 0.",
        "--head",
        metavar="INT",
        show_default="the mean of all heads",
        min=0,
        max=bounds.HEADS,
    ),
]
Word = Annotated[
    str | None,
    _option(
        "The source word for --view word, or the target word for --view shaded and steps. Give its text "
        "(cat:2 is the second cat) or its number (the first is 0).",
        metavar="WORD",
    ),
]
Subwords = Annotated[
    bool | None,
    _option(
        "Show subword tokens, or whole words.",
        "--subwords/--words",
        show_default="words; characters for a run with a character tokenizer",
    ),
]
Specials = Annotated[
    str,
    _option(
        "Special tokens such as `</s>`: show, hide, or renormalise (hide them and scale the other weights "
        "up).",
        metavar="NAME",
    ),
]
ByValues = Annotated[bool, _option("Multiply each weight by the norm of its value vector.", "--by-values")]


def view(
    run: Run,
    sentence: SentenceArgument = None,
    text: SentenceOption = None,
    target: Target = None,
    output: OutputFile = None,
    view: View = "matrix",
    site: Place = None,
    head: Head = None,
    word: Word = None,
    subwords: Subwords = None,
    specials: Specials = "show",
    by_values: ByValues = False,
    beam_size: BeamSize = BEAM_SIZE,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    greedy: GreedySearch = False,
    max_length: MaxLength = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate one sentence and show its attention, in the terminal or in a file.

    An .html file is one page with every view. A .seen file has the attention weights and can be viewed later
    without the model. PNG, PDF and GIF need `pip install ".[view]"`.

    The line under a picture tells if the translation depends on the words it attends to: by how many nats
    the log-probability decreases if the most attended source word is masked, or a random one for comparison.
    With --site or --head, the word is masked only there. See docs/faithfulness.md.

    Examples:

    * `regard view runs/x --text "나는 고양이로소이다"`

    * `regard view runs/x --text "나는 고양이로소이다" --output look.png`

    * `regard view runs/x --text "나는 고양이로소이다" --target "I am a cat" --view lines --output look.svg`

    * `regard view runs/x --text "나는 고양이로소이다" --view player --output look.gif`

    * `regard view runs/x --text "나는 고양이로소이다" --view heads --site "*" --output heads.pdf`

    * `regard view runs/x --text "나는 고양이로소이다" --view steps --word cat`

    * `regard view runs/x --text "나는 고양이로소이다" --output look.seen`

    * `regard view look.seen --view shaded`
    """
    _check(view, specials, output)
    search = build_search(beam_size, length_penalty, greedy=greedy, max_length=max_length)
    translator: Any = None
    translation: Any = None
    if run.is_file():
        seen = _load_seen(run, sentence or text, target, view)
    else:
        sentence = one_sentence("regard view", sentence, text)
        unit = "word" if subwords is False else "auto"
        translator = open_run(run, checkpoint, device, threads, search=search, look="*", unit=unit)
        sentence = translator.prepare(sentence)
        translation = translator.translate(sentence) if target is None else translator.score(sentence, target)
        seen = _measured(translator, translation, view, site, head)
    if view in OWN and not any(each.role.kind == "self" for each in seen.sites):
        sites = ", ".join(each.name for each in seen.sites) or "none"
        problem = f"the model has no self-attention; its attention sites: {sites}"
        raise ArgumentError(message(f"--view {view}", problem, hint="a transformer has self-attention"))
    _check_head(seen, site, head)
    if output is not None and output.suffix.lower() in (KEPT, PAGE):
        _write(seen, output)
        return
    if view == STEPS:
        from regard.decoding.attention_inputs import drawn_steps

        words = _with_unknown_words(seen.words(), translation)
        drawn = drawn_steps(translator, seen, str(sentence), translation.text, site, head, word, words)
    else:
        prepared = _prepared(seen, bool(subwords), specials, by_values)
        if not subwords and translation is not None:
            prepared = _with_unknown_words(prepared, translation)
        drawn = picture(prepared, view, site=site, head=head, word=word)
    _show(drawn, output)


def _measured(translator: Any, translation: Any, view: str, site: str | None, head: int | None) -> Seen:
    """Return the attention of a translation, with its faithfulness as a note under every picture.

    Faithfulness is measured for cross-attention. If `site` is cross-attention, only this site and head are
    measured. Otherwise all cross-attention is measured, and the note says so.
    """
    from regard.evaluation import faithfulness

    seen = translation.seen()
    empty = not translation.text.strip() or len(translation.source_units) < 2
    if translation.alignment is None or empty:
        return seen
    cross = [each for each in seen.sites if each.kind == "cross"]
    drawn = [each for each in cross if site is None or matches(site, each.name, each.role)]
    if view in OWN or not drawn:
        return seen.noted(f"cross-attention: {faithfulness(translator, translation)}")
    exists = head is None or head < min(each.heads for each in drawn)
    head = head if exists else None
    return seen.noted(faithfulness(translator, translation, at=site or CROSS, head=head))


def _check_head(seen: Seen, site: str | None, head: int | None) -> None:
    """Raise ArgumentError if a site to be drawn has no head of this number."""
    sites = [each for each in seen.sites if each.kind == "cross" or site is not None]
    sites = [each for each in sites if site is None or matches(site, each.name, each.role)]
    heads = min((each.heads for each in sites), default=0)
    if head is not None and sites and head >= heads:
        number = "1 head" if heads == 1 else f"{heads} heads"
        names = ", ".join(each.name for each in sites if each.heads == heads)
        expected = "0" if heads == 1 else f"0 to {heads - 1}"
        raise ArgumentError(message(f"--head {head}", f"{names} has {number}", expected=expected))


def _check(view: str, specials: str, out: Path | None) -> None:
    """Raise an error for invalid options, before a model is loaded."""
    if view not in (*VIEWS, STEPS):
        raise UnknownName("view", view, (*VIEWS, STEPS))
    if specials not in SPECIALS:
        raise UnknownName("value of --specials:", specials, SPECIALS)
    if out is None:
        return
    known = (*PICTURES, PAGE, KEPT)
    if out.suffix.lower() not in known:
        problem = f"{shown(out.name)} has an unknown file type"
        raise ArgumentError(message("--output", problem, expected=f"a name ending in {', '.join(known)}"))
    if not out.resolve().parent.is_dir():
        raise DataError(message(shown(out), "its folder does not exist", hint="create the folder first"))


def _load_seen(path: Path, sentence: str | None, target: str | None, view: str) -> Seen:
    """Load a .seen file, which has no model; raise ArgumentError for options that need a model."""
    options = {"a sentence": sentence, "--target": target, "--view steps": view == STEPS}
    for name, present in options.items():
        if present:
            problem = f"{name} needs a model, but this file has only attention weights"
            raise ArgumentError(message(shown(path), problem, hint="use a run folder instead of the file"))
    return Seen.load(path)


def _prepared(seen: Seen, subwords: bool, specials: str, by_values: bool) -> Seen:
    seen = seen.weighted_by_values() if by_values else seen
    seen = seen if subwords else seen.words()
    return seen if specials == "show" else seen.without_specials(renormalise=specials == "renormalise")


def _with_unknown_words(seen: Seen, pair: Scored) -> Seen:
    """Return a copy of `seen` in which <unk> is replaced by the text of the unknown word."""
    spelled = {}
    sides = (
        ("source", pair.source_units, seen.source_words),
        ("target", pair.target_units, seen.target_words),
    )
    for side, words, numbers in sides:
        spelled[side] = words if len(words) == max(numbers, default=-1) + 1 else []

    def spell(pieces: tuple[str, ...], numbers: tuple[int, ...] | None, side: str) -> tuple[str, ...]:
        numbered = zip(pieces, numbers or (), strict=True)
        words = spelled[side]
        return tuple(words[n] if words and n >= 0 and UNKNOWN in piece else piece for piece, n in numbered)

    sites = tuple(
        replace(
            site,
            rows=spell(site.rows, site.row_words, "source" if site.kind == "encoder" else "target"),
            columns=spell(site.columns, site.column_words, "target" if site.kind == "decoder" else "source"),
        )
        for site in seen.sites
    )
    return replace(seen, sites=sites)


def _write(seen: Seen, path: Path) -> None:
    """Write all attention as an HTML page or as a .seen file."""
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
