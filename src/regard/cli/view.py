"""regard view: show the attention of a run for one input, in the terminal or in a file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from regard import huggingface
from regard.cli.decoding_options import task_options
from regard.cli.open_runs import one_sentence, set_threads, task_of_run
from regard.cli.options import (
    OF_RUN,
    but,
    command,
    given_options,
    given_parameters,
    options_of,
)
from regard.cli.printing import printable_console
from regard.data.line_io import STANDARD, Lines, say
from regard.errors import ArgumentError, UnknownName, message, shell_word, shown
from regard.huggingface.token_words import Tokens
from regard.roles import matches
from regard.runs.devices import choose_device
from regard.runs.run_commands import ChosenRun, LongTextView, RunView, ViewOptions
from regard.runs.run_folder import CONFIG
from regard.runs.run_task import task_name
from regard.tasks.answering.task import view_stored_answer
from regard.tasks.picture_outputs import check_folder
from regard.training.command_options import CommandOption
from regard.viewing import VIEWS, Picture, Seen
from regard.viewing.word_groups import spelled

KEPT, PAGE, PICTURES = ".seen", ".html", (".png", ".svg", ".pdf", ".gif")

OWN = ("self", "rollout", "reading")
"""The views that draw self-attention."""

ATTRIBUTIONS = {
    "erasure": "what it costs to remove each input, beside the attention; also for models without attention",
    "gradient": "the same, with input x gradient and integrated gradients",
}

OWN_VIEWS = {
    "translation": {"steps": "how the weights are computed from the scores"},
    "classification": {"erasure": ATTRIBUTIONS["erasure"]},
    "captioning": {"image": "a copy of the image for each word, bright where the word attends"},
    "answering": {"hops": "the sentences of a story, with the weight of each hop"},
    "algorithms": {
        "tape": "inputs and answers, and the heads moving over the tape",
        "slot": "the contents of one slot of the tape after each step",
    },
}
TASK_VIEWS = {name: about for views in OWN_VIEWS.values() for name, about in views.items()} | ATTRIBUTIONS
"""The views that need the model, and that only runs have. Name -> description."""

OF_RUNS = ("checkpoint", "task")
"""Parameters that, like the options of the tasks, can only be used with run folders."""

SPECIALS = ("show", "hide", "renormalise")

ABOUT = {
    "matrix": "a row for each target word, a column for each source word",
    "lines": "lines between source and target words",
    "heads": "a matrix for each head",
    "word": "the weight of one source word at each target word",
    "shaded": "the source words, shaded by their weights",
    "self": "self-attention",
    "rollout": "attention through all layers of the encoder",
    "player": "an animation of a translation, word by word; needs cross-attention",
    "long": "a map of a long text, for language models and Hugging Face models: each cell is the largest "
    "weight in a block of tokens, or, for a long text of a Hugging Face model, its share of attention",
    "reading": "one line for each word of a text, with the earlier words shaded by their weights; needs a "
    "decoder or an lstmn",
    **TASK_VIEWS,
}
"""A description of each view, for the help."""

VIEW_HELP = f"View: {'; '.join(f'{name} ({about})' for name, about in ABOUT.items())}."

TITLE = 400
"""Maximum length of a title, which is the text, in characters."""

SHARE = 0.3
"""If special tokens get more than this share of all weights, a note says so."""

NAMED = 5
"""Maximum number of unknown words that a note lists."""


def _option(name: str, text: str, metavar: str = "", **more: Any) -> CommandOption:
    return CommandOption(name, text, metavar, panel="View", **more)


@command(
    CommandOption(
        "run",
        "Run folder, or a .seen file, written by regard view --output. With --huggingface, the text, or "
        "- to read it from standard input.",
        "RUN",
    ),
    CommandOption("sentence", "Source sentence, instead of --text.", "SENTENCE"),
    *(each for each in task_options("view_options") if each.parameter != "text"),
    CommandOption(
        "--huggingface",
        "Show a model of Hugging Face transformers from this local folder, instead of a run. Nothing is "
        "downloaded.",
        "FOLDER",
        Path,
    ),
    CommandOption("--text", "Source sentence; for language models and classification, a text.", "TEXT"),
    but(
        "output",
        "Write to this file: a picture (.png, .svg, .pdf or .gif), a page with every view (.html) or "
        "the attention weights (.seen).",
    ),
    _option(
        "--view",
        VIEW_HELP,
        "NAME",
        shown_default="matrix; shaded for classification; image for captioning; hops for answering; "
        "tape for algorithms",
    ),
    _option(
        "--site",
        "Attention layers (sites): a role, e.g. cross, self or pool, or a name, e.g. decoder.5.cross; * "
        "matches any text. Several sites are averaged.",
        "SITE",
        shown_default="all cross-attention layers; for language models, all layers; for classification, pool",
    ),
    but("head", panel="View", shown_default="the mean of all heads"),
    _option(
        "--word",
        "The word to show: its text (cat:2 is the second cat) or its number (the first word is 0). It is a "
        "source word in --view word, and a target word in --view shaded and --view steps.",
        "WORD",
    ),
    _option(
        "--subwords/--words",
        "Show subword tokens, or whole words.",
        kind=bool,
        shown_default="words; characters or morphemes for a run with such a tokenizer",
    ),
    _option(
        "--specials",
        "Special tokens such as `</s>`: show, hide, or renormalise (hide them and scale the other weights "
        "up).",
        "NAME",
        default="show",
    ),
    _option("--by-values", "Multiply each weight by the norm of its value vector.", kind=bool, default=False),
    "task",
    *OF_RUN,
)
def view(context: typer.Context, run: str | None, sentence: str | None, **options: Any) -> None:
    """Show the attention of a run for one text, in the terminal or in a file.

    Translation: the attention to the words of the text. Language models: self-attention of each token to the
    tokens before it. Classification: the words, shaded by their weights, and the effect of hiding each word.
    Captioning: the image. Answering: the sentences of the story in every hop. Algorithms: the tape.

    An .html file is one page with every view. A .seen file has the attention weights and can be viewed later
    without the model. PNG, PDF and GIF need the extra view; `regard doctor` shows how to install it.

    The line under a picture of a translation has two numbers: by how many nats the log-probability decreases
    if the most attended source word (in the site or head, with --site or --head) is masked, and if a random
    source word is masked. Words are masked in all cross-attention layers. See docs/faithfulness.md.

    Examples:

    * `regard view runs/x --text "나는 고양이로소이다"`

    * `regard view runs/x --text "나는 고양이로소이다" --output look.png`

    * `regard view runs/x --text "나는 고양이로소이다" --target "I am a cat" --view lines --output look.svg`

    * `regard view runs/x --text "나는 고양이로소이다" --view player --output look.gif`

    * `regard view runs/x --text "나는 고양이로소이다" --view heads --site "*" --output heads.pdf`

    * `regard view runs/x --text "나는 고양이로소이다" --view steps --word cat`

    * `regard view runs/x --text "나는 고양이로소이다" --output look.seen`

    * `regard view look.seen --view shaded`

    * `regard view runs/classifier --text "a stirring , funny film"`

    * `regard view runs/captioner --image dog.jpg --output dog.png`

    * `regard view runs/babi --story story.txt --question "Where is the milk?" --output hops.png`

    * `regard view --huggingface FOLDER "The cat sat on the mat." --specials renormalise --output cat.png`

    * `regard view --huggingface FOLDER - --output map.png < document.txt`
    """
    name, text, output, folder = options["view"], options["text"], options["output"], options["huggingface"]
    _check(name, options["specials"], output)
    drawing = ViewOptions(**{field.name: options[field.name] for field in fields(ViewOptions)})
    set_threads(options)
    task = None
    if folder is not None:
        texts = [each for each in (run, sentence, text) if each is not None]
        viewed: RunView = _viewed_huggingface(context, folder, texts)
    elif run is None:
        hint = 'regard view RUN --text "...", or regard view --huggingface FOLDER "..."'
        raise ArgumentError(message("regard view", "the run folder is missing", hint=hint))
    elif Path(run).is_file():
        viewed = _viewed_file(context, Path(run), sentence or text, name)
    else:
        kind = task_of_run(Path(run), options["task"])
        task = task_name(kind)
        chosen, values = ChosenRun(Path(run), options["checkpoint"], options["device"]), dict[str, Any]()
        if kind.view_options:
            values = options_of(context, kind, "view_options", options)
        if "text" in values:
            values["text"] = one_sentence("regard view", sentence, text)
        viewed = kind.view_run(chosen, values, drawing)
        if not values:  # after view_run(), because most tasks without options do not show attention
            options_of(context, kind, "view_options", options)
    own = (*viewed.own, *OWN_VIEWS.get(task or "", ()))
    if name is not None and name not in own:
        _check_attention(viewed, name, own)
    _check_head(viewed.seen, options["site"], options["head"])
    if output is None or output.suffix.lower() in PICTURES:
        _draw(viewed, drawing, output)
    elif output.suffix.lower() == KEPT:
        if not viewed.seen.sites and not viewed.seen.long:
            problem = "a .seen file has attention weights, and this model has no attention"
            hint = "write a picture (.svg or .png) or a page (.html)"
            raise ArgumentError(message(shown(output), problem, hint=hint))
        viewed.seen.save(output)
        say(f"Wrote {shown(output)}; to view it: regard view {shell_word(output)}")
    else:
        viewed.write_page(output)
        say(f"Wrote {shown(output)}")


def _check(view: str | None, specials: str, output: Path | None) -> None:
    """Check --view, --specials and --output before a model is loaded; raise an error if one is invalid."""
    if view is not None and view not in ABOUT:
        raise UnknownName("view", view, ABOUT)
    if specials not in SPECIALS:
        raise UnknownName("value of --specials:", specials, SPECIALS)
    known = (*PICTURES, PAGE, KEPT)
    if output is not None and output.suffix.lower() not in known:
        problem = f"{shown(output.name)} has an unknown file type"
        raise ArgumentError(message("--output", problem, expected=f"a name ending in {', '.join(known)}"))
    check_folder(output)


def _viewed_huggingface(context: typer.Context, folder: Path, texts: Sequence[str]) -> RunView:
    """Return the attention of a Hugging Face model; raise ArgumentError for options that only runs have.

    texts: the two arguments of the command and the value of --text, as far as they are set.
    """
    given = given_options(context, "view_options") | given_parameters(context, OF_RUNS)
    for name, option in given.items():
        if name not in ("text", "target"):
            problem = "this option is for run folders, and cannot be used with --huggingface"
            raise ArgumentError(message(option, problem, hint=f"leave {option} out"))
    if len(texts) > 1:
        problem = "there are several texts; with --huggingface, there is no RUN"
        hint = 'regard view --huggingface FOLDER "..."'
        raise ArgumentError(message("regard view --huggingface", problem, hint=hint))
    option, text = context.params["text"], texts[0] if texts else None
    positional = text if option is None else None
    text = one_sentence("regard view --huggingface", positional, option, usage='FOLDER "..."')
    if text == STANDARD:
        text = "\n".join(Lines([STANDARD]))
    return view_huggingface(folder, text, context.params["target"], context.params["device"])


@dataclass(frozen=True, eq=False)
class HuggingFaceView(LongTextView):
    """What `regard view` draws for a Hugging Face model: the attention of its layers for one text.

    source: the tokens of the text.
    """

    source: Tokens

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Unknown words are shown as in the text, or with --subwords as [UNK]."""
        seen = _as_tokens(self.seen, self.source) if options.subwords else self.seen
        if options.specials == "show":
            seen = seen.noted(*_special_notes(seen))
        return LongTextView(seen).picture(options)


