"""Tokens: the tokens of a text as a tokenizer of transformers splits it, and the word of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.viewing.word_groups import SPACE

__all__ = ["Tokens", "tokens_of_ids", "tokens_of_text"]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The T tokens of one text.

    ids: (1, T).
    pieces: the text of each token. A token that begins a word after a space begins with ▁.
    words: for each token, the index of its word; -1 for special tokens such as [CLS].
    """

    ids: Tensor
    pieces: tuple[str, ...]
    words: tuple[int, ...]


def tokens_of_text(tokenizer: Any, text: str) -> Tokens:
    """Split a text into tokens, with the special tokens that the model expects."""
    if not getattr(tokenizer, "is_fast", False):
        return tokens_of_ids(tokenizer, tokenizer(text)["input_ids"])
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
    names, special = tokenizer.convert_ids_to_tokens(ids), _special_ids(tokenizer)
    pieces, starts = [], []
    for token, name, (first, last) in zip(ids, names, offsets, strict=True):
        if token in special or first == last:
            pieces.append(str(name))
            starts.append(False)
            continue
        piece = text[first:last]
        starts.append(first == 0 or piece[:1].isspace() or text[first - 1].isspace())
        pieces.append((SPACE if starts[-1] else "") + piece.strip())
    pairs = zip(ids, encoding.word_ids(), strict=True)
    numbers = [-1 if token in special else number for token, number in pairs]
    words = _by_tokenizer(numbers, starts) or _by_spaces(ids, special, starts)
    return Tokens(torch.tensor([ids]), tuple(pieces), words)


def tokens_of_ids(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the tokens with these ids. It is used for generated text, and for tokenizers without offsets."""
    names, special = tokenizer.convert_ids_to_tokens(list(ids)), _special_ids(tokenizer)
    pieces = [str(name).replace("\u0120", SPACE) for name in names]  # byte-level BPE writes a space as Ġ
    marked = any(piece.startswith(SPACE) for piece in pieces)
    starts = [piece.startswith(SPACE) if marked else not piece.startswith("##") for piece in pieces]
    shown = [piece.removeprefix("##") for piece in pieces]
    return Tokens(torch.tensor([list(ids)]), tuple(shown), _by_spaces(ids, special, starts))


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of the special tokens, without that of unknown words, which stands for a word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _by_tokenizer(numbers: Sequence[int | None], starts: Sequence[bool]) -> tuple[int, ...] | None:
    """Return the word indices of the tokenizer; None if it puts several words into one."""
    words = tuple(-1 if number is None else number for number in numbers)
    return words if len(set(words) - {-1}) >= sum(starts) else None


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
