"""The data report: for each kind of problem, how many pairs have it, and which action was taken.

All pairs are read once to count the problems.

The report also finds misaligned pairs: lines of a parallel file that probably have no translation in the
other file. Lines are compared by features that do not depend on the language: length, final punctuation and
digits.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray
from rich.console import Console
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from regard.data.line_io import advancing
from regard.data.pair_blocks import Block, Chunk, CountsDiffer, Examiner, Origin
from regard.data.read_text import KINDS, SHORT, Choices, Raw, invalid_line, read_blocks, to_bytes
from regard.errors import DataError, Setting, UnknownName, message, printable, shown

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


MOST_FEATURES = 4_000_000
"""Approximate maximum number of lines of a file whose features (length, last byte, digits) are in memory.

If two parallel files have different line counts, the features of all lines are needed to find the lines
without a translation. In files with more lines than this number, there is no search for such lines."""

BOUNDED = 100_000
"""Approximate maximum number of lines of a file that are searched before training.

`regard data check` searches up to MOST_FEATURES lines."""

BYTE, DIGITS = 256, 32
"""BYTE: number of different values of a byte.
DIGITS: number of different values of Features.digits."""

Scores = NDArray[numpy.float32]
LinePairs = list[tuple["Features", "Features"]]

CLEAR = 5.0
"""Minimum gain, in log-likelihood, for which extra lines of the longer of two parallel files are reported.

All lines except the extra lines are paired with lines of the other file. Each pair has a score, which is
higher if the lines are probably translations (see likeness()). The gain is a difference of two sums of
scores. The first sum uses the extra lines that were found. The second sum assumes that the last lines of the
file are the extra lines."""

FEW = 5
"""If one of two parallel files has at most this many extra lines, each extra line is located separately.

More extra lines are assumed to be consecutive."""

MOST = 1_000_000
"""Maximum number of lines for two searches in parallel files.

