"""Options shared by the commands that load a trained run: checkpoint, device and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import bounds
from regard.data.line_io import say
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.rules import MOST_TOKENS
from regard.decoding.search_options import BEAM_SIZE, LENGTH_PENALTY, build_search
from regard.errors import ArgumentError, message, shell_word, shown
from regard.tasks.picture_outputs import check_output_ending

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = [
    "BEAM_SIZE",
    "LENGTH_PENALTY",
    "batch_tokens_option",
    "beam_size_option",
    "build_search",
    "check_task",
    "length_option",
    "n_best_option",
    "one_sentence",
    "open_run",
    "open_task",
    "output_option",
    "task_in_regard",
]

SEARCHING, MACHINE = "Decoding", "Checkpoint and device"

MAX_SOURCE_LENGTH, BATCH_TOKENS = 512, 4096
"""Defaults of --max-source-length and --batch-tokens. The defaults for sampling are in decoding.Sample."""

TRANSLATOR_TOKENS = "4096, or 8192 on a GPU"
"""Default of --batch-tokens for translators (see TOKENS_PER_BATCH in regard.decoding.translator)."""


def _option(name: str, metavar: str, text: str, panel: str = SEARCHING, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


def beam_size_option(text: str, **more: Any) -> Any:
    """Return the option --beam-size.

    text: the help text.
    more: further arguments of typer.Option().
    """
    return _option("--beam-size", "INT", text, min=1, max=MOST_BEAMS, **more)


def n_best_option(text: str) -> Any:
    """Return the option --n-best.

    text: the help text.
    """
    return _option("--n-best", "INT", text, min=1, max=MOST_BEAMS)


def batch_tokens_option(text: str, **more: Any) -> Any:
    """Return the option --batch-tokens.

    text: the help text.
    more: further arguments of typer.Option().
    """
    return _option("--batch-tokens", "INT", text, MACHINE, min=1, max=bounds.TOKENS, **more)


def length_option(name: str, text: str, **more: Any) -> Any:
    """Return an option for a maximum number of tokens.

    name: the name of the option, such as --max-length.
    text: the help text.
    more: further arguments of typer.Option().
    """
    return _option(name, "INT", text, min=1, max=MOST_TOKENS, **more)


def output_option(text: str, pictures: Sequence[str] = ()) -> Any:
    """Return the option --output of a command that writes text, and possibly a picture.

    text: the help text.
    pictures: file name extensions for which the command writes a picture, such as (".png", ".svg").
    """

    def check(context: typer.Context, value: Path | None) -> Path | None:
        has_page = any("--page" in each.opts for each in context.command.params)
        check_output_ending(value, pictures, has_page)
        return value

    return typer.Option("--output", metavar="FILE", help=text, callback=check)


OutputFile = Annotated[Path | None, output_option("Write to this file instead of standard output.")]
PageFile = Annotated[
    Path | None,
    typer.Option(
        "--page", metavar="FILE.html", help="Also write an HTML page with the sentences and their alignments."
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        "--unit",
        metavar="NAME",
        help="Unit to align: word, morpheme, character, or auto (morpheme or character if the run has such a "
        "tokenizer, else word).",
    ),
]
SentenceArgument = Annotated[
    str | None, typer.Argument(metavar="SENTENCE", help="Source sentence, instead of --text.")
]
SentenceOption = Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Source sentence.")]
TextOption = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="TEXT", help="Source sentence; for language models and classification, a text."
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder, written by regard train --output.")
]
BeamSize = Annotated[
    int | None,
    beam_size_option("Beam size.", callback=bounds.none_if_default),
]
LengthPenalty = Annotated[
    str | None,
    _option(
        "--length-penalty",
        "X|average:X",
        "Length penalty: a number, where larger values favour longer outputs and 0 means no penalty. "
        "average:1 ranks outputs by the mean log-probability of their tokens.",
        callback=bounds.none_if_default,
    ),
]
NBest = Annotated[int, n_best_option("Number of translations to return per line, best first (n-best).")]
GreedySearch = Annotated[
    bool,
    typer.Option("--greedy", help="Use greedy search instead of beam search.", rich_help_panel=SEARCHING),
]
Sampling = Annotated[
    bool,
    typer.Option(
        "--sample",
        help="Sample tokens from the predicted probabilities, instead of searching for the best output.",
        rich_help_panel=SEARCHING,
    ),
]
Temperature = Annotated[
    float | None,
    _option(
        "--temperature",
        "FLOAT",
        "With --sample: temperature. Values below 1 make the output less random.",
        callback=bounds.temperature_unless_default,
    ),
]
TopK = Annotated[
    int | None,
    _option(
        "--top-k",
        "INT",
        "With --sample: sample from the k most probable tokens only (0: from all tokens).",
        min=0,
        max=bounds.LINES,
        callback=bounds.none_if_default,
    ),
]
TopP = Annotated[
    float | None,
    _option(
        "--top-p",
        "FLOAT",
        "With --sample: sample only from the most probable tokens that together have at least this "
        "probability (1: from all tokens). With --top-k, the probability among those k tokens counts.",
        callback=bounds.probability_unless_default,
    ),
]
SamplingSeed = Annotated[
    int | None,
    _option(
        "--seed",
        "INT",
        "With --sample: random seed.",
        min=0,
        max=bounds.SEED,
        callback=bounds.none_if_default,
    ),
]
MaxLength = Annotated[
    int | None,
    length_option(
        "--max-length",
        "Maximum number of target tokens per sentence.",
        show_default="2 x source tokens + 10",
    ),
]
MaxSourceLength = Annotated[
    int,
    _option(
        "--max-source-length", "INT", "Maximum number of source tokens per line.", min=2, max=MOST_TOKENS
    ),
]
Overlong = Annotated[
    str,
    _option(
        "--overlong",
        "NAME",
        "How to translate lines longer than --max-source-length: split (sentence by sentence) or truncate "
        "(only the beginning).",
    ),
]
BatchTokens = Annotated[
    int | None, batch_tokens_option("Batch size in source tokens.", show_default=TRANSLATOR_TOKENS)
]
TaskBatchTokens = Annotated[
    int | None,
    batch_tokens_option(
        "Batch size in tokens; for translation, in source tokens.",
        show_default="4096, or 8192 for a translator on a GPU",
    ),
]
CheckpointName = Annotated[
    str, _option("--checkpoint", "NAME", "Checkpoint: best, latest, or the number of its step.", MACHINE)
]
Device = Annotated[
    str,
    _option("--device", "NAME", "Device: cpu, cuda (or gpu), mps, or auto (the fastest available).", MACHINE),
]
Precision = Annotated[
    str,
    _option(
        "--precision",
        "NAME",
        "Precision of the computation: float32, bfloat16, float16, int8 (CPU only), or auto (float16 on "
        "NVIDIA GPUs from Ampere on, otherwise float32). Half precision is faster on a GPU, int8 on a CPU, "
        "but rounding can change translations.",
        MACHINE,
    ),
]
Threads = Annotated[
    int | None,
    _option(
        "--threads",
        "INT",
        "Number of CPU threads.",
        MACHINE,
        min=1,
        max=bounds.THREADS,
        callback=bounds.threads,
    ),
]


def open_run(run: Path, checkpoint: str, device: str, threads: int | None, **options: Any) -> Any:
    """Load the translator of a run, and report checkpoints that were skipped because they are damaged.

    options: keyword arguments of Translator, and `precision`. The default precision is float32, because most
        commands measure something.
    """
    return open_task("translation", run, checkpoint, device, threads, **{"precision": "float32", **options})


def open_task(task: str, run: Path, checkpoint: str, device: str, threads: int | None, **options: Any) -> Any:
    """Load the trained model of a run, and report checkpoints that were skipped because they are damaged.

    Raises ArgumentError if the run is of another task; the hint is a command that works with the run.

    task: the task that the command is for, such as "translation".
    options: further arguments of regard.tasks.task_table.load().
    """
    import torch

    from regard.tasks.task_table import load

    check_task(task, run)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load(run, checkpoint=checkpoint, device=device, **options)
    for note in loaded.notes:
        say(note)
    return loaded


def check_task(task: str, run: Path) -> None:
    """Raise ArgumentError if the run is not of this task; the hint is a command that works with the run."""
    from regard.runs.run_task import task_name
    from regard.tasks.task_table import find_task

    kind = task_in_regard(run, task)
    if not issubclass(kind, find_task(task)):
        hint = f"for this run: {kind.settings_type.next_command.format(run=shell_word(run))}"
        problem = f"this is not a run of the task {task}, but of the task {task_name(kind)!r}"
        raise ArgumentError(message(shown(run), problem, hint=hint))


def task_in_regard(run: Path, expected: str) -> type[RunTask]:
    """Return the class of the task of a run. Raise an error if the task is not part of Regard.

    Commands without the option --task use this function.

    expected: the tasks whose runs the command accepts, for the error message.
    """
    from regard.runs.run_folder import config_of
    from regard.tasks.task_table import TASKS, task_of

    name = config_of(run).get("task")
    if isinstance(name, str) and ":" in name and name not in TASKS:
        hint = f"for this run, if you trust the code of its task: regard show {shell_word(run)} --task {name}"
        problem = f"this is not a run of the task {expected}, but of the task {name!r}"
        raise ArgumentError(message(shown(run), problem, hint=hint))
    return task_of(run)


def one_sentence(
    command: str, sentence: str | None, text: str | None, usage: str = 'RUN --text "..."'
) -> str:
    """Return the sentence to translate: the positional argument, or the value of --text.

    usage: the arguments that the hint of the error shows after the command.

    Raises ArgumentError if the command line has both of them or neither, or if the sentence is empty.

    >>> one_sentence("regard view", None, "나는 고양이로소이다")
    '나는 고양이로소이다'
    """
    if sentence is not None and text is not None:
        problem = "a sentence is also given as an argument"
        raise ArgumentError(
            message("--text", problem, expected="the sentence as an argument, or --text, but not both")
        )
    sentence = text if sentence is None else sentence
    if not (sentence or "").strip():
        problem = "the sentence is missing" if sentence is None else "the sentence is empty"
        raise ArgumentError(message(command, problem, hint=f"{command} {usage}"))
    return str(sentence)
