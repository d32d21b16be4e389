"""Select: turn scores into weights by softmax, entmax, sigmoid, sampling or argmax.

A selection gets whole rows of scores and a bool tensor of the visible keys, and returns weights that are
exactly 0 for every key that is not visible; a row without visible keys gets only zeros. Soft can also be
computed block by block, from the log-sum-exp of each row. It is the only selection that kernels implement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError, UnknownName, message

__all__ = [
    "Best",
    "Gate",
    "Hard",
    "LocalP",
    "SELECTIONS",
    "Select",
    "Selection",
    "Soft",
    "Sparse",
    "StraightThrough",
    "build_select",
    "softmax",
]

LOOKS = ("alignment", "entropy", "mass", "rows", "top", "weights")


class Selection(NamedTuple):
    """The result of Select.choose(): weights (B, H, T, S) and optional values per row, (B, H, T).

    lse: log-sum-exp of the scores. chosen: index of the selected key. log_probability: log-probability of the
    selected key. entropy: entropy of the softmax.

    >>> import regard, torch
    >>> scores, visible = torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4, dtype=torch.bool)
    >>> regard.Soft().choose(scores, visible).lse.exp()
    tensor([[[4.]]])
    """

    weights: Tensor
    lse: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None
    entropy: Tensor | None = None


class Select:
    """Base class of selections, which turn scores into weights; a subclass implements `choose`.

    >>> import regard, torch
    >>> class Even(regard.Select):
    ...     def choose(self, scores, visible):
    ...         return regard.Selection(visible / visible.sum(-1, keepdim=True).clamp_min(1))
    >>> regard.attention(torch.eye(2), torch.eye(2), select=Even()).output
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """

    looks: ClassVar[tuple[str, ...]] = LOOKS
    why_not: ClassVar[str] = ""

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        """Return the weights for scores (B, H, T, S); keys that are not visible must get exactly 0."""
        raise TypeError(f"{type(self).__name__} does not implement choose()")

    def visible(self, visible_BHTS: Tensor) -> Tensor:
        """Return the keys that each row can select, a subset of those visible by mask and bias."""
        return visible_BHTS

    def problem(self, rows: tuple[int, ...]) -> str | None:
        """Return an error text if this selection does not match queries of shape (*rows, D), else None."""
        return None

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> Select:
        """Return the selection with `lift` applied to its tensors, from (..., T, x) to (B, H, T, x)."""
        return self

    def deterministic(self) -> Select:
        """Return the selection that a model uses in eval mode: one that does not sample."""
        return self


@dataclass(frozen=True)
class Soft(Select):
    """Softmax over the visible keys.

    weight_s = exp(score_s / temperature) / sum_s' exp(score_s' / temperature)

    >>> import regard, torch
    >>> look = regard.Look(weights=True)
    >>> regard.attention(torch.eye(2), torch.eye(2), select=regard.Soft(temperature=0.1), look=look).weights
    tensor([[9.9915e-01, 8.4860e-04],
            [8.4860e-04, 9.9915e-01]])
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ArgumentError(
                message(
                    "Soft()",
                    f"temperature is {self.temperature}",
                    expected="a number greater than 0",
                    hint="use Best() for the limit of temperature 0",
                )
            )

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(*softmax(scores_BHTS / self.temperature, visible_BHTS))


