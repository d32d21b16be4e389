"""Read text files, plain or gzip, as bytes, in blocks of whole lines.

A line ends at "\\n" only; the last line need not end with "\\n". str.splitlines() would also split at other
characters, such as U+2028, U+0085 and form feeds. If such a character occurs in only one of two parallel
files, the line counts would differ.

The blocks are UTF-8. A file in another encoding, such as CP949, is converted if the caller names it.

KINDS has the problems that lines and sentence pairs can have; Choices says what to do with them: drop, repair
or keep the pair.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from gzip import BadGzipFile, GzipFile
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy
from numpy.typing import NDArray

from regard.data.text_encoding import (
    advice,
    find_mojibake,
    is_utf_8_text,
    is_utf_16,
    lacks_byte_order_mark,
    other_encoding,
    utf_8_chunks,
)
from regard.errors import (
    ArgumentError,
    DataError,
    Hint,
    RegardWarning,
    Setting,
    UnknownName,
    message,
    shown,
    similar_path,
)


@dataclass(frozen=True)
class Kind:
    """One kind of problem that a sentence pair can have.

    bit: a power of two. The problems of a line, or of a pair, are stored as one integer. If the line has this
        problem, this bit is set.
    says: description of the problem, for example "a side is empty".
    may: the allowed actions ("error", "skip", "replace", "keep"); the first one is the default.
    """

    bit: int
    says: str
    may: tuple[str, ...]


KINDS = {
    "malformed": Kind(1, "malformed line", ("error", "skip")),
    "invalid": Kind(2, "not valid UTF-8", ("error", "replace", "skip")),
    "nul": Kind(4, "contains a NUL byte", ("replace", "error", "skip")),
    "empty": Kind(8, "a side is empty", ("skip", "error")),
    "long": Kind(16, "a side has over {longest} characters", ("skip", "error", "keep")),
    "uneven": Kind(32, "one side is over {ratio:g} times as long as the other", ("keep", "error", "skip")),
    "break": Kind(64, "line break inside a sentence, replaced by a space", ("replace",)),
    "return": Kind(128, "\\r at the end of a line, removed", ("replace",)),
}
"""All kinds of problems by name.

A pair may have several problems with the action "skip". In the report, it counts as dropped only once: for
the problem that comes first in this dict."""

SHORT = 10
"""When source and target length are compared, a sentence counts as at least this many characters.

