"""Hard selections: collect log p(s) of the keys that attention calls sample (select=Hard).

A selection s consists of the keys that the attention selects, one key for each query. estimators.py needs
log p(s), with its gradient, to train the attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attended import Attended
from regard.call import Call
from regard.errors import ArgumentError, message
from regard.roles import Role
from regard.select import Hard, Select, Selection, softmax
from regard.sites import Scope, open_scope

Lengths = Tensor | Mapping[str, Tensor | Sequence[Tensor]] | None


class _Drawn(NamedTuple):
    """Log-probabilities of the keys that one attention call sampled, and entropies of its softmax weights.

    position_T: the index of each query in its sequence (the decoding step).
    beams: number of decoder sequences (rows) per encoded source.
    """

    site: str
    role: Role
    log_probability_BHT: Tensor
    entropy_BHT: Tensor
    position_T: Tensor
    beams: int


class Sums(NamedTuple):
    """Sums over the attention steps of each decoder sequence: of log p(sampled key), and of the entropy."""

    log_probability: Tensor
    entropy: Tensor


@dataclass(frozen=True, eq=False)
class _PartlyExpected(Select):
    """Hard selection for some queries only. Queries with expected_B1T = True use softmax weights instead."""

    hard: Hard
    expected_B1T: Tensor

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        drawn = self.hard.choose(scores_BHTS, visible_BHTS)
        assert drawn.log_probability is not None
        soft_BHTS, _ = softmax(scores_BHTS, visible_BHTS)
        return drawn._replace(
            weights=torch.where(self.expected_B1T[..., None], soft_BHTS, drawn.weights),
            log_probability=torch.where(self.expected_B1T, 0.0, drawn.log_probability),
        )


@dataclass(eq=False)
class HardSelections(Scope):
    """The result of hard_selections(): log-probabilities of all sampled keys, and entropies of the weights.

    A row is a sequence of the decoder. With K beams for each of B encoded sources, there are B K rows.

    expected, examples: see hard_selections().
    """

    expected: float = 0.0
    examples: int | None = None

    def __post_init__(self) -> None:
        self._drawn: list[_Drawn] = []
        self._soft: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of attention calls so far that sampled keys."""
        return len(self._drawn)

    def applied(self, call: Call) -> Call:
        if not self.expected or not isinstance(call.select, Hard):
            return call
        batch, queries = len(call.query), call.query.shape[2]
        rows = batch * call.beams
        if self._soft is None:
            examples = self.examples or rows
            self._soft = torch.rand(examples, device=call.query.device) < self.expected
        if rows % len(self._soft) and len(self._soft) % rows:
            problem = f"an attention call has {rows} rows, but there are {len(self._soft)} examples"
            raise ArgumentError(message("hard_selections()", problem, expected="a multiple of `examples`"))
        soft_R = self._soft.repeat_interleave(max(rows // max(len(self._soft), 1), 1))
        soft_BT = soft_R.view(batch, call.beams).repeat_interleave(queries // call.beams, 1)
        return replace(call, select=_PartlyExpected(call.select, soft_BT[:, None]))

    def keep(self, site: str, attended: Attended, call: Call, to_user: Callable[[Tensor], Tensor]) -> None:
        if attended.log_probability is not None and attended.entropy is not None:
            values = attended.log_probability, attended.entropy, call.positions, call.beams
            self._drawn.append(_Drawn(site, self.seen.role(site), *values))

    def sums(self, lengths: Lengths = None) -> Sums:
        """Return the log-probability of the sampled keys and the entropy, summed over steps, heads and sites.

        A step is the position of a query. Both sums have shape (rows,): one value for each decoder sequence
        (row). They have gradients.

        lengths: number of steps of each row, as a tensor (rows,), or (B,) if all rows of an encoded source
            have the same length. Later steps are padding and do not count. Default: all steps count.

        If encoder and decoder sample keys, `lengths` is a dict, such as
        {"source": source_lengths, "target": target_lengths}. A key is the sequence of the queries of a site
        (see Role.rows). All steps of sites without a key count. A value can also be a list with one tensor
        for each call.
        """
        if not self._drawn:
            raise ArgumentError(
                message(
                    "HardSelections.sums()",
                    "no attention call sampled a key; attention calls were made at these sites: "
                    f"{', '.join(self.seen.called) or 'none'}",
                    expected='a model in training mode with select="hard"',
                )
            )
        rows = max(len(each.entropy_BHT) * each.beams for each in self._drawn)
        calls: Counter[str] = Counter()
        sums = []
        for drawn in self._drawn:
            own = lengths.get(drawn.role.rows) if isinstance(lengths, Mapping) else lengths
            if own is not None and not isinstance(own, Tensor):  # one tensor for each call of the site
                if calls[drawn.site] == len(own):
                    problem = f"site '{drawn.site}' was called more than {len(own)} times"
                    expected = "one tensor for each call"
                    raise ArgumentError(message("HardSelections.sums()", problem, expected=expected))
                own = own[calls[drawn.site]]
            sums.append(_row_sums(drawn, own, rows))
            calls[drawn.site] += 1
        log_probability, entropy = zip(*sums, strict=True)
        return Sums(torch.stack(log_probability).sum(0), torch.stack(entropy).sum(0))


@contextmanager
def hard_selections(
    at: str = "*", *, expected: float = 0.0, examples: int | None = None
) -> Iterator[HardSelections]:
    """Collect the log-probabilities of the keys that attention calls inside a `with` statement sample.

    at: pattern for the names of sites, with * and ? as wildcards.
    expected: probability that an example uses softmax weights for all its queries. Its attention output is
        then a weighted mean of the values, not the value of a sampled key. Xu et al. (2015, section 4.1) use
        0.5. With 0, the outputs are the same as without hard_selections().
    examples: number of different examples in the batch. All examples have the same number of rows (samples),
        and the rows of an example are consecutive. Default: the number of rows of the first call.

    >>> import regard
    >>> x = torch.randn(2, 5, 8)
    >>> with hard_selections() as drawn:
    ...     _ = regard.attention(x, x, select=regard.Hard())
    >>> drawn.sums().log_probability.shape
    torch.Size([2])
    """
    with open_scope(HardSelections(at=at, expected=expected, examples=examples)) as drawn:
        yield drawn


def _row_sums(drawn: _Drawn, lengths_X: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of an attention call, each summed per sequence, (rows,)."""
    sums = []
    batch, steps = len(drawn.entropy_BHT), drawn.entropy_BHT.shape[2] // drawn.beams
    own = batch * drawn.beams
    for values_BHT in (drawn.log_probability_BHT, drawn.entropy_BHT):
        values = values_BHT.to(torch.promote_types(values_BHT.dtype, torch.float32))
        values_RHT = values.unflatten(2, (drawn.beams, steps)).transpose(1, 2).flatten(0, 1)
        if lengths_X is not None:
            if len(lengths_X) not in (own, batch):
                shown = {"lengths": (lengths_X, "B"), "log_probability": (drawn.log_probability_BHT, "BHT")}
                problem = f"{len(lengths_X)} lengths for {own} rows at site '{drawn.site}'"
                raise ArgumentError(message("HardSelections.sums()", problem, shown, "one length per row"))
            lengths_R = lengths_X.repeat_interleave(own // max(len(lengths_X), 1))
            counts_RT = drawn.position_T[:steps] < lengths_R[:, None]
            values_RHT = torch.where(counts_RT[:, None], values_RHT, 0.0)
        # An encoder call has only one row for all samples of a source, so its sums are repeated.
        sums.append(values_RHT.sum((1, 2)).repeat_interleave(rows // max(own, 1)))
    return sums[0], sums[1]
