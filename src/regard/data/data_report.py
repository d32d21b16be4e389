"""Inspection: one pass over pairs that counts what is odd about them and says what is done with it."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.data.line_features import MOST_FEATURES, Features, features_of
from regard.data.line_scan import Block, Examiner
from regard.data.misaligned_pairs import counts_differ, shifted_lines
from regard.data.pair_checks import KINDS, Choices
from regard.data.pair_formats import Chunk, CountsDiffer, Origin, Parallel
from regard.data.progress_bar import advancing
from regard.data.read_text import UTF_16
from regard.errors import DataError, UnknownName, message
from regard.viewing.html_document import safe

__all__ = ["Example", "Finding", "Report", "inspect_pairs", "refusal"]

EXAMPLES = 3

MOST_KEYS = 16_000_000
"""Pairs whose keys are kept, 16 bytes each. If more than half of them are different, duplicates are estimated
from a sample."""

REFUSED = "refused"
COLUMNS, NUMBERS = ("problem", "pairs", "dropped", "action", "first"), ("pairs", "dropped")
"""The columns of a report, and those of them that hold numbers."""

DONE = {"error": REFUSED, "skip": "dropped", "replace": "repaired", "keep": "kept"}


@dataclass(frozen=True)
class Example:
    """One odd pair: its position in the data from 1 on, the place of the odd line, and how that begins.

    >>> Example(3, "a.ko, line 3", "안녕").place
    'a.ko, line 3'
    """

    number: int
    place: str
    text: str


@dataclass(frozen=True)
class Finding:
    """One kind of odd pairs: how many there are, what is done with them, and the first of them.

    dropped: how many are dropped for it. A pair that is odd in several ways is in the count of each, and
    dropped for one.

    >>> from regard.data.pairs import pairs_from_lists
    >>> found = pairs_from_lists(["하나", ""], ["one", "two"]).inspect()["empty"]
    >>> found.says, found.count, found.done
    ('a side is empty', 1, 'dropped')
    """

    kind: str
    says: str
    count: int
    done: str
    dropped: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Report:
    """What one pass over pairs found: how many were read and are kept, and what is odd about how many.

    refused: why the pairs cannot be used as they are, or None. fingerprint: of the content and of what
    decides which pairs are kept. Print it with rich, or with print(); a notebook displays it as a table.

    >>> from regard.data.pairs import pairs_from_lists
    >>> report = pairs_from_lists(["하나", "둘", ""], ["one", "two", "three"]).inspect()
    >>> report.read, report.kept, report["empty"].count, report["empty"].examples[0].place
    (3, 2, 1, 'lists, pair 3')
    """

    read: int
    kept: int
    findings: tuple[Finding, ...]
    refused: DataError | None
    fingerprint: str

    def __getitem__(self, kind: str) -> Finding:
        for finding in self.findings:
            if finding.kind == kind:
                return finding
        raise UnknownName("kind of finding", kind, [finding.kind for finding in self.findings])

    def check(self) -> None:
        """Raise the DataError that says why the pairs cannot be used, if they cannot."""
        if self.refused is not None:
            raise self.refused

    @property
    def _title(self) -> str:
        kept = "and refused" if self.refused is not None else f"{self.kept:,} kept"
        return f"{self.read:,} pairs read, {kept}"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, as COLUMNS names them."""
        rows: list[tuple[str, ...]] = []
        for each in self.findings:
            if each.count:
                first = _near(each.examples[0].place) if each.examples else ""
                rows.append((each.says, f"{each.count:,}", f"{each.dropped:,}", each.done, first))
        if self.refused is not None and not any(row[3] == REFUSED for row in rows):
            rows.append((str(self.refused), "", "", REFUSED, ""))
        return rows or [("none", "0", "0", "", "")]

    def __rich__(self) -> Table:
        table = Table(title=self._title, title_justify="left", title_style="bold")
        for name in COLUMNS:
            table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
        for row in self._rows:
            table.add_row(*map(Text, row), style="red" if row[3] == REFUSED else "")
        return table

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        lines = [
            "<table>",
            f"<caption>{safe(self._title)}</caption>",
            f"<thead><tr>{head}</tr></thead><tbody>",
        ]
        for row in self._rows:
            style = ' style="color: #c0392b"' if row[3] == REFUSED else ""
            cells = "".join(
                f'<td style="text-align: {"right" if name in NUMBERS else "left"}">{_html(cell)}</td>'
                for name, cell in zip(COLUMNS, row, strict=True)
            )
            lines.append(f"<tr{style}>{cells}</tr>")
        return "\n".join((*lines, "</tbody></table>"))

    def __str__(self) -> str:
        page = io.StringIO()
        Console(file=page, width=120, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _html(text: str) -> str:
    return "<br>".join(map(safe, text.splitlines()))


def _near(place: str) -> str:
    """A place in a file, named from the working folder where the file is below that."""
    return place.removeprefix(str(Path.cwd()) + os.sep)


def inspect_pairs(origin: Origin, choices: Choices) -> Report:
    """Read all pairs of an origin once and report; what takes over a second shows a bar on a terminal."""
    examiners = Examiner(choices, keyed=True), Examiner(choices, keyed=True)
    tally, refused = _Tally(choices, isinstance(origin, Parallel)), None
    with advancing("checking pairs", origin.size()) as reached:
        try:
            for chunk in origin.chunks(examiners, threads=True):
                tally.add(chunk)
                reached(chunk.reached)
        except CountsDiffer as difference:
            refused = counts_differ(difference, *tally.features())
    digest = hashlib.blake2b(repr(_deciding(choices)).encode(), digest_size=16)
    for examiner in examiners:
        digest.update(examiner.digest.digest())
    return tally.report(refused, digest.hexdigest())


def _deciding(choices: Choices) -> list[tuple[str, object]]:
    """The choices, without the bounds past which pairs are kept all the same."""
    idle = {
        bound
        for bound, kind in (("longest", "long"), ("ratio", "uneven"))
        if choices.done_with(kind) == "keep"
    }
    return [(name, value) for name, value in sorted(asdict(choices).items()) if name not in idle]


def refusal(chunk: Chunk, index: int, choices: Choices, marks: int) -> DataError:
    """The error that says why this pair of a chunk is refused, and what can be done."""
    wanted = choices.bits("error") & marks
    kind = next(name for name, each in KINDS.items() if each.bit & wanted)
    block, line = _odd_side(chunk, index, KINDS[kind].bit)
    problem = choices.says(kind)
    if kind == "invalid":
        problem = f"not valid UTF-8: {_first_wrong(block.raw.line(line))}"
    elif kind == "malformed":
        problem = block.raw.reasons.get(line, problem)
    elif kind == "uneven":
        sides = [block.lengths[part][index] for block, part in chunk.sides]
        problem += f": {sides[0]} characters against {sides[1]}"
    hints = [block.raw.hint] if kind == "malformed" and block.raw.hint else []
    if block.raw.unit == "line" and b"\0" in block.raw.data:
        hints.append(UTF_16)
    others = " or ".join(f'Choices({kind}="{way}")' for way in KINDS[kind].may if way != "error")
    hint = "; ".join((*hints, f"mend the data, or choose {others}"))
    return DataError(message(block.place(line), problem, hint=hint))


def _first_wrong(line: bytes) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} of the line, 0x{line[error.start]:02X}"
    return "an escape like \\ud800, which is half of a character"


