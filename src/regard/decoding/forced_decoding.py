"""Forced decoding: the log-probability of each token of given targets, and the attention of the model.

search() also uses it to record the attention of its hypotheses, if the steps of the search do not record it
(see regard.fast.search). Then one forward pass over all tokens of the hypotheses records it after the
search. This forward pass computes the same attention as the single steps of the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attended import Attended
from regard.call import Call
from regard.data.batch import UNK, Batch
from regard.decoding.active_rows import device_of, eval_without_grad, float32_copy
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.models.base import Model
from regard.roles import CROSS, BySite, sites_matching
from regard.sites import Record, declared_sites, scope

LOGITS = 2**26
"""Maximum number of logits (batch size * target length * vocabulary size) of one forward pass.

pieces_of() splits larger batches, so that their logits fit in memory.
"""


@dataclass(frozen=True, eq=False)
class Observed:
    """The result of forced decoding on a batch.

    token_scores: (B, T), the log-probability of each target token, 0 for padding.
    attention: for each attention layer (site), the weights (B, T, S), or (B, H, T, S) with heads, padded like
        the batch. attention.role(site) says whether its rows and columns are source or target tokens.
    source_lengths, target_lengths: (B,), the number of tokens of each source and target.
    values: for each site, the norm of each value vector, (B, H, S). Without heads, H is 1.
    """

    token_scores: Tensor
    attention: BySite[Tensor]
    source_lengths: Tensor
    target_lengths: Tensor
    values: dict[str, Tensor] = field(default_factory=dict)

    @property
    def log_probability(self) -> Tensor:
        """The log-probability of each target, (B,): the sum of the log-probabilities of its tokens."""
        return self.token_scores.sum(-1)

    def attention_of(self, row: int) -> BySite[Tensor]:
        """Return the attention weights of sentence pair `row` of the batch for each site, without padding.

        The weights are on the CPU. The role of a site says whether its rows and columns are source tokens or
        target tokens.
        """
        unpadded = BySite[Tensor](roles=self.attention.roles)
        for site, weights in self.attention.items():
            rows, columns = self._sizes(site, row)
            unpadded[site] = weights[row, ..., :rows, :columns].clone()
        return unpadded

    def values_of(self, row: int) -> dict[str, Tensor]:
        """Return the norms (H, S) of the value vectors at each site for sentence pair `row` of the batch.

        The norms are on the CPU, without padding.
        """
        unpadded = {}
        for site, norms in self.values.items():
            _, columns = self._sizes(site, row)
            unpadded[site] = norms[row, :, :columns].clone()
        return unpadded

    def _sizes(self, site: str, row: int) -> tuple[int, int]:
        """Return the number of queries and keys at a site for sentence pair `row`, without padding."""
        source, target = int(self.source_lengths[row]), int(self.target_lengths[row])
        role = self.attention.role(site)
        # The locations of an image are not padded.
        whole = self.attention[site].shape[-1] if role.columns == "image" else target
        sides = ("source", "reversed")
        return source if role.rows in sides else target, source if role.columns in sides else whole


def observe(model: Model, batch: Batch, look: str | None = CROSS) -> Observed:
    """Run forced decoding on a batch: return the log-probability of each target token, and the attention.

    look: the attention layers (sites) whose weights are recorded: a role such as "cross", or names with * as
        wildcard. None records nothing.

    >>> import torch
    >>> from regard.data.batch import Batch
    >>> from regard.models import Model
    >>> class Uniform(Model):
    ...     def forward(self, batch):
    ...         return torch.zeros(*batch.labels.shape, 8)
    >>> observe(Uniform(), Batch.collate([[4]], [[5, 6]])).token_scores.exp()
    tensor([[0.1250, 0.1250, 0.1250]])
    """
    batch = batch.to(device_of(model))
    values: dict[str, Tensor] = {}

    def keep_norms(site: str, call: Call) -> None:
        """Store the norms of the value vectors, (B, H, S), of the call of a site with the most keys.

        A recurrent decoder calls a site at every step with the same values, so one call is enough.
        """
        if site not in values or call.sizes[3] > values[site].shape[-1]:
            values[site] = call.spread(call.value).norm(dim=-1)

    recording = (
        nullcontext(Record()) if look is None else scope(Look(weights=True), at=look, watch=keep_norms)
    )
    with eval_without_grad(model), recording as record:
        logits_BTV = model.forward(batch).float()
        label_logits_BT = logits_BTV.gather(-1, batch.labels[..., None])[..., 0]
        scores_BT = label_logits_BT - logits_BTV.logsumexp(-1)
    position = torch.arange(scores_BT.shape[1], device=scores_BT.device)
    real_BT = position < batch.target_lengths[:, None]
    scores_BT = torch.where(real_BT, scores_BT, 0.0).cpu()
    if scores_BT.isnan().any() and (wider := float32_copy(model)) is not None:
        return observe(wider, batch, look)
    weights = {name: calls for name, calls in record.items() if calls[0].weights is not None}
    by_site = BySite({name: _concatenated(calls) for name, calls in weights.items()}, record.roles)
    for site, each in by_site.items():
        # No step of an LSTMN attends to the last token. Its column has the weight 0.
        missing = each.shape[-2] - each.shape[-1] if by_site.role(site).kind == "self" else 0
        by_site[site] = pad(each, (0, max(missing, 0))).cpu()
        if site in values:
            values[site] = pad(values[site], (0, by_site[site].shape[-1] - values[site].shape[-1]))
    return Observed(
        scores_BT,
        by_site,
        batch.source_lengths.cpu(),
        batch.target_lengths.cpu(),
        {site: norms.float().cpu() for site, norms in values.items()},
    )


def sites_of(model: Model, look: str = CROSS) -> list[str]:
    """Return the names of the attention layers (sites) that match `look`, in the order of the forward pass.

    look: a role such as "cross", or names with * as wildcard.

    Usually, the layers of the model declare their sites. If no layer declares a site, the model is called
    with a single token, and the sites of its attention calls are returned.
    """
    declared = declared_sites(model)
    if declared:
        return sites_matching(declared, look)
    batch = Batch.collate([[UNK]], [[UNK]]).to(device_of(model))
    with eval_without_grad(model), scope(Look(), at=look) as record:
        model.forward(batch)
    return list(record)


def check_look(model: Model, look: str, call: str = "Translator()") -> None:
    """Raise ArgumentError if a model has attention sites but none of them matches `look`.

    call: the name of the called function, for the message.
    """
    sites = sites_of(model, "*")
    if sites and not sites_of(model, look):
        problem = f"look is {look!r}, which matches no site of {type(model).__name__}"
        hint = f"use the name of a site, with * as wildcard; the sites are {', '.join(sites)}"
        raise ArgumentError(message(call, problem, hint=hint))


def pieces_of(batch: Batch, vocabulary: int) -> Iterator[Batch]:
    """Split a batch into parts with at most LOGITS logits each. A part has at least one sentence pair.

    vocabulary: the size of the target vocabulary.

    The targets of a part are padded to the longest target of the part.
    """
    tokens = max(batch.target.shape[1], 1) * max(vocabulary, 1)
    rows = max(LOGITS // tokens, 1)
    for first in range(0, len(batch), rows):
        part = batch.select(slice(first, first + rows))
        longest = int(part.target_lengths.max())
        yield replace(part, target=part.target[:, : longest + 1])


def _concatenated(calls: list[Attended]) -> Tensor:
    """Concatenate the weights of all calls of a site along the queries.

    A recurrent decoder makes one call per target token, that is, per query.
    """
    weights = [call.weights for call in calls if call.weights is not None]
    widest = max(each.shape[-1] for each in weights)
    return torch.cat([pad(each, (0, widest - each.shape[-1])) for each in weights], -2).float()