def view_huggingface(folder: Path, text: str, target: str | None, device: str) -> HuggingFaceView:
    """Run a local Hugging Face model on a text; return its attention and the effect of hiding a token.

    folder: the folder of the model. Nothing is downloaded.
    target: the target text of an encoder-decoder model; None for the text that the model generates.
    device: "auto", or the name of a device.
    """
    from regard.huggingface.registration import import_transformers

    transformers = import_transformers("regard view --huggingface")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    with Console(stderr=True).status(f"loading {shown(folder)}"):
        model = huggingface.load_model(folder, choose_device(device))
        observed = huggingface.observe_text(model, text, target)
        if not observed.seen.sites and not observed.seen.long:
            problem = "the model has no attention layer with a weight for each pair of tokens"
            raise ArgumentError(message(shown(folder), problem))
        erased = huggingface.erase_token(model, observed)
    source = observed.source
    notes = [f"{model.name}, {type(model.model).__name__}", *_unknown_notes(source)]
    notes += [] if erased is None else [str(erased)]
    title = (observed.seen.title or text)[:TITLE]
    return HuggingFaceView(replace(observed.seen, title=title).noted(*notes), source)


def _unknown_notes(source: Tokens) -> list[str]:
    """Return a note that lists the words outside the vocabulary, NAMED at most; [] if there are none."""
    words = list(dict.fromkeys(repr(spelled([source.pieces[place]])) for place in source.unknown))
    if not words:
        return []
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    name = spelled([next(iter(source.unknown.values()))])
    return [f"not in the vocabulary, so the model reads {name}: {', '.join(words[:NAMED])}{more}"]