class _Keys:
    """The different keys of pairs, to count those that come again.

    Of more than MOST_KEYS different ones, a sample is kept: those of one in `every`, by their last bits. The
    number of different pairs is then estimated from it; that of all pairs is exact.
    """

    def __init__(self) -> None:
        self.every, self.total, self.pending = 1, 0, 0
        self.first: list[int] = []
        self.parts: list[tuple[NDArray[numpy.int64], NDArray[numpy.int64]]] = []

    def add(
        self, keys: NDArray[numpy.int64], positions: NDArray[numpy.int64], kept: NDArray[numpy.bool_]
    ) -> None:
        self.total += int(kept.sum())
        kept = kept & self._sampled(keys)
        self.parts.append((keys[kept], positions[kept]))
        self.pending += len(self.parts[-1][0])
        if self.pending > MOST_KEYS:
            self._distinct()

    def again(self) -> tuple[int, list[int]]:
        """How many pairs are the same as one before, and the positions of the first of them."""
        return max(self.total - self.every * self._distinct(), 0), self.first

    def _distinct(self) -> int:
        """Keep each key once, in a smaller sample where there are too many; how many there are."""
        nothing = numpy.zeros(0, numpy.int64)
        keys, positions = map(numpy.concatenate, zip((nothing, nothing), *self.parts, strict=True))
        order = numpy.argsort(keys, kind="stable")
        keys, positions = keys[order], positions[order]
        new = numpy.ones(len(keys), bool)
        new[1:] = keys[1:] != keys[:-1]
        self.first = sorted([*self.first, *numpy.sort(positions[~new])[:EXAMPLES].tolist()])[:EXAMPLES]
        keys, positions = keys[new], positions[new]
        while len(keys) > MOST_KEYS // 2:
            self.every *= 2
            new = self._sampled(keys)
            keys, positions = keys[new], positions[new]
        self.parts, self.pending = [(keys, positions)], 0
        return len(keys)

    def _sampled(self, keys: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        return (keys & (self.every - 1)) == 0


class _Tally:
    """What is counted while chunks go by; parallel: whether each side has files of its own."""

    def __init__(self, choices: Choices, parallel: bool):
        self.choices, self.parallel = choices, parallel
        self.histogram = numpy.zeros(256, numpy.int64)
        self.examples: dict[str, list[Example]] = {kind: [] for kind in KINDS}
        self.refused: DataError | None = None
        self.keys = _Keys()
        self.lost = 0
        self.places: tuple[list[tuple[int, str, int]], list[tuple[int, str, int]]] = ([], [])
        self.seen: tuple[list[Features], list[Features]] = ([], [])
        self.last: list[tuple[Block, Features] | None] = [None, None]

    def add(self, chunk: Chunk) -> None:
        (source, of_source), (target, of_target) = chunk.sides
        marks = chunk.marks(self.choices)
        self.histogram += numpy.bincount(marks, minlength=256)
        if self.parallel and chunk.position < MOST_FEATURES:
            for side, (block, lines) in enumerate(chunk.sides):
                self.seen[side].append(self._features(side, block).part(lines.start, lines.stop))
        assert source.keys is not None and target.keys is not None
        lost = (marks & (self.choices.bits("skip") | self.choices.bits("error"))) != 0
        self.lost += int(lost.sum())
        keys = _joined_keys(source.keys[of_source], target.keys[of_target])
        self.keys.add(keys, numpy.arange(chunk.position, chunk.position + chunk.pairs), ~lost)
        for places, (block, lines) in zip(self.places, chunk.sides, strict=True):
            places.append((chunk.position, f"{block.raw.name}, {block.raw.unit}", block.first + lines.start))
        if not marks.any():
            return
        for kind, known in self.examples.items():
            if len(known) < EXAMPLES:
                found = numpy.flatnonzero(marks & KINDS[kind].bit)[: EXAMPLES - len(known)]
                known.extend(_example(chunk, index, KINDS[kind].bit) for index in found.tolist())
        if self.refused is None and (wrong := numpy.flatnonzero(marks & self.choices.bits("error"))).size:
            self.refused = refusal(chunk, int(wrong[0]), self.choices, int(marks[wrong[0]]))

    def _features(self, side: int, block: Block) -> Features:
        """The features of a block, which are made once: several chunks may be parts of it."""
        last = self.last[side]
        if last is None or last[0] is not block:
            last = self.last[side] = (block, features_of(block))
        return last[1]

    def features(self) -> tuple[Features, Features]:
        """The features of the lines seen so far, of each side."""
        return Features.joined(self.seen[0]), Features.joined(self.seen[1])

    def report(self, refused: DataError | None, fingerprint: str) -> Report:
        read = int(self.histogram.sum())
        combinations = numpy.arange(256)
        unclaimed = (combinations & self.choices.bits("error")) == 0
        findings = []
        for kind, each in KINDS.items():
            has = (combinations & each.bit) != 0
            done, dropped = DONE[self.choices.done_with(kind)], 0
            if done == "dropped":
                dropped = int(self.histogram[has & unclaimed].sum())
                unclaimed &= ~has
            count = int(self.histogram[has].sum())
            findings.append(
                Finding(kind, self.choices.says(kind), count, done, dropped, tuple(self.examples[kind]))
            )
        findings.append(self._duplicates())
        if self.parallel and refused is None:
            findings.append(self._misaligned())
        return Report(read, read - self.lost, tuple(findings), refused or self.refused, fingerprint)

    def _duplicates(self) -> Finding:
        """Kept pairs that are the same as one before; wrong by a chance of 10^-6 at 6 million pairs."""
        count, first = self.keys.again()
        examples = [Example(p + 1, self._place(p), "") for p in first] if count else []
        says, every = "duplicate pair", self.keys.every
        says += f" (estimated from 1 pair in {every:,})" if every > 1 else ""
        return Finding("duplicate", says, count, "kept; a split drops it", 0, tuple(examples))

    def _misaligned(self) -> Finding:
        """Lines that fit the line before or after their own better: each file lacks a line, at two places."""
        shifted, examples, says = shifted_lines(*self.features()), list[Example](), "misaligned lines"
        if shifted is not None:
            places = self._place(shifted.source), self._place(shifted.target, side=1)
            says = f"seem shifted by one line: {_near(places[0])} and {_near(places[1])} have no counterpart"
            lines = (shifted.source, shifted.target)
            examples = [Example(line + 1, place, "") for line, place in zip(lines, places, strict=True)]
        count = 0 if shifted is None else shifted.lines
        return Finding("misaligned", says, count, "kept", 0, tuple(examples))

    def _place(self, position: int, side: int = 0) -> str:
        start, name, first = next(each for each in reversed(self.places[side]) if each[0] <= position)
        return f"{name} {first + position - start}"


def _joined_keys(source: NDArray[numpy.int64], target: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """One key for a pair, from those of its sides; which side is which matters."""
    return source * numpy.int64(0x1E3779B97F4A7C15) + (target ^ (target >> 29)) * numpy.int64(
        0x3F58476D1CE4E5B9
    )


def _odd_side(chunk: Chunk, index: int, bit: int) -> tuple[Block, int]:
    """The block with the odd line of a pair, and its index there; the source's where no line is odd alone."""
    sides = (chunk.source, chunk.source_from + index), (chunk.target, chunk.target_from + index)
    return next((side for side in sides if side[0].marks[side[1]] & bit), sides[0])


def _example(chunk: Chunk, index: int, bit: int) -> Example:
    block, line = _odd_side(chunk, index, bit)
    return Example(chunk.position + index + 1, block.place(line), block.excerpt(line))