@dataclass(frozen=True)
class Sparse(Select):
    """Sparse weights: sparsemax or 1.5-entmax, which give most keys a weight of exactly 0.

    alpha = 2: sparsemax (Martins and Astudillo 2016); alpha = 1.5: 1.5-entmax (Peters et al. 2019).
    weight = argmax_p  p . score + H_alpha(p), which is [(alpha - 1) score - tau]_+ ^ (1 / (alpha - 1)).
    Gradients are exact.

    >>> import regard, torch
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.5], [-2.0]])
    >>> for alpha in (1.5, 2.0):
    ...     regard.attention(q, k, select=regard.Sparse(alpha), look=regard.Look(weights=True)).weights
    tensor([[0.6740, 0.3260, 0.0000]])
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if self.alpha not in (1.5, 2.0):
            raise ArgumentError(
                message(
                    "Sparse()",
                    f"alpha is {self.alpha}",
                    expected="1.5 (entmax) or 2 (sparsemax)",
                    hint="alpha = 1 is Soft(), alpha = infinity is Best()",
                )
            )

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        # Subtracting the row maximum does not change the weights. Keys more than 2 below the maximum get
        # weight 0. So hidden keys are set to -4 and scores below -4 to -4: sums of large scores are inexact.
        filled = torch.where(visible_BHTS, scores_BHTS, _lowest(scores_BHTS))
        best = filled.amax(-1, keepdim=True).detach() if filled.shape[-1] else filled.new_zeros(())
        shifted = torch.where(visible_BHTS, scores_BHTS - best, -4.0).clamp_min(-4.0)
        weights = _entmax(shifted / 2) if self.alpha == 1.5 else _sparsemax(shifted)
        return Selection(torch.where(visible_BHTS, weights, 0.0))


@dataclass(frozen=True)
class Gate(Select):
    """Sigmoid of each score: weights between 0 and 1 that do not sum to 1, like the gates of an LSTM.

    weight_s = sigmoid(score_s)

    >>> import regard, torch
    >>> x = torch.tensor([[0.0], [5.0]])
    >>> regard.attention(x, x, select=regard.Gate(), look=regard.Look(weights=True)).weights
    tensor([[0.5000, 0.5000],
            [0.5000, 1.0000]])
    """

    looks: ClassVar[tuple[str, ...]] = tuple(look for look in LOOKS if look != "entropy")
    why_not: ClassVar[str] = "the weights do not sum to 1, so they have no entropy"

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(
            torch.where(visible_BHTS, torch.sigmoid(torch.where(visible_BHTS, scores_BHTS, 0.0)), 0.0)
        )


@dataclass(frozen=True, eq=False)
class Hard(Select):
    """Hard attention: sample one key from the softmax (Show, Attend and Tell, Xu et al. 2015, eq. 9).

    s ~ Multinoulli(softmax(score)), output = value_s. Sampling has no gradient; for REINFORCE, the result has
    the fields log_probability and entropy, which have gradients. For a query that sees no key, `chosen` is -1
    and these two fields are 0.

    generator: random number generator. Default: torch's global one.

    >>> import regard, torch
    >>> seen = regard.attention(torch.eye(2), 50 * torch.eye(2), select=regard.Hard())
    >>> seen.chosen, seen.output
    (tensor([0, 1]), tensor([[50.,  0.],
            [ 0., 50.]]))
    """

    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            hint = "Hard(torch.Generator().manual_seed(42))"
            raise ArgumentError(message("Hard()", f"generator is {self.generator!r}", hint=hint))

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        soft, lse = softmax(scores_BHTS, visible_BHTS)
        some_BHT = visible_BHTS.any(-1)
        if not scores_BHTS.shape[-1]:
            zero = scores_BHTS.sum(-1)
            return Selection(soft, lse, torch.full_like(zero, -1, dtype=torch.long), zero, zero)
        with torch.no_grad():
            # argmax of p / Exp(1) is a sample from p (exponential race), on any device and for any shape.
            race = torch.empty_like(soft).exponential_(generator=self.generator)
            chosen = torch.where(visible_BHTS, soft / race, -1.0).argmax(-1)
        weights = _one_hot(chosen, soft) * some_BHT.unsqueeze(-1) + _spoiled(scores_BHTS, visible_BHTS)
        safe = torch.where(visible_BHTS, scores_BHTS, 0.0)
        lse_safe = torch.where(some_BHT, lse, 0.0)
        drawn = safe.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - lse_safe
        entropy = lse_safe - (soft * safe).sum(-1)
        return Selection(
            weights.to(soft.dtype),
            lse,
            torch.where(some_BHT, chosen, -1),
            torch.where(some_BHT, drawn, 0.0),
            torch.where(some_BHT, entropy, 0.0),
        )

    def deterministic(self) -> Best:
        return Best()


@dataclass(frozen=True)
class Best(Select):
    """Argmax: read only the key with the highest score.

    output = value_s with s = argmax score_s; if several keys have the same score, the first of them. Argmax
    has no gradient, so query and key get none.

    >>> import regard, torch
    >>> regard.attention(torch.eye(2), torch.eye(2), select=regard.Best()).output
    tensor([[1., 0.],
            [0., 1.]])
    """

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        if not scores_BHTS.shape[-1]:
            return Selection(scores_BHTS.detach(), chosen=visible_BHTS.sum(-1) - 1)
        some_BHT = visible_BHTS.any(-1)
        best = torch.where(visible_BHTS, scores_BHTS.detach(), -torch.inf).argmax(-1)
        weights = _one_hot(best, scores_BHTS) * some_BHT.unsqueeze(-1) + _spoiled(scores_BHTS, visible_BHTS)
        return Selection(weights.to(scores_BHTS.dtype), chosen=torch.where(some_BHT, best, -1))


@dataclass(frozen=True)
class StraightThrough(Select):
    """Straight-through argmax: forward like Best, backward with the gradient of Soft (Bengio et al. 2013).

    The gradient is biased.

    >>> import regard, torch
    >>> q = torch.eye(2).requires_grad_()
    >>> regard.attention(q, torch.eye(2), select=regard.StraightThrough()).output[0, 0].backward()
    >>> bool(q.grad.abs().sum() > 0)
    True
    """

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        hard = Best().choose(scores_BHTS, visible_BHTS)
        soft, lse = softmax(scores_BHTS, visible_BHTS)
        return Selection(hard.weights + (soft - soft.detach()).to(hard.weights.dtype), lse, hard.chosen)


@dataclass(frozen=True, eq=False)
class LocalP(Select):
    """Local-p attention of Luong et al.: softmax within a window around p, times a Gaussian centred at p.

    weight_s = softmax(score)_s * exp(-(s - p)^2 / (2 sigma^2)), sigma = width / 2, over |s - p| <= width
    (Luong et al. 2015, eq. 10). As in the paper, the weights are not normalised again and sum to less than 1.

    centre: p, the centre of each query's window: a number, or a tensor with the shape of the query without
        its last dimension, (..., T).
    width: the half-width of the window, D in the paper.

    >>> import regard, torch
    >>> q, k = torch.ones(1, 2), torch.ones(5, 2)
    >>> select = regard.LocalP(centre=torch.tensor([2.0]), width=2)
    >>> regard.attention(q, k, select=select, look=regard.Look(weights=True)).weights
    tensor([[0.0271, 0.1213, 0.2000, 0.1213, 0.0271]])
    """

    centre: Tensor
    width: int
    looks: ClassVar[tuple[str, ...]] = Gate.looks
    why_not: ClassVar[str] = Gate.why_not

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", torch.as_tensor(self.centre))
        if self.width < 1:
            raise ArgumentError(message("LocalP()", f"width is {self.width}", expected="1 or more"))

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        weights, lse = softmax(scores_BHTS, self.visible(visible_BHTS))
        gaussian = torch.exp(-self._offset(scores_BHTS).square() / (2 * (self.width / 2) ** 2))
        return Selection(weights * gaussian.to(weights.dtype), lse)

    def visible(self, visible_BHTS: Tensor) -> Tensor:
        return visible_BHTS & (self._offset(visible_BHTS).detach().abs() <= self.width)

    def _offset(self, like_BHTS: Tensor) -> Tensor:
        """Return the signed distance of each key from the centre of each row."""
        return torch.arange(like_BHTS.shape[-1], device=like_BHTS.device) - self.centre.unsqueeze(-1)

    def problem(self, rows: tuple[int, ...]) -> str | None:
        shape = tuple(self.centre.shape)
        return (
            None if shape in (rows, ()) else f"LocalP has a centre of shape {shape}, the queries are {rows}"
        )

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> LocalP:
        return (
            self
            if not self.centre.dim()
            else replace(self, centre=lift(self.centre.unsqueeze(-1)).squeeze(-1))
        )


@dataclass(frozen=True, eq=False)
class Given(Select):
    """Use these weights and ignore the scores; for regard.read()."""

    weights: Tensor

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        return Selection(torch.where(visible_BHTS, self.weights, 0.0))

    def lifted(self, lift: Callable[[Tensor], Tensor]) -> Given:
        return replace(self, weights=lift(self.weights))


SELECTIONS: dict[str, tuple[Select, tuple[str, ...]]] = {
    "softmax": (Soft(), ("temperature",)),
    "sparsemax": (Sparse(2.0), ()),
    "entmax": (Sparse(1.5), ("alpha",)),
    "gate": (Gate(), ()),
    "hard": (Hard(), ()),
    "best": (Best(), ()),
    "straight-through": (StraightThrough(), ()),
}
"""For each name, the selection and the names of its options."""


def build_select(select: str | Mapping[str, Any] | Select) -> Select:
    """Create a selection from its name, or from a mapping with the name and its options, as in config.toml.

    select: a key of SELECTIONS, a mapping, or a Select, which is returned unchanged.

    >>> build_select("sparsemax"), build_select({"name": "softmax", "temperature": 0.5})
    (Sparse(alpha=2.0), Soft(temperature=0.5))
    """
    if isinstance(select, Select):
        return select
    if not isinstance(select, str | Mapping):
        expected = 'a name, {"name": "softmax", "temperature": 0.5}, or a Select'
        raise ArgumentError(message("build_select()", f"select is {select!r}", expected=expected))
    options = {"name": select} if isinstance(select, str) else dict(select)
    name = options.pop("name", None)
    if name not in SELECTIONS:
        hint = 'local-p is a view of luong: view="local-p"' if name == "local-p" else ""
        raise UnknownName("selection", name, SELECTIONS, hint=hint)
    default, known = SELECTIONS[name]
    for option, value in options.items():
        if option not in known:
            raise UnknownName(f"option of the selection {name}", option, known)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{option} is {value!r}"
            raise ArgumentError(message(f"selection {name}", problem, expected="a number"))
    return replace(default, **options) if options else default  # type: ignore[type-var]


def softmax(scores_BHTS: Tensor, visible_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax weights over the visible keys and the log-sum-exp of each row.

    A row without visible keys gets weights 0 and log-sum-exp -inf.
    """
    some = visible_BHTS.any(-1, keepdim=True)
    # A row of only -inf would give NaN in result and gradient: fill it with 0, then set its weights to 0.
    filled = torch.where(some, torch.where(visible_BHTS, scores_BHTS, -torch.inf), 0.0)
    weights = torch.where(visible_BHTS, torch.softmax(filled, -1), 0.0)
    if not scores_BHTS.shape[-1]:
        return weights, torch.full_like(scores_BHTS.sum(-1), -torch.inf)
    return weights, torch.where(some.squeeze(-1), torch.logsumexp(filled, -1), -torch.inf)