def _special_notes(seen: Seen) -> list[str]:
    """Return a note if the other tokens give more than SHARE of their weights to special tokens."""
    kept = [site.without_specials(renormalise=False).weights for site in seen.sites]
    rows = sum(weights.shape[0] * weights.shape[1] for weights in kept)
    share = 1 - sum(float(weights.sum()) for weights in kept) / rows if rows else 0.0
    if share <= SHARE:
        return []
    return [f"special tokens get {share:.0%} of the weights; --specials hide leaves them out"]


def _as_tokens(seen: Seen, source: Tokens) -> Seen:
    """Return a copy of `seen` in which the tokens of the text have the names that the model reads."""

    def named(pieces: tuple[str, ...]) -> tuple[str, ...]:
        return source.names if pieces == source.pieces else pieces

    sites = [replace(site, rows=named(site.rows), columns=named(site.columns)) for site in seen.sites]
    return replace(seen, sites=tuple(sites), source=named(seen.source), target=named(seen.target))


def _viewed_file(context: typer.Context, path: Path, sentence: str | None, view: str | None) -> RunView:
    """Return the attention of a .seen file; raise ArgumentError if an option needs the model."""
    if path.suffix != KEPT and (path.parent / CONFIG).is_file():
        hint = f"give the run folder: regard view {shell_word(path.parent)} --text ..."
        raise ArgumentError(
            message(shown(path), f"this is neither a run folder nor a {KEPT} file", hint=hint)
        )
    seen = Seen.load(path)
    if not seen.sites and not seen.long:
        hint = f"regard view RUN --output NEW{KEPT} writes the attention of a model with attention"
        raise ArgumentError(message(shown(path), "the file has no attention weights", hint=hint))
    viewed = view_stored_answer(seen) or RunView(seen)
    needed = [f"--view {view}"] if view in TASK_VIEWS and view != viewed.default_view else []
    needed += ["a sentence"] if sentence else []
    needed += (given_options(context, "view_options") | given_parameters(context, OF_RUNS)).values()
    if needed:
        problem = f"{needed[0]} needs a model, but this file has only attention weights"
        raise ArgumentError(message(shown(path), problem, hint="use a run folder instead of the file"))
    return viewed


