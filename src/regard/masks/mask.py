"""Mask: who may see whom, in a normal form. True means may attend.

A mask is kept in a normal form, an intersection of parts that kernels know by name,

    causal      key j <= query i
    lengths     key j < lengths[b]
    window      i - left <= key j <= i + right
    documents   document of query i = document of key j
    table       a bool tensor (B, H, T, S), indexed by the rows of the call

and what is left as a question that can only be asked. `&` merges the parts; `|` and `~` make a question.
Query positions i are absolute: row r of a call stands at i = r + start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.masks.conditions import All, Either, Not, Question
from regard.masks.document_mask import met
from regard.masks.tile import Tile, whole_tile

__all__ = ["Mask", "as_mask", "dense"]

PAIRS_AT_ONCE = 1 << 22
"""How many (row, key) pairs are asked about at once where a mask has to be asked rather than known."""

Window = tuple[int | None, int | None]
X = TypeVar("X")


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Who may see whom: parts that must all hold, made with `causal()`, `padding()` and the rest.

    >>> import regard
    >>> mask = regard.causal() & regard.window(left=1)
    >>> mask.dense(queries=3, keys=3)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """

    causal: bool = False
    lengths: Tensor | None = None
    window: Window | None = None
    documents: tuple[Tensor, Tensor] | None = None
    table: Tensor | None = None
    question: Question | None = None
    longest: int | None = None
    """An upper bound of the lengths, where it is known without synchronising a device."""

    def __and__(self, other: Mask | Tensor) -> Mask:
        other = as_mask(other)
        if not self.parts or not other.parts:
            return other if other.parts else self
        if self.documents is not None and other.documents is not None:
            other = Mask(question=All((other,)))
        return Mask(
            causal=self.causal or other.causal,
            lengths=_merge(self.lengths, other.lengths, torch.minimum),
            window=_merge(self.window, other.window, _narrower),
            documents=self.documents if self.documents is not None else other.documents,
            table=_merge(self.table, other.table, torch.logical_and),
            question=_merge(
                self.question, other.question, lambda a, b: All((Mask(question=a), Mask(question=b)))
            ),
            # A compiled region would be compiled again for another number.
            longest=None if torch.compiler.is_compiling() else _merge(self.longest, other.longest, min),
        )

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Mask(question=Either((self, as_mask(other))))

    def __invert__(self) -> Mask:
        return Mask(question=Not((self,)))

    def __bool__(self) -> bool:
        problem = "a mask is neither true nor false"
        raise ArgumentError(
            message("Mask", problem, hint="join masks with &, | and ~, not with and, or, not")
        )

    def __repr__(self) -> str:
        said = {
            "causal": "causal()",
            "lengths": f"padding({'?' if self.lengths is None else self.lengths.shape[0]} lengths)",
            "window": f"window{self.window}",
            "documents": "documents(...)",
            "table": f"dense{() if self.table is None else tuple(self.table.shape)}",
            "question": repr(self.question),
        }
        return " & ".join(said[part] for part in self.parts) or "Mask()"

    __rand__ = __and__
    __ror__ = __or__

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts that this mask has, in the order of the normal form."""
        held = {
            "causal": self.causal,
            "lengths": self.lengths is not None,
            "window": self.window is not None,
            "documents": self.documents is not None,
            "table": self.table is not None,
            "question": self.question is not None,
        }
        return tuple(name for name, here in held.items() if here)

    @property
    def sides(self) -> Window:
        """How far back and ahead of itself a query sees, as causal and window say; None for no bound."""
        left, right = self.window or (None, None)
        return left, right if not self.causal else min(right or 0, 0)

    def only(self, *names: str) -> bool:
        """Whether this mask has no parts but these."""
        return all(part in names for part in self.parts)

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        """May query i, which is row `row` of the call, see key j? For index tensors that broadcast."""
        seen = torch.ones_like(i + j, dtype=torch.bool)
        if self.causal:
            seen = seen & (j <= i)
        if self.window is not None:
            left, right = self.window
            seen = seen if left is None else seen & (j >= i - left)
            seen = seen if right is None else seen & (j <= i + right)
        if self.lengths is not None:
            seen = seen & (j < (self.lengths[0] if self.lengths.shape[0] == 1 else self.lengths[batch]))
        if self.documents is not None:
            of_query, of_key = self.documents
            one = torch.zeros_like(batch)
            of_i = of_query[one if of_query.shape[0] == 1 else batch, i]
            seen = seen & (of_i == of_key[one if of_key.shape[0] == 1 else batch, j])
        if self.table is not None:
            at = zip(self.table.shape, (batch, head, row, j), strict=True)
            seen = (
                seen
                & self.table[tuple(torch.zeros_like(index) if size == 1 else index for size, index in at)]
            )
        if self.question is not None:
            seen = seen & self.question.sees(batch, head, i, j, row)
        return seen

    def tile(self, tile: Tile) -> Tensor:
        """May each row see each key? A bool tensor broadcastable to (B, H, T, S) of this tile."""
        if self.lengths is not None and self.parts == ("lengths",):  # most calls of a decoder: keep it short
            return tile.j_S < self.lengths[:, None, None, None]
        batch = torch.arange(tile.batch, device=tile.j_S.device)[:, None, None, None]
        head = torch.arange(tile.heads, device=tile.j_S.device)[:, None, None]
        seen = replace(self, table=None).sees(batch, head, tile.i_T1, tile.j_S, tile.rows_T[:, None])
        seen = seen if seen.dim() == 4 else seen[(None,) * (4 - seen.dim())]
        return seen if self.table is None else seen & tile.take(self.table)

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors on this device."""
        if self.only("causal", "window"):
            return self
        return self._moved(lambda tensor: tensor.to(device), lambda mask: mask.to(device), None)

    def reordered(self, index: Tensor) -> Mask:
        """The mask of a batch taken in another order."""

        def take(tensor: Tensor) -> Tensor:
            return tensor if tensor.shape[0] == 1 else tensor.index_select(0, index)

        return self._moved(take, lambda mask: mask.reordered(index), index)

    def _moved(
        self, change: Callable[[Tensor], Tensor], move: Callable[[Mask], Mask], order: Tensor | None
    ) -> Mask:
        documents = self.documents
        return replace(
            self,
            lengths=None if self.lengths is None else change(self.lengths),
            documents=None if documents is None else (change(documents[0]), change(documents[1])),
            table=None if self.table is None else change(self.table),
            question=None if self.question is None else self.question.moved(move, order),
        )

    @property
    def batch(self) -> int:
        """For how many sequences it was made: 1 where it is the same for all."""
        tensors = [t for t in (self.lengths, self.table, *(self.documents or ())) if t is not None]
        inside = [mask.batch for mask in self.question.parts()] if self.question is not None else []
        return max([1, *(tensor.shape[0] for tensor in tensors), *inside])

    def dense(
        self,
        queries: int,
        keys: int,
        start: int = 0,
        batch: int | None = None,
        heads: int = 1,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The whole mask as a bool tensor broadcastable to (B, H, T, S)."""
        batch = self.batch if batch is None else batch
        return self.tile(whole_tile(queries, keys, start, batch, heads, device))

    def simplified(self, queries: int, keys: int, start: int) -> Mask:
        """Without the parts that hide nothing in a call of this size."""
        mask = self
        if mask.causal and start >= keys - 1:
            mask = replace(mask, causal=False)
        if mask.window is not None:
            left, right = mask.window
            left = None if left is not None and start + queries - 1 <= left else left
            right = None if right is not None and start + right >= keys - 1 else right
            mask = replace(mask, window=None if left is None and right is None else (left, right))
        return mask

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The interval [low, high) of keys outside which no query from `first` to `last` sees anything."""
        left, right = self.sides
        low = 0 if left is None else max(0, first - left)
        high = keys if right is None else min(keys, last + right + 1)
        return low, max(low, high)

    def seen_keys(self, tile: Tile) -> Tensor | None:
        """Which keys some row of the tile may see, (B or 1, H or 1, S); None when that is all of them."""
        queries, keys = tile.rows_T.shape[0], tile.columns_S.shape[0]
        if not self.only("causal", "window", "lengths", "documents"):
            return _any_row(self, tile)
        low, high = self.span(tile.start, tile.start + queries - 1, keys) if queries else (0, 0)
        if (low, high) == (0, keys) and self.lengths is None and self.documents is None:
            return None
        seen_BS = ((tile.j_S >= low) & (tile.j_S < high))[None]
        if self.lengths is not None:
            seen_BS = seen_BS & (tile.j_S < self.lengths[:, None])
        if self.documents is not None:
            seen_BS = seen_BS & self._met(tile)
        return seen_BS[:, None]

    def _met(self, tile: Tile) -> Tensor:
        """Which keys are in the document of some row that may see them by where it stands: (B or 1, S)."""
        assert self.documents is not None
        queries, keys = tile.rows_T.shape[0], tile.columns_S.shape[0]
        of_query = self.documents[0][:, tile.start : tile.start + queries]
        of_key = self.documents[1][:, :keys]
        batch = torch.broadcast_shapes(of_query.shape[:1], of_key.shape[:1])[0]
        left, right = self.sides
        row_S = tile.j_S - tile.start
        low = torch.zeros_like(row_S) if right is None else row_S - right
        high = torch.full_like(row_S, queries) if left is None else row_S + left
        return met(of_key.expand(batch, -1), of_query.expand(batch, -1), low, high)

    def overlong(self, keys: int) -> str | None:
        """What is wrong where a length is more than the number of keys, or None.

        Lengths that came on an accelerator are not compared: that would synchronise it.
        """
        if torch.compiler.is_compiling() or self.lengths is None:
            return None
        if self.longest is None or self.longest <= keys:
            return None
        for index, length in enumerate(self.lengths.tolist()):
            if length > keys:
                return f"padding() has lengths[{index}] = {length}, and there are S = {keys} keys"
        return None

    def problem(self, batch: int, heads: int, queries: int, keys: int, start: int) -> str | None:
        """What does not fit a call of these sizes, or None."""
        if self.lengths is not None and self.lengths.shape[0] not in (1, batch):
            return f"padding has {self.lengths.shape[0]} lengths for a batch of {batch}"
        if overlong := self.overlong(keys):
            return overlong
        if self.documents is not None:
            of_query, of_key = self.documents
            for ids in self.documents:
                if ids.shape[0] not in (1, batch):
                    return f"documents is for a batch of {ids.shape[0]}, the call has {batch}"
            if of_query.shape[1] < start + queries or of_key.shape[1] < keys:
                return (
                    f"documents names {of_query.shape[1]} queries and {of_key.shape[1]} keys, "
                    f"the call needs {start + queries} and {keys}"
                )
        if self.table is not None:
            wanted = (batch, heads, queries, keys)
            if any(size not in (1, want) for size, want in zip(self.table.shape, wanted, strict=True)):
                return (
                    f"a mask of shape {tuple(self.table.shape)} does not broadcast to (B, H, T, S) = {wanted}"
                )
        for mask in self.question.parts() if self.question is not None else ():
            problem = mask.problem(batch, heads, queries, keys, start)
            if problem:
                return problem
        return None


def dense(seen: Tensor) -> Mask:
    """Use a bool tensor as it is, broadcastable to (B, H, T, S); attention(mask=tensor) does this for you.

    >>> import regard, torch
    >>> (regard.dense(torch.eye(2, dtype=torch.bool)) | regard.causal()).dense(queries=2, keys=2)[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    shown = {"mask": (seen, "BHTS" if seen.dim() != 3 else "BTS")}
    if seen.dtype != torch.bool:
        raise ArgumentError(
            message(
                "attention()",
                "the mask is not bool",
                shown,
                "True where a query may see a key",
                "numbers added to the scores are a bias: bias=...; a mask of 0 and 1: mask=mask.bool()",
            )
        )
    if seen.dim() not in (2, 4):
        raise ArgumentError(
            message(
                "attention()",
                "it is not clear what the mask's sizes are",
                shown,
                "(T, S) or (B, H, T, S), where a size of 1 stands for all",
                "one mask a sequence: mask[:, None]; one a head: mask[None]",
            )
        )
    return Mask(table=seen if seen.dim() == 4 else seen[None, None])


def as_mask(mask: Mask | Tensor | None) -> Mask:
    """A Mask from what the user gave."""
    if mask is None:
        return Mask()
    if isinstance(mask, Tensor):
        return dense(mask)
    if not isinstance(mask, Mask):
        raise ArgumentError(
            message(
                "attention()",
                f"mask is of type {type(mask).__name__}",
                expected="a Mask, a bool tensor, or None",
                hint="causal(), padding(lengths), window(left, right), documents(ids), where(function)",
            )
        )
    return mask


def _any_row(mask: Mask, tile: Tile) -> Tensor:
    """Which keys some row may see, asked of a bounded number of pairs at once."""
    some = max(1, PAIRS_AT_ONCE // max(tile.columns_S.shape[0], 1))
    found = [mask.tile(tile._replace(rows_T=rows)).any(-2) for rows in tile.rows_T.split(some)]
    return torch.stack(found).any(0)


def _merge(first: X | None, second: X | None, join: Callable[[X, X], X]) -> X | None:
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


def _narrower(a: Window, b: Window) -> Window:
    return _merge(a[0], b[0], min), _merge(a[1], b[1], min)