Otherwise a short sentence, such as "No.", would be reported if its translation is much longer."""

MOST = 2**31 - 1
"""Largest allowed value of Choices.longest and Choices.ratio."""


@dataclass(frozen=True)
class Choices:
    """What to do with sentence pairs that have a problem: an action for each kind of problem.

    The action "skip" drops the pair, "replace" repairs it, "keep" keeps it, and "error" raises DataError.
    The data report counts the problems, whatever the action.

    malformed: the action for a line that is not valid JSON or has too few columns.
    invalid: the action for bytes that are not valid UTF-8; "replace" writes U+FFFD instead.
    nul: the action for a NUL byte; "replace" writes a space instead.
    empty: the action for a side (source or target) that is empty or only white space.
    longest: maximum length of a side in characters, or None for no limit.
    long: the action for pairs with a side that exceeds `longest`.
    ratio: maximum length of the longer side divided by the length of the shorter side, or None for no limit.
        Lengths are in characters; lengths under 10 count as 10.
    uneven: the action for pairs whose lengths exceed `ratio`.

    >>> Choices(invalid="replace", longest=200)
    Choices(invalid='replace', longest=200)
    """

    malformed: str = "error"
    invalid: str = "error"
    nul: str = "replace"
    empty: str = "skip"
    longest: int | None = 1000
    long: str = "skip"
    ratio: float | None = 6.0
    uneven: str = "keep"

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            if self.done_with(name) not in kind.may:
                raise UnknownName(f"action for {name!r}", self.done_with(name), kind.may)
        for name, type_ in (("longest", int), ("ratio", int | float)):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, type_) or not 1 <= value <= MOST
            ):
                expected = f"{'an integer' if type_ is int else 'a number'} from 1 to {MOST:,}, or None"
                raise ArgumentError(message("Choices()", f"{name} is {value!r}", expected=expected))

    def __repr__(self) -> str:
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Choices({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def done_with(self, kind: str) -> Any:
        """Return the action for this kind of problem: "error", "skip", "replace" or "keep"."""
        return getattr(self, kind, "replace")

    def bits(self, done: str) -> int:
        """Return an integer with the bits of all kinds of problems whose action is `done`."""
        return sum(kind.bit for name, kind in KINDS.items() if self.done_with(name) == done)

    def says(self, kind: str) -> str:
        """Return the description of this kind of problem, for example "a side is empty"."""
        return KINDS[kind].says.format(longest=self.longest, ratio=self.ratio or 0.0)


Marks = NDArray[numpy.uint8]

BLOCK = 1 << 20
"""Number of bytes of a file that are read at a time. They fit into the CPU cache, so scans are fast."""

LONGEST_LINE = 1 << 26
"""Maximum length of a line in bytes. A file with a longer line is probably not text, and the line could use
up all memory."""

START = 1 << 14
"""Number of bytes at the beginning of a file that are checked, to recognize files that are not UTF-8 text."""

SAMPLED = 200
"""Number of lines that are checked for mojibake. Lines of ASCII are not counted."""

GZIP = b"\x1f\x8b"

RETURN = KINDS["return"].bit

RETURNS = "if its lines end with \\r only, convert them: tr '\\r' '\\n' < old > new"

TSV = "convert it to a TSV file: one pair in each line, with a tab between source and target"
WORKBOOK = ("an Excel workbook", "save it as CSV UTF-8, and use the .csv file")
FOREIGN: dict[bytes, tuple[str, Hint]] = {
    rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/)": WORKBOOK,
    rb"\xd0\xcf\x11\xe0": WORKBOOK,
    rb"(\xef\xbb\xbf)?\s*<\?xml.{0,400}<tmx\b": ("a TMX file", TSV),
    rb"PK\x03\x04": ("a zip archive", "unpack it first"),
    rb"\xfd7zXZ\x00": ("compressed with xz", "unpack it first, or compress it with gzip"),
    rb"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first, or compress it with gzip"),
    rb"BZh91AY&SY": ("compressed with bzip2", "unpack it first, or compress it with gzip"),
    rb"PAR1": ("a Parquet file", ("for pairs or labelled texts, use ", Setting("read_pairs", "jsonl"))),
}
"""Patterns of the first bytes of files that are not text, with a description of the file type and a hint."""


@dataclass(frozen=True, eq=False, slots=True)
class Raw:
    """A block of whole lines of a file, before the lines are checked.

    name: name of the file, for messages.
    text: the lines, with "\\n" between them. Invalid bytes are lone surrogates (surrogateescape).
    first: line number of the first line.
    marks: one integer for each line, with a bit set for each problem that the reader of the format has found
        (see Kind.bit). None: no problems.
    unit: what a line is called in messages: "line", "row" or "pair".
    reached: number of bytes or rows read so far, including this block.
    reasons: for each malformed line, its index in the block, and why it is malformed.
    remedy: the name of the setting that the user should check if a line is malformed, for the error message.
    whole: if `text` has only one column of the file, the lines with all columns; otherwise empty.
    encoding: the encoding of the file before it was converted; None is UTF-8.
    data: the bytes of `text` if they are valid UTF-8 and have been read from a file; otherwise empty.
    """

    name: str
    text: str
    first: int = 1
    marks: Marks | None = None
    unit: str = "line"
    reached: int = 0
    reasons: Mapping[int, str] = field(default_factory=dict)
    remedy: Setting | None = None
    whole: Sequence[str] = ()
    encoding: str | None = None
    data: bytes = b""

    def lines(self) -> Sequence[str]:
        """Return the lines of the block as they are in the file, with all their columns."""
        return self.whole or self.text.split("\n")

    def line(self, index: int) -> bytes:
        """Return the line at this index of the block, as it is in the file, with all its columns."""
        return to_bytes(self.lines()[index])

    def is_unread(self, index: int) -> bool:
        """Return whether a line of a file without a named encoding is not valid UTF-8."""
        try:
            self.line(index).decode("utf-8")
        except UnicodeDecodeError:
            return bool(self.whole) and self.encoding is None
        return False


def to_bytes(text: str) -> bytes:
    """Return the bytes of a text in UTF-8. Lone surrogates that are not from surrogateescape are invalid."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path if it is a regular file, otherwise raise DataError.

    A pipe is not allowed, because files are read more than once, and a pipe can be read only once.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(message("path", f"{path!r} is not a path", expected="a str or a pathlib.Path"))
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(message(shown(path), "this path is a folder", expected="a text file, plain or gzip"))
    if path.exists():
        hint = "save the content to a file first, because the file is read more than once"
        raise DataError(message(shown(path), "this path is not a regular file", hint=hint))
    hint = similar_path(path)
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file():
        hint = f"use {shown(packed)}: gzip files can be read directly"
    elif not hint and not path.parent.is_dir():
        hint = f"check the path: the folder {shown(path.parent)} does not exist either"
    raise DataError(message(shown(path), "there is no such file", hint=hint))


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def checked_paths(call: str, paths: Any) -> tuple[Path, ...]:
    """Return a path, or several paths, as a tuple of regular files; raise an error as checked_path() does.

    call: the name of the calling function, for the error message of an empty list.
    """
    several = isinstance(paths, Iterable) and not isinstance(paths, str | os.PathLike)
    files = tuple(map(checked_path, paths if several else (paths,)))
    if not files:
        raise ArgumentError(message(call, "the list of files is empty", expected="at least one file"))
    return files


