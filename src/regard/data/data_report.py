"""The data report: for each kind of problem, how many pairs have it, and which action was taken.

All pairs are read once to count the problems.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray
from rich.console import Console
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from regard.data.misaligned_pairs import (
    BOUNDED,
    MOST_FEATURES,
    Features,
    counts_differ,
    features_of,
    shifted_lines,
)
from regard.data.pair_blocks import Block, Chunk, CountsDiffer, Examiner, Origin
from regard.data.pair_checks import KINDS, Choices
from regard.data.progress_bar import advancing
from regard.data.read_text import invalid_line
from regard.errors import DataError, Setting, UnknownName, message

__all__ = ["Example", "Finding", "Report", "inspect_pairs", "odd_side", "refusal"]

EXAMPLES = 3
"""Maximum number of examples of each kind of problem."""

EQUAL = 0.9
"""If source and target are equal in at least this fraction of the pairs, the report asks if it is right."""

REFUSED = "refused"

ACTIONS = {"error": REFUSED, "skip": "dropped", "replace": "repaired", "keep": "kept"}
"""The word that the report prints for each action of Choices."""


@dataclass(frozen=True)
class Example:
    """One sentence pair with a problem, as an example in the data report.

    number: position of the pair in the data, from 1.
    place: file and line, for example "a.ko, line 3".
    text: the beginning of the line that has the problem.

    >>> Example(3, "a.ko, line 3", "안녕").place
    'a.ko, line 3'
    """

    number: int
    place: str
    text: str


@dataclass(frozen=True)
class Finding:
    """One row of the data report: one kind of problem and the sentence pairs that have it.

    kind: name of the problem, such as "empty" (see Choices).
    says: description of the problem, such as "a side is empty".
    count: number of pairs with this problem.
    done: the action taken: "refused", "dropped", "repaired" or "kept".
    dropped: number of pairs dropped because of this problem. A pair with several problems is counted in
        `count` for each problem, but in `dropped` for only one problem.
    examples: the first pairs with this problem.

    >>> from regard.data.pairs import pairs_from_lists
    >>> finding = pairs_from_lists(["하나", ""], ["one", "two"]).inspect()["empty"]
    >>> finding.says, finding.count, finding.done
    ('a side is empty', 1, 'dropped')
    """

    kind: str
    says: str
    count: int
    done: str
    dropped: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Report(JupyterMixin):
    """The result of Pairs.inspect(): how many pairs were read and kept, and the problems found.

    read: number of pairs read.
    kept: number of pairs kept.
    findings: one Finding for each kind of problem; report["empty"] returns the Finding of kind "empty".
    refused: if the data cannot be used, the error that check() raises; otherwise None.
    fingerprint: a hash of the text of all pairs and of the choices that decide which pairs are kept.

    Print the report with print() or rich; a notebook shows it as a table.

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
        """Raise the DataError in `refused` if the pairs cannot be used."""
        if self.refused is not None:
            raise self.refused

    def __rich__(self) -> Table:
        result = REFUSED if self.refused is not None else f"{self.kept:,} kept"
        title = f"{self.read:,} pairs read, {result}"
        table = Table(title=title, title_justify="left", title_style="bold")
        for name in ("problem", "pairs", "dropped", "action", "first"):
            table.add_column(
                name, justify="right" if name in ("pairs", "dropped") else "left", overflow="fold"
            )
        for each in (each for each in self.findings if each.count):
            first = _relative(each.examples[0].place) if each.examples else ""
            row = (each.says, f"{each.count:,}", f"{each.dropped:,}", each.done, first)
            table.add_row(*map(Text, row), style="red" if each.done == REFUSED else "")
        if not table.row_count:
            table.add_row("none", "0", "0", "", "")
        return table

    def __str__(self) -> str:
        page = io.StringIO()
        Console(file=page, width=120, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _relative(place: str) -> str:
    """Shorten the path at the beginning of a text such as "FOLDER/a.ko, line 3", which logs keep.

    The result is relative to the working directory, or only the file name if the file is outside of it.
    """
    within = place.removeprefix(str(Path.cwd()) + os.sep)
    return os.path.basename(within) if os.path.isabs(within) else within


def inspect_pairs(origin: Origin, choices: Choices, full: bool = True) -> Report:
    """Read all pairs once and return the report. In a terminal, a progress bar appears after one second.

    full: whether parallel files are searched completely for lines without a counterpart. If False, only
        about the first BOUNDED lines are searched.
    """
    examiners = Examiner(choices, keyed=True), Examiner(choices, keyed=True)
    most = MOST_FEATURES if full else BOUNDED
    tally, counts, refused = _Tally(choices, most if origin.aligned else 0), None, None
    with advancing("checking pairs", origin.size()) as reached:
        try:
            for chunk in origin.chunks(examiners):
                tally.add(chunk)
                reached(chunk.reached)
        except CountsDiffer as difference:
            counts, refused = counts_differ(difference, *tally.features(), most)
    # The choices that decide which pairs are kept: not a limit if pairs that exceed it are kept.
    bounds = {"longest": choices.long, "ratio": choices.uneven}
    deciding = [each for each in sorted(asdict(choices).items()) if bounds.get(each[0]) != "keep"]
    digest = hashlib.blake2b(repr(deciding).encode(), digest_size=16)
    for examiner in examiners:
        digest.update(examiner.digest.digest())
    return tally.report(counts, refused, digest.hexdigest())


def refusal(chunk: Chunk, index: int, choices: Choices, marks: int, *, choosable: bool = True) -> DataError:
    """Return the error for a sentence pair with a problem whose action is "error".

    chunk: the pairs that were read together with this pair.
    index: position of the pair in the chunk, from 0.
    choices: the action for each kind of problem.
    marks: the bits of the problems of the pair; see Kind.bit.
    choosable: whether the user can set Choices. If True, the hint of the error recommends other actions.
    """
    refused = choices.bits("error") & marks
    kind = next(name for name, each in KINDS.items() if each.bit & refused)
    block = odd_side(chunk, index, KINDS[kind].bit)
    line, problem = block.index + index, choices.says(kind)
    hint: list[str | Setting] = []
    if kind == "invalid" or (kind == "malformed" and block.raw.is_unread(line)):
        # In Shift-JIS, bytes of characters are backslashes, which make JSON invalid.
        problem, advised = invalid_line(block.raw, line)
        hint += [*advised, "; otherwise "] if advised else []
    elif kind == "malformed":
        problem = block.raw.reasons.get(line, problem)
    elif kind == "uneven":
        lengths = [side.lengths[index] for side in chunk.sides]
        problem += f": the source has {lengths[0]} characters, the target {lengths[1]}"
    if kind == "malformed" and block.raw.remedy is not None:
        named = bool(block.raw.remedy.value)
        hint += ["use " if named else "check ", block.raw.remedy, "; otherwise " if named else "; "]
    hint.append("fix the data")
    if choosable:
        actions = [action for action in KINDS[kind].may if action != "error"]
        for word, action in zip((", or use ", *[" or "] * len(actions)), actions, strict=False):
            hint += [word, Setting("Choices", kind, action)]
    return DataError(message(block.place(index), problem, hint=tuple(hint)))


class _Tally:
    """Counts the problems of the sentence pairs, chunk by chunk, and creates the data report.

    searched: if source and target are in separate files, approximate number of lines of each that are
        searched for lines that have no translation at the same line number of the other file; otherwise 0.
    """

    def __init__(self, choices: Choices, searched: int):
        self.choices, self.searched = choices, searched
        self.histogram = numpy.zeros(256, numpy.int64)
        self.examples: dict[str, list[Example]] = {kind: [] for kind in KINDS}
        self.refused: DataError | None = None
        self.keys: list[tuple[int, NDArray[numpy.int64], NDArray[numpy.bool_]]] = []
        self.lost, self.equal, self.equal_at = 0, 0, list[int]()
        self.encoding: str | None = None
        self.places: tuple[list[tuple[int, str, int]], list[tuple[int, str, int]]] = ([], [])
        self.line_features: tuple[list[Features], list[Features]] = ([], [])

    def add(self, chunk: Chunk) -> None:
        source, target = chunk.sides
        marks = chunk.marks(self.choices)
        self.encoding = self.encoding or source.raw.encoding or target.raw.encoding
        self.histogram += numpy.bincount(marks, minlength=256)
        if chunk.position < self.searched:
            for features, block in zip(self.line_features, chunk.sides, strict=True):
                features.append(features_of(block))
        assert source.keys is not None and target.keys is not None
        lost = (marks & (self.choices.bits("skip") | self.choices.bits("error"))) != 0
        self.lost += int(lost.sum())
        equal = numpy.flatnonzero((source.keys == target.keys) & ~lost)
        self.equal += len(equal)
        self.equal_at += (chunk.position + equal[: EXAMPLES - len(self.equal_at)]).tolist()
        self.keys.append((chunk.position, _joined_keys(source.keys, target.keys), ~lost))
        for places, block in zip(self.places, chunk.sides, strict=True):
            places.append((chunk.position, f"{block.raw.name}, {block.raw.unit}", block.first))
        if not marks.any():
            return
        for kind, examples in self.examples.items():
            if len(examples) < EXAMPLES:
                indices = numpy.flatnonzero(marks & KINDS[kind].bit)[: EXAMPLES - len(examples)]
                examples.extend(_example(chunk, index, KINDS[kind].bit) for index in indices.tolist())
        if self.refused is None and (wrong := numpy.flatnonzero(marks & self.choices.bits("error"))).size:
            self.refused = refusal(chunk, int(wrong[0]), self.choices, int(marks[wrong[0]]))

    def features(self) -> tuple[Features, Features]:
        """Return the features of the source lines and of the target lines that are searched."""
        return Features.joined(self.line_features[0]), Features.joined(self.line_features[1])

    def report(self, counts: tuple[int, int] | None, refused: DataError | None, fingerprint: str) -> Report:
        """Return the report on the chunks added so far.

        counts: the line counts of the source file and the target file if they differ, otherwise None.
        refused: the error for different line counts if they differ, otherwise None.
        fingerprint: the hash that becomes Report.fingerprint.
        """
        read = int(self.histogram.sum())
        combinations = numpy.arange(256)
        unclaimed = (combinations & self.choices.bits("error")) == 0
        findings = []
        for kind, each in KINDS.items():
            has = (combinations & each.bit) != 0
            done, dropped = ACTIONS[self.choices.done_with(kind)], 0
            if done == "dropped":
                dropped = int(self.histogram[has & unclaimed].sum())
                unclaimed &= ~has
            count = int(self.histogram[has].sum())
            findings.append(Finding(kind, self._says(kind), count, done, dropped, tuple(self.examples[kind])))
        findings += [self._duplicates(), self._equal(read - self.lost)]
        if counts is not None:
            says = f"line counts differ: source and target have {counts[0]:,} and {counts[1]:,} lines"
            findings.append(Finding("counts", says, abs(counts[0] - counts[1]), REFUSED, 0, ()))
        elif self.searched:
            findings.append(self._misaligned())
        return Report(read, read - self.lost, tuple(findings), refused or self.refused, fingerprint)

    def _says(self, kind: str) -> str:
        """Return the description of a kind of problem; invalid bytes with the encoding of the files."""
        if kind == "invalid" and self.encoding is not None:
            return f"not valid {self.encoding}"
        return self.choices.says(kind)

    def _duplicates(self) -> Finding:
        """Return the number of kept pairs that repeat an earlier pair, as a Finding.

        The duplicates are only counted here; hold_out() drops them. Pairs are compared by 64-bit hashes, so
        the count can be wrong. For 6 million pairs, the probability of this is 1e-6. The hashes take 16 bytes
        of memory for each pair.
        """
        every, end = numpy.empty(sum(int(kept.sum()) for _, _, kept in self.keys), numpy.int64), 0
        for _, keys, kept in self.keys:
            begin, end = end, end + int(kept.sum())
            every[begin:end] = keys[kept]
        every.sort()
        repeated = every[1:][every[1:] == every[:-1]]
        first, examples = set[int](), list[Example]()
        for position, keys, kept in self.keys if len(repeated) else ():
            at = numpy.minimum(numpy.searchsorted(repeated, keys), len(repeated) - 1)
            for index in numpy.flatnonzero((repeated[at] == keys) & kept).tolist():
                if (key := int(keys[index])) in first and len(examples) < EXAMPLES:
                    number = position + index
                    examples.append(Example(number + 1, self._place(number), ""))
                first.add(key)
            if len(examples) == EXAMPLES:
                break
        return Finding("duplicate", "duplicate pair", len(repeated), "kept", 0, tuple(examples))

    def _equal(self, kept: int) -> Finding:
        """Return the number of kept pairs whose source and target are the same text, as a Finding."""
        says = "source and target are equal"
        if self.equal >= EQUAL * kept:
            says = f"{says}: is the same file or column named for both?"
        examples = tuple(Example(at + 1, self._place(at), "") for at in self.equal_at)
        return Finding("equal", says, self.equal, "kept", 0, examples)

    def _misaligned(self) -> Finding:
        """Return a Finding with the number of lines that are probably shifted by one; see shifted_lines()."""
        shifted, examples, says = (
            shifted_lines(*map(Features.joined, self.line_features)),
            list[Example](),
            "misaligned lines",
        )
        if shifted is not None:
            places = self._place(shifted.source), self._place(shifted.target, side=1)
            unmatched = " and ".join(map(_relative, places))
            says = f"lines are probably shifted by one: {unmatched} have no counterpart"
            lines = (shifted.source, shifted.target)
            examples = [Example(line + 1, place, "") for line, place in zip(lines, places, strict=True)]
        count = 0 if shifted is None else shifted.lines
        return Finding("misaligned", says, count, "kept", 0, tuple(examples))

    def _place(self, position: int, side: int = 0) -> str:
        start, name, first = next(each for each in reversed(self.places[side]) if each[0] <= position)
        return f"{name} {first + position - start}"


def odd_side(chunk: Chunk, index: int, bit: int) -> Block:
    """Return the block of the line that has a problem: of the source or of the target.

    chunk: the pairs that were read together with this pair.
    index: position of the pair in the chunk, from 0.
    bit: the kind of problem; see Kind.bit.

    If the problem belongs to both sides together (uneven lengths), return the source block.
    """
    return next((side for side in chunk.sides if side.marks[index] & bit), chunk.source)


def _example(chunk: Chunk, index: int, bit: int) -> Example:
    block = odd_side(chunk, index, bit)
    return Example(chunk.position + index + 1, block.place(index), block.excerpt(index))


def _joined_keys(source: NDArray[numpy.int64], target: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Combine the keys of source and target lines into one key for each pair.

    The pairs (a, b) and (b, a) get different keys.
    """
    return source * numpy.int64(0x1E3779B97F4A7C15) + (target ^ (target >> 29)) * numpy.int64(
        0x3F58476D1CE4E5B9
    )
