"""Read lines from files or standard input, even if their UTF-8 is invalid, and write lines as UTF-8.

say() prints messages on standard error, and advancing() a progress bar.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from regard.data.read_text import (
    Raw,
    blocks_of,
    check_likely_encoding,
    checked_path,
    reading,
    stream_chunks,
    to_bytes,
)
from regard.data.text_encoding import advice, other_encoding
from regard.errors import ArgumentError, DataError, message, printable, shown, similar_path
from regard.files.atomic_io import naming_file, write_all

Place = str | bytes
"""Where lines are read from: a file name, "-" for standard input, or the text itself as bytes."""

STANDARD = "-"

KEPT = 20
"""Number of lines with invalid bytes from which their encoding is guessed."""

TABLE = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)(\.gz)?$", re.IGNORECASE)
"""Names of files that are usually tables."""


@dataclass
class Lines:
    """Iterate over the lines of files (plain or gzip), of standard input ("-"), or of bytes.

    A line ends at "\\n" only. A "\\r" before "\\n" and a byte order mark are removed. Invalid bytes are
    replaced by U+FFFD. Raises DataError if the first line that is not ASCII has probably another encoding.

    option: the option that bytes were given with, for error messages.
    read: number of lines read so far.
    repaired: number of lines read so far that had invalid bytes.
    encoding: the encoding of the lines; None is UTF-8.
    invalid: the first lines with invalid bytes, at most KEPT.
    where: the file (or option) and the line number of the last line.

    >>> lines = Lines([b"one\\r\\ntwo\\xff \\xe2\\x80\\xa8still two"])
    >>> list(lines), lines.read, lines.repaired
    (['one', 'two� \\u2028still two'], 2, 1)
    """

    places: Sequence[Place]
    read: int = 0
    repaired: int = 0
    option: str = "--text"
    encoding: str | None = None
    invalid: list[bytes] = field(default_factory=list, repr=False)
    where: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.encoding = other_encoding(self.encoding)

    def __iter__(self) -> Iterator[str]:
        for place in self.places:
            yield from self.of(place)

    def of(self, place: Place) -> Iterator[str]:
        """Yield the lines of one of the places."""
        checked = self.encoding is not None
        for raw in place_blocks(place, self.encoding, self.option):
            for index, line in enumerate(raw.text.split("\n")):
                self.where = f"{raw.name}, line {raw.first + index}"
                self.read += 1
                if not (checked or line.isascii()):
                    checked = True
                    check_likely_encoding(raw, index, self.where)
                yield line if raw.data else self._repaired(line)

    def _repaired(self, line: str) -> str:
        data = to_bytes(line)
        text = data.decode("utf-8", "replace")
        if text != line:
            self.repaired += 1
            self.invalid += [data] if len(self.invalid) < KEPT else []
        return text

    @property
    def keyboard(self) -> bool:
        """Whether the user types the lines in a terminal, so that each line should be processed at once."""
        return STANDARD in self.places and sys.stdin is not None and sys.stdin.isatty()


def place_name(place: Place, option: str = "--text") -> str:
    """Return where lines are read from, for messages: a file name, "standard input", or the option."""
    return option if isinstance(place, bytes) else "standard input" if place == STANDARD else shown(place)


def place_blocks(place: Place, encoding: str | None, option: str = "--text") -> Iterator[Raw]:
    """Yield the whole lines of a place in blocks, as they arrive. `encoding`: None is UTF-8."""
    name = place_name(place, option)
    with reading(name), _opened(place) as file:
        yield from blocks_of(name, stream_chunks(name, file, encoding, at_once=True), encoding)


def _opened(place: Place) -> AbstractContextManager[Any]:
    if isinstance(place, bytes):
        return io.BufferedReader(io.BytesIO(place))
    if place == STANDARD:
        if sys.stdin is None:
            raise DataError(
                message("standard input", "standard input is closed", hint="read from a file instead")
            )
        return nullcontext(sys.stdin.buffer)
    path = Path(place)
    if not path.exists() or path.is_dir():
        checked_path(path)  # raises DataError with the reason
    return open(path, "rb")


@contextmanager
def writing(output: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes one line to the file `output`, or to standard output if it is None or "-".

    Lines are written to `output`.part, which is renamed to `output` at the end, so that `output` is always
    complete. After an error, `output`.part is kept, unless the file is empty. If `output` is a pipe or a
    device, lines are written directly to `output`.
    """
    if output is None or str(output) == STANDARD:
        sys.stdout.flush()
        yield _print
        return
    with naming_file(output):
        path = output.resolve()
    through = (
        path.exists() and not path.is_file()
    )  # a pipe or a device cannot be replaced: write to it directly
    place = path if through else path.with_name(f"{path.name}.part")
    try:
        with ExitStack() as stack:
            with naming_file(output):
                # Unbuffered: after a failed write, closing a buffered file would fail again.
                file = stack.enter_context(open(place, "wb", buffering=0))

            def put(line: str) -> None:
                with naming_file(output):
                    write_all(file.fileno(), line.encode("utf-8", "replace") + b"\n")

            yield put
            if not through:
                with naming_file(output):
                    os.fsync(file.fileno())
                    os.replace(place, path)
    except BaseException:
        if not through:
            _keep_part(place)
        raise


def _print(line: str) -> None:
    with naming_file("standard output"):
        sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()


def _keep_part(part: Path) -> None:
    """After an error, print the name of the incomplete output file, or delete the file if it is empty."""
    with suppress(OSError):
        if part.is_file() and part.stat().st_size:
            say(f"the incomplete output is in {shown(part.name)}")
        else:
            part.unlink(missing_ok=True)


