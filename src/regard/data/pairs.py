"""Pairs: sentences and their translations, read lazily from files of any size.

    read_pairs("train.ko", "train.en")                      two parallel files, or two lists of files
    read_pairs(tsv="pairs.tsv", columns=(1, 2))             tab-separated columns
    read_pairs(jsonl="pairs.jsonl", fields=("ko", "en"))    one JSON object per line
    pairs_from_dataset(dataset, "translation.de", "translation.en")
    read_pairs(tsv="pairs.csv", columns=("ko", "en"))       CSV, as Excel writes it
    pairs_from_lists(["안녕."], ["Hi."])

Files are UTF-8, or in the encoding that is named, plain or gzip; gzip is detected from the content.

A PairStream has sentence pairs to score, align or evaluate: it is read once, in order, from files or standard
input. Unlike Pairs, it drops no pair, so that the output of a command has one line for each pair. Empty and
long sentences are kept. Invalid UTF-8 is replaced by U+FFFD, and lines with invalid UTF-8 are counted.

hold_out() splits pairs into training pairs and held-out pairs, for validation or test. A hash of the source
sentence decides whether a pair is held out, so the split does not depend on the order of the pairs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.data_report import Report, inspect_pairs, refusal
from regard.data.line_io import KEPT, Place, advancing, place_name
from regard.data.pair_blocks import Chunk, CountsDiffer, Examiner, Origin, Stamp
from regard.data.read_text import (
    KINDS,
    Choices,
    Paths,
    check_likely_encoding,
    checked_path,
    checked_paths,
    shown_paths,
)
from regard.data.table_formats import Columns, check_plain_text
from regard.data.text_encoding import check_encoding, other_encoding
from regard.errors import ArgumentError, DataError, Hint, Setting, UnknownName, message, shown
from regard.files.requirements import install_command


class Pair(NamedTuple):
    """A source sentence and its translation (target).

    number: position of the pair in the data, from 1. For a single file without a header, this is the line
        number.

    >>> Pair("안녕.", "Hi.", 7).target
    'Hi.'
    """

    source: str
    target: str
    number: int


class Pairs:
    """Sentence pairs that are read from disk in each iteration; they are not held in memory.

    A Choices object sets what to do with pairs that have a problem, such as an empty sentence. Iteration and
    inspect() use the same Choices, so iteration yields exactly as many pairs as the report says. The first
    use of len() or `fingerprint` reads all pairs once. If a pair has a problem with the action "error" (see
    Choices), iteration, len() and `fingerprint` raise DataError.

    >>> pairs = pairs_from_lists(["하나", "둘", ""], ["one", "two", "three"])
    >>> list(pairs), len(pairs)
    ([Pair(source='하나', target='one', number=1), Pair(source='둘', target='two', number=2)], 2)
    """

    def __init__(self, origin: Origin, choices: Choices, name: str):
        self.origin, self.choices, self.name = origin, choices, name
        self._selected: NDArray[numpy.bool_] | None = None
        self._inspected: tuple[Stamp, Report] | None = None
        self._searched = False

    def __repr__(self) -> str:
        return f"Pairs({self.name})"

    def __iter__(self) -> Iterator[Pair]:
        self._check_unchanged()
        examiners = Examiner(self.choices, keyed=False), Examiner(self.choices, keyed=False)
        try:
            for chunk in self.origin.chunks(examiners):
                sources, targets = chunk.source.lines, chunk.target.lines
                marks = chunk.marks(self.choices)
                kept = (marks & self.choices.bits("skip")) == 0
                if self._selected is not None:
                    kept &= self._selected[chunk.position : chunk.position + chunk.pairs]
                refused = numpy.flatnonzero(marks & self.choices.bits("error")).tolist()
                for i in numpy.flatnonzero(kept[: refused[0]] if refused else kept).tolist():
                    yield Pair(sources[i], targets[i], chunk.position + i + 1)
                if refused:
                    raise refusal(chunk, refused[0], self.choices, int(marks[refused[0]]))
        except CountsDiffer as difference:
            self.inspect().check()
            raise DataError(str(difference)) from None

    def __len__(self) -> int:
        report = self.inspect()
        report.check()
        return report.kept if self._selected is None else int(self._selected.sum())

    @property
    def fingerprint(self) -> str:
        """A hash of the text of all pairs, and of the Choices that decide which pairs are kept.

        If these Pairs are the result of only(), the hash also depends on the selection. It does not depend on
        the names of the files.
        """
        report = self.inspect()
        report.check()
        if self._selected is None:
            return report.fingerprint
        packed = numpy.packbits(self._selected).tobytes()
        return hashlib.blake2b(report.fingerprint.encode() + packed, digest_size=16).hexdigest()

    def inspect(self, full: bool = False) -> Report:
        """Read all pairs once and return a report of their problems.

        full: whether all lines of parallel files are searched for lines without a counterpart in the other
            file, as by `regard data check`. By default, about the first 100,000 lines are searched.

        If the data cannot be used, the error is in the attribute `refused` of the report; this method does
        not raise it. If these Pairs are the result of only(), the report describes all pairs, not only the
        selected ones. The report is cached. Raises DataError if a file has changed since the last call.
        """
        self._check_unchanged()
        if self._inspected is None or full > self._searched:
            self._inspected = self.origin.stamp(), inspect_pairs(self.origin, self.choices, full)
            self._searched = full
        return self._inspected[1]

    def only(self, selected: NDArray[numpy.bool_], name: str) -> Pairs:
        """Return some of the pairs as new Pairs.

        selected: bool array, (inspect().read,): True for each pair to return. It has one element for each
            pair in the files, including the pairs that are dropped because of a problem.
        name: name of the new Pairs, for messages.
        """
        report = self.inspect()
        report.check()
        if selected.shape != (report.read,) or selected.dtype != bool:
            problem = f"selected is {selected.dtype} of shape {selected.shape}"
            raise ArgumentError(message("only()", problem, expected=f"bool of shape ({report.read},)"))
        part = Pairs(self.origin, self.choices, name)
        part._inspected = self._inspected
        part._selected = selected if self._selected is None else selected & self._selected
        return part

    def _check_unchanged(self) -> None:
        if self._inspected is not None and self._inspected[0] != self.origin.stamp():
            hint = "call read_pairs() again, and repeat the steps after it"
            raise DataError(message(self.name, "the files have changed since they were checked", hint=hint))


def read_pairs(
    source: Paths | None = None,
    target: Paths | None = None,
    *,
    tsv: Paths | None = None,
    jsonl: Paths | None = None,
    columns: Columns = (1, 2),
    fields: tuple[str, str] = ("source", "target"),
    encoding: str | None = None,
    choices: Choices | None = None,
) -> Pairs:
    """Read sentence pairs from two parallel files, from columns (TSV, CSV), or from records (JSON, Parquet).

    source, target: the paths of two parallel files, or two lists of paths of the same length.
    tsv: instead of source and target, the path of a file with columns, or a list of paths. A name that ends
        with .csv means CSV, separated by commas or semicolons; other names mean tabs.
    jsonl: instead of source and target, the path of a file of records, or a list of paths: one JSON object in
        each line, a JSON array of objects, or a Parquet file.
    columns: the source column and the target column of tsv, as numbers from 1 or as names in the header line.
    fields: the source field and the target field of jsonl; "translation.de" is the field "de" in
        "translation".
    encoding: the encoding of the files, such as "cp949"; None is UTF-8.
    choices: what to do with pairs that have a problem; see Choices.

    Files are read during iteration, not by this call. Raises ArgumentError if the arguments do not name a
    source and a target, or if source and target are the same file. Raises DataError if a file does not exist.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pairs.tsv")
    ...     _ = path.write_text("Hi.\\t안녕.\\tCC BY\\nGo.\\t가.\\tCC BY\\n", encoding="utf-8")
    ...     [pair.source for pair in read_pairs(tsv=path, columns=(2, 1))]
    ['안녕.', '가.']
    """
    ways = (source is not None or target is not None, tsv is not None, jsonl is not None)
    if sum(ways) != 1 or (source is None) != (target is None):
        arguments = {"source": source, "target": target, "tsv": tsv, "jsonl": jsonl}
        call = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
        raise ArgumentError(
            message(
                f"read_pairs({call})",
                "the arguments must name either source and target, or tsv, or jsonl",
                expected="source and target, or tsv, or jsonl",
                hint='read_pairs("a.ko", "a.en"), read_pairs(tsv="a.tsv") or read_pairs(jsonl="a.jsonl")',
            )
        )
    chosen = choices or Choices()
    check_encoding(encoding)
    if source is not None and target is not None:
        sources, targets = checked_paths("read_pairs()", source), checked_paths("read_pairs()", target)
        if len(sources) != len(targets):
            problem = f"there are {len(sources)} source files and {len(targets)} target files"
            expected = "one target file for each source file, in the same order"
            raise ArgumentError(message("read_pairs()", problem, expected=expected))
        for one, other in zip(sources, targets, strict=True):
            if one.samefile(other):
                problem = "source and target are the same file"
                hint: Hint = "name the file with the translations as target"
                if one.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
                    hint = ("if its columns are source and target, use ", Setting("read_pairs", "tsv"))
                raise ArgumentError(message(shown(one), problem, hint=hint))
        check_plain_text((*sources, *targets), encoding)
        return Pairs(Origin.parallel(sources, targets, encoding), chosen, shown_paths((*sources, *targets)))
    if tsv is not None:
        files = checked_paths("read_pairs()", tsv)
        return Pairs(Origin.tables(files, _two_columns(columns), encoding), chosen, shown_paths(files))
    files = checked_paths("read_pairs()", jsonl)
    return Pairs(Origin.records(files, fields, encoding), chosen, shown_paths(files))


def pairs_from_lists(sources: Sequence[str], targets: Sequence[str], choices: Choices | None = None) -> Pairs:
    """Create Pairs from two lists with the same number of sentences.

    sources: the source sentences.
    targets: the translation of each source sentence.
    choices: what to do with pairs that have a problem; see Choices.

    >>> pairs_from_lists(["Hi."], ["안녕."]).inspect().kept
    1
    """
    if isinstance(sources, str) or isinstance(targets, str):
        problem = "sources and targets must be lists, not a str"
        hint = "pairs_from_lists([source], [target])"
        raise ArgumentError(message("pairs_from_lists()", problem, hint=hint))
    if len(sources) != len(targets):
        problem = f"there are {len(sources)} sources and {len(targets)} targets"
        raise DataError(message("pairs_from_lists()", problem, expected="one target for each source"))
    return Pairs(Origin.collection(list(zip(sources, targets, strict=True))), choices or Choices(), "lists")


def pairs_from_dataset(
    dataset: Iterable[Any], source: str, target: str, choices: Choices | None = None
) -> Pairs:
    """Create Pairs from a Hugging Face dataset, or from another collection of rows with named fields.

    dataset: the rows, in a collection that can be iterated over repeatedly, such as a list.
    source, target: the names of the source field and the target field; "translation.de" is the field "de" in
        "translation".
    choices: what to do with pairs that have a problem; see Choices.

    >>> rows = [{"id": 1, "translation": {"de": "Hallo.", "en": "Hi."}}]
    >>> list(pairs_from_dataset(rows, "translation.de", "translation.en"))
    [Pair(source='Hallo.', target='Hi.', number=1)]
    """
    if isinstance(dataset, str):
        hint = f'pass datasets.load_dataset({dataset!r}, split="train") ({install_command("huggingface")})'
        raise ArgumentError(
            message(
                "pairs_from_dataset()",
                "dataset is a str, not a dataset",
                expected="rows with named fields",
                hint=hint,
            )
        )
    if isinstance(dataset, Mapping):
        hint = f"pass one of the datasets in it: {', '.join(map(str, dataset))}"
        raise ArgumentError(message("pairs_from_dataset()", "dataset is a dict of datasets", hint=hint))
    if iter(dataset) is dataset:
        hint = "use a list or a dataset, not a generator or an open file"
        problem = "dataset is an iterator, which can be read only once"
        raise ArgumentError(message("pairs_from_dataset()", problem, hint=hint))
    return Pairs(Origin.collection(dataset, (source, target)), choices or Choices(), "data")


def _two_columns(columns: Any) -> Columns:
    if isinstance(columns, tuple | list) and len(columns) == 2 and columns[0] != columns[1]:
        named = all(isinstance(each, str) for each in columns)
        if named or all(type(each) is int and each > 0 for each in columns):
            return columns[0], columns[1]
    expected = "two different columns, as numbers from 1 or as names"
    hint = 'columns=(1, 2) or columns=("ko", "en")'
    raise ArgumentError(message("read_pairs()", f"columns={columns!r}", expected=expected, hint=hint))


Hashes = NDArray[numpy.uint64]

RULES = ("auto", "both", "source")

MOST_LEFT_OUT = 0.5
"""Maximum fraction of the training pairs that hold_out() drops with disjoint="auto".

