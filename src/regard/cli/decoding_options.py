"""The options of search, of commands that decode; and the search that their values select."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from regard.cli.options import LINES, SEED, batch_tokens, finite, under
from regard.decoding import Sample, Search
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.rules import MOST_TOKENS
from regard.decoding.search_options import BEAM_SIZE, LENGTH_PENALTY, build_search
from regard.errors import ArgumentError, message
from regard.tasks.task_table import TASKS, find_task
from regard.training.command_options import CommandOption, flag, integer, number

SEARCHING = "Decoding"


def _temperature(value: float) -> float:
    if finite(value) <= 0:
        place, hint = f"--temperature {value:g}", "for the most probable output, leave out --sample"
        raise ArgumentError(message(place, "invalid value", expected="a number above 0", hint=hint))
    return value


def beam_size(text: str = "Beam size.", default: int | None = BEAM_SIZE) -> CommandOption:
    """Return the option --beam-size. Its value is None unless it is on the command line."""
    return integer("--beam-size", text, 1, MOST_BEAMS, default=default, panel=SEARCHING, given=True)


def n_best(text: str) -> CommandOption:
    """Return the option --n-best."""
    return integer("--n-best", text, 1, MOST_BEAMS, default=1, panel=SEARCHING)


def max_length(name: str, text: str, **more: Any) -> CommandOption:
    """Return an option for a maximum number of tokens, such as --max-length."""
    return integer(name, text, 1, MOST_TOKENS, panel=SEARCHING, **more)


GREEDY = flag("--greedy", "Use greedy search instead of beam search.", panel=SEARCHING)
MAX_LENGTH = max_length(
    "--max-length", "Maximum number of target tokens per sentence.", shown_default="2 x source tokens + 10"
)
MAX_SOURCE_LENGTH = replace(
    max_length("--max-source-length", "Maximum number of source tokens per line.", default=512), least=2
)
BATCH_TOKENS = batch_tokens("Batch size in source tokens.", None, "4096, or 8192 on a GPU")
"""The option of translators. Its default is TOKENS_PER_BATCH in regard.decoding.translator."""

PENALTY, TEMPERATURE, TOP_K, TOP_P, SAMPLE_SEED = under(
    SEARCHING,
    CommandOption(
        "--length-penalty",
        "Length penalty: a number, where larger values favour longer outputs and 0 means no penalty. "
        "average:1 ranks outputs by the mean log-probability of their tokens.",
        "X|average:X",
        default=LENGTH_PENALTY,
    ),
    number(
        "--temperature",
        "With --sample: temperature. Values below 1 make the output less random.",
        default=Sample.temperature,
        check=_temperature,
    ),
    integer(
        "--top-k",
        "With --sample: sample from the k most probable tokens only (0: from all tokens).",
        0,
        LINES,
        default=Sample.top_k,
    ),
    number(
        "--top-p",
        "With --sample: sample only from the most probable tokens that together have at least this "
        "probability (1: from all tokens). With --top-k, the probability among those k tokens counts.",
        0,
        1,
        default=Sample.top_p,
        check=finite,
    ),
    integer("--seed", "With --sample: random seed.", 0, SEED, default=Sample.seed),
    given=True,
)
SAMPLING = (
    flag(
        "--sample",
        "Sample tokens from the predicted probabilities, instead of searching for the best output.",
        panel=SEARCHING,
    ),
    *(TEMPERATURE, TOP_K, TOP_P, SAMPLE_SEED),
)

SHARED = {
    each.parameter: each
    for each in (
        beam_size(),
        PENALTY,
        GREEDY,
        MAX_LENGTH,
        MAX_SOURCE_LENGTH,
        batch_tokens(
            "Batch size in tokens; for translation, in source tokens.",
            None,
            "4096, or 8192 for a translator on a GPU",
        ),
    )
}
"""The options that tasks can name in evaluate_options and view_options. Parameter name -> declaration."""


def search_of(options: Mapping[str, Any], **changes: Any) -> Search:
    """Return the search that the options of a command select.

    options: the values of all options of the command.
    changes: values of options that the command has not, or that it decides itself.
    """
    names = ["beam_size", "length_penalty", "n_best", "greedy", "max_length", "sample"]
    if "sample" in options:  # --seed of other commands is not the seed of sampling
        names += ["temperature", "top_k", "top_p", "seed"]
    values = {**options, **changes}
    return build_search(**{name: values[name] for name in names if name in values})


def task_options(attribute: str) -> Iterator[CommandOption]:
    """Yield the options that the tasks declare for a command, each once.

    attribute: the attribute of RunTask with the options: "evaluate_options" or "view_options". A str in it is
        the name of an option that several commands share.
    """
    declared: dict[str, CommandOption] = {}
    for each in (each for task in TASKS for each in getattr(find_task(task), attribute)):
        option = SHARED.get(each) if isinstance(each, str) else each
        if option is not None:
            declared.setdefault(option.parameter, option)
    yield from declared.values()