def shown_paths(paths: Sequence[Path]) -> str:
    """Return the names of files as one text, for messages; of many files, the first and the last."""
    names = [shown(path) for path in paths]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, ..., {names[-1]}"


def read_blocks(path: Path, encoding: str | None = None) -> Iterator[Raw]:
    """Yield the lines of a file in blocks, without byte order mark and without "\r" before "\n".

    encoding: the encoding of the file; None is UTF-8. The blocks are always UTF-8.

    Warns if the first lines look as if they had been decoded with a wrong encoding.
    """
    blocks = blocks_of(shown(path), read_chunks(path, encoding), other_encoding(encoding))
    for number, block in enumerate(blocks):
        if not number:
            _warn_mojibake(block)
        yield block


def blocks_of(name: str, chunks: Iterable[tuple[bytes, int]], encoding: str | None) -> Iterator[Raw]:
    """Yield the whole lines of a text. `chunks`: its content and the number of bytes read, as read_chunks().

    Raises DataError if a line is longer than LONGEST_LINE bytes.
    """
    rest, lines, reached = b"", 0, 0
    for data, reached in chunks:
        end = data.rfind(b"\n") + 1
        if end:
            yield _whole(name, rest + data[: end - 1], lines + 1, reached, encoding)
            lines += data.count(b"\n")
            rest = data[end:]
        else:
            rest += data
        if len(rest) > LONGEST_LINE:
            problem = f"the line is longer than {LONGEST_LINE >> 20} MiB"
            hint = RETURNS if b"\r" in rest else ""
            raise DataError(message(f"{name}, line {lines + 1}", problem, hint=hint))
    if not lines and b"\r" in rest.rstrip(b"\r"):
        problem = "the file contains \\r but no \\n"
        raise DataError(message(name, problem, expected="lines that end with \\n", hint=RETURNS))
    if rest:
        yield _whole(name, rest, lines + 1, reached, encoding)


def read_chunks(path: Path, encoding: str | None = None) -> Iterator[tuple[bytes, int]]:
    """Yield the content of a file, plain or gzip, in chunks of UTF-8, without byte order mark.

    With each chunk, yield the number of bytes of the file that have been read.

    Raises DataError if the file cannot be read, or if it is not text.
    """
    with reading(shown(path)), open(path, "rb", BLOCK) as file:
        yield from stream_chunks(shown(path), cast(BufferedReader, file), other_encoding(encoding))