Training pairs are dropped if their target also occurs in a held-out pair. If this would drop more than the
maximum fraction, the targets are probably class labels. Then no pair is dropped: training pairs and held-out
pairs have different sources, but some have the same target."""


@dataclass(frozen=True)
class HeldOut:
    """The result of hold_out(): training pairs and held-out pairs.

    `train, valid = hold_out(...)` unpacks the result.

    train: the training pairs.
    valid: the held-out pairs.
    duplicates: number of pairs dropped because they equal an earlier pair.
    shared: number of pairs dropped from `train` because their target also occurs in `valid`.
    dropped: number of pairs that were dropped before the split because of a problem, such as an empty side.
        pairs.inspect() lists these problems.
    disjoint: "both" if train and valid share no source and no target, "source" if they may share targets.
    why: the reason if `disjoint` is "source", otherwise "".

    str() returns a summary in one line.

    >>> print(hold_out(pairs_from_lists(["a", "b", "c", "c"], ["1", "2", "3", "3"]), count=1))
    2 training pairs, 1 held out; the data check dropped 0, the split dropped
    1 duplicate, 0 whose target is held out
    """

    train: Pairs
    valid: Pairs
    duplicates: int
    shared: int
    dropped: int = 0
    disjoint: Literal["both", "source"] = "both"
    why: str = ""

    def __iter__(self) -> Iterator[Pairs]:
        return iter((self.train, self.valid))

    def __str__(self) -> str:
        shared = f", {self.shared:,} whose target is held out" if self.disjoint == "both" else ""
        report = (
            f"{len(self.train):,} training pairs, {len(self.valid):,} held out; the data check dropped "
            f"{self.dropped:,}, the split dropped {self.duplicates:,} "
            f"duplicate{'' if self.duplicates == 1 else 's'}{shared}"
        )
        return f"{report}; held out by source only: {self.why}" if self.disjoint == "source" else report


def hold_out(
    pairs: Pairs,
    *,
    count: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    disjoint: str = "auto",
) -> HeldOut:
    """Split pairs into training pairs and held-out pairs, by a hash of the source sentence.

    count: number of pairs to hold out. All translations of a source sentence stay together, so the result can
        have a few pairs less.
    fraction: approximate fraction of the sentences to hold out. Set either `count` or `fraction`.
    seed: random seed; another seed gives another split.
    disjoint: "both" removes training pairs whose target also occurs in a held-out pair, so that no source and
        no target is in both parts. "source" keeps these pairs, so that only the sources are disjoint; use it
        if the targets are labels. "auto" is "both", unless that removes more than half of the training pairs.

    Sentences that differ only in white space are equal. Of equal pairs, the first is kept. All pairs with the
    same source are in the same part. The split does not depend on the order of the pairs. With `fraction`, a
    training pair remains a training pair if pairs are added to the data, and a held-out pair remains held
    out. Memory use is a few dozen bytes per pair during the split and two bytes per pair afterwards; the text
    is not held in memory.

    In the second example, the targets are two labels, which occur in both parts. So "auto" means "source".

    >>> numbers = [str(number) for number in range(1000)]
    >>> train, valid = hold_out(pairs_from_lists(numbers, numbers), count=100)
    >>> len(train), len(valid)
    (900, 100)
    >>> parity = hold_out(pairs_from_lists(numbers, ["odd", "even"] * 500), count=100)
    >>> len(parity.train), len(parity.valid), parity.disjoint
    (900, 100, 'source')
    """
    call = "hold_out()"
    if (count is None) == (fraction is None):
        both = "both count and fraction are given"
        problem = "neither count nor fraction is given" if count is None else both
        raise ArgumentError(message(call, problem, expected="either count or fraction"))
    if not isinstance(pairs, Pairs):
        hint = "use read_pairs(...) for files, pairs_from_lists(sources, targets) for lists"
        problem = f"pairs is of type {type(pairs).__name__}"
        raise ArgumentError(message(call, problem, expected="Pairs", hint=hint))
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ArgumentError(message(call, f"count is {count}", expected="an integer, at least 1"))
    if fraction is not None and not 0 < fraction < 1:
        expected = "a number between 0 and 1"
        raise ArgumentError(message(call, f"fraction is {fraction}", expected=expected))
    if disjoint not in RULES:
        raise UnknownName("value of disjoint", disjoint, RULES)
    positions, sources, targets = _hashes(pairs, seed)
    # One hash is multiplied by an odd number, so that the pairs (a, b) and (b, a) get different hashes.
    _, first = numpy.unique(sources * numpy.uint64(0x9E3779B97F4A7C15) + targets, return_index=True)
    first.sort()
    duplicates = len(positions) - len(first)
    positions, sources, targets = positions[first], sources[first], targets[first]
    if count is None:
        assert fraction is not None
        held = sources < numpy.uint64(int(fraction * 2**64))
    else:
        # The sources with the smallest hashes, as long as they have at most `count` pairs; but at least one.
        values, counts = numpy.unique(sources, return_counts=True)
        fitting = int((numpy.cumsum(counts) <= count).sum())
        held = numpy.isin(sources, values[: max(fitting, 1)])
    shared = numpy.isin(targets, targets[held]) & ~held
    left, repeated, why = int((~held).sum()), int(shared.sum()), ""
    if disjoint == "source":
        why = "as requested"
    elif disjoint == "auto" and held.any() and repeated > MOST_LEFT_OUT * left:
        why = (
            f"{len(targets):,} pairs have {len(numpy.unique(targets)):,} distinct targets, and {repeated:,} "
            f"of {left:,} pairs to train on have a target that is held out"
        )
    shared &= not why
    training = ~held & ~shared
    if not held.any() or not training.any():
        problem = f"{held.sum()} of {len(held)} pairs would be held out, {training.sum()} left to train on"
        hint = "hold out fewer pairs, or provide more pairs"
        raise DataError(message(pairs.name, problem, hint=hint))
    report = pairs.inspect()
    read = report.read
    parts = []
    for chosen, name in ((training, "to train on"), (held, "held out")):
        selected = numpy.zeros(read, bool)
        selected[positions[chosen]] = True
        parts.append(pairs.only(selected, f"{pairs.name}, {name}"))
    return HeldOut(
        parts[0],
        parts[1],
        duplicates,
        int(shared.sum()),
        read - report.kept,
        "source" if why else "both",
        why,
    )


def _hashes(pairs: Pairs, seed: int) -> tuple[NDArray[numpy.int64], Hashes, Hashes]:
    """Return three arrays: the position of each pair, the hash of each source, and the hash of each target.

    The hashes are the same on every machine.
    """
    key = str(seed).encode()

    def hashed(text: str) -> int:
        words = " ".join(text.split()).encode("utf-8")
        return int.from_bytes(hashlib.blake2b(words, digest_size=8, key=key).digest(), "little")

    size = len(pairs)
    positions = numpy.zeros(size, numpy.int64)
    sources, targets = numpy.zeros(size, numpy.uint64), numpy.zeros(size, numpy.uint64)
    with advancing("splitting pairs", size) as reached:
        for i, pair in enumerate(pairs):
            positions[i], sources[i], targets[i] = pair.number - 1, hashed(pair.source), hashed(pair.target)
            if i % 10_000 == 0:
                reached(i)
    return positions, sources, targets


INVALID = KINDS["invalid"].bit

KEEP_ALL = Choices(invalid="replace", longest=None, ratio=None)
"""Choices of a PairStream: malformed lines raise DataError, invalid UTF-8 is replaced, no pair is dropped."""


@dataclass
class PairStream:
    """Sentence pairs that are read once, during iteration, from files or standard input. All are kept.

    origin: the files and their format.
    name: the names of all files, for messages: "a.ko, a.en".
    numbers: the line number, in its file, of each pair that was yielded. The caller removes them.
    repaired: number of lines read so far that had invalid UTF-8.
    invalid: the first lines with invalid bytes.

    >>> list(PairStream.lines([b"a\\nb"], [b"x\\ny"]))
    [('a', 'x'), ('b', 'y')]
    """

    origin: Origin
    name: str
    numbers: deque[int] = field(default_factory=deque)
    repaired: int = 0
    invalid: list[bytes] = field(default_factory=list)

    @classmethod
    def lines(
        cls, sources: Sequence[Place], targets: Sequence[Place], encoding: str | None = None
    ) -> PairStream:
        """Return the sentence pairs of parallel files, one sentence per line.

        sources: the source files. Each is a file name, "-" for standard input, or the text itself as bytes.
        targets: the target files, as many as `sources`, in the same form.
        """
        name = ", ".join(map(place_name, (*sources, *targets)))
        return cls(Origin.streams(sources, targets, encoding), name)

    @classmethod
    def rows(
        cls,
        tsv: Sequence[str] | None,
        jsonl: Sequence[str] | None,
        columns: Columns = (1, 2),
        fields: tuple[str, str] = ("source", "target"),
        encoding: str | None = None,
    ) -> PairStream:
        """Return the sentence pairs of files with columns (TSV, CSV) or of records (JSON, Parquet).

        tsv: the files with columns; None or empty to read `jsonl`. See read_pairs() for the other arguments.
        """
        files = tuple(map(checked_path, tsv or jsonl or ()))
        read = Origin.tables(files, columns, encoding) if tsv else Origin.records(files, fields, encoding)
        return cls(read, ", ".join(map(shown, files)))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        examiners = Examiner(KEEP_ALL, keyed=False), Examiner(KEEP_ALL, keyed=False)
        parts = (self.origin.blocks(part, examiners) for part in self.origin.parts)
        try:
            for source, target in chain.from_iterable(parts):
                yield from self._kept(Chunk(source, target))
        except CountsDiffer as difference:
            long, short = difference.paths[difference.longer], difference.paths[1 - difference.longer]
            count = difference.shared
            problem = f"there is no line {count + 1}, but {long} has more than {count:,} lines"
            raise DataError(message(short, problem, expected="the same number of lines")) from None

    def _kept(self, chunk: Chunk) -> Iterator[tuple[str, str]]:
        marks = chunk.marks(KEEP_ALL)
        invalid = {
            block.place(line): (block.raw, block.index + line)
            for block in chunk.sides
            for line in numpy.flatnonzero(block.marks & INVALID).tolist()
        }
        for place, (raw, index) in islice(invalid.items(), KEPT - len(self.invalid)):
            if not self.invalid and other_encoding(self.origin.encoding) is None:
                check_likely_encoding(raw, index, place)
            self.invalid.append(raw.line(index))
        self.repaired += len(invalid)
        refused = numpy.flatnonzero(marks & KEEP_ALL.bits("error"))
        end = int(refused[0]) if refused.size else chunk.pairs
        lines = zip(chunk.source.lines[:end], chunk.target.lines[:end], strict=True)
        for number, pair in enumerate(lines, chunk.source.first):
            self.numbers.append(number)
            yield pair
        if refused.size:
            raise refusal(chunk, end, KEEP_ALL, int(marks[end]), choosable=False)


def in_batches(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Group sentence pairs into batches. For each batch, yield the list of sources and the list of targets.

    pairs: (source, target) of each pair.
    size: number of pairs in a batch.

    >>> list(in_batches([("a", "x"), ("b", "y"), ("c", "z")], 2))
    [(['a', 'b'], ['x', 'y']), (['c'], ['z'])]
    """
    iterator = iter(pairs)
    while batch := list(islice(iterator, size)):
        yield [source for source, _ in batch], [target for _, target in batch]
