"""Attended: the result of one attention call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from regard.errors import message
from regard.look import Look

__all__ = ["Attended", "Top"]


class Top(NamedTuple):
    """The k largest weights of each query, largest first, and the indices of their keys.

    Both tensors have the shape (B, H, T, k).

    If a query sees fewer than k keys, the remaining entries have weight 0 and key -1.

    >>> import regard, torch
    >>> regard.attention(torch.eye(2), 9 * torch.eye(2), look=regard.Look(top=1)).top.keys  # k = 1
    tensor([[0],
            [1]])
    """

    weights: Tensor
    keys: Tensor


PER_QUERY = ("lse", "alignment", "entropy", "chosen", "log_probability")
"""The fields of Attended with one number for each query."""


class Attended(NamedTuple):
    """The result of attention() and of the attention layers, as a named tuple.

    The field `output` is the input of the next layer. The others describe the attention.

    output: (B, H, T, E), the weighted sum of the values. In a Record, it is None unless record(output=True)
        requests it.
    lse: (B, H, T), the log-sum-exp of each query's scores; -inf if the query sees no key. None for a
        selection that does not compute the log-sum-exp, such as Sparse.
    chosen: (B, H, T), the index of the key that Hard, Best or StraightThrough selected; None for other
        selections.
    log_probability: (B, H, T), the log-probability of the key that Hard sampled; None for other selections.

    The other fields are None unless the argument `look` of attention() requests them:

    weights: (B, H, T, S), all attention weights.
    rows: (B, H, R, S), the weights of the R queries listed in Look(rows=...).
    top: the k largest weights of each query and their keys, a Top.
    alignment: (B, H, T), the index of the key with the largest weight.
    entropy: (B, H, T), the entropy of each query's weights. For Hard, this field is always set; it is the
        entropy of the softmax from which Hard samples.
    mass: (B, H, S), the sum of the weights that each key receives.
    pooled: (B, H, T/n, S/n), the mean weight of each block of n queries and n keys, for Look(pooled=n).

    If the query has no head or batch dimension, the results have none either. `output` and `lse` are bitwise
    identical with and without `look`. Between backends, they differ by rounding.

    In this example, four equal keys get the weight 1/4 each, so the entropy is log 4.

    >>> import regard, torch
    >>> seen = regard.attention(torch.ones(1, 2), torch.ones(4, 2), look=regard.Look(entropy=True))
    >>> seen.entropy.exp().round(decimals=3)
    tensor([4.])
    """

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top: Top | None = None
    alignment: Tensor | None = None
    entropy: Tensor | None = None
    mass: Tensor | None = None
    pooled: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None

    def __repr__(self) -> str:
        fields = [(name, field) for name, field in zip(self._fields, self, strict=True) if field is not None]
        return f"Attended({', '.join(f'{name}={_short(field)}' for name, field in fields)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise a TypeError with a hint when a torch function gets an Attended in place of a tensor."""
        name = getattr(func, "__name__", str(func))
        hint = "pass its field `output`, as in layer(attended.output)"
        raise TypeError(message(f"{name}()", "an Attended is not a tensor", hint=hint))

    def map(self, change: Callable[[Tensor], Tensor]) -> Attended:
        """Return a copy with change(tensor) for every tensor field and for both tensors of `top`."""
        changed: list[Any] = [change(field) if isinstance(field, Tensor) else field for field in self]
        if self.top is not None:
            changed[self._fields.index("top")] = Top(change(self.top.weights), change(self.top.keys))
        return Attended(*changed)

    def of_one_query(self) -> Attended:
        """Return a copy without the dimension T, which must have size 1: output (E,), weights (S,), ..."""
        rows = {"output", "weights", "pooled"}  # (T, ...); the other fields are (T,), or have no T
        fields: dict[str, Any] = {name: getattr(self, name) for name in (*rows, *PER_QUERY)}
        squeezed: dict[str, Any] = {
            name: field if field is None else field.squeeze(-2 if name in rows else -1)
            for name, field in fields.items()
        }
        if self.top is not None:
            squeezed["top"] = Top(self.top.weights.squeeze(-2), self.top.keys.squeeze(-2))
        return self.but(**squeezed)

    def but(self, **fields: Any) -> Attended:
        """Return a copy with new values for the fields given by name, as in attended.but(output=output).

        This method is used instead of NamedTuple._replace, which torch.compile rejects before torch 2.12.
        """
        values: list[Any] = [fields.get(name, old) for name, old in zip(self._fields, self, strict=True)]
        return Attended(*values)

    def only(self, look: Look | None, everything: Look | None) -> Attended:
        """Return a copy in which the fields that `look` does not request are None.

        everything: the Look for which this result was computed. It requests at least what `look` requests.

        If `everything` sets `gradient` and `look` does not, the tensors in the copy are detached. Only
        `output`, and for Hard also `log_probability` and `entropy`, keep their gradients.
        """
        look, everything = look or Look(), everything or Look()
        rows, top = self.rows, self.top
        if rows is not None and look.rows != everything.rows:
            rows = rows[..., [(everything.rows or ()).index(row) for row in look.rows or ()], :]
        if top is not None:
            top = Top(top.weights[..., : look.top], top.keys[..., : look.top])
        requested = look.requested
        selected = self.but(
            weights=self.weights if "weights" in requested else None,
            rows=rows if "rows" in requested else None,
            top=top if "top" in requested else None,
            alignment=self.alignment if "alignment" in requested else None,
            # Hard always returns its entropy: REINFORCE needs it together with the log-probability.
            entropy=self.entropy if "entropy" in requested or self.log_probability is not None else None,
            mass=self.mass if "mass" in requested else None,
            pooled=self.pooled if "pooled" in requested else None,
        )
        if look.gradient or not everything.gradient:
            return selected
        detached = selected.map(Tensor.detach)
        return detached.but(
            output=self.output,
            log_probability=self.log_probability,
            entropy=detached.entropy if self.log_probability is None else self.entropy,
        )


def _refused(operator: str, reverse: bool) -> Callable[[Attended, Any], Any]:
    """Return a method for an operator of tensors, which says that an Attended is a tuple of tensors."""

    def refuse(self: Attended, other: Any) -> Any:
        if operator == "+" and isinstance(other, tuple):
            return tuple.__add__(other, self) if reverse else tuple.__add__(self, other)
        hint = f"use its field `output`, as in attended.output {operator} x"
        raise TypeError(message(operator, "an Attended is not a tensor", hint=hint))

    return refuse


for _name, _operator in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@"}.items():
    for _side in ("", "r"):
        setattr(Attended, f"__{_side}{_name}__", _refused(_operator, bool(_side)))


def _short(field: Tensor | Top) -> str:
    """Return shape and dtype of a tensor, or of the tensors of a Top, for the repr of an Attended."""
    if isinstance(field, Top):
        return f"Top(weights={_short(field.weights)}, keys={_short(field.keys)})"
    return f"{tuple(field.shape)} {str(field.dtype).removeprefix('torch.')}"