Files with the same line count: only the first MOST lines are searched for shifted lines.
Files with different line counts: each extra line is located separately only if the shorter file has at most
MOST lines. Otherwise, the extra lines are assumed to be consecutive."""

NAMED = 3
"""Maximum number of lines without a counterpart that the error message lists."""


class Features(NamedTuple):
    """Three features of lines that do not depend on the language, one array per feature.

    lengths: length of each line in characters.
    marks: the last byte of each line, usually its final punctuation.
    digits: 0 if the line has no digits, otherwise a number from 1 to 31 that depends on the sum of its
        digits.
    """

    lengths: NDArray[numpy.int32]
    marks: NDArray[numpy.uint8]
    digits: NDArray[numpy.uint8]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, last: int | None = None) -> Features:
        """Return the features of the lines from index `first` to `last` - 1; to the end if `last` is None."""
        return Features(self.lengths[first:last], self.marks[first:last], self.digits[first:last])

    @classmethod
    def joined(cls, parts: Iterable[Features]) -> Features:
        """Concatenate the features of several groups of lines."""
        types = (numpy.int32, numpy.uint8, numpy.uint8)
        columns = zip(*parts, strict=True)
        empty = tuple((numpy.zeros(0, kind),) for kind in types)
        return cls(*map(numpy.concatenate, list(columns) or empty))


def features_of(block: Block) -> Features:
    """Return length, last byte and digits of each line of a block as Features."""
    marks, digits = _bytes_of(block.raw)
    part = slice(block.index, block.index + len(block))
    return Features(block.lengths, marks[part], digits[part])


@functools.lru_cache(maxsize=2)
def _bytes_of(raw: Raw) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
    """Return the last byte and the digits of each line. A raw block is often divided into two blocks."""
    data = numpy.frombuffer((raw.data or to_bytes(raw.text)) + b"\n", numpy.uint8)
    ends = numpy.flatnonzero(data == ord("\n"))
    starts = numpy.concatenate(([0], ends[:-1] + 1))
    values = numpy.where((data >= ord("0")) & (data <= ord("9")), data - (ord("0") - 1), numpy.uint8(0))
    sums = numpy.add.reduceat(values, starts, dtype=numpy.int64)
    digits = numpy.where(sums > 0, 1 + sums % (DIGITS - 1), 0).astype(numpy.uint8)
    return data[ends - 1], digits


def likeness(aligned: LinePairs, candidates: LinePairs) -> list[Scores]:
    """Score pairs of lines: the higher the score, the more likely the two lines are translations.

    The score is a log-likelihood ratio, up to a constant:

        log p(features of both lines | translations) - log p(features of both lines | random lines)

    It is a sum over the features. For the length, the log of the length ratio is assumed to have a Laplace
    distribution. For each other feature, the term is the pointwise mutual information between its value in
    the source line and its value in the target line.

    aligned: a list of (source, target), the features of lines that are mostly translations of each other. The
        probabilities are estimated from these lines.
    candidates: a list of (source, target), the features of the lines to score. Line i of source and line i of
        target are one pair.

    Returns one array for each candidate, with one score for each pair of lines.
    """
    ratios = numpy.concatenate([length_ratios(*pair) for pair in aligned])
    usual = float(numpy.median(ratios)) if len(ratios) else 0.0
    # Medians are robust against the pairs that are not translations.
    spread = max(float(numpy.median(numpy.abs(ratios - usual))), 0.05) if len(ratios) else 1.0
    tables = (
        _information([(source.marks, target.marks) for source, target in aligned]),
        _information([(source.digits, target.digits) for source, target in aligned]),
    )
    scores = []
    for source, target in candidates:
        score = -numpy.minimum(numpy.abs(length_ratios(source, target) - usual) / spread, 6.0)
        score += tables[0][source.marks, target.marks] + tables[1][source.digits, target.digits]
        scores.append(score.astype(numpy.float32))
    return scores


def length_ratios(source: Features, target: Features) -> NDArray[numpy.float64]:
    """Return log(target length / source length) for each pair of lines.

    SHORT / 2 is added to both lengths, so that the ratio of short lines is closer to 1.
    """
    return numpy.log((target.lengths + SHORT / 2) / (source.lengths + SHORT / 2))


def _information(pairs: list[tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]]) -> NDArray[numpy.float64]:
    """Return the pointwise mutual information between the values of a feature in source and target lines.

    pairs: a list of (source, target): the values of the feature, from 0 to 255, in source lines and in their
        target lines.

    Returns an array (256, 256): entry (i, j) is for value i in the source and value j in the target. The
    entries of rare values are smoothed towards 0.
    """
    joint = numpy.zeros(BYTE * BYTE)
    for source, target in pairs:
        joint += numpy.bincount(source.astype(numpy.int64) * BYTE + target, minlength=BYTE * BYTE)
    table = joint.reshape(BYTE, BYTE)
    expected = numpy.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    return numpy.log((table + 2.0) / (expected + 2.0))


class Shifted(NamedTuple):
    """Consecutive lines that are shifted by one, in two parallel files with the same number of lines.

    source: index, from 0, of the source line that has no translation in the target file.
    target: index, from 0, of the target line that has no translation in the source file.
    lines: number of shifted lines. They lie between the lines `source` and `target`.
    """

    source: int
    target: int
    lines: int


def lines_without_counterpart(source: Features, target: Features) -> list[int]:
    """Return the lines, from 0, of the longer of two files that probably have no counterpart in the other.

    source, target: the features (length, last byte, digits) of all lines of the two files.

    Line i of the shorter file is paired with line i + k of the longer file. The offset k is the number of
    lines without a counterpart before line i + k. Each pair has a score, which is higher if the two lines are
    probably translations (see likeness()). Dynamic programming finds the lines without a counterpart for
    which the sum of the scores is largest.

    Returns [] if this sum is not clearly larger (see CLEAR) than the sum for another assumption: that the
    extra lines are the last lines of the longer file.
    """
    swapped = len(source) > len(target)
    short, long = (target, source) if swapped else (source, target)
    shared, extra = len(short), len(long) - len(short)
    few = extra <= FEW and shared <= MOST
    offsets = list(range(extra + 1)) if few else [0, extra]

    def pair_lines(first: int, last: int, offset: int) -> tuple[Features, Features]:
        one, other = short.part(first, last), long.part(first + offset, last + offset)
        return (other, one) if swapped else (one, other)

    jumps, gain = _aligned(pair_lines, shared, offsets, 3)
    if gain < CLEAR:
        return []
    lines_per_jump = 1 if few else extra
    return [jump + number + more for number, jump in enumerate(jumps) for more in range(lines_per_jump)]


def _aligned(
    pair_lines: Callable[[int, int, int], tuple[Features, Features]],
    shared: int,
    offsets: Sequence[int],
    rounds: int,
) -> tuple[list[int], float]:
    """Find the lines at which the offset between two files changes. See _best_jumps().

    pair_lines: returns the features of the paired lines from index `first` to `last` - 1 with an offset.
    shared: number of lines that are paired.
    offsets: the offset of the first lines, then the offsets to which it changes in turn.
    rounds: how many times the lines are scored; each time, the features of the pairs found before are used.

    Returns the lines and the gain.
    """
    every = {offset: pair_lines(0, shared, offset) for offset in offsets}
    aligned = list(every.values())
    for _ in range(rounds):
        known = dict(zip(every, likeness(aligned, list(every.values())), strict=True))
        scores = [known[offset] for offset in offsets]
        jumps, gain = _best_jumps(scores)
        bounds = [0, *jumps, shared]
        aligned = [
            pair_lines(first, last, offset)
            for offset, first, last in zip(offsets, bounds[:-1], bounds[1:], strict=True)
        ]
    return jumps, gain


def _best_jumps(scores: list[Scores]) -> tuple[list[int], float]:
    """Find the lines at which the offset between two files must increase to make the sum of scores largest.

    With offset k, line i of the shorter file is paired with line i + k of the longer file. There is a list of
    possible offsets, in increasing order. The first lines have the first offset, 0. At each line that is
    found, the offset changes to the next offset of the list.

    scores: one array for each possible offset: the score of each line of the shorter file if it is paired
        with this offset.

    Returns the indices in the shorter file of the lines that were found, and the gain. The gain is the sum of
    the scores, minus the sum of the scores if all lines had offset 0.
    """
    sums = [numpy.concatenate(([0.0], numpy.cumsum(each, dtype=numpy.float64))) for each in scores]
    best, gains = sums[0], []
    for each in sums[1:]:
        gains.append(best - each)
        best = each + numpy.maximum.accumulate(gains[-1])
    jumps = [len(best) - 1]
    for before in reversed(gains):
        jumps.insert(0, int(numpy.argmax(before[: jumps[0] + 1])))
    jumps.pop()
    return jumps, float(best[-1] - sums[0][-1])


def shifted_lines(source: Features, target: Features) -> Shifted | None:
    """Find consecutive lines of two parallel files that are shifted by one line.

    One line is missing in each file, at different places. So the line counts are equal, and the lines between
    the two places are shifted.

    source, target: the features of all lines: length, last byte (usually final punctuation) and digits.

    Returns None if there are no shifted lines.
    """
    source, target = source.part(0, MOST), target.part(0, MOST)
    count = len(source) - 1
    if count < 1:
        return None

    def pair_lines(first: int, last: int, offset: int) -> tuple[Features, Features]:
        before, after = max(-offset, 0), max(offset, 0)
        return source.part(first + before, last + before), target.part(first + after, last + after)

    best, shifted = 10.0 + 2.0 * math.log(count + 1), None
    for offset in (1, -1):
        (first, last), gain = _aligned(pair_lines, count, [0, offset, 0], 2)
        if gain > best:
            places = (last, first) if offset > 0 else (first, last)
            best, shifted = gain, Shifted(*places, last - first)
    return shifted


def counts_differ(
    difference: CountsDiffer, source: Features, target: Features, most: int
) -> tuple[tuple[int, int], DataError]:
    """Return the two line counts of parallel files, and the error, which names lines without a counterpart.

    difference: the exception that the reader raised at the end of the shorter file.
    source, target: the features (length, last byte, digits) of the lines that were read before the exception.
    most: approximate maximum number of lines of a file that is searched.
    """
    shared, longer = difference.shared, difference.longer
    parts, more = list[Features](), 0
    for block in difference.rest:
        if more < most:
            parts.append(features_of(block))
        more += len(block)
    counts = (shared, shared + more) if longer else (shared + more, shared)
    sides = [features.part(max(len(features) - shared, 0)) for features in (source, target)]
    sides[longer] = Features.joined((sides[longer], *parts))
    complete = (len(sides[0]), len(sides[1])) == counts
    names = [shown(path) for path in difference.paths]
    lines = [f"line counts differ: source and target have {counts[0]:,} and {counts[1]:,} lines"]
    missing = lines_without_counterpart(sides[0], sides[1]) if complete else []
    if not complete and most < MOST_FEATURES:
        hint = "regard data check locates the extra lines"
    elif not complete:
        hint = f"split the files: extra lines are located only in files of up to {MOST_FEATURES:,} lines"
    elif not missing:
        hint = (
            f"if the first {shared:,} lines are parallel, check the end of {names[1 - longer]}; otherwise "
            "pass two parallel files: line i of one is the translation of line i of the other"
        )
    else:
        for line in missing[:NAMED]:
            lines.append(
                f"line {line + 1:,} of {names[longer]} seems to have no counterpart in {names[1 - longer]}:"
            )
            text = _lines(difference.paths[longer], line, line + 1, difference.encoding)
            lines.append(f"  {printable(''.join(text))[:60]}")
        more = len(missing) - NAMED
        lines += [f"and {more:,} more lines of {names[longer]}"] if more > 0 else []
        hint = "compare the files near this line: a line is missing, or one line was split in two"
    return counts, DataError(message(" and ".join(names), "\n".join(lines), hint=hint))


def _lines(path: Path, first: int, last: int, encoding: str | None) -> list[str]:
    """Return the lines of a file from index `first` to `last` - 1. Invalid bytes are replaced."""
    lines = (line for raw in read_blocks(path, encoding) for line in raw.text.split("\n"))
    return [to_bytes(line).decode("utf-8", "replace") for line in itertools.islice(lines, first, last)]


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
        # One key for each pair; the pairs (a, b) and (b, a) get different keys.
        keys = source.keys * numpy.int64(0x1E3779B97F4A7C15)
        keys += (target.keys ^ (target.keys >> 29)) * numpy.int64(0x3F58476D1CE4E5B9)
        self.keys.append((chunk.position, keys, ~lost))
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
