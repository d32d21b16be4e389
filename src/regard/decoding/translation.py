"""Translation: a line and what a model made of it, with its scores, its attention and its alignment.

print(translation) is its text, so that it can be piped; rich.print(translation) and a notebook draw it with
its alignment; translation.save("x.html") is a page of it.
"""

from __future__ import annotations

import fnmatch
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, ConsoleOptions
from torch import Tensor

from regard.data.tokenizers.normalize import clean
from regard.decoding.alignment_units import text_units
from regard.decoding.word_alignment import Alignment, Choice, align
from regard.errors import ArgumentError, message
from regard.viewing import Entry, Seen, Site, fragment, save_page
from regard.viewing.word_groups import spelled, spelled_or_space

__all__ = ["Passage", "Scored", "Translation"]

DRAWN = 100
"""Of how many words of each side an alignment is drawn: of 10,000 it would be a gigabyte to look at."""

NAMED = 5
"""Number of words outside the vocabulary that a note lists."""

END = "</s>"
"""How EOS is written among pieces."""

WITHOUT_END = "the weight on </s> is not drawn, and rows are not renormalised"

_shortened = reprlib.Repr()
_shortened.maxstring = 80


@dataclass(frozen=True, eq=False)
class Passage:
    """Source and target as a model read and said them at one time, token by token.

    pieces: the text of each token, "</s>" for EOS; words: the number of its word in the line, or of its
    character where characters are aligned, -1 for EOS.
    token_scores: one for each target piece. attention: by site, a row for each target piece and a column for
    each source piece at cross sites. values: by site, the norms (H, S) of what was read there.
    """

    source_pieces: tuple[str, ...]
    source_words: tuple[int, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    token_scores: tuple[float, ...]
    attention: dict[str, Tensor] = field(repr=False)
    values: dict[str, Tensor] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Scored:
    """A source and a target, what the model thinks of them together, and what it looked at.

    text: the target. passages: one, or several where the source was too long to be read at once; the other
    fields join them. notes: what had to be done to the line, in words. aligned_at: the sites, the
    head and the step whose attention the alignment is made from. units: what is aligned of the source and of
    the target, "word" or "character". unknown, unknown_target: the words or characters that the vocabulary
    of the model does not cover: they are read as "<unk>", or by a subword tokenizer as bytes.

    >>> import torch
    >>> from regard.decoding.translation import Passage, Scored
    >>> seen = {"decoder.cross": torch.tensor([[0.9, 0.1], [0.2, 0.8]])}
    >>> passage = Passage(("고양이", "</s>"), (0, -1), ("cat", "</s>"), (0, -1), (-0.5, -0.25), seen)
    >>> scored = Scored("고양이", "cat", (passage,))
    >>> scored.score, str(scored.alignment), str(scored)
    (-0.75, '0-0', 'cat')
    >>> scored
    Scored('고양이', 'cat', score=-0.75)
    """

    source: str
    text: str
    passages: tuple[Passage, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    aligned_at: Choice = field(default=Choice(), kw_only=True)
    units: tuple[str, str] = field(default=("word", "word"), kw_only=True)
    unknown: tuple[str, ...] = field(default=(), kw_only=True)
    unknown_target: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def score(self) -> float:
        """The log-probability of the target, EOS counted."""
        return sum(self.token_scores)

    @property
    def token_scores(self) -> tuple[float, ...]:
        """The log-probability of each piece of the target."""
        return self._through("token_scores")

    @property
    def pieces(self) -> tuple[str, ...]:
        """The tokens of the target as text, "</s>" where the model ended: the rows of the attention."""
        return self._through("pieces")

    @property
    def source_pieces(self) -> tuple[str, ...]:
        """The tokens of the source as text, "</s>" where it ended: the columns of the attention."""
        return self._through("source_pieces")

    @property
    def attention(self) -> dict[str, Tensor]:
        """By site, weights ([H,] T, S); 0 between passages, which did not see each other."""
        sites = self.passages[0].attention if self.passages else {}
        if len(self.passages) == 1:
            return sites
        return {site: _diagonal([each.attention[site] for each in self.passages]) for site in sites}

    @property
    def values(self) -> dict[str, Tensor]:
        """By site, the norms (H, S) of the values that were read: what a weight there could move."""
        sites = self.passages[0].values if self.passages else {}
        return {site: torch.cat([each.values[site] for each in self.passages], -1) for site in sites}

    @property
    def alignment(self) -> Alignment | None:
        """Which source word (or character, see units) each target word looked at most, read at aligned_at.

        None where nothing was looked at, or the model does not look at its source.
        """
        seen = [name for each in self.passages for name in each.attention]
        crossing = any(fnmatch.fnmatchcase(name, self.aligned_at.site) for name in seen)
        return self.align() if crossing or not self.passages else None

    def align(
        self, site: str | None = None, head: int | None = None, shifted: bool | None = None
    ) -> Alignment:
        """The alignment that some sites, with * as wildcard, and one of their heads, or all, give.

        site, head, shifted: as in Choice; where no site is given, what is not given is as in aligned_at.
        """
        chosen = self.aligned_at.instead(site, head, shifted)
        return Alignment.joined(
            align(chosen.read(each.attention), each.source_words, each.words) for each in self.passages
        )

    def entry(self, reference: str | None = None) -> Entry:
        """What there is to draw: words, their alignment, score and notes; several make a `viewing.page`.

        reference: what the text should have been, to be shown beside it.
        """
        return Entry(
            self.source_units,
            self.target_units,
            None if self.alignment is None else _corner(self.alignment),
            score=self.score,
            notes=self._all_notes,
            reference=reference,
            texts=None if self.units == ("word", "word") else (clean(self.source), clean(self.text)),
            caption=WITHOUT_END if END in self.source_pieces else "",
        )

    @property
    def source_units(self) -> list[str]:
        """The words of the source that alignments link, or its characters with ␣ for a space."""
        return _units(self.source, self.source_pieces, self._through("source_words"), self.units[0])

    @property
    def target_units(self) -> list[str]:
        """The words of the target that alignments link, or its characters with ␣ for a space."""
        return _units(self.text, self.pieces, self._through("words"), self.units[1])

    @property
    def _all_notes(self) -> tuple[str, ...]:
        """The notes, and the words that the vocabulary does not cover."""
        sides = (("source", self.unknown), ("target", self.unknown_target))
        return (*self.notes, *(_never_seen(side, unknown) for side, unknown in sides if unknown))

    def seen(self, title: str = "", *, by_values: bool = False) -> Seen:
        """What was looked at, as arrays and words: to be drawn, explored, or kept in a file.

        A decoder that looks at its own past reads each piece one step after it was said: the rows of such a
        site are what is being said, its columns what was read, "<s>" first. by_values: whether each weight is
        multiplied by the norm of the value that it read (Kobayashi et al. 2020): a weight on next to nothing
        is next to nothing.

        >>> from regard.decoding import Scored
        >>> Scored("고양이", "cat").seen().sites
        ()
        """
        sides: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            "source": (self.source_pieces, self._through("source_words")),
            "target": (self.pieces, self._through("words")),
            "read": (
                tuple(piece for each in self.passages for piece in ("<s>", *each.pieces[:-1])),
                tuple(word for each in self.passages for word in (-1, *each.words[:-1])),
            ),
        }
        sites, values = [], self.values
        for name, weights in self.attention.items():
            encoder, cross = name.startswith("encoder"), name.endswith("cross")
            (rows, row_words) = sides["source" if encoder else "target"]
            (columns, column_words) = sides["source" if encoder or cross else "read"]
            array = weights.float().numpy(force=True)
            norms = None if name not in values else values[name].numpy(force=True)
            sites.append(Site(name, array, rows, columns, norms, row_words, column_words))
        (source, source_words), (target, target_words) = sides["source"], sides["target"]
        score = self.score if self.passages else None
        seen = Seen(
            tuple(sites),
            source,
            target,
            source_words,
            target_words,
            title or self.text,
            self._all_notes,
            score,
        )
        return seen.weighted_by_values() if by_values and sites else seen

    def save(self, path: str | Path, title: str = "A translation") -> None:
        """Write a page that shows the translation and its alignment, to a file that ends in .html.

        It is one file that fetches nothing, and it opens on any machine.
        """
        if (suffix := Path(path).suffix.lower()) in (".png", ".svg", ".pdf", ".gif"):
            problem = f"save() of a translation writes an HTML page, not a {suffix} file"
            hint = f'from regard.viewing import picture; picture(translation).save("x{suffix}")'
            raise ArgumentError(message("save()", problem, expected=".html", hint=hint))
        save_page(path, [self.entry()], title)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        said = f"{_shortened.repr(self.source)}, {_shortened.repr(self.text)}, score={self.score:.4g}"
        noted = f", notes={self.notes!r}" if self.notes else ""
        return f"{type(self).__name__}({said}{noted})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Entry]:
        yield self.entry()

    def _repr_html_(self) -> str:
        return fragment(self.entry())

    def _through(self, name: str) -> tuple[Any, ...]:
        return tuple(value for each in self.passages for value in getattr(each, name))


@dataclass(frozen=True, eq=False, repr=False)
class Translation(Scored):
    """A line and its translation, with scores, attention, alignment and notes; `others` are the next best.

    ranking: what it was ranked by, with penalties, added up over passages. others: not for a line that was
    translated in parts.

    >>> from regard.decoding import Translation
    >>> Translation("", "").score
    0
    """

    ranking: float = 0.0
    others: tuple[Translation, ...] = ()


def _diagonal(blocks: list[Tensor]) -> Tensor:
    """Blocks ([H,] t, s) along the diagonal of one matrix, 0 elsewhere."""
    rows, columns = (sum(block.shape[size] for block in blocks) for size in (-2, -1))
    whole = torch.zeros(*blocks[0].shape[:-2], rows, columns)
    row = column = 0
    for block in blocks:
        whole[..., row : row + block.shape[-2], column : column + block.shape[-1]] = block
        row, column = row + block.shape[-2], column + block.shape[-1]
    return whole


def _corner(alignment: Alignment) -> Tensor:
    """The matrix of an alignment, of its first words where there are many; the whole is never made."""
    rows = max((block.target + block.weights.shape[0] for block in alignment.blocks), default=0)
    columns = max((block.source + block.weights.shape[1] for block in alignment.blocks), default=0)
    rows, columns = min(rows, DRAWN), min(columns, DRAWN)
    corner = torch.zeros(rows, columns)
    for weights, source, target in alignment.blocks:
        part = weights[: max(rows - target, 0), : max(columns - source, 0)]
        corner[target : target + part.shape[0], source : source + part.shape[1]] = part
    return corner


def _never_seen(side: str, unknown: tuple[str, ...]) -> str:
    """A note on words that the vocabulary does not cover; only the first of them if there are many."""
    first = list(dict.fromkeys(unknown))
    more = f" and {len(first) - NAMED} more" if len(first) > NAMED else ""
    return f"not in the vocabulary of the model ({side}): {', '.join(map(repr, first[:NAMED]))}{more}"


def _units(text: str, pieces: tuple[str, ...], numbers: tuple[int, ...], unit: str) -> list[str]:
    """The words or characters of a text as its tokens count them.

    They are those of the text, as a rule. Where there are more of those and the tokens spell the first of
    them, the text was cut, and all are given. Where a tokenizer counts otherwise, they are what it spells.
    """
    count = max(numbers, default=-1) + 1
    spaced = text_units(text, unit)
    if len(spaced) == count:
        return spaced
    parts: list[list[str]] = [[] for _ in range(count)]
    for piece, number in zip(pieces, numbers, strict=True):
        if number >= 0:
            parts[number].append(piece)
    read = [spelled(part) if unit == "word" else spelled_or_space(part) for part in parts]
    cut = len(spaced) > count and all(map(_begins, spaced, read))
    return spaced if cut else read


def _begins(word: str, read: str) -> bool:
    """Whether a word may begin with what was read of it; an unknown token may be any letters."""
    return "<unk>" in read or word.startswith(read.rstrip("\ufffd"))
