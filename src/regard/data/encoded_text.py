"""EncodedText: text for language models as token ids, from files with one document or sentence per line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.data.batch import BOS, EOS, UNK
from regard.data.encoded_pairs import Side
from regard.data.read_text import read_lines
from regard.data.tokenizers.normalize import clean
from regard.data.tokenizers.tokenizer import Tokenizer
from regard.errors import ArgumentError, DataError, UnknownName, message, shown

__all__ = ["LAYOUTS", "EncodedText", "TextCounts", "count_text", "encode_text"]

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
        for chunk in _chunks(kept):
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
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    if not paths:
        raise ArgumentError(message("encode_text()", "there are no files", expected="at least one"))
    more = len(paths) - 1
    name = shown(paths[0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")
    lines = itertools.chain.from_iterable(read_lines(path, encoding) for path in paths)
    return EncodedText.from_lines(lines, tokenizer, layout=layout, name=name)


def _chunks(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    remaining = iter(lines)
    while chunk := list(itertools.islice(remaining, CHUNK)):
        yield chunk