def _check_attention(viewed: RunView, view: str, own: Sequence[str]) -> None:
    """Raise ArgumentError if the recorded attention cannot be drawn with the view.

    own: the views that need more than attention.
    """
    sites, long = viewed.seen.sites, isinstance(viewed, LongTextView)
    if viewed.seen.long and long and view in VIEWS:
        return
    needed = dict.fromkeys(OWN, any(each.role.kind == "self" for each in sites))
    needed |= {"player": any(each.kind == "cross" for each in sites)}
    needed |= {"long": long or bool(viewed.seen.long)}
    known = dict.fromkeys((*(name for name in VIEWS if needed.get(name, bool(sites))), *own))
    if view not in known:
        problem = f"there is no attention for this view; attention sites: {', '.join(s.name for s in sites)}"
        hint = "a transformer or an lstmn has self-attention: choose a run of one, or another --view"
        hint = hint if view in OWN else ""
        if view in ATTRIBUTIONS:
            problem = "the task of this run has no such view"
        raise ArgumentError(message(f"--view {view}", problem, expected=", ".join(known), hint=hint))


def _check_head(seen: Seen, site: str | None, head: int | None) -> None:
    """Raise an error if there is no such attention layer (site), or if one to be drawn has no such head."""
    every: list[Any] = [*seen.sites, *seen.long]
    if every and site is not None and not any(matches(site, each.name, each.role) for each in every):
        raise UnknownName("site", site, [each.name for each in every])
    for each in seen.sites:
        drawn = each.kind == "cross" if site is None else matches(site, each.name, each.role)
        if drawn and head is not None and head >= each.heads:
            problem = f"{each.name} has {each.heads} head{'s' * (each.heads != 1)}; the first is 0"
            raise ArgumentError(message(f"--head {head}", problem))


def _draw(viewed: RunView, drawing: ViewOptions, output: Path | None) -> None:
    """Print a picture of the attention, or write it to a file."""
    if drawing.view is None and output is not None and output.suffix.lower() == ".gif":
        drawing = replace(drawing, view=viewed.default_animation)
    drawn = viewed.picture(drawing)
    if output is None:
        printable_console().print(drawn)
        return
    several = drawn.moves and output.suffix.lower() != ".gif"
    with Console(stderr=True).status(f"drawing {len(drawn.frames)} frames") if drawn.moves else nullcontext():
        hints = drawn.save(output)
    for hint in hints:
        say(hint)
    many = f"{len(drawn.frames)} files beside " if several else ""
    say(f"Wrote {many}{shown(output)}")
