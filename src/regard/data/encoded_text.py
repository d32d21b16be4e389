"""Text for language models: token ids from files with one document or sentence per line, and their batches.

    DocumentBatches   documents of about the same length, BOS ... EOS
    StreamBatches     continuous text in parallel streams; a recurrent model keeps its state between batches
    WindowBatches     continuous text in shuffled windows, for models without a state between batches
    SlidingWindows    overlapping windows for evaluation; each token is counted in the loss once

The order depends only on the data, the arguments and (seed, epoch). epoch(epoch, start) resumes an epoch at
batch `start`. With several processes, each batch is `world` times as large and is divided between the
processes: a process takes every world-th row, starting at row `rank`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from regard.data.batch import BOS, EOS, PAD, UNK, TextBatch
from regard.data.batching import (
    EncodedPairs,
    Side,
    SimilarLengths,
    check_integers,
    check_rank,
    check_start,
    padded_rows,
)
from regard.data.read_text import checked_paths, read_lines
from regard.data.tokenizers.tokenizer import Tokenizer, clean
from regard.errors import ArgumentError, DataError, UnknownName, message, positive, shown

LAYOUTS = ("documents", "continuous")
"""The layouts of a text: whether its lines are separate texts or one continuous text.

"documents": each line is a separate text.
"continuous": all lines are one text, with EOS after each line."""

CHUNK = 20_000
"""Number of lines that are encoded at a time, to limit the memory use."""

Path = str | os.PathLike[str]


class TextCounts(NamedTuple):
    """The size of a text, independent of its tokenizer.

    lines: number of lines.
    words: number of words, separated by spaces.
    characters: number of characters, including the spaces between words but not the line ends.

    Words and characters are counted after clean(), which every tokenizer applies to its input: it normalises
    the Unicode characters and the white space.
    """

    lines: int
    words: int
    characters: int


def count_text(lines: Iterable[str]) -> TextCounts:
    """Count the lines, words and characters of a text.

    >>> count_text(["to be,", " or  not"])
    TextCounts(lines=2, words=4, characters=12)
    """
    total = TextCounts(0, 0, 0)
    for line in lines:
        text = clean(line)
        total = TextCounts(total.lines + 1, total.words + len(text.split()), total.characters + len(text))
    return total


@dataclass(frozen=True, eq=False, repr=False)
class EncodedText:
    """A text as token ids.

    lines: the tokens of each line, without BOS and EOS.
    numbers: (N,), index of each of the N lines in the original text: 0, 1, 2, ... In the layout "documents",
        the indices of blank lines are missing, because blank lines are skipped.
    layout: "documents" (each line is a separate text) or "continuous" (all lines are one text).
    counts: number of lines, words and characters.
    name: name of the text, for error messages.

    In the example, 3 is EOS.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> lines = ["a rose is", "", "a rose"]
    >>> text = EncodedText.from_lines(lines, train_tokenizer("word", lines), layout="continuous")
    >>> text.flat(), text.counts.words
    (array([3, 4, 5, 6, 3, 3, 4, 5, 3], dtype=uint16), 5)
    """

    lines: Side
    numbers: NDArray[numpy.int64]
    layout: str
    counts: TextCounts
    name: str = "the text"

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def token_count(self) -> int:
        """Number of tokens to predict: the tokens of all lines, and one EOS for each line."""
        return len(self.lines.tokens) + len(self)

    @property
    def unknown_count(self) -> int:
        """Number of tokens of the text that are UNK, because they are not in the vocabulary."""
        return int(numpy.count_nonzero(self.lines.tokens == UNK))

    def flat(self) -> NDArray[Any]:
        """Return all tokens in one array, with EOS after each line.

        In the layout "documents", BOS precedes each line. In the layout "continuous", the array begins with
        one EOS, from which the model predicts the first token.
        """
        begins = len(self) if self.layout == "documents" else 1
        flat = numpy.full(self.token_count + begins, EOS, self.lines.tokens.dtype)
        offsets = self.lines.offsets
        line = numpy.repeat(numpy.arange(len(self)), numpy.diff(offsets))
        added = 1 + (2 if self.layout == "documents" else 1) * line
        flat[numpy.arange(len(self.lines.tokens)) + added] = self.lines.tokens
        if self.layout == "documents":
            flat[offsets[:-1] + 2 * numpy.arange(len(self))] = BOS
        return flat

    @classmethod
    def from_lines(
        cls, lines: Iterable[str], tokenizer: Tokenizer, *, layout: str, name: str = "the text"
    ) -> EncodedText:
        """Encode lines of text.

        layout: "documents" (each line is a separate text) or "continuous" (all lines are one text).
        name: name of the text, for error messages.
        """
        if layout not in LAYOUTS:
            raise UnknownName("layout", layout, LAYOUTS)
        if isinstance(lines, str):
            hint = "use a list of lines: [text]; for files, encode_text(path, tokenizer)"
            raise ArgumentError(
                message("EncodedText.from_lines()", "lines is a str, not a list of lines", hint=hint)
            )
        numbered = ((number, clean(line)) for number, line in enumerate(lines))
        kept = (pair for pair in numbered if pair[1]) if layout == "documents" else numbered
        dtype = numpy.uint16 if tokenizer.size <= 2**16 else numpy.uint32
        tokens, lengths, numbers, counts = [numpy.zeros(0, dtype)], [0], list[int](), TextCounts(0, 0, 0)
        while chunk := list(itertools.islice(kept, CHUNK)):
            texts = [text for _, text in chunk]
            rows = tokenizer.encode_lines(texts)
            lengths += map(len, rows)
            numbers += (number for number, _ in chunk)
            tokens.append(numpy.fromiter(itertools.chain.from_iterable(rows), dtype, sum(map(len, rows))))
            counts = TextCounts(*map(sum, zip(counts, count_text(texts), strict=True)))
        if not counts.words:
            raise DataError(message(name, "there is no text", expected="at least one line with text"))
        side = Side(numpy.concatenate(tokens), numpy.cumsum(lengths, dtype=numpy.int64))
        return cls(side, numpy.array(numbers, numpy.int64), layout, counts, name)

    def __repr__(self) -> str:
        counts = f"{len(self)} lines, {self.token_count} tokens, {self.unknown_count} unknown"
        return f"EncodedText({self.layout}, {counts})"


def encode_text(
    files: Path | Sequence[Path],
    tokenizer: Tokenizer,
    *,
    layout: str = "documents",
    encoding: str | None = None,
) -> EncodedText:
    """Read text files (plain or gzip) and encode them.

    layout: "documents" if each line is a separate text; blank lines are skipped. "continuous" if all lines
        are one text, as in Penn Treebank. Then EOS follows each line, and a blank line is EOS alone.
    encoding: the encoding of the files, such as "cp949"; None is UTF-8.

    Raises DataError if a line is not valid in the encoding (the error names file and line), or if
    there is no text.

    >>> import pathlib, tempfile
    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("word", ["a rose is a rose"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "text.txt")
    ...     _ = path.write_text("a rose\\n\\nis a tulip\\n")
    ...     encode_text(path, tokenizer)
    EncodedText(documents, 2 lines, 7 tokens, 1 unknown)
    """
    paths = checked_paths("encode_text()", files)
    more = len(paths) - 1
    name = shown(paths[0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")
    lines = itertools.chain.from_iterable(read_lines(path, encoding) for path in paths)
    return EncodedText.from_lines(lines, tokenizer, layout=layout, name=name)


Numbers = NDArray[numpy.int64]


class DocumentBatches(SimilarLengths[TextBatch]):
    """Batches of whole documents, for language models. The documents of a batch have about the same length.

    text: an EncodedText with the layout "documents": each line is a separate text.
    tokens: token budget, the maximum number of tokens in a batch, per process. It counts padding: the number
        of rows times the length of the longest document, including EOS.
    options: other arguments of Batches, such as sentences, longest, shuffle, seed, rank and world.

    In the example, 2 is BOS and 3 is EOS.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> lines = ["a rose is", "a rose", "is"]
    >>> text = EncodedText.from_lines(lines, train_tokenizer("word", lines), layout="documents")
    >>> [batch.inputs.tolist() for batch in DocumentBatches(text, tokens=6, shuffle=False).epoch(0)]
    [[[2, 5, 3], [2, 4, 6]], [[2, 4, 6, 5]]]
    """

    def __init__(self, text: EncodedText, tokens: int = 4096, **options: Any):
        _check_layout("DocumentBatches()", text, "documents")
        self.text = text
        super().__init__(EncodedPairs(text.lines, text.lines, text.numbers), tokens, **options)

    def build(self, rows: NDArray[numpy.int32], data: EncodedPairs) -> TextBatch:
        tokens, lengths = padded_rows(data.targets, rows, begin=True)
        return TextBatch(tokens[:, :-1], tokens[:, 1:], lengths, torch.from_numpy(data.numbers[rows]))


class StreamBatches:
    """Continuous text in parallel streams, read in windows of fixed length, for recurrent models.

    The text is cut into streams * world parts of equal length, which are called streams. Each row reads one
    stream. Batch k contains window k of every stream. So each row of batch k continues the same row of batch
    k - 1, and batch.carried is True. Only the rows of batch 0 start from the initial state. Every epoch is
    the same. Zaremba et al. (2015) use these batches for Penn Treebank, with 20 streams and windows of 35
    tokens.

    text: an EncodedText with the layout "continuous": all lines are one text.
    window: number of tokens of each row. If it does not divide the length of the streams, the last window is
        shorter.
    streams: number of rows, per process. If the tokens cannot be divided equally, tokens at the end of the
        text are not used. The attribute `left_out` is their number; it is 0 with one stream.
    rank, world: index of this process, and number of processes.

    In the example, 3 is EOS. The last windows have 2 tokens, because the streams have 6.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> lines = ["a b", "c d", "e f g h i"]
    >>> text = EncodedText.from_lines(lines, train_tokenizer("word", lines), layout="continuous")
    >>> for batch in StreamBatches(text, window=4, streams=2).epoch(0):
    ...     print(batch.inputs.tolist(), batch.targets.tolist(), batch.carried)
    [[3, 4, 5, 3], [3, 8, 9, 10]] [[4, 5, 3, 6], [8, 9, 10, 11]] False
    [[6, 7], [11, 12]] [[7, 3], [12, 3]] True
    """

    def __init__(
        self, text: EncodedText, window: int = 35, streams: int = 20, *, rank: int = 0, world: int = 1
    ):
        call = "StreamBatches()"
        positive(call, window=window, streams=streams)
        _check_layout(call, text, "continuous")
        check_rank(call, rank, world)
        self.text, self.window, self.rank, self.world = text, window, rank, world
        length = text.token_count // (streams * world)
        if length < window:
            each = f"{streams * world:,} streams of {length:,}" if streams * world > 1 else "one stream"
            problem = f"the window has {window:,} tokens, but the text has {text.token_count:,} ({each})"
            expected = f"a window of at most {length:,} token{'s' * (length != 1)}" if length else ""
            hint = "use a shorter window, fewer streams or more text" if length else "use fewer streams"
            raise DataError(message(text.name, problem, expected=expected, hint=hint))
        self.left_out = text.token_count - length * streams * world
        self._flat, self._length = text.flat(), length
        # Row r of this process reads the stream with the index rank + r * world.
        self._begins = length * numpy.arange(rank, streams * world, world)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        """Iterate over the batches of an epoch from batch `start` on.

        If `start` is not 0, `carried` is True for the first batch: the model must continue from its state
        after batch start - 1.
        """
        check_start("StreamBatches.epoch()", start, self.len_epoch(epoch))
        return self._batches(start)

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return -(-self._length // self.window)

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens: always the first."""
        return 0

    def _batches(self, start: int) -> Iterator[TextBatch]:
        for first in range(start * self.window, self._length, self.window):
            begins = self._begins + first
            ends = self._begins + min(first + self.window, self._length)
            yield replace(_gathered(self._flat, begins, ends, begins, begins), carried=first > 0)


class WindowBatches:
    """Continuous text in windows of fixed length, in random order. Each window starts from the initial state.

    Use this class for models that keep no state between batches, such as a Transformer. The windows do not
    overlap, so every token is predicted once in each epoch. The first window has a random length, so that a
    token is at different positions of its window in different epochs. The first and the last window are
    padded to the size of the others.

    text: an EncodedText with the layout "continuous": all lines are one text.
    window: number of tokens of each row.
    tokens: token budget of a batch, per process; the number of rows is tokens // window, but at least 1.
    shuffle: if False, every epoch has the same windows, in the order of the text.
    seed: random seed of the order.
    rank: index of this process, from 0.
    world: number of processes.

    In the example, 3 is EOS and 0 is PAD.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> lines = ["a b", "c d"]
    >>> text = EncodedText.from_lines(lines, train_tokenizer("word", lines), layout="continuous")
    >>> for batch in WindowBatches(text, window=4, tokens=8, shuffle=False).epoch(0):
    ...     print(batch.inputs.tolist(), batch.targets.tolist())
    [[3, 4, 5, 3], [6, 7, 0, 0]] [[4, 5, 3, 6], [7, 3, 0, 0]]
    """

    def __init__(
        self,
        text: EncodedText,
        window: int = 128,
        tokens: int = 4096,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        call = "WindowBatches()"
        positive(call, window=window, tokens=tokens)
        _check_layout(call, text, "continuous")
        check_rank(call, rank, world)
        check_integers(call, 0, seed=seed)
        if text.token_count < window * world:
            each = f" for each of {world} processes" if world > 1 else ""
            problem = f"the window has {window:,} tokens{each}, but the text has {text.token_count:,}"
            longest = text.token_count // world
            expected = f"a window of at most {longest:,} token{'s' * (longest != 1)}" if longest else ""
            hint = "use a shorter window or more text" if longest else "use fewer processes or more text"
            raise DataError(message(text.name, problem, expected=expected, hint=hint))
        self.text, self.window, self.shuffle, self.seed = text, window, shuffle, seed
        self.rank, self.world = rank, world
        self._rows = max(tokens // window, 1) * world
        self._flat = text.flat()

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        """Iterate over the batches of an epoch from batch `start` on; earlier batches are not computed."""
        begins, ends = self._plan(epoch)
        cuts = self._cuts(len(begins))
        check_start("WindowBatches.epoch()", start, len(cuts) - 1)
        return self._batches(begins, ends, cuts[start:])

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self._cuts(len(self._plan(epoch)[0]))) - 1

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens, including padding."""
        rows = numpy.diff(self._cuts(len(self._plan(epoch)[0])))
        return int(rows.argmax())

    def _plan(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return two arrays with the positions in the text at which the windows of an epoch begin and end.

        The windows are in the order of the batches.
        """
        if epoch < 0:
            raise ArgumentError(message("WindowBatches.epoch()", f"epoch is {epoch}", expected="0 or more"))
        # Shuffle with raw random bits, which are the same in every numpy version.
        bits = numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch)))
        first = 1 + int(bits.random_raw() % self.window) if self.shuffle else self.window
        begins = numpy.array([0, *range(first, self.text.token_count, self.window)], numpy.int64)
        ends = numpy.append(begins[1:], self.text.token_count)
        if self.shuffle:
            order = numpy.argsort(bits.random_raw(len(begins)), kind="stable")
            begins, ends = begins[order], ends[order]
        return begins, ends

    def _cuts(self, windows: int) -> list[int]:
        """Divide windows into batches. Return the boundaries between the batches.

        Batch k has the windows from result[k] to result[k + 1] - 1.

        windows: the number of windows.

        If the last batch has fewer rows than there are processes, its rows are added to the previous batch,
        because every process needs a row.
        """
        cuts = [*range(0, windows, self._rows), windows]
        if len(cuts) > 2 and cuts[-1] - cuts[-2] < self.world:
            del cuts[-2]
        return cuts

    def _batches(self, begins: Numbers, ends: Numbers, cuts: list[int]) -> Iterator[TextBatch]:
        for first, last in itertools.pairwise(cuts):
            own = slice(first + self.rank, last, self.world)
            yield _gathered(self._flat, begins[own], ends[own], begins[own], begins[own], self.window)