def stream_chunks(
    name: str, file: BufferedReader, encoding: str | None, at_once: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yield the content of an open file like read_chunks(). `at_once`: without waiting for a whole block."""
    text = BufferedReader(cast(Any, GzipFile(fileobj=file)), BLOCK) if file.peek(2)[:2] == GZIP else file
    check_start(name, text.peek(START)[:START], encoding)
    for data in utf_8_chunks(text.read1 if at_once else text.read, encoding, BLOCK):
        yield data, 0 if at_once else file.tell()


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Context manager: raise DataError if a file, or its gzip data, cannot be read."""
    try:
        yield
    except (EOFError, BadGzipFile, zlib.error) as error:
        problem = f"the gzip data is truncated or damaged ({error})"
        hint = "check the file with gzip -t, or download it again"
        raise DataError(message(name, problem, hint=hint)) from None
    except OSError as error:
        raise DataError(message(name, f"the file cannot be read ({error.strerror or error})")) from None


def read_lines(path: str | os.PathLike[str], encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a file (plain or gzip) as strings, without line ends.

    encoding: the encoding of the file; None is UTF-8.

    Raises DataError with the line number and the byte if a line is not valid.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.txt")
    ...     _ = path.write_bytes(b"one\\r\\ntwo")
    ...     list(read_lines(path))
    ['one', 'two']
    """
    for raw in read_blocks(checked_path(path), encoding):
        lines = raw.text.split("\n")
        if not raw.text.isascii():
            yield from _valid(raw, lines)
        else:
            yield from lines


def _valid(raw: Raw, lines: list[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        try:
            line.encode()
        except UnicodeEncodeError:
            problem, hint = invalid_line(raw, index)
            place = f"{raw.name}, line {raw.first + index}"
            raise DataError(message(place, problem, hint=hint)) from None
        yield line


def invalid_line(raw: Raw, index: int) -> tuple[str, tuple[str | Setting, ...]]:
    """Return the problem and the hint of the error for a line that is not valid in its encoding.

    index: index of the line in the block.
    """
    line = raw.line(index)
    if raw.encoding is not None:
        return f"the line is not valid {raw.encoding}", ("check ", Setting("read_pairs", "encoding"))
    named, hint = advice(_around(raw, index), line)
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not valid UTF-8: byte {error.start + 1} of the line, 0x{line[error.start]:02X}"
        return (f"{problem}; {named}", hint) if named else (problem, OTHER_ENCODING)
    return "not valid UTF-8: an unpaired surrogate escape such as \\ud800", ()


def _around(raw: Raw, index: int) -> bytes:
    """Return the lines around the line at this index, from which its encoding is guessed."""
    lines = raw.lines()
    before = b"".join(to_bytes(line) + b"\n" for line in lines[max(index - 20, 0) : index])
    after = b"\n".join(map(to_bytes, lines[index : index + 1_000]))
    return before + after if len(before) < START // 2 else after


def check_likely_encoding(raw: Raw, index: int, place: str) -> None:
    """Raise DataError if the text around a line with invalid UTF-8 probably has another encoding.

    For readers that replace invalid bytes: a few bytes may be errors, but not a whole text.

    raw: a block of lines whose encoding is not named.
    index: index of the line in the block.
    place: the file and the line, for the message.
    """
    line, around = raw.line(index), _around(raw, index)
    named, hint = advice(around, line)
    if named and len(re.findall(rb"[\x80-\xff]", around)) > 3:
        raise DataError(message(place, f"not valid UTF-8; {named}", hint=hint))


OTHER_ENCODING = ("if the file has another encoding, name it: ", Setting("read_pairs", "encoding"))


def check_start(name: str, data: bytes, encoding: str | None) -> None:
    """Raise DataError if the beginning of a file shows that it is not text, or that it is UTF-16 text.

    name: the name of the file, for error messages.
    encoding: the encoding that the user has named; None if the file should be UTF-8.
    """
    for start, (kind, hint) in FOREIGN.items():
        if re.match(start, data, re.DOTALL):
            raise DataError(message(name, f"this file is {kind}", expected="text", hint=hint))
    if encoding is not None and is_utf_8_text(data, encoding):
        hints: tuple[str | Setting, ...] = (
            "if no file needs it, remove ",
            Setting("read_pairs", "encoding"),
            f"; otherwise convert the other files to UTF-8, with iconv -t UTF-8 -f {encoding.upper()}",
        )
        raise DataError(message(name, f"this file is UTF-8 or ASCII text, not {encoding}", hint=hints))
    if encoding is not None and not encoding.lower().startswith("utf") and is_utf_16(data):
        named, hints = advice(data, data)
        raise DataError(message(name, f"this file is not {encoding}; {named}", hint=hints))
    if encoding is not None and data and lacks_byte_order_mark(data, encoding):
        named, hints = advice(data, data)
        hints = hints or ("use ", Setting("read_pairs", "encoding"), " with another name, such as utf-16-le")
        problem = f"this file is not {encoding}: it does not begin with a byte order mark"
        problem = f"{problem}; {named}" if named else problem
        raise DataError(message(name, problem, hint=hints))
    if encoding is None and (b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff"))):
        named, hints = advice(data, data)
        if named:
            raise DataError(message(name, f"not UTF-8, {named}", hint=hints))


def _warn_mojibake(raw: Raw) -> None:
    if raw.text.isascii():
        return
    numbered = ((i, line) for i, line in enumerate(raw.text.split("\n"), 1) if not line.isascii())
    sample = [(i, line.encode("utf-8", "ignore").decode()) for i, line in itertools.islice(numbered, SAMPLED)]
    mojibake = find_mojibake([line for _, line in sample])
    if mojibake is not None:
        hint = "make the file again from its original, and name the encoding of the original"
        place = f"{raw.name}, line {sample[mojibake.line][0]}"
        warnings.warn(message(place, str(mojibake), hint=hint), RegardWarning, stacklevel=2)


def _whole(name: str, data: bytes, first: int, reached: int, encoding: str | None) -> Raw:
    marks = None
    if b"\r" in data and (b"\r\n" in data or data.endswith(b"\r")):  # one byte first is much faster
        lines = data.split(b"\n")
        marks = numpy.array([line.endswith(b"\r") for line in lines]) * numpy.uint8(RETURN)
        data = b"\n".join(line.removesuffix(b"\r") for line in lines)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text, data = data.decode("utf-8", "surrogateescape"), b""
    return Raw(name, text, first, marks, reached=reached, encoding=encoding, data=data)
