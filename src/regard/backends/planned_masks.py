"""PlannedMask: what the calls of one plan need from the values of a mask, on CPU.

The layers of a model, and the steps of a decoder, often pass masks of equal values one after another. So the
tensors for the last mask are kept with a copy of its values, and are used again for equal values. For few
keys, a table contains the bias of every length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.masks.mask import Mask

__all__ = ["MaskTensors", "PlannedMask", "table_of"]

KEPT = 1 << 13
"""The tensors of a mask, and the table of biases, are kept only if they have at most this many elements:
72 KiB in each plan, in float32."""

FEW = 8
"""For at most this many sequences, the bias is concatenated from the table of biases."""


class MaskTensors(NamedTuple):
    """The tensors for one value of a mask.

    values: the lengths as a list, or a copy of the bool tensor; None if the tensors are not kept.
    bias: what to add to the scores, 0 or -inf, broadcastable to (B, H, T, S). A row that sees no key has no
        -inf, for which kernels return NaN.
    seeing: which queries see some key, broadcastable to (B, H, T); None if all do.
    seen: for a bool tensor: which keys some query sees, (B or 1, K or 1, S, 1); None if all are seen.
    bias_rows, seeing_rows: if requested, for lengths: `bias`, (B or 1, 1, S), and which queries see some
        key, (B or 1, 1), for tensors without heads; the latter is None if all do.
    """

    values: list[int] | Tensor | None
    bias: Tensor
    seeing: Tensor | None
    seen: Tensor | None
    bias_rows: Tensor | None = None
    seeing_rows: Tensor | None = None


class PlannedMask:
    """Reads the masks of the calls of one plan: padding(), or a bool tensor."""

    def __init__(self, keys: int, key_heads: int, dtype: torch.dtype, rows: bool = False):
        """Prepare for S = keys and K = key_heads.

        dtype: that of the bias. rows: whether to return bias_rows and seeing_rows.
        """
        with torch.inference_mode(False):
            self.columns_S = torch.arange(keys, device="cpu")
            self.visible = torch.zeros((), dtype=dtype, device="cpu")
            self.hidden = torch.full((), -torch.inf, dtype=dtype, device="cpu")
            self.biases: list[Tensor] = []  # by length, (1, 1, 1, S); 0 for the length 0
            if keys * (keys + 1) <= KEPT:
                lengths = torch.arange(keys + 1, device="cpu")
                biases = self._bias(self._visible(lengths), (lengths > 0).view(-1, 1, 1))
                self.biases = list(biases.split(1))
        self.keys, self.key_heads, self.rows = keys, key_heads, rows
        self.last: MaskTensors | None = None

    def of_lengths(self, lengths_B: Tensor, values: list[int], least: int) -> MaskTensors:
        """Return the tensors for the lengths of padding().

        values, least: the lengths as a list, and the smallest one.
        """
        last = self.last
        if last is not None and last.values == values:
            return last
        if torch.is_inference_mode_enabled():  # such tensors could not be used again outside of it
            with torch.inference_mode(False):
                return self.of_lengths(lengths_B, values, least)
        seeing_B11 = None if least > 0 else (lengths_B > 0).view(-1, 1, 1)
        if self.biases and least >= 0 and least == max(values):
            bias = self.biases[least]
        elif self.biases and least >= 0 and len(values) <= FEW:
            bias = torch.cat([self.biases[each] for each in values])
        else:
            bias = self._bias(self._visible(lengths_B), seeing_B11)
        rows: tuple[Tensor | None, ...] = ()
        if self.rows:
            rows = bias[:, 0], None if seeing_B11 is None else seeing_B11[:, 0]
        if bias.numel() > KEPT:
            return MaskTensors(None, bias, seeing_B11, None, *rows)
        tensors = self.last = MaskTensors(values, bias, seeing_B11, None, *rows)  # see _kept()
        return tensors

    def seen_by_lengths(self, lengths_B: Tensor) -> Tensor:
        """Return which keys some query sees for the lengths of padding(), (B or 1, 1, S, 1)."""
        return self._visible(lengths_B).mT

    def _visible(self, lengths_B: Tensor) -> Tensor:
        """Return which keys are visible, (B or 1, 1, 1, S)."""
        return torch.lt(self.columns_S, lengths_B.view(-1, 1, 1, 1))

    def of_table(self, table_BHTS: Tensor) -> MaskTensors:
        """Return the tensors for a bool tensor that broadcasts to (B, H, T, S)."""
        last = self.last
        if last is not None and isinstance(last.values, Tensor) and torch.equal(last.values, table_BHTS):
            return last
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.of_table(table_BHTS)
        seeing, seen = table_BHTS.any(-1), _by_key_head(table_BHTS.any(-2), self.key_heads).unsqueeze(-1)
        some_empty, some_hidden = not seeing.all(), not seen.all()
        kept = table_BHTS.clone() if table_BHTS.numel() <= KEPT else None
        bias = self._bias(table_BHTS, seeing if some_empty else None)
        return self._kept(
            MaskTensors(kept, bias, seeing if some_empty else None, seen if some_hidden else None)
        )

    def _bias(self, visible: Tensor, seeing: Tensor | None) -> Tensor:
        if seeing is not None:
            visible = visible | ~seeing.unsqueeze(-1)
        return torch.where(visible, self.visible, self.hidden)

    def _kept(self, tensors: MaskTensors) -> MaskTensors:
        if tensors.values is not None:
            self.last = tensors  # one assignment, so that other threads see the old tensors or the new ones
        return tensors


def _by_key_head(seen_BHS: Tensor, key_heads: int) -> Tensor:
    """Return which keys the query heads of each key head see together, (B or 1, K or 1, S)."""
    if seen_BHS.shape[1] in (1, key_heads):
        return seen_BHS
    return seen_BHS.unflatten(1, (key_heads, -1)).any(2)


def table_of(mask: Mask | Tensor | None) -> Tensor:
    """Return the bool tensor of a mask as (B, H, T, S). With three dimensions it is (B, T, S)."""
    table = mask.table if isinstance(mask, Mask) else mask
    assert table is not None
    if table.dim() == 4:
        return table
    return table[None, None] if table.dim() == 2 else table.unsqueeze(1)
