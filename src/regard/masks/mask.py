"""Mask: which keys each query may attend to. True means that the query may attend to the key.

A mask consists of named parts and a condition. A query may see a key if all of them allow it. Kernels can
implement the named parts:

    causal      key j <= query i
    lengths     key j < lengths[b]
    window      i - left <= key j <= i + right
    documents   document of query i = document of key j
    table       a bool tensor (B, H, T, S), indexed by the rows of the call

The condition contains everything else. It is evaluated for each pair of query and key. `&` merges the parts
of two masks. `|` and `~` create a condition. Query positions i are absolute: row r of a call has position i =
r + start.

The rule of each part is in Mask.sees() below, for example j <= i for causal. backends/reference.py applies it
to the scores. The model sets its mask: causal() in Transformer.features() (models/transformer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.dimensions import lift
from regard.errors import ArgumentError, message
from regard.masks.conditions import And, Condition, Not, Or

__all__ = [
    "PLAIN",
    "Mask",
    "Tile",
    "are_bounded",
    "as_mask",
    "cleaned",
    "dense",
    "known_true",
    "readable",
    "whole_tile",
]

PAIRS_AT_ONCE = 1 << 22
"""Number of (row, key) pairs to evaluate at once. It limits the memory that evaluating a mask needs."""

PLAIN = (Tensor, torch.nn.Parameter)
"""The types of tensors that are no subclass with a meaning of its own, such as FakeTensor."""

LARGEST = 1e15
"""Products of two numbers below this one are finite in float32."""

Window = tuple[int | None, int | None]
X = TypeVar("X")


class Tile(NamedTuple):
    """A block of the T x S score matrix: its queries (rows) and its keys (columns).

    rows_T: indices of the queries in the call, from 0.
    columns_S: indices of the keys in the call, from 0.
    start: the absolute position of query 0. It is above 0 if earlier tokens are in a cache (see `start` of
        attention()).
    batch, heads: B and H of the call.
    """

    rows_T: Tensor
    columns_S: Tensor
    start: int
    batch: int
    heads: int

    @property
    def i_T1(self) -> Tensor:
        """The absolute position of each query of the tile, as a column (T, 1)."""
        return (self.rows_T + self.start)[:, None]

    @property
    def j_S(self) -> Tensor:
        """The position of each key of the tile, (S,)."""
        return self.columns_S

    def take(self, tensor: Tensor) -> Tensor:
        """Select the rows and columns of this tile from a tensor (..., T or 1, S or 1).

        A dimension of size 1 is kept, so that the result broadcasts. A tile of all rows or columns needs no
        copy.
        """
        if tensor.shape[-2] not in (1, self.rows_T.shape[0]):
            tensor = tensor.index_select(-2, self.rows_T)
        if tensor.shape[-1] not in (1, self.columns_S.shape[0]):
            tensor = tensor.index_select(-1, self.columns_S)
        return tensor


def whole_tile(
    queries: int, keys: int, start: int, batch: int, heads: int, device: torch.device | str | None = None
) -> Tile:
    """Return the Tile that covers the whole score matrix: `queries` rows and `keys` columns."""
    return Tile(torch.arange(queries, device=device), torch.arange(keys, device=device), start, batch, heads)


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Which keys each query may attend to; created by causal(), padding(), window(), documents() or where().

    Combine masks with &, | and ~. attention(mask=...) takes a Mask or a bool tensor.

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
    condition: Condition | None = None
    longest: int | None = None
    """An upper bound of the lengths. None if it is not known, for example if the lengths are on a GPU."""

    def __and__(self, other: Mask | Tensor) -> Mask:
        other = as_mask(other)
        if not self.parts or not other.parts:
            return other if other.parts else self
        if self.documents is not None and other.documents is not None:
            other = Mask(condition=And((other,)))
        return Mask(
            causal=self.causal or other.causal,
            lengths=_merge(self.lengths, other.lengths, torch.minimum),
            window=_merge(self.window, other.window, _narrower),
            documents=self.documents if self.documents is not None else other.documents,
            table=_merge(self.table, other.table, torch.logical_and),
            condition=_merge(
                self.condition, other.condition, lambda a, b: And((Mask(condition=a), Mask(condition=b)))
            ),
            # torch.compile would recompile for each new value of `longest`.
            longest=None if torch.compiler.is_compiling() else _merge(self.longest, other.longest, min),
        )

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Mask(condition=Or((self, as_mask(other))))

    def __invert__(self) -> Mask:
        return Mask(condition=Not((self,)))

    def __bool__(self) -> bool:
        problem = "a mask has no truth value"
        raise ArgumentError(message("Mask", problem, hint="combine masks with &, | and ~, not and, or, not"))

    def __repr__(self) -> str:
        texts = {
            "causal": "causal()",
            "lengths": f"padding({'?' if self.lengths is None else self.lengths.shape[0]} lengths)",
            "window": f"window{self.window}",
            "documents": "documents(...)",
            "table": f"dense{() if self.table is None else tuple(self.table.shape)}",
            "condition": repr(self.condition),
        }
        return " & ".join(texts[part] for part in self.parts) or "Mask()"

    __rand__ = __and__
    __ror__ = __or__

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of this mask, such as ("causal", "lengths"). Empty if it has no parts."""
        names: tuple[str, ...] = ("causal",) if self.causal else ()
        if self.lengths is not None:
            names += ("lengths",)
        if self.window is not None:
            names += ("window",)
        if self.documents is not None:
            names += ("documents",)
        if self.table is not None:
            names += ("table",)
        return names if self.condition is None else (*names, "condition")

    @property
    def sides(self) -> Window:
        """The numbers (left, right) of keys that a query may see before and after its position.

        None means no limit. Only the parts causal and window of the mask are considered.
        """
        left, right = self.window or (None, None)
        return left, right if not self.causal else min(right or 0, 0)

    def only(self, *names: str) -> bool:
        """Return whether all parts of this mask are in `names`, for example mask.only("causal", "window")."""
        return all(part in names for part in self.parts)

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        """Return a bool tensor: whether the query at position `i` may see the key at position `j`.

        All arguments are index tensors that broadcast.

        batch, head: index of the sequence, and index of the head.
        i, j: position of the query, and position of the key.
        row: index of the query in the call, from 0. The position i is row + start, with the argument `start`
            of attention().
        """
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
        if self.condition is not None:
            seen = seen & self.condition.sees(batch, head, i, j, row)
        return seen

    def tile(self, tile: Tile) -> Tensor:
        """Return the mask of one tile as a bool tensor broadcastable to (B, H, tile rows, tile columns)."""
        if self.lengths is not None and self.parts == ("lengths",):  # fast path for decoding steps
            return tile.j_S < self.lengths.view(-1, 1, 1, 1)
        if self.parts == ("table",) and self.table is not None:
            return tile.take(self.table)
        batch = torch.arange(tile.batch, device=tile.j_S.device)[:, None, None, None]
        head = torch.arange(tile.heads, device=tile.j_S.device)[:, None, None]
        seen = replace(self, table=None).sees(batch, head, tile.i_T1, tile.j_S, tile.rows_T[:, None])
        seen = seen if seen.dim() == 4 else seen[(None,) * (4 - seen.dim())]
        return seen if self.table is None else seen & tile.take(self.table)

    def to(self, device: torch.device) -> Mask:
        """Return a copy of the mask with all its tensors on `device`."""
        tensors = (self.lengths, self.table, *(self.documents or ()))
        if self.condition is None and all(each is None or each.device == device for each in tensors):
            return self
        return self._moved(lambda tensor: tensor.to(device), lambda mask: mask.to(device), None)

    def reordered(self, index: Tensor) -> Mask:
        """Return the mask for a new batch, which consists of selected sequences of the batch of this mask.

        index: (B',). Sequence i of the new batch is sequence index[i] of the batch of this mask.
        """

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
            condition=None if self.condition is None else self.condition.moved(move, order),
        )

    @property
    def batch(self) -> int:
        """The batch size of this mask. 1 if the mask is the same for all sequences."""
        tensors = [t for t in (self.lengths, self.table, *(self.documents or ())) if t is not None]
        inside = [mask.batch for mask in self.condition.parts()] if self.condition is not None else []
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
        """Return the whole mask as a bool tensor broadcastable to (B, H, T, S).

        queries, keys: T and S.
        start: position of the first query.
        heads: H.
        batch: B. Default: the batch size of the mask.
        """
        batch = self.batch if batch is None else batch
        return self.tile(whole_tile(queries, keys, start, batch, heads, device))

    def simplified(self, queries: int, keys: int, start: int) -> Mask:
        """Return the mask without the parts that hide no key in a call of this size.

        queries, keys: T and S of the call.
        start: position of the first query.
        """
        mask = self
        if mask.causal and start >= keys - 1:
            mask = replace(mask, causal=False)
        if mask.window is not None:
            left, right = mask.window
            left = None if left is not None and start + queries - 1 <= left else left
            right = None if right is not None and start + right >= keys - 1 else right
            mask = replace(mask, window=None if left is None and right is None else (left, right))
        if mask.lengths is not None and readable(mask.lengths) and mask.lengths.numel():
            mask = mask if min(mask.lengths.tolist()) < keys else replace(mask, lengths=None, longest=None)
        return mask

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """Return (low, high): queries at positions `first` to `last` can only see keys low <= j < high.

        Only the parts causal and window of the mask are considered.
        """
        left, right = self.sides
        low = 0 if left is None else max(0, first - left)
        high = keys if right is None else min(keys, last + right + 1)
        return low, max(low, high)

    def seen_keys(self, tile: Tile) -> Tensor | None:
        """Return the keys that at least one query of the tile may see.

        The result is a bool tensor, (B or 1, H or 1, S), or None for all keys.
        """
        queries, keys = tile.rows_T.shape[0], tile.columns_S.shape[0]
        if self.table is not None and self.parts == ("table",) and self.table.shape[2] in (1, queries):
            return self.table.any(2).expand(-1, -1, keys)
        if not self.only("causal", "window", "lengths", "documents"):
            return _any_row(self, tile)
        low, high = self.span(tile.start, tile.start + queries - 1, keys) if queries else (0, 0)
        if (low, high) == (0, keys) and self.lengths is None and self.documents is None:
            return None
        if (low, high) == (0, keys) and self.lengths is not None and self.documents is None:
            return (tile.j_S < self.lengths[:, None])[:, None]
        seen_BS = ((tile.j_S >= low) & (tile.j_S < high))[None]
        if self.lengths is not None:
            seen_BS = seen_BS & (tile.j_S < self.lengths[:, None])
        if self.documents is not None:
            seen_BS = seen_BS & self._same_document(tile)
        return seen_BS[:, None]

    def _same_document(self, tile: Tile) -> Tensor:
        """Return the keys that at least one query of the tile may see, as a bool tensor (B or 1, S).

        Only the parts documents, causal and window of the mask are considered.
        """
        assert self.documents is not None
        queries, keys = tile.rows_T.shape[0], tile.columns_S.shape[0]
        of_query = self.documents[0][:, tile.start : tile.start + queries]
        of_key = self.documents[1][:, :keys]
        batch = torch.broadcast_shapes(of_query.shape[:1], of_key.shape[:1])[0]
        left, right = self.sides
        row_S = tile.j_S - tile.start
        low = torch.zeros_like(row_S) if right is None else row_S - right
        high = torch.full_like(row_S, queries) if left is None else row_S + left
        return _occurs_between(of_key.expand(batch, -1), of_query.expand(batch, -1), low, high)

    def overlong(self, keys: int) -> str | None:
        """Return an error text if a length of the mask is negative or above the number of keys, else None.

        The lengths are read in each call, because they can be changed in place. Lengths on a GPU are not
        checked, because reading them would synchronise the device. Inside transforms such as vmap, lengths
        have no values, so that those at the call of padding() are checked.
        """
        if torch.compiler.is_compiling() or self.lengths is None:
            return None
        if not readable(self.lengths):
            if self.longest is None or self.longest <= keys:
                return None
            return f"padding() has a length of {self.longest}, but there are S = {keys} keys"
        for index, length in enumerate(self.lengths.tolist()):
            if length > keys:
                return f"padding() has lengths[{index}] = {length}, but there are S = {keys} keys"
            if length < 0:
                return f"padding() has lengths[{index}] = {length}, which is negative"
        return None

    def problem(self, batch: int, heads: int, queries: int, keys: int, start: int) -> str | None:
        """Return an error text if this mask does not match a call of these sizes, otherwise None.

        batch, heads, queries, keys: B, H, T and S of the call.
        start: position of the first query.
        """
        if self.lengths is not None and self.lengths.shape[0] not in (1, batch):
            return f"padding() has {self.lengths.shape[0]} lengths, the batch size is {batch}"
        if overlong := self.overlong(keys):
            return overlong
        if self.documents is not None:
            of_query, of_key = self.documents
            for ids in self.documents:
                if ids.shape[0] not in (1, batch):
                    return f"documents() has ids for a batch of {ids.shape[0]}, the batch size is {batch}"
            if of_query.shape[1] < start + queries or of_key.shape[1] < keys:
                return (
                    f"documents() has ids for {of_query.shape[1]} queries and {of_key.shape[1]} keys, "
                    f"the call has start + T = {start + queries} and S = {keys}"
                )
        if self.table is not None:
            shape, sizes = tuple(self.table.shape), (batch, heads, queries, keys)
            if any(size not in (1, full) for size, full in zip(shape, sizes, strict=True)):
                if shape[:2] == (1, 1):  # probably from a mask (T, S)
                    return f"a mask with (T, S) = {shape[2:]} does not broadcast to (T, S) = {sizes[2:]}"
                return f"a mask of shape {shape} does not broadcast to (B, H, T, S) = {sizes}"
        for mask in self.condition.parts() if self.condition is not None else ():
            problem = mask.problem(batch, heads, queries, keys, start)
            if problem:
                return problem
        return None


