"""The data of a translation run: read, check, split and encode sentence pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from rich.console import Console

from regard.data import (
    Batches,
    Choices,
    EncodedPairs,
    Pairs,
    Tokenizer,
    hold_out,
    pairs_from_lists,
    read_pairs,
)
from regard.data.batch import Batch
from regard.data.data_report import Report
from regard.data.sampled_epochs import SampledEpochs, Sampler
from regard.data.tokenizers.subwords import available_cores
from regard.errors import DataError, Setting, UnknownName, message, naming_place
from regard.evaluation import Links, read_links
from regard.tasks.file_checks import check_first_lines, check_sides
from regard.tasks.translation.settings import DEFAULT_PAIRS, Data, TranslationSettings

VOCABULARY = "data.source_vocab_size and data.target_vocab_size (--vocab-size)"
"""The settings of the vocabulary size, for error messages."""

HELD_OUT = 1000
"""Default number of pairs that are held out for validation, but at most a twentieth of all pairs."""

MOST_HELD_OUT = 0.2
"""If pairs with the same source are more than this fraction of all, none are held out: it is an error."""

SAMPLED = 200
"""Number of pairs in which swapped_note() counts tokens."""

SWAPPED = 0.7
"""If the sides have less than this fraction of their tokens when they are exchanged, they may be swapped."""


@dataclass(frozen=True, eq=False)
class Split:
    """The sentence pairs of a translation run.

    train: the training pairs.
    valid: the validation pairs.
    notes: messages about the data, for the log.
    links: the alignment of each training pair; None if the data have no alignments.
    is_built_in: whether the pairs are from the built-in corpus.
    """

    train: Pairs
    valid: Pairs
    notes: tuple[str | Report, ...] = ()
    links: Sequence[Links] | None = None
    is_built_in: bool = False

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data, as {"train": hash, "valid": hash}, with "alignments" if there are alignments.

        They are saved in the run folder. When the run is resumed, they show whether the data has changed.
        """
        hashes = {"train": self.train.fingerprint, "valid": self.valid.fingerprint}
        if self.links is not None:
            digest = hashlib.blake2b(digest_size=16)
            for each in self.links:
                digest.update(repr((sorted(each.sure), sorted(each.possible))).encode())
            hashes["alignments"] = digest.hexdigest()
        return hashes


@dataclass(frozen=True, eq=False)
class Corpus:
    """The data of a translation run: training and validation pairs as token ids, with the tokenizers.

    split: the pairs as text.
    source: the tokenizer of the source.
    target: the tokenizer of the target.
    train: the training pairs as token ids.
    valid: the validation pairs as token ids.
    links: the alignment of each training pair, learned from the pairs; None unless the run has guided
        alignment and no gold alignments.
    """

    split: Split
    source: Tokenizer
    target: Tokenizer
    train: EncodedPairs
    valid: EncodedPairs
    links: Sequence[Links] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The vocabulary sizes of the source and of the target."""
        return self.source.size, self.target.size

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the log: how many pairs are dropped or truncated, and which side has morphemes."""
        kinds = [getattr(each, "inner", each).kind for each in (self.source, self.target)]
        cut = "a side has too many tokens"
        valid = ((pair.source, pair.target) for pair in self.split.valid)
        notes = {
            f"tokenizers: {kinds[0]} for the source, {kinds[1]} for the target": {*kinds}
            == {"morpheme", "unigram"},
            swapped_note(valid, self.source, self.target): True,
            f"{self.train.skipped:,} training pairs are dropped: {cut}": self.train.skipped,
            f"{self.valid.truncated:,} validation pairs are truncated: {cut}": self.valid.truncated,
        }
        return tuple(note for note, shown in notes.items() if note and shown)


def swapped_note(pairs: Iterable[tuple[str, str]], source: Tokenizer, target: Tokenizer) -> str:
    """Return a note that source and target may be swapped, otherwise "".

    The sides may be swapped if both have much fewer tokens with the tokenizer of the other side, or fewer and
    most source tokens are unknown.

    pairs: sources and targets. The first SAMPLED are encoded.
    source, target: the tokenizers of the two sides, which may be those of another run (--init-from).
    """
    sample = list(islice(pairs, SAMPLED))
    tokens = [token for line, _ in sample for token in source.encode(line)]
    straight = sum(_token_count(one, source) + _token_count(other, target) for one, other in sample)
    crossed = sum(_token_count(one, target) + _token_count(other, source) for one, other in sample)
    unknown = sum(token in source.uncovered for token in tokens)
    most_unknown = 2 * unknown > len(tokens)
    if crossed >= straight * (1 if most_unknown else SWAPPED):
        return ""
    return (
        "most source words are not in the vocabulary of the model: source and target, the columns (--columns "
        "2,1) or the languages may be swapped"
    )


