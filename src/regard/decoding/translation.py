"""Translation: a source line and its translation, with scores, attention and alignment.

print(translation) prints only the text. rich.print(translation) and notebooks also draw the alignment.
translation.save("x.html") writes an HTML page.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from rich.console import Console, ConsoleOptions
from torch import Tensor

from regard.data.tokenizers.tokenizer import clean
from regard.decoding.hypothesis import LazyAttention
from regard.decoding.word_alignment import Alignment, Choice, align, shown_units
from regard.roles import BySite, sites_matching
from regard.viewing.result import Result, unknown_note

if TYPE_CHECKING:
    from regard.viewing import Entry, Seen

DRAWN = 100
"""Maximum number of source words and of target words in the picture of an alignment.

The picture has a cell for each pair of words: with 10,000 words on each side, a page would need 1 GB.
"""

SIDES = ("source", "target")

END = "</s>"
"""The text of EOS in a list of tokens."""

GUIDED = "{site} was trained to follow word alignments (guided alignment)"
WITHOUT_END = "the weight on </s> is not drawn, so a row can sum to less than 1"

_shortened = reprlib.Repr()
_shortened.maxstring = 80


@dataclass(frozen=True, eq=False)
class Passage(LazyAttention):
    """The tokens, scores and attention of one forward pass: a whole line, or one part of a long line.

    source_pieces, pieces: the text of each source and target token, "</s>" for EOS.
    source_words, words: for each source and target token, the index of its word in the line (or of its
        character, if characters are aligned). The index of EOS is -1.
    token_scores: the log-probability of each target token.
    attention: for each attention layer (site), the weights ([H,] T, S). At cross-attention sites, there is a
        row for each target token and a column for each source token.
    values: for each site, the norm of each value vector, (H, S).
    source_token_ids, token_ids: the ids of the source and target tokens, EOS included.
    """

    source_pieces: tuple[str, ...]
    source_words: tuple[int, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    token_scores: tuple[float, ...]
    attention: Mapping[str, Tensor] = field(repr=False)
    values: dict[str, Tensor] = field(default_factory=dict, repr=False)
    source_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()

    def aligned(self, choice: Choice) -> Alignment | None:
        """Return the word alignment from the weights that `choice` selects; None if none are recorded.

        The alignments of all passages of a search are computed together, if they have the same choice.
        """
        prepared = self.__dict__.get("_alignment")
        if prepared is not None and prepared[0] == choice and (result := prepared[1]()) is not None:
            return cast(Alignment, result)
        if not sites_matching(self.attention, choice.site):
            return None
        return align(choice.read(self.attention), self.source_words, self.words)


@dataclass(frozen=True, eq=False, repr=False)
class Scored(Result):
    """A source and a target with their scores, attention and alignment, computed by a model.

    source: the source text.
    text: the target text.
    passages: the tokens, scores and attention. Usually one passage; several if the source was too long for
        one forward pass. Properties such as `token_scores` join the passages.
    notes: messages for the user, e.g. that the line was split or truncated.
    aligned_at: which attention weights the alignment is computed from: the site, the head, and whether the
        weights of the next decoding step are used (see Choice).
    guided: the attention layer (site) that was trained to follow word alignments; "" if there is none.
    units: the alignment units of source and target, "word" or "character".
    unknown, unknown_target: the source words and the target words (or characters) that are not in the
        vocabulary. They are encoded as UNK, or as bytes by a subword tokenizer.
    bytewise: for the source and for the target, whether the tokenizer encodes unknown characters as bytes.

    >>> import torch
    >>> from regard.decoding import Passage, Scored
    >>> weights = {"decoder.cross": torch.tensor([[0.9, 0.1], [0.2, 0.8]])}
    >>> passage = Passage(("고양이", "</s>"), (0, -1), ("cat", "</s>"), (0, -1), (-0.5, -0.25), weights)
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
    guided: str = field(default="", kw_only=True)
    units: tuple[str, str] = field(default=("word", "word"), kw_only=True)
    unknown: tuple[str, ...] = field(default=(), kw_only=True)
    unknown_target: tuple[str, ...] = field(default=(), kw_only=True)
    bytewise: tuple[bool, bool] = field(default=(False, False), kw_only=True)
    page_title = "A translation"

    @property
    def score(self) -> float:
        """The log-probability of the target, EOS included."""
        return sum(self.token_scores)

    @property
    def token_scores(self) -> tuple[float, ...]:
        """The log-probability of each target token."""
        return self._concatenated("token_scores")

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text of each target token, "</s>" for EOS. Cross-attention has a row for each of them."""
        return self._concatenated("pieces")

    @property
    def source_pieces(self) -> tuple[str, ...]:
        """The text of each source token, "</s>" for EOS. Cross-attention has a column for each of them."""
        return self._concatenated("source_pieces")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the target tokens, EOS included."""
        return self._concatenated("token_ids")

    @property
    def source_token_ids(self) -> tuple[int, ...]:
        """The ids of the source tokens, EOS included."""
        return self._concatenated("source_token_ids")

    @property
    def attention(self) -> BySite[Tensor]:
        """For each attention layer (site), the weights (T, S), or (H, T, S) with heads.

        If the source was too long for one forward pass and was split into passages, weights between tokens of
        different passages are 0.
        """
        sites = self.passages[0].attention if self.passages else {}
        roles = sites.roles if isinstance(sites, BySite) else {}
        if len(self.passages) == 1:
            return BySite(sites, roles)
        joined = {}
        for site, first in sites.items():
            blocks = [each.attention[site] for each in self.passages]
            heads = [blocks] if first.dim() == 2 else zip(*blocks, strict=True)
            matrices = [torch.block_diag(*each) for each in heads]
            joined[site] = matrices[0] if first.dim() == 2 else torch.stack(matrices)
        return BySite(joined, roles)

    @property
    def values(self) -> dict[str, Tensor]:
        """For each attention layer (site), the norm of each value vector, (H, S)."""
        sites = self.passages[0].values if self.passages else {}
        return {site: torch.cat([each.values[site] for each in self.passages], -1) for site in sites}

    @property
    def alignment(self) -> Alignment | None:
        """The alignment of words (or characters, see `units`).

        It is computed from the attention weights that `aligned_at` selects. None if they were not recorded,
        for example because the model has no attention.
        """
        parts = [each.aligned(self.aligned_at) for each in self.passages]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return Alignment.joined(known)
        return self.align() if known else None

    def align(
        self, site: str | None = None, head: int | None = None, shifted: bool | None = None
    ) -> Alignment:
        """Compute the alignment from other attention weights than those that `aligned_at` selects.

        site: the attention layers, a role or names. None: those of `aligned_at`.
        head: the index of the head. None: all heads if `site` is set, otherwise the head of `aligned_at`.
        shifted: whether to use the weights of the next decoding step. None: False if `site` is set, otherwise
            the value of `aligned_at`.
        """
        choice = self.aligned_at.instead(site, head, shifted)
        return Alignment.joined(
            each.aligned(choice) or align(choice.read(each.attention), each.source_words, each.words)
            for each in self.passages
        )

    def entry(self, reference: str | None = None) -> Entry:
        """Return the words, alignment, score and notes as an entry of an HTML page (see viewing.page()).

        reference: a reference translation, which is shown beside the text.
        """
        from regard.viewing import Entry

        return Entry(
            self.source_units,
            self.target_units,
            None if self.alignment is None else self.alignment.corner(DRAWN),
            score=self.score,
            notes=self.all_notes,
            reference=reference,
            texts=None if self.units == ("word", "word") else (clean(self.source), clean(self.text)),
            caption="; ".join((*([WITHOUT_END] if END in self.source_pieces else []), *self._guidance)),
        )

    @property
    def _guidance(self) -> tuple[str, ...]:
        """What stands under pictures of attention that was trained to align."""
        return (GUIDED.format(site=self.guided),) if self.guided else ()

    @property
    def source_units(self) -> list[str]:
        """The source words, or the source characters with ␣ for a space."""
        return shown_units(self.source, self.source_pieces, self._concatenated("source_words"), self.units[0])

    @property
    def target_units(self) -> list[str]:
        """The target words, or the target characters with ␣ for a space."""
        return shown_units(self.text, self.pieces, self._concatenated("words"), self.units[1])

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        words = (self.unknown, self.unknown_target)
        for side, unit, each, bytewise in zip(SIDES, self.units, words, self.bytewise, strict=True):
            yield f"{side} {unit}", each, bytewise

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Messages for the user: those in `notes`, and one each for unknown source and target words."""
        sides = zip(SIDES, self.unknown_words(), strict=True)
        return (*self.notes, *(unknown_note(each[1], side, each[2]) for side, each in sides if each[1]))

    def seen(self, title: str = "", *, by_values: bool = False) -> Seen:
        """Return the recorded attention as arrays with their tokens, to draw, explore or save.

        At decoder self-attention sites, the rows are the output tokens. The columns are the input tokens:
        "<s>", then all output tokens but the last. At sites that read the source backwards, rows and columns
        are the source tokens in this order, last token first.

        title: the title of the pictures. Default: the target text.
        by_values: multiply each weight by the norm of the value vector of its key (Kobayashi et al. 2020).

        >>> from regard.decoding import Scored
        >>> Scored("고양이", "cat").seen().sites
        ()
        """
        from regard.viewing import Seen, Site

        sides: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            "source": (self.source_pieces, self._concatenated("source_words")),
            "target": (self.pieces, self._concatenated("words")),
            "input": (
                tuple(piece for each in self.passages for piece in ("<s>", *each.pieces[:-1])),
                tuple(word for each in self.passages for word in (-1, *each.words[:-1])),
            ),
            "reversed": (
                tuple(piece for each in self.passages for piece in each.source_pieces[::-1]),
                tuple(word for each in self.passages for word in each.source_words[::-1]),
            ),
        }
        sites, values, attention = [], self.values, self.attention
        for name, weights in attention.items():
            role = attention.role(name)
            (rows, row_words) = sides.get(role.rows, sides["target"])
            (columns, column_words) = sides.get(role.columns, sides["input"])
            array = weights.float().numpy(force=True)
            norms = None if name not in values else values[name].numpy(force=True)
            sites.append(Site(name, array, rows, columns, norms, row_words, column_words, role))
        (source, source_words), (target, target_words) = sides["source"], sides["target"]
        score = self.score if self.passages else None
        seen = Seen(
            tuple(sites),
            source,
            target,
            source_words,
            target_words,
            title or self.text,
            (*self.all_notes, *self._guidance),
            score,
        )
        return seen.weighted_by_values() if by_values and sites else seen

    def to_dict(self) -> dict[str, Any]:
        """Return the texts, tokens, scores, alignment and notes as JSON values. seen() returns the attention.

        >>> Scored("고양이", "cat").to_dict()["text"]
        'cat'
        """
        alignment = self.alignment
        return {
            "source": self.source,
            "text": self.text,
            "score": self.score,
            "token_ids": list(self.token_ids),
            "pieces": list(self.pieces),
            "token_scores": list(self.token_scores),
            "source_token_ids": list(self.source_token_ids),
            "source_pieces": list(self.source_pieces),
            "alignment": None if alignment is None else [list(link) for link in alignment.links],
            "units": list(self.units),
            "notes": list(self.all_notes),
        }

    def page_entry(self, reference: str | None = None) -> Entry:
        return self.entry(reference)

    @staticmethod
    def write_page(path: str | Path, entries: Sequence[Entry], title: str, about: str = "") -> None:
        from regard.viewing import save_page

        save_page(path, entries, title, about)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        fields = f"{_shortened.repr(self.source)}, {_shortened.repr(self.text)}, score={self.score:.4g}"
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"{type(self).__name__}({fields}{notes})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Entry]:
        yield self.entry()

    def _repr_html_(self) -> str:
        from regard.viewing import fragment

        return fragment(self.entry())

    def _concatenated(self, name: str) -> tuple[Any, ...]:
        return tuple(value for each in self.passages for value in getattr(each, name))


@dataclass(frozen=True, eq=False, repr=False)
class Translation(Scored):
    """A source line and its best translation, with scores, attention, alignment and notes.

    ranking: the score that hypotheses are sorted by, with length and coverage penalties. If a long line was
        translated in parts, the sum of the rankings of its parts.
    others: the other translations of the n-best list. Empty if the line was translated in parts.

    >>> from regard.decoding import Translation
    >>> Translation("", "").score
    0
    """

    ranking: float = 0.0
    others: tuple[Translation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the values of Scored.to_dict(), with `ranking` and `others` in addition."""
        others = [each.to_dict() for each in self.others]
        return {**super().to_dict(), "ranking": self.ranking, "others": others}