def dense(seen: Tensor) -> Mask:
    """Return a mask from a bool tensor, so that it can be combined with other masks.

    seen: (T, S) or broadcastable to (B, H, T, S), True where a query may see a key.

    attention(mask=tensor) calls dense() itself.

    >>> import regard, torch
    >>> (regard.dense(torch.eye(2, dtype=torch.bool)) | regard.causal()).dense(queries=2, keys=2)[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    if not isinstance(seen, Tensor):
        problem, hint = f"the mask is of type {type(seen).__name__}", "use torch.as_tensor(...)"
        raise ArgumentError(message("dense()", problem, expected="a bool tensor", hint=hint))
    shown = {"mask": (seen, "BHTS" if seen.dim() != 3 else "BTS")}
    if seen.dtype != torch.bool:
        hint = "for a mask of 0 and 1: mask=mask.bool(); for values to add to the scores: bias=..."
        if seen.dim() == 1 and not seen.is_floating_point():
            hint = (
                "for the lengths of B sequences: mask=padding(lengths); for a mask of 0 and 1, the same for "
            )
            hint += "all queries: mask=mask.bool()[None]"
        raise ArgumentError(
            message(
                "attention()",
                f"mask has dtype {str(seen.dtype).removeprefix('torch.')}",
                shown,
                "a bool tensor, True where a query may see a key",
                hint,
            )
        )
    if seen.dim() not in (2, 4):
        hint, problem = "", f"the meaning of a {seen.dim()}-D mask is ambiguous here"
        if seen.dim() == 3:
            hint = "for one mask per sequence, pass mask[:, None]; for one mask per head, pass mask[None]"
        elif seen.dim() == 1:
            hint = "for the same keys in all sequences, pass mask[None]; for sequences of different lengths, "
            hint += "use mask=padding(lengths)"
        else:
            problem = f"mask has {seen.dim()} dimensions"
        raise ArgumentError(
            message(
                "attention()",
                problem,
                shown,
                "a mask of shape (T, S), or broadcastable to (B, H, T, S)",
                hint,
            )
        )
    return Mask(table=seen if seen.dim() == 4 else seen[None, None])


def as_mask(mask: Mask | Tensor | None, dims: int = 4) -> Mask:
    """Convert the argument `mask` of attention() to a Mask. For None, the Mask hides nothing.

    dims: number of dimensions of the query. If it has no head dimension (dims = 3), a mask tensor with three
        dimensions is read as (B, T, S).
    """
    if mask is None:
        return _NOTHING_HIDDEN
    if isinstance(mask, Tensor):
        return dense(mask[:, None] if mask.dim() == dims == 3 else mask)
    if not isinstance(mask, Mask):
        problem, expected = f"mask is of type {type(mask).__name__}", "a Mask, a bool tensor, or None"
        hint = "use causal(), padding(lengths), window(left, right), documents(ids) or where(function)"
        if isinstance(mask, list | tuple) or hasattr(mask, "__array__"):
            hint = f"use torch.as_tensor(...); or {hint.removeprefix('use ')}"
        raise ArgumentError(message("attention()", problem, expected=expected, hint=hint))
    return mask


_NOTHING_HIDDEN = Mask()


def _any_row(mask: Mask, tile: Tile) -> Tensor:
    """Return the keys that at least one row of the tile may see, as a bool tensor (B or 1, H or 1, S).

    To limit memory, the mask is evaluated for at most PAIRS_AT_ONCE pairs of query and key at a time. But at
    least one row is evaluated at a time.
    """
    rows_at_once = max(1, PAIRS_AT_ONCE // max(tile.columns_S.shape[0], 1))
    seen = [mask.tile(tile._replace(rows_T=rows)).any(-2) for rows in tile.rows_T.split(rows_at_once)]
    return torch.stack(seen).any(0)


def _occurs_between(ids: Tensor, others: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return whether ids[b, n] equals others[b, m] for some index m with low[n] <= m <= high[n].

    ids: (B, N).
    others: (B, M).
    low, high: (N,).

    Returns a bool tensor (B, N).

    >>> ids, others = torch.tensor([[5, 6, 7]]), torch.tensor([[4, 5, 7, 6]])
    >>> _occurs_between(ids, others, torch.tensor([0, 2, 1]), torch.tensor([1, 2, 2]))
    tensor([[ True, False,  True]])
    """
    count = others.shape[1]
    if not count:
        return torch.zeros_like(ids, dtype=torch.bool)
    ordered, index = others.contiguous().sort(dim=1, stable=True)
    # Each element of `others` gets an integer code, rank * (count + 1) + index. The rank of an element is the
    # place in `ordered` where its value first occurs, so equal values have the same rank. The codes are
    # sorted by value, then by index. For an id, find the smallest code >= (rank of the id) * (count + 1) +
    # low. If the id occurs at an index >= low, this code belongs to its first occurrence there.
    codes = torch.searchsorted(ordered, ordered) * (count + 1) + index
    rank = torch.searchsorted(ordered, ids.contiguous())
    exists = ordered.gather(1, rank.clamp_max(count - 1)) == ids
    nearest = torch.searchsorted(codes, rank * (count + 1) + low.clamp(0, count))
    code = codes.gather(1, nearest.clamp_max(count - 1))
    return exists & (nearest < count) & (code <= rank * (count + 1) + high.clamp(-1, count - 1))