def _token_count(line: str, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a line. Each character of a word with unknown tokens counts as one."""
    encoded = ((word, tokenizer.encode(word)) for word in line.split())
    return sum(
        len(tokens) if tokenizer.uncovered.isdisjoint(tokens) else len(word) for word, tokens in encoded
    )


def status(text: str) -> AbstractContextManager[Any]:
    """Return a context manager that shows a text and a spinner on a terminal until its block ends."""
    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()


@dataclass(frozen=True)
class Lowered:
    """Sentence pairs in lower case. Unlike a generator, this object can be iterated several times."""

    pairs: Iterable[Any]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((pair.source.lower(), pair.target.lower()) for pair in self.pairs)


def check_header_lines(data: Data) -> None:
    """Check the first lines of the files of the settings: header lines, tables and other encodings."""
    tsv = [*(data.tsv or ()), *(data.valid_tsv or ())]
    source, target = data.source or [], data.target or []
    sides = [*source, *(data.valid_source or ())], [*target, *(data.valid_target or ())]
    check_sides(*sides, tsv, data.encoding, invalid=_choices(data).invalid)
    check_first_lines(tsv, data.columns or [1, 2], data.encoding)


def read_split(data: Data) -> Split:
    """Read and check the files of the settings; hold out training pairs if there are no validation files."""
    if data.built_in is not None:
        return _built_in(data)
    choices = _choices(data)
    with naming_place("--source and --target" if data.source else "the files of [data]"):
        whole = read_pairs(**_places(data, "", choices))
    report = _accepted(whole)
    notes: list[str | Report] = [report]
    links: list[Links] | None = None
    if data.alignments is not None:
        links = [each for path in data.alignments for each in read_links(path)]
        if len(links) != report.read:
            problem = f"there are {len(links)} lines of alignments, but {report.read} pairs"
            hint = "write one line per pair, an empty line for a pair without links"
            raise DataError(message(", ".join(data.alignments), problem, hint=hint))
    if data.valid_source or data.valid_tsv or data.valid_jsonl:
        train, valid = whole, read_pairs(**_places(data, "valid_", choices))
        notes.append(_accepted(valid))
    else:
        count = data.held_out or max(min(HELD_OUT, len(whole) // 20), 1)
        held = hold_out(whole, count=count)
        train, valid = held
        if len(valid) > max(count, MOST_HELD_OUT * len(whole)):
            sources = len({pair.source for pair in whole})
            problem = f"the {len(whole):,} pairs have {sources:,} different sources, and pairs with the same "
            problem += f"source are held out together: {len(valid):,}, instead of {count:,}"
            hint = "for labelled texts, use --task classification; otherwise name validation files"
            raise DataError(message(whole.name, problem, hint=hint))
        notes.append(f"{held}{'; for labels, see also --task classification' if held.why else ''}")
    aligned = None if links is None else [links[pair.number - 1] for pair in train]
    return Split(train, valid, tuple(notes), aligned)


def _accepted(pairs: Pairs) -> Report:
    """Check sentence pairs, and return a Report on them.

    Raise DataError if pairs have problems, such as an empty side. The error lists the options of `regard
    train` that accept such pairs. Also raise DataError if no pair is left.
    """
    try:
        report = pairs.inspect()
        report.check()
    except DataError as error:
        raise DataError(error.message.spelled(_option)) from None
    if report.kept == 0:
        problem = f"all {report.read:,} pairs were dropped" if report.read else "the file has no pairs"
        raise DataError(message(pairs.name, problem))
    return report


def _option(setting: Setting) -> str | Setting:
    """Return a data setting as an option of `regard train`, e.g. --set data.problems.invalid="replace".

    A setting with a value that the command line must repeat, such as the encoding, is returned unchanged.
    """
    if setting.name in ("columns", "encoding", "fields") and setting.value:
        return setting
    if setting.owner == "Choices":
        return f'--set data.problems.{setting.name}="{setting.value}"'
    return f"--{setting.name}"


def _choices(data: Data) -> Choices:
    known = Choices.__dataclass_fields__
    for name in data.problems:
        if name not in known:
            raise UnknownName("setting in [data.problems]", name, known)
    return Choices(**data.problems)


def _places(data: Data, prefix: str, choices: Choices) -> dict[str, Any]:
    """Return the arguments of read_pairs() for the files of the settings.

    data: the data settings.
    prefix: "" for the training files, "valid_" for the validation files.
    choices: what to do with pairs that have problems.
    """
    arguments: dict[str, Any] = {
        name: getattr(data, prefix + name)
        for name in ("source", "target", "tsv", "jsonl")
        if getattr(data, prefix + name) is not None
    }
    arguments["encoding"] = data.encoding
    for name in ("columns", "fields"):
        if getattr(data, name) is not None:
            arguments[name] = tuple(getattr(data, name))
    return {**arguments, "choices": choices}


def _built_in(data: Data) -> Split:
    from regard.data import korean_english  # the grammar is imported only where it is used

    examples = list(korean_english("train", data.pairs or DEFAULT_PAIRS))
    valid = list(korean_english("valid", data.held_out or HELD_OUT))
    return Split(
        pairs_from_lists([each.source for each in examples], [each.target for each in examples]),
        pairs_from_lists([each.source for each in valid], [each.target for each in valid]),
        (f"built-in corpus: {len(examples):,} training pairs, {len(valid):,} validation pairs",),
        [Links(each.sure, each.possible) for each in examples],
        is_built_in=True,
    )


def texts(pairs: Pairs, count: int) -> Iterator[tuple[str, str]]:
    """Yield `count` sentence pairs as text, at equal distances in the data.

    The first `count` pairs would not be typical if the data are sorted by length.

    >>> from regard.data import pairs_from_lists
    >>> numbers = [str(number) for number in range(9)]
    >>> [source for source, _ in texts(pairs_from_lists(numbers, numbers), 3)]
    ['2', '5', '8']
    """
    total = len(pairs)
    for number, pair in enumerate(pairs):
        if (number + 1) * count // total > number * count // total:
            yield pair.source, pair.target


MOST_PAIRS = 2**18
"""Maximum number of pairs of an epoch that are sampled before its first batch."""

MOST_WORKERS = 10
"""Maximum number of processes that sample subwords."""

_SHARED: WeakKeyDictionary[Corpus, dict[Any, SampledEpochs]] = WeakKeyDictionary()


def worker_count() -> int:
    """Return the number of processes that sample subwords on this machine."""
    return min(max(available_cores() - 2, 1), MOST_WORKERS)


def build_sampler(corpus: Corpus, settings: TranslationSettings) -> Sampler | None:
    """Return the object that samples the subwords of pairs, or None if they are not sampled."""
    data = settings.data
    if not data.subword_sampling:
        return None
    return Sampler(
        corpus.source,
        corpus.target,
        sample=data.subword_sampling,
        seed=settings.seed,
        longest=data.max_length,
    )


def sampled_epochs(corpus: Corpus, sampler: Sampler) -> SampledEpochs | None:
    """Return the sampled epochs of a corpus, or None if the corpus is too large.

    All tasks with the same corpus and options share them. A second corpus or seed, as in a run with several
    seeds, has no processes of its own and is sampled in this process.
    """
    if len(corpus.train) > MOST_PAIRS:
        return None
    key = sampler.sample, sampler.seed, sampler.longest
    shared = _SHARED.setdefault(corpus, {})
    if key not in shared:
        workers = 0 if any(_SHARED.values()) else worker_count()
        texts = [(pair.source, pair.target) for pair in corpus.split.train]
        if len(corpus.train):  # raise an error here if a tokenizer does not support sampling
            number = int(corpus.train.numbers[0])
            sampler.pair(0, number, texts[number])
        shared[key] = SampledEpochs(sampler, texts, corpus.train.numbers, workers)
        if workers:
            shared[key].begin(0)  # while the model is moved to the device
    return shared[key]


class SampledBatches:
    """Batches of pairs with sampled subwords. Pairs of similar sampled lengths are in the same batch.

    If the batches were formed before the subwords are sampled, they would have about twice as much padding,
    because a sampled sentence can be much longer.

    epochs: the sampled pairs of each epoch.
    options: arguments of Batches().
    """

    def __init__(self, epochs: SampledEpochs, **options: Any):
        self._epochs, self._options = epochs, options
        self._lengths: dict[int, int] = {}

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch from batch `start` on."""
        return self._of(epoch).epoch(epoch, start)

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch. It can differ between epochs."""
        if epoch not in self._lengths:
            self._lengths[epoch] = self._of(epoch).len_epoch(epoch)
        return self._lengths[epoch]

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens, including padding."""
        return self._of(epoch).largest(epoch)

    def _of(self, epoch: int) -> Batches:
        batches = Batches(self._epochs.encoded(epoch), **self._options)
        self._lengths[epoch] = batches.len_epoch(epoch)
        return batches