class SlidingWindows:
    """Overlapping windows of a text, for evaluation. Each token is counted once, with enough context.

    Window k reads the tokens from k * stride to k * stride + window - 1 of a document or of the continuous
    text. The windows overlap, but each target is counted in the loss only in the first window that contains
    it; in later windows it is replaced by PAD. In the first window, a token is predicted from all tokens
    before it. In later windows, a counted token is predicted from at least window - stride + 1 tokens.

    text: an EncodedText with any layout; a window never crosses the end of a document.
    window: number of tokens of a window.
    stride: distance in tokens from one window to the next, by default window // 2. A smaller stride gives
        more context and takes longer. With stride = window, the windows do not overlap.
    tokens: token budget of a batch; the number of rows is tokens // window, but at least 1.

    The attribute `longest` is the number of tokens of the longest document (with EOS), or of the continuous
    text. If `longest` is at most `window`, each document is read at once, and `stride` has no effect.

    In the example, the targets that an earlier window has counted are 0 (PAD).

    >>> from regard.data.tokenizers import train_tokenizer
    >>> text = EncodedText.from_lines(["a b c d"], train_tokenizer("word", ["a b c d"]), layout="documents")
    >>> for batch in SlidingWindows(text, window=3, stride=1):
    ...     print(batch.inputs.tolist(), batch.targets.tolist())
    [[2, 4, 5], [4, 5, 6], [5, 6, 7]] [[4, 5, 6], [0, 0, 7], [0, 0, 3]]
    """

    def __init__(self, text: EncodedText, window: int, stride: int | None = None, *, tokens: int = 16384):
        stride = max(window // 2, 1) if stride is None else stride
        positive("SlidingWindows()", window=window, stride=stride, tokens=tokens)
        if stride > window:
            problem, expected = f"stride is {stride}", f"1 to {window}, the window"
            raise ArgumentError(message("SlidingWindows()", problem, expected=expected))
        self.text, self.window, self.stride = text, window, stride
        self._rows = max(tokens // window, 1)
        self._flat = text.flat()
        if text.layout == "documents":
            first = text.lines.offsets[:-1] + 2 * numpy.arange(len(text))
            lengths = numpy.diff(text.lines.offsets) + 1
        else:
            first, lengths = numpy.zeros(1, numpy.int64), numpy.array([text.token_count])
        self.longest = int(lengths.max(initial=0))
        windows = 1 + -(-numpy.maximum(lengths - window, 0) // stride)
        document = numpy.repeat(numpy.arange(len(windows)), windows)
        number = numpy.arange(len(document)) - (numpy.cumsum(windows) - windows)[document]
        self._begins = first[document] + number * stride
        self._ends = numpy.minimum(self._begins + window, (first + lengths)[document])
        self._counted = numpy.where(number > 0, self._begins + window - stride, self._begins)
        self._index = text.numbers[document] if text.layout == "documents" else self._begins

    def __len__(self) -> int:
        return -(-len(self._begins) // self._rows)

    def __iter__(self) -> Iterator[TextBatch]:
        for first in range(0, len(self._begins), self._rows):
            part = slice(first, first + self._rows)
            ranges = self._begins[part], self._ends[part], self._counted[part], self._index[part]
            yield _gathered(self._flat, *ranges)


def _gathered(
    flat: NDArray[Any], begins: Numbers, ends: Numbers, counted: Numbers, index: Numbers, width: int = 0
) -> TextBatch:
    """Return windows of a flat array of token ids as a batch, one window per row.

    The inputs of row r are flat[begins[r]:ends[r]]. The target of each position is the next token in `flat`.

    counted: for each row, the position in `flat` of the first input whose target is counted in the loss.
    index: the field `index` of the batch: where each row is in the text; see TextBatch.
    width: number of positions to which the rows are padded, if they are shorter.
    """
    lengths = ends - begins
    places = numpy.arange(max(int(lengths.max()), width))
    inside = places < lengths[:, None]
    at = numpy.where(inside, begins[:, None] + places, 0)
    inputs = numpy.where(inside, flat[at].astype(numpy.int64), PAD)
    targets = numpy.where(inside & (at >= counted[:, None]), flat[at + 1].astype(numpy.int64), PAD)
    rows = torch.from_numpy(inputs), torch.from_numpy(targets)
    return TextBatch(*rows, torch.from_numpy(lengths), torch.from_numpy(index.copy()))


def _check_layout(call: str, text: EncodedText, layout: str) -> None:
    if text.layout != layout:
        hint = f'encode the text with encode_text(..., layout="{layout}")'
        raise ArgumentError(message(call, f"the layout of the text is {text.layout!r}", hint=hint))