def say(text: str) -> None:
    """Print a message on standard error; control characters are replaced."""
    print(printable(text, kept="\n"), file=sys.stderr, flush=True)


@dataclass
class Notes:
    """Collects messages about input lines, so that similar messages are printed only once.

    Messages that differ only in numbers are of the same kind. The first message of each kind is stored, and
    the others are counted.

    place: the word before a number in the printed messages: "line" or, for example, "question".

    >>> notes = Notes()
    >>> for number, note in enumerate(["cut at 9 of 11 tokens", "", "cut at 9 of 12 tokens"], 1):
    ...     notes.add(number, [note] if note else [])
    >>> print(*notes.lines())
    line 1: cut at 9 of 11 tokens; and 1 more line
    """

    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)
    place: str = "line"

    def add(self, number: int, notes: Iterable[str]) -> None:
        """Add the messages about one input line.

        number: the line number, from 1.
        notes: the messages.
        """
        for note in notes:
            kind = re.sub(r"[0-9][0-9,]*", "#", note)
            if kind in self.first:
                self.more[kind] = self.more.get(kind, 0) + 1
            else:
                self.first[kind] = number, note

    def lines(self) -> Iterator[str]:
        """Yield one text for each kind of message: "line 1: cut at 9 of 11 tokens; and 1 more line"."""
        for kind, (number, note) in self.first.items():
            more = self.more.get(kind, 0)
            rest = f"; and {more:,} more {self.place}{'s' if more > 1 else ''}" if more else ""
            yield f"{self.place} {number:,}: {note}{rest}"


def tell(notes: Notes, *sides: Any) -> None:
    """Print the collected messages, and how many lines had invalid UTF-8, on standard error.

    Call it after all lines have been read.

    notes: the messages.
    sides: the readers of lines or pairs. The attribute `repaired` is the number of lines with invalid UTF-8.
    """
    for line in notes.lines():
        say(line)
    repaired = sum(side.repaired for side in sides)
    if repaired:
        lines = "1 line" if repaired == 1 else f"{repaired:,} lines"
        invalid = [line for side in sides for line in getattr(side, "invalid", ())]
        named, _ = advice(b"\n".join(invalid), invalid[0]) if invalid else ("", ())
        named = f"; {named}" if named else ""
        say(f"{lines} had bytes that are not valid UTF-8, each replaced by \ufffd{named}")


def given_lines(
    files: Sequence[str] | None,
    text: Sequence[str] | None,
    option: str = "--text",
    encoding: str | None = None,
    tables: bool = False,
) -> Lines:
    """Return the input lines of a command.

    files: the FILE arguments; "-" is standard input.
    text: the values of the option --text, one line each.
    option: the name of this option, if it is not --text.
    encoding: the encoding of the lines; None is UTF-8.
    tables: whether the command reads tables and JSON lines. Otherwise, a note says that it does not.

    If both are missing, standard input is read. Raises ArgumentError if both are given, and DataError if a
    file does not exist.
    """
    if files and text:
        problem = f"{option} cannot be combined with FILE arguments"
        hint = (
            "" if os.path.exists(files[0]) else f"for several texts, repeat the option: {option} A {option} B"
        )
        raise ArgumentError(message(option, problem, expected=f"either {option} or files", hint=hint))
    check_standard_input(*(files or ()))
    if text:
        return Lines([os.fsencode(each) + b"\n" for each in text], option=option)
    for each in files or ():
        sentence = " " in each or not each.isascii() or not Path(each).suffix
        if each != STANDARD and sentence and not os.path.exists(each):
            kind = "sentence" if option == "--text" else "sequence"
            hint = f'for a {kind} instead of a file, use {option} "{printable(each[:60])}"'
            hint = similar_path(each) or hint
            raise DataError(message(shown(each), "there is no such file", hint=hint))
    for each in files or ():
        if each != STANDARD and not os.path.exists(each):
            checked_path(each)  # raises DataError with the reason
        if not tables and (note := table_note(each)):
            say(note)
    lines = Lines(files or [STANDARD], encoding=encoding)
    if lines.keyboard:
        say("reading standard input; end with Ctrl-D")
    return lines


def table_note(file: str) -> str:
    """Return a note for a table that is read as plain text; "" if the file is no table by its name.

    >>> table_note("a.csv")
    'a.csv: each line is read as one text, with its delimiters and quotes; save the texts alone, one per line'
    >>> table_note("a.txt")
    ''
    """
    match = TABLE.search(file)
    if match is None:
        return ""
    kind = match[1].lower()
    marks = {"csv": "delimiters and quotes", "tsv": "columns"}.get(kind, "names of fields")
    hint = "save the texts alone, one per line"
    return f"{shown(file)}: each line is read as one text, with its {marks}; {hint}"


def check_standard_input(*files: str | None) -> None:
    """Raise ArgumentError if more than one of the files is "-", standard input."""
    if files.count(STANDARD) > 1:
        raise ArgumentError(message("-", "standard input is named more than once, but can be read only once"))


PATIENCE = 1.0
"""Seconds before the progress bar is shown."""


@contextmanager
def advancing(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error. Call the yielded function with the amount of work done so far.

    label: the text before the bar, for example "reading".
    total: the total amount of work, in any unit (pairs or bytes); 0 if unknown.

    >>> with advancing("reading", total=10) as reached:
    ...     reached(5)
    """
    console = Console(stderr=True)
    began = time.monotonic()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(Text(label).plain, total=total or None)

    def reached(done: int) -> None:
        if time.monotonic() - began >= PATIENCE:
            bar.start()
            bar.update(task, completed=done)

    try:
        yield reached
    finally:
        bar.stop()
