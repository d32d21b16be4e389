"""Tokens: the tokens of a text as a tokenizer of transformers splits it, and the word of each token."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.viewing.word_groups import SPACE

__all__ = ["Tokens", "tokens_of_ids", "tokens_of_text"]

Span = tuple[int, int]
"""Positions of the first character of a token in its text, and of the character after its last one."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """The T tokens of one text.

    ids: (1, T).
    pieces: the text of each token. A token that begins a word after a space begins with ▁. A token that has
        only some bytes of a character is written as these bytes, such as <0xEA>.
    words: for each token, the index of its word; -1 for special tokens such as [CLS].
    unknown: position of each token that stands for unknown text -> its name, such as [UNK]. Its piece is the
        unknown text.
    """

    ids: Tensor
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    unknown: Mapping[int, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The tokens as the model reads them: `pieces`, with [UNK] instead of unknown text."""
        return tuple(self.unknown.get(place, piece) for place, piece in enumerate(self.pieces))


def tokens_of_text(tokenizer: Any, text: str) -> Tokens:
    """Split a text into tokens, with the special tokens that the model expects."""
    if not getattr(tokenizer, "is_fast", False):
        return tokens_of_ids(tokenizer, tokenizer(text)["input_ids"])
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
    special, byte_level = _special_ids(tokenizer), _is_byte_level(tokenizer)
    spans = [None if token in special else span for token, span in zip(ids, offsets, strict=True)]
    starts = _word_starts(text, spans)
    pieces, unknown = list[str](), dict[int, str]()
    for place, name in enumerate(map(str, tokenizer.convert_ids_to_tokens(ids))):
        span, mark = spans[place], SPACE if starts[place] else ""
        if span is None:
            pieces.append(name)
        elif byte_level or span[0] == span[1] or _is_shared(spans, place):
            pieces.append(mark + _piece(name, byte_level).removeprefix(mark))
        else:
            pieces.append(mark + text[slice(*span)].strip())
        if span is not None and ids[place] == tokenizer.unk_token_id:
            unknown[place] = mark + name
    numbers = [
        -1 if span is None else number for span, number in zip(spans, encoding.word_ids(), strict=True)
    ]
    words = tuple(-1 if number is None else number for number in numbers)
    if len(set(words) - {-1}) < sum(starts):  # the tokenizer puts several words into one
        words = _by_spaces(ids, special, starts)
    return Tokens(torch.tensor([ids]), tuple(pieces), words, unknown)


def tokens_of_ids(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the tokens with these ids. It is used for generated text, and for tokenizers without offsets."""
    names, special = tokenizer.convert_ids_to_tokens(list(ids)), _special_ids(tokenizer)
    byte_level = _is_byte_level(tokenizer)
    continued = [str(name).startswith("##") for name in names]
    pieces = tuple(_piece(str(name), byte_level) for name in names)
    marked = any(piece.startswith(SPACE) for piece in pieces)
    starts = [
        piece.startswith(SPACE) if marked else not continued[place] for place, piece in enumerate(pieces)
    ]
    return Tokens(torch.tensor([list(ids)]), pieces, _by_spaces(ids, special, starts))


def _word_starts(text: str, spans: Sequence[Span | None]) -> list[bool]:
    """Return for each token whether it begins a word after a space. The span of a special token is None.

    Several tokens may have the same span, such as the three bytes of a Korean character. Only the first of
    them can begin a word. After a token that is only a space, the next token continues the same word.
    """
    starts, end, blank = list[bool](), 0, False
    for span in spans:
        if span is None or span[0] == span[1]:
            starts.append(False)
            continue
        first, last = span
        after_space = first == 0 or text[first].isspace() or text[first - 1].isspace()
        starts.append(after_space and first >= end and not blank)
        end, blank = max(end, last), text[first:last].isspace()
    return starts


def _is_shared(spans: Sequence[Span | None], place: int) -> bool:
    """Return whether a token has characters in common with the token before it or after it."""
    neighbours = [spans[each] for each in (place - 1, place + 1) if 0 <= each < len(spans)]
    span = spans[place]
    return any(span and each and each[0] < span[1] and span[0] < each[1] for each in neighbours)


def _piece(name: str, byte_level: bool) -> str:
    """Return the text of a token from its name in the vocabulary.

    byte_level: whether each character of the name stands for a byte, as in the vocabulary of GPT-2.

    >>> _piece("##likely", False), _piece("Ġcat", True), _piece("ê³", True)
    ('likely', '▁cat', '<0xEA><0xB3>')
    """
    bytes_by_character = _bytes_by_character()
    if not byte_level or any(character not in bytes_by_character for character in name):
        return name.removeprefix("##").replace("\u0120", SPACE)  # byte-level BPE writes a space as Ġ
    text = bytes(bytes_by_character[character] for character in name).decode(errors="surrogateescape")
    mark = SPACE if text[:1].isspace() else ""
    return mark + re.sub("[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text.strip())


@functools.cache
def _bytes_by_character() -> dict[str, int]:
    """Return the byte of each character in the names of byte-level tokens, as GPT-2 defined them.

    A printable byte is written as the character of the same code, the other bytes as U+0100, U+0101, ...
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _is_byte_level(tokenizer: Any) -> bool:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return hasattr(tokenizer, "byte_decoder") or "ByteLevel" in repr(decoder)


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of the special tokens, without that of unknown words, which stands for a word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _by_spaces(ids: Sequence[int], special: set[int], starts: Sequence[bool]) -> tuple[int, ...]:
    """Return word indices: a word begins where `starts` is True, and after a special token."""
    words: list[int] = []
    number, before = -1, True
    for token, start in zip(ids, starts, strict=True):
        if token in special:
            words.append(-1)
            before = True
            continue
        number += start or before
        words.append(number)
        before = False
    return tuple(words)
