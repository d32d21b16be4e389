"""Lines: read from files or standard input whatever they hold, written as UTF-8 whatever the locale is."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from regard.data.read_text import FOREIGN, LONGEST_LINE, checked_path
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.files.atomic_io import naming_file, write_all

__all__ = ["Lines", "Notes", "given_lines", "given_sides", "read_pairs", "say", "tell", "writing"]

Place = str | bytes
"""A file, - for standard input, or the bytes themselves."""

STANDARD = "-"


@dataclass
class Lines:
    """The lines of some places, one after another: of files, plain or gzip, or of standard input, "-".

    A line ends at "\\n" and nowhere else; a "\\r" before it and a byte order mark are left out, and bytes
    that are no UTF-8 are replaced. read, repaired: how many lines there were so far, and how many of those
    needed that.

    >>> lines = Lines([b"one\\r\\ntwo\\xff \\xe2\\x80\\xa8still two"])
    >>> list(lines), lines.read, lines.repaired
    (['one', 'two� \\u2028still two'], 2, 1)
    """

    places: Sequence[Place]
    read: int = 0
    repaired: int = 0

    def __iter__(self) -> Iterator[str]:
        for place in self.places:
            name = _name(place)
            try:
                with _opened(place) as file:
                    for line in _lines(name, file):
                        yield self._text(line)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                problem = f"gzip data that is cut off or damaged ({error})"
                raise DataError(message(name, problem)) from None
            except OSError as error:
                raise DataError(message(name, f"cannot be read ({error.strerror or error})")) from None

    def _text(self, line: bytes) -> str:
        self.read += 1
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            self.repaired += 1
            return line.decode("utf-8", "replace")

    @property
    def keyboard(self) -> bool:
        """Whether somebody types them: each line is to be answered at once."""
        return STANDARD in self.places and sys.stdin is not None and sys.stdin.isatty()


def _name(place: Place) -> str:
    return "--text" if isinstance(place, bytes) else "standard input" if place == STANDARD else shown(place)


def _opened(place: Place) -> AbstractContextManager[BinaryIO]:
    if isinstance(place, bytes):
        return io.BufferedReader(io.BytesIO(place))
    if place == STANDARD:
        if sys.stdin is None:
            raise DataError(message("standard input", "is closed", hint="name a file"))
        return nullcontext(sys.stdin.buffer)
    path = Path(place)
    if not path.exists() or path.is_dir():
        checked_path(path)  # raises, and says why
    return open(path, "rb")


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file, without their ends."""
    if _begins(file, b"\x1f\x8b"):
        file = io.BufferedReader(gzip.GzipFile(fileobj=file))
    for start, (kind, hint) in FOREIGN.items():
        if _begins(file, start):
            raise DataError(message(name, f"this is {kind}", expected="UTF-8 text", hint=hint))
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            problem = f"longer than {LONGEST_LINE >> 20} MiB"
            raise DataError(message(f"{name}, line {number}", problem))
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _begins(file: BinaryIO, start: bytes) -> bool:
    return file.peek(len(start))[: len(start)] == start  # type: ignore[attr-defined]


def read_pairs(
    sources: Iterable[str], targets: Iterable[str], at_once: int
) -> Iterator[list[tuple[str, str]]]:
    """Lines of both sides together, so many at a time; raises where one of them has more than the other.

    >>> list(read_pairs(["a", "b", "c"], ["x", "y", "z"], at_once=2))
    [[('a', 'x'), ('b', 'y')], [('c', 'z')]]
    """
    some: list[tuple[str, str]] = []
    for number, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            ended, goes_on = ("source", "target") if source is None else ("target", "source")
            problem = f"the {ended} ends after {number} lines, and the {goes_on} goes on"
            raise DataError(message("--source and --target", problem, expected="as many lines of each"))
        some.append((source, target))
        if len(some) == at_once:
            yield some
            some = []
    if some:
        yield some


