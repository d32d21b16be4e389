"""What the commands that predict have in common: translate, generate, caption, classify, ask and solve.

A command opens a run, and gives its results to write_results(). It writes a line, a JSON object or a drawing
for each of them, in the order of the inputs and as soon as it is computed, and then the picture or the page.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from regard.cli.options import LINES
from regard.cli.printing import json_text, printable_console
from regard.data.line_io import Notes, say, tell, writing
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, RegardError, message
from regard.tasks.picture_outputs import ResultFiles, check_output_ending, is_picture
from regard.training.command_options import CommandOption, integer
from regard.viewing.result import Result

DRAWN_WIDTH = 100
"""The width, in characters, of drawings that are written to a file (--draw with --output)."""

NAMED = 5
"""Maximum number of inputs whose errors are printed; further errors are only counted."""


def at_once(lines: int, verb: str) -> CommandOption:
    """Return the option --at-once of a command that reads lines. Its value is None unless it is set.

    lines: the default number of lines.
    verb: what is done with them, such as "translated".
    """
    text = f"Number of input lines that are read and {verb} together, before any output is written."
    shown = f"{lines}; 1 if you type the lines in a terminal"
    return integer("--at-once", text, 1, LINES, shown_default=shown)


def result_files(
    options: dict[str, Any], noun: str, pictures: Sequence[str] = (), undrawn: Sequence[str] = ()
) -> ResultFiles:
    """Return the files of --page and, if it names a picture, of --output, which is None afterwards.

    options: the values of all options of the command.
    noun: see ResultFiles.
    pictures: the endings of the pictures that the command writes.
    undrawn: the options besides --json that cannot be combined with --draw.
    """
    named = {each: options[each.lstrip("-").replace("-", "_")] for each in ("--json", *undrawn)}
    used = [each for each, value in named.items() if value is True or value not in (False, 1)]
    if options.get("draw") and used:
        raise ArgumentError(message("--draw", f"cannot be combined with {used[0]}"))
    check_output_ending(options["output"], pictures, "page" in options)
    picture = None
    if is_picture(options["output"], pictures):
        picture, options["output"] = options["output"], None
    return ResultFiles(noun, options.get("page"), picture)


def drawing_option(options: Mapping[str, Any], files: ResultFiles) -> str:
    """Return the option that requests a drawing of the attention; "" if none does."""
    if options["draw"]:
        return "--draw"
    return "--output" if files.picture else "--page" if files.page else ""


def ranked_lines(number: int, results: Iterable[tuple[Any, float, str]]) -> Iterator[str]:
    """Yield the lines of an n-best list: number of the input, rank, two scores, text.

    results: for each result, its score with length penalty, its log-probability and its text.
    """
    for rank, (ranking, score, text) in enumerate(results, 1):
        yield f"{number}\t{rank}\t{ranking:.4f}\t{score:.4f}\t{text}"


class Numbered(Protocol):
    """Inputs that know their numbers: `numbers` has those that were read and have no result yet."""

    @property
    def numbers(self) -> deque[int]: ...


@dataclass
class CheckedInputs:
    """Iterates over inputs that the model can read. Other inputs are reported on standard error and skipped.

    inputs: the inputs.
    check: a function that returns what the model needs of an input, or raises RegardError.
    noun: the word for an input, such as "image".
    skip: whether invalid inputs are skipped. Otherwise, the first one raises its error.
    keep: whether an invalid input is yielded unchanged, instead of skipping it.
    numbers: the numbers of the inputs that were yielded, from 1. write_results() removes them.
    read, invalid: the number of inputs so far, and how many of them are invalid.
    error: the first error.

    >>> checked = CheckedInputs(["a", "b"], str.upper, "letter")
    >>> list(checked), list(checked.numbers), checked.status("skipped")
    (['A', 'B'], [1, 2], 0)
    """

    inputs: Iterable[Any]
    check: Callable[[Any], Any]
    noun: str
    skip: bool = True
    keep: bool = False
    numbers: deque[int] = field(default_factory=deque)
    read: int = 0
    invalid: int = 0
    error: RegardError | None = None

    def __iter__(self) -> Iterator[Any]:
        for each in self.inputs:
            self.read += 1
            try:
                checked = self.check(each)
            except RegardError as error:
                if not self.skip:
                    raise
                self.report(error)
                if not self.keep:
                    continue
                checked = each
            self.numbers.append(self.read)
            yield checked

    def report(self, error: RegardError) -> None:
        """Count an invalid input, and print its error if it is one of the first."""
        self.error = self.error or error
        self.invalid += 1
        if self.invalid <= NAMED:
            say(str(error).splitlines()[0] if self.keep else str(error))

    def status(self, problem: str) -> int:
        """Print how many inputs were invalid, if any; return the exit status, 0 or 1.

        problem: what happened to them, for example "were skipped".
        """
        if self.invalid:
            say(f"{self.invalid:,} of {self.read:,} {self.noun}s {problem}")
        return int(self.invalid > 0)


def write_results(
    results: Iterable[Any],
    options: Mapping[str, Any],
    plain: Callable[[Any, int], Iterable[str]],
    files: ResultFiles,
    title: str,
    about: str = "",
    *,
    inputs: Numbered | None = None,
    readers: Sequence[Any] = (),
    each: Callable[[Any], object] | None = None,
) -> None:
    """Write each result as soon as it is computed; at the end, its files, and the notes on standard error.

    results: the results.
    options: the values of all options of the command: output, json and draw.
    plain: a function that returns the lines of output for a result and the number of its input, if neither
        --json nor --draw is set.
    files: the picture and the page.
    title, about: the heading of the page, and a line below it.
    inputs: the inputs, if their numbers are not 1, 2, 3 and so on.
    readers: the readers of the input lines, whose invalid bytes are reported. If the lines are typed in a
        terminal, unknown words are reported after each line.
    each: a function that is called with each result.
    """
    numbers = itertools.count(1) if inputs is None else iter(inputs.numbers.popleft, None)
    typed = any(getattr(reader, "keyboard", False) for reader in readers)
    notes, unknown = Notes(place=files.noun), UnknownWords(place=files.noun)
    with writing(options["output"]) as write:
        for result in results:
            number = next(numbers)
            notes.add(number, result.notes)
            unknown.add(number, result)
            files.add(result)
            if each is not None:
                each(result)
            if options.get("draw") and options["output"] is None:
                printable_console().print(result, "")
            else:
                for line in _lines(result, number, options, plain):
                    write(line)
            if typed:
                unknown.say()
                unknown = UnknownWords(place=files.noun)
    files.save(title, about)
    tell(notes, *readers)
    if not options.get("draw"):  # a drawing has a note with the unknown words
        unknown.say()


def _lines(
    result: Result, number: int, options: Mapping[str, Any], plain: Callable[[Any, int], Iterable[str]]
) -> Iterable[str]:
    if options["json"]:
        return [json_text(result.to_dict())]
    if options.get("draw"):
        file = io.StringIO()
        printable_console(file=file, width=DRAWN_WIDTH).print(result)
        return ["\n".join(map(str.rstrip, file.getvalue().split("\n")))]
    return plain(result, number)
