"""Observing: what a model thinks of a given target, and what it looked at to think so.

Searching runs without looking, on the fastest kernels. What it found is then read once more, all tokens at
once, under record(): forward equals stepping, so these are the weights that the search read by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attended import Attended
from regard.call import Call
from regard.data.batch import UNK, Batch
from regard.decoding.active_rows import device_of, quietly
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.models.base import Model
from regard.sites import Record, scope

__all__ = ["CROSS", "Observed", "check_look", "observe", "pieces_of", "sites_of"]

CROSS = "*cross"
"""The sites at which a decoder looks at its source."""

LOGITS = 2**26
"""How many logits may be in memory at once when many pairs are observed."""


@dataclass(frozen=True, eq=False)
class Observed:
    """What a model thinks of given targets: token_scores (B, T), 0 past the end, and attention by site.

    attention: weights (B, T, S), or (B, H, T, S) with heads, padded as the batch is. values: (B, H, S), the
    norms of what was read there; H is 1 without heads.
    """

    token_scores: Tensor
    attention: dict[str, Tensor]
    source_lengths: Tensor
    target_lengths: Tensor
    values: dict[str, Tensor] = field(default_factory=dict)

    @property
    def log_probability(self) -> Tensor:
        """Of each target, (B,)."""
        return self.token_scores.sum(-1)

    def attention_of(self, row: int) -> dict[str, Tensor]:
        """The attention of one pair without its padding, on the CPU.

        A site of the encoder has source tokens on both sides, a cross site the target's as rows, and any
        other site of the decoder the target's on both sides.
        """
        cut = {}
        for site, weights in self.attention.items():
            rows, columns = self._sizes(site, row)
            cut[site] = weights[row, ..., :rows, :columns].clone()
        return cut

    def values_of(self, row: int) -> dict[str, Tensor]:
        """The norms (H, S) of the values that one pair read, without its padding, on the CPU."""
        cut = {}
        for site, norms in self.values.items():
            _, columns = self._sizes(site, row)
            cut[site] = norms[row, :, :columns].clone()
        return cut

    def _sizes(self, site: str, row: int) -> tuple[int, int]:
        """How many rows and columns of a site are of this pair."""
        source, target = int(self.source_lengths[row]), int(self.target_lengths[row])
        in_encoder = site.startswith("encoder")
        columns = source if in_encoder or site.endswith("cross") else target
        return source if in_encoder else target, columns


def observe(model: Model, batch: Batch, look: str | None = CROSS) -> Observed:
    """Read given targets, all tokens at once: the log-probability of each token, and the attention.

    look: the sites whose weights are kept, with * as wildcard; None keeps none.

    >>> import torch
    >>> from regard.data.batch import Batch
    >>> from regard.models import Model
    >>> class Indifferent(Model):
    ...     def forward(self, batch):
    ...         return torch.zeros(*batch.labels.shape, 8)
    >>> observe(Indifferent(), Batch.collate([[4]], [[5, 6]])).token_scores.exp()
    tensor([[0.1250, 0.1250, 0.1250]])
    """
    batch = batch.to(device_of(model))
    values = _Norms()
    watched = nullcontext(Record()) if look is None else scope(Look(weights=True), at=look, watch=values.keep)
    with quietly(model), watched as seen:
        logits_BTV = model.forward(batch).float()
        said_BT = logits_BTV.gather(-1, batch.labels[..., None])[..., 0]
        scores_BT = said_BT - logits_BTV.logsumexp(-1)
    position = torch.arange(scores_BT.shape[1], device=scores_BT.device)
    real_BT = position < batch.target_lengths[:, None]
    return Observed(
        torch.where(real_BT, scores_BT, 0.0).cpu(),
        {site: _joined(calls).cpu() for site, calls in seen.items() if calls[0].weights is not None},
        batch.source_lengths.cpu(),
        batch.target_lengths.cpu(),
        {site: norms.float().cpu() for site, norms in values.items()},
    )


class _Norms(dict[str, Tensor]):
    """The norms of the values that were read at each site, (B, H, S), by the call that saw most keys."""

    def keep(self, site: str, call: Call) -> None:
        """Take those of a call; a recurrence reads the same values at every token."""
        if site not in self or call.sizes[3] > self[site].shape[-1]:
            self[site] = call.spread(call.value).norm(dim=-1)


def sites_of(model: Model, look: str = CROSS) -> list[str]:
    """The names of a model's sites that match, in the order it comes to them; it reads one token for that."""
    batch = Batch.collate([[UNK]], [[UNK]]).to(device_of(model))
    with quietly(model), scope(Look(), at=look) as seen:
        model.forward(batch)
    return list(seen)


def check_look(model: Model, look: str) -> None:
    """Raise where a model has sites and none of them matches."""
    known = sites_of(model, "*")
    if known and not sites_of(model, look):
        problem = f"look is {look!r}, and {type(model).__name__} has no such site"
        hint = f"it attends at {', '.join(known)}; * is a wildcard"
        raise ArgumentError(message("Translator()", problem, hint=hint))


def pieces_of(batch: Batch, vocabulary: int) -> Iterator[Batch]:
    """The batch in pieces whose logits fit in memory, each padded no further than it must be."""
    tokens = max(batch.target.shape[1], 1) * max(vocabulary, 1)
    rows = max(LOGITS // tokens, 1)
    for first in range(0, len(batch), rows):
        piece = slice(first, first + rows)
        longest = int(batch.target_lengths[piece].max())
        yield Batch(
            batch.source[piece],
            batch.source_lengths[piece],
            batch.target[piece, : longest + 1],
            batch.target_lengths[piece],
            batch.index[piece],
        )


def _joined(calls: list[Attended]) -> Tensor:
    """The weights of one site, all tokens of the target together: a recurrence calls once a token."""
    weights = [call.weights for call in calls if call.weights is not None]
    widest = max(each.shape[-1] for each in weights)
    return torch.cat([pad(each, (0, widest - each.shape[-1])) for each in weights], -2).float()