def _merge(first: X | None, second: X | None, join: Callable[[X, X], X]) -> X | None:
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


def _narrower(a: Window, b: Window) -> Window:
    return _merge(a[0], b[0], min), _merge(a[1], b[1], min)


def readable(tensor: Tensor) -> bool:
    """Whether Python code may branch on the values of this tensor.

    It may not if this would wait for a device, or if the tensor has no values of its own: inside
    torch.compile and other tracers, and inside torch.func transforms such as vmap.

    >>> readable(torch.tensor([3, 2])), readable(torch.empty(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or type(tensor) not in PLAIN:
        return False
    if torch._C._functorch.get_interpreter_stack() or torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._get_tracing_state() is None


def are_bounded(key: Tensor, value: Tensor) -> bool:
    """Whether the norms of keys and values are known to be so small that hidden keys have no effect."""
    if not (readable(key) and readable(value)):
        return False
    norm = torch.linalg.vector_norm(key.detach()).item()
    return norm < LARGEST and (value is key or torch.linalg.vector_norm(value.detach()).item() < LARGEST)


def cleaned(
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    queries: int,
    start: int,
    heads: int,
    bias_BHTS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return keys and values, with 0 for keys that no query can see. So NaN in these keys has no effect.

    No query can see a key if the mask hides the key from every query, or if its bias is -inf for every query.

    queries, heads: T and H of the call.
    start: position of the first query.
    """
    batch, key_heads, keys = (key if key.dim() == 4 else lift(key)).shape[:3]
    seen = None
    if mask is not None:
        seen = mask.seen_keys(whole_tile(queries, keys, start, batch, heads, key.device))
    if bias_BHTS is not None and queries:
        by_bias = bias_BHTS.detach().amax(-2) != -torch.inf  # a key with a NaN bias is not hidden
        seen = by_bias if seen is None else seen & by_bias
    if seen is None:
        return key, value
    if seen.shape[1] not in (1, key_heads):
        seen = seen.unflatten(1, (key_heads, -1)).any(2)
    if key.dim() < 4:
        seen = seen[:, 0] if key.dim() == 3 else seen[0, 0]
    if known_true(seen):
        return key, value
    seen = seen.unsqueeze(-1)
    clean_key = torch.where(seen, key, 0.0)
    return clean_key, clean_key if value is key else torch.where(seen, value, 0.0)


def known_true(conditions: Tensor) -> bool:
    """Whether all elements are known to be true. False if reading them would wait for a device."""
    return readable(conditions) and bool(conditions.all())