@contextmanager
def writing(output: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line, to a file, or to standard output where none is named.

    The file takes its name when all is written, so that what has this name is whole; what was written until
    it broke off stays beside it, with .part after its name.
    """
    if output is None or str(output) == STANDARD:
        sys.stdout.flush()
        yield _print
        return
    with naming_file(output):
        path = output.resolve()
    through = path.exists() and not path.is_file()  # a pipe or a device: its name is not ours to take
    place = path if through else path.with_name(f"{path.name}.part")
    try:
        with ExitStack() as stack:
            with naming_file(output):
                # Unbuffered: closing a buffer that could not be written would fail once more.
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
            _leave(place)
        raise


def _print(line: str) -> None:
    with naming_file("standard output"):
        sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()


def _leave(part: Path) -> None:
    """Keep what there is of a file that will not be whole, and say where; nothing is no loss."""
    with suppress(OSError):
        if part.is_file() and part.stat().st_size:
            say(f"what was written until then is in {shown(part.name)}")
        else:
            part.unlink(missing_ok=True)


def say(text: str) -> None:
    """Print a message that is no result, on standard error; control characters are replaced."""
    print(printable(text, kept="\n"), file=sys.stderr, flush=True)


@dataclass
class Notes:
    """What is to be said of lines: of each kind of note the first, and how many more there were.

    >>> notes = Notes()
    >>> for number, note in enumerate(["cut at 9 of 11 tokens", "", "cut at 9 of 12 tokens"], 1):
    ...     notes.add(number, [note] if note else [])
    >>> print(*notes.said())
    line 1: cut at 9 of 11 tokens; and 1 more line like it
    """

    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, notes: Iterable[str]) -> None:
        """Keep the notes of the line of this number, from 1 on."""
        for note in notes:
            kind = re.sub(r"[0-9][0-9,]*", "#", note)
            if kind in self.first:
                self.more[kind] = self.more.get(kind, 0) + 1
            else:
                self.first[kind] = number, note

    def said(self) -> Iterator[str]:
        """A line for each kind."""
        for kind, (number, note) in self.first.items():
            more = self.more.get(kind, 0)
            rest = f"; and {more:,} more line{'s' if more > 1 else ''} like it" if more else ""
            yield f"line {number:,}: {note}{rest}"


def tell(notes: Notes, *sides: Lines) -> None:
    """Say what had to be done to lines, once they are all read."""
    for line in notes.said():
        say(line)
    repaired = sum(side.repaired for side in sides)
    if repaired:
        lines = "1 line" if repaired == 1 else f"{repaired:,} lines"
        say(f"{lines} had bytes that are not valid UTF-8, each replaced by \ufffd")


def given_lines(files: Sequence[str] | None, text: Sequence[str] | None) -> Lines:
    """Lines from what was named on the command line: files, or the text itself, or else standard input."""
    if files and text:
        raise ArgumentError(message("--text", "files were named as well", expected="either of them"))
    if list(files or ()).count(STANDARD) > 1:
        raise ArgumentError(message("-", "standard input was named twice, and can be read once"))
    if text:
        return Lines([os.fsencode(each) + b"\n" for each in text])
    for each in files or ():
        sentence = " " in each or not each.isascii() or not Path(each).suffix
        if each != STANDARD and sentence and not os.path.exists(each):
            hint = f'a sentence itself is given by --text "{printable(each[:60])}"'
            raise DataError(message(shown(each), "there is no such file", hint=hint))
    lines = Lines(files or [STANDARD])
    if lines.keyboard:
        say("reading standard input; end with Ctrl-D")
    return lines


def given_sides(source: str, target: str) -> tuple[Lines, Lines]:
    """The lines of both sides; one of them may be standard input."""
    if source == target == STANDARD:
        problem = "standard input was named for both sides, and can be read once"
        raise ArgumentError(message("--source - --target -", problem))
    return Lines([source]), Lines([target])
