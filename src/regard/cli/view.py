"""regard view: show the attention of a run for one input, in the terminal or in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from regard.cli.decoding_options import task_options
from regard.cli.open_runs import one_sentence, set_threads, task_of_run
from regard.cli.options import (
    OF_RUN,
    but,
    check_given,
    command,
    given_options,
    given_parameters,
    options_of,
)
from regard.cli.printing import printable_console
from regard.cli.view_huggingface import view_huggingface
from regard.data.line_io import STANDARD, Lines, say
from regard.errors import ArgumentError, UnknownName, message, shell_word, shown
from regard.roles import matches
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_folder import CONFIG
from regard.runs.run_task import RunTask, task_name
from regard.tasks.answering.task import view_stored_answer
from regard.tasks.picture_outputs import check_folder
from regard.training.command_options import CommandOption, option_parameters
from regard.viewing import VIEWS, Seen

__all__ = ["view"]

KEPT, PAGE, PICTURES = ".seen", ".html", (".png", ".svg", ".pdf", ".gif")

OWN = ("self", "rollout", "reading")
"""The views that draw self-attention."""

OWN_VIEWS = {
    "translation": {"steps": "how the weights are computed from the scores"},
    "classification": {"erasure": "words, shaded by how much the probability falls without each word"},
    "captioning": {"image": "a copy of the image for each word, bright where the word attends"},
    "answering": {"hops": "the sentences of a story, with the weight of each hop"},
    "algorithms": {
        "tape": "inputs and answers, and the heads moving over the tape",
        "slot": "the contents of one slot of the tape after each step",
    },
}
TASK_VIEWS = {name: about for views in OWN_VIEWS.values() for name, about in views.items()}
"""The views that only some tasks have. Name -> description."""

NO_SELF_ATTENTION = (*OWN, "long")
UNDRAWN = {
    "translation": ("long",),
    "language": ("player",),
    "classification": ("player", "long"),
    "captioning": NO_SELF_ATTENTION,
    "answering": (*NO_SELF_ATTENTION, "player"),
    "algorithms": NO_SELF_ATTENTION,
}
"""The views in VIEWS that no run of a task can draw, because its models do not have such attention."""

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
    name, text, output = options["view"], options["text"], options["output"]
    _check(context, options["specials"], output)
    drawing = ViewOptions(**{field.name: options[field.name] for field in fields(ViewOptions)})
    set_threads(options)
    if options["huggingface"] is not None:
        texts, device = (run, sentence, text), options["device"]
        viewed = _viewed_huggingface(context, options["huggingface"], texts, name, device)
    elif run is not None and Path(run).is_file():
        viewed = _viewed_file(context, Path(run), sentence or text, name)
    else:
        kind = _task_to_view(context, _run_folder(run), options["task"], name)
        values = _view_values(kind, options, sentence)
        chosen = ChosenRun(_run_folder(run), options["checkpoint"], options["device"])
        viewed = kind.view_run(chosen, values, drawing)
    _check_self_attention(viewed.seen, name)
    _check_head(viewed.seen, options["site"], options["head"])
    if output is not None and output.suffix.lower() in (KEPT, PAGE):
        _write(viewed, output)
    else:
        _show(viewed, drawing, output)


def _task_to_view(context: typer.Context, run: Path, task: str | None, view: str | None) -> type[RunTask]:
    """Return the task of a run; raise ArgumentError if it has not the view or an option of the command."""
    kind = task_of_run(run, task)
    _check_has_view(kind)
    check_given(context, kind, "view_options")
    _check_view(kind, view)
    return kind


def _view_values(kind: type[RunTask], options: dict[str, Any], sentence: str | None) -> dict[str, Any]:
    """Return the values of the options of this task; the text may be the argument `sentence`."""
    if "text" in option_parameters(kind.view_options):
        options["text"] = one_sentence("regard view", sentence, options["text"])
    return options_of(kind, "view_options", options)


def _run_folder(run: str | None) -> Path:
    if run is None:
        hint = 'regard view RUN --text "...", or regard view --huggingface FOLDER "..."'
        raise ArgumentError(message("regard view", "the run folder is missing", hint=hint))
    return Path(run)


def _viewed_huggingface(
    context: typer.Context, folder: Path, texts: Sequence[str | None], view: str | None, device: str
) -> RunView:
    """Return the attention of a Hugging Face model; raise ArgumentError for options that only runs have.

    texts: the two arguments of the command and the value of --text. One of them is the text.
    """
    given = given_options(context, "view_options") | given_parameters(context, OF_RUNS)
    for name, option in given.items():
        if name not in ("text", "target"):
            problem = "this option is for run folders, and cannot be used with --huggingface"
            raise ArgumentError(message(option, problem, hint=f"leave {option} out"))
    if view in TASK_VIEWS:
        problem = "Hugging Face models have no such view"
        raise ArgumentError(message(f"--view {view}", problem, expected=", ".join(VIEWS)))
    if sum(each is not None for each in texts) > 1:
        problem = "there are several texts; with --huggingface, there is no RUN"
        hint = 'regard view --huggingface FOLDER "..."'
        raise ArgumentError(message("regard view --huggingface", problem, hint=hint))
    text = next((each for each in texts if each is not None), None)
    text = one_sentence("regard view --huggingface", None, text, usage='FOLDER "..."')
    if text == STANDARD:
        text = "\n".join(Lines([STANDARD]))
    return view_huggingface(folder, text, context.params.get("target"), device)


def _check_has_view(task: type[RunTask]) -> None:
    """Raise ArgumentError if the task does not implement view_run()."""
    if getattr(task.view_run, "__func__", None) is getattr(RunTask.view_run, "__func__", RunTask):
        problem = f"the task {task_name(task)} has no view"
        raise ArgumentError(message("regard view", problem, hint=f"implement {task.__name__}.view_run()"))


def _check_view(task: type[RunTask], view: str | None) -> None:
    """Raise ArgumentError if this view exists, but only for runs of other tasks."""
    known = _views_of_task(task)
    if view is not None and view not in known:
        problem = f"runs of the task {task_name(task)} have no such view"
        raise ArgumentError(message(f"--view {view}", problem, expected=", ".join(known)))


def _views_of_task(task: type[RunTask]) -> tuple[str, ...]:
    """Return the names of the views that runs of a task can draw."""
    undrawn = UNDRAWN.get(task_name(task), ())
    return (*(name for name in VIEWS if name not in undrawn), *OWN_VIEWS.get(task_name(task), ()))


def _views_of_file(seen: Seen) -> tuple[str, ...]:
    """Return the names of the views that the attention in a .seen file can be drawn with."""
    if not seen.sites:
        return ("long",) if seen.long else ()
    undrawn: tuple[str, ...] = () if seen.long else ("long",)
    undrawn += () if any(each.kind == "cross" for each in seen.sites) else ("player",)
    undrawn += () if any(each.role.kind == "self" for each in seen.sites) else OWN
    return tuple(name for name in VIEWS if name not in undrawn)


def _known_views(context: typer.Context) -> Iterable[str]:
    """Return the names of the views for the run, the file or the Hugging Face model of the command."""
    run = context.params.get("run")
    if context.params.get("huggingface") is not None:
        return VIEWS
    if run is None:
        return ABOUT
    if Path(run).is_file():
        return _views_of_file(Seen.load(run))
    return _views_of_task(task_of_run(Path(run), context.params.get("task")))


def _check_view_of_file(seen: Seen, path: Path, view: str | None) -> None:
    """Raise ArgumentError if the attention in a .seen file cannot be drawn with the view."""
    known = _views_of_file(seen)
    if view is not None and view not in (*known, *OWN):
        problem = f"{shown(path)} has no attention for this view"
        raise ArgumentError(message(f"--view {view}", problem, expected=", ".join(known)))


def _check_self_attention(seen: Seen, view: str | None) -> None:
    """Raise ArgumentError if a view draws self-attention, but the model has none."""
    if view in OWN and not any(each.role.kind == "self" for each in seen.sites):
        sites = ", ".join(each.name for each in seen.sites) or "none"
        problem = f"the model has no self-attention; its attention sites: {sites}"
        hint = "a transformer or an lstmn has self-attention: choose a run of one, or another --view"
        raise ArgumentError(message(f"--view {view}", problem, hint=hint))


def _check_head(seen: Seen, site: str | None, head: int | None) -> None:
    """Raise ArgumentError if an attention layer (site) to be drawn has no head with this index."""
    sites = [each for each in seen.sites if each.kind == "cross" or site is not None]
    sites = [each for each in sites if site is None or matches(site, each.name, each.role)]
    heads = min((each.heads for each in sites), default=0)
    if head is not None and sites and head >= heads:
        number = "1 head" if heads == 1 else f"{heads} heads"
        names = ", ".join(each.name for each in sites if each.heads == heads)
        expected = "head 0" if heads == 1 else f"a head from 0 to {heads - 1}"
        raise ArgumentError(message(f"--head {head}", f"{names} has {number}", expected=expected))


def _check(context: typer.Context, specials: str, out: Path | None) -> None:
    """Check --view, --specials and --output before a model is loaded; raise an error if one is invalid."""
    view = context.params.get("view")
    if view is not None and view not in ABOUT:
        raise UnknownName("view", view, _known_views(context))
    if specials not in SPECIALS:
        raise UnknownName("value of --specials:", specials, SPECIALS)
    if out is None:
        return
    known = (*PICTURES, PAGE, KEPT)
    if out.suffix.lower() not in known:
        problem = f"{shown(out.name)} has an unknown file type"
        raise ArgumentError(message("--output", problem, expected=f"a name ending in {', '.join(known)}"))
    check_folder(out)


def _viewed_file(context: typer.Context, path: Path, sentence: str | None, view: str | None) -> RunView:
    """Return the attention of a .seen file; raise ArgumentError if an option needs the model.

    A .seen file has attention weights, but no model.
    """
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
    if view != viewed.default_view:
        _check_view_of_file(seen, path, view)
    return viewed


def _write(viewed: RunView, path: Path) -> None:
    """Write all recorded attention to a file: a .seen file if the path ends in .seen, else an HTML page."""
    if path.suffix.lower() == KEPT:
        viewed.seen.save(path)
        say(f"Wrote {shown(path)}; to view it: regard view {shell_word(path)}")
        return
    viewed.write_page(path)
    say(f"Wrote {shown(path)}")


def _show(viewed: RunView, drawing: ViewOptions, out: Path | None) -> None:
    if drawing.view is None and out is not None and out.suffix.lower() == ".gif":
        drawing = replace(drawing, view=viewed.default_animation)
    drawn = viewed.picture(drawing)
    if out is None:
        printable_console().print(drawn)
        return
    several = drawn.moves and out.suffix.lower() != ".gif"
    with Console(stderr=True).status(f"drawing {len(drawn.frames)} frames") if drawn.moves else nullcontext():
        hints = drawn.save(out)
    for hint in hints:
        say(hint)
    say(f"Wrote {len(drawn.frames)} files beside {shown(out)}" if several else f"Wrote {shown(out)}")