def _one_hot(index_BHT: Tensor, like_BHTS: Tensor) -> Tensor:
    positions = torch.arange(like_BHTS.shape[-1], device=like_BHTS.device)
    return positions == index_BHT.unsqueeze(-1)


def _spoiled(scores: Tensor, visible: Tensor) -> Tensor:
    """Return NaN for each row with a NaN score at a visible key, and 0 for the other rows, (B, H, T, 1).

    Added to the weights, it makes the output of such a row NaN, as softmax does.
    """
    return torch.where((visible & scores.isnan()).any(-1, keepdim=True), torch.nan, 0.0)


def _lowest(scores: Tensor) -> float:
    return torch.finfo(scores.dtype).min


def _sparsemax(scores: Tensor) -> Tensor:
    """Return [s - tau]_+ with tau = (sum of the scores in the support - 1) / size of the support.

    The gradient that autograd computes is exact.
    """
    if not scores.shape[-1]:
        return scores
    ranked = scores.sort(-1, descending=True).values
    k = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    total = ranked.cumsum(-1)
    size = (1 + k * ranked.detach() > total.detach()).sum(-1, keepdim=True).clamp_min(1)
    tau = (total.gather(-1, size - 1) - 1) / size
    rounding = ((scores - tau).detach().clamp_min(0).sum(-1, keepdim=True) - 1) / size
    return (scores - tau - rounding).clamp_min(0)


def _entmax(halved: Tensor) -> Tensor:
    """Return [s/2 - tau]_+^2 with tau computed from the sorted scores in the support; halved: s/2.

    The gradient that autograd computes is exact.
    """
    if not halved.shape[-1]:
        return halved
    ranked = halved.sort(-1, descending=True).values
    k = torch.arange(1, halved.shape[-1] + 1, dtype=halved.dtype, device=halved.device)
    mean, square = ranked.cumsum(-1) / k, ranked.square().cumsum(-1) / k
    spread = k * (square - mean.square())
    candidate = mean - ((1 - spread) / k).clamp_min(0).sqrt()
    size = (candidate <= ranked).detach().sum(-1, keepdim=True).clamp_min(1)
    # Compute tau again, only for the support: at other entries the gradient of sqrt may be infinite.
    mean, spread = mean.gather(-1, size - 1), spread.gather(-1, size - 1)
    tau = mean - ((1 - spread) / size).clamp_min(0).sqrt()
    roots = (halved - tau).detach().clamp_min(0)  # one Newton step corrects the rounding of the sums
    rounding = (roots.square().sum(-1, keepdim=True) - 1) / (2 * roots.sum(-1, keepdim=True))
    return (halved - tau - rounding).clamp_min(0).square()
