"""Test cases for every backend: any two values of any two factors occur together at least once."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard
from regard.call import Call
from regard.checking import check

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

FACTORS: dict[str, list] = {
    "score": list(regard.SCORES),
    "mask": [
        "none",
        "causal",
        "padding",
        "causal padding",
        "window",
        "causal window",
        "documents",
        "table",
        "question",  # a where() mask; renaming it would change the seeds of the cases
        "either",
        "empty rows",
    ],
    "bias": ["none", "tensor", "learned tensor", "alibi", "t5", "relative", "-inf"],
    "size": [
        (1, 1),
        (1, 63),
        (17, 1),
        (17, 63),
        (63, 17),
        (63, 63),
        (128, 128),
        (1, 1000),
        (128, 63),
        (1000, 17),
    ],
    "width": [16, 60, 64, 128],
    "value": ["same", "narrow", "wide"],
    "heads": [(1, 1), (2, 2), (4, 2), (3, 1)],
    "start": [0, 5],
    "temperature": [1.0, 0.5],
    "layout": ["plain", "transposed", "sliced"],
    "dtype": list(DTYPES),
}


@dataclass(frozen=True)
class Case:
    """One value for every factor."""

    score: str
    mask: str
    bias: str
    size: tuple[int, int]
    width: int
    value: str
    heads: tuple[int, int]
    start: int
    temperature: float
    layout: str
    dtype: str

    def __str__(self) -> str:
        return "-".join(str(getattr(self, name)).replace(" ", "") for name in FACTORS)


def covering(factors: dict[str, list], seed: int = 0) -> list[Case]:
    """Return cases in which any two values of any two factors occur together, chosen greedily."""
    draw = random.Random(seed)
    names = list(factors)
    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(factors[a], factors[b])
    }
    cases = []
    while missing:
        a, x, b, y = min(missing, key=str)
        best, gain = None, -1
        for _ in range(30):
            choice = {name: draw.choice(factors[name]) for name in names} | {a: x, b: y}
            found = {(c, choice[c], d, choice[d]) for c, d in itertools.combinations(names, 2)} & missing
            if len(found) > gain:
                best, gain, covered = choice, len(found), found
        assert best is not None
        missing -= covered
        cases.append(Case(**best))
    return cases


JOINED = {
    **FACTORS,
    "score": ["scaled_dot", "additive"],
    "mask": ["window documents", "window table"],
    "bias": ["none", "tensor"],
    "size": [(63, 63), (128, 63), (1, 1000)],
    "width": [16, 60],
    "temperature": [1.0],
}
"""Factors of cases whose mask is a window combined with documents or with a bool tensor."""

CASES = covering(FACTORS) + covering(JOINED)


class Inputs:
    """The tensors of one case, in its dtype, or the same values in float64."""

    def __init__(self, case: Case, device: str = "cpu", gradients: bool = True):
        self.case, self.device, self.gradients = case, device, gradients
        self.results: dict[str, Any] = {}  # what tests compute once for all backends
        torch.manual_seed(sum(map(ord, str(case))))
        queries, keys = case.size
        heads, key_heads = case.heads
        values = {"same": case.width, "narrow": case.width // 2, "wide": case.width + 4}[case.value]
        batch = 2
        self.query = self._tensor(batch, heads, queries, case.width)
        self.key = self._tensor(batch, key_heads, keys, case.width)
        self.value = self._tensor(batch, key_heads, keys, values)
        self.score = self._score(heads, key_heads)
        self.bias = self._bias(batch, heads, queries, keys, values)
        self.mask = self._mask(batch, heads, queries, keys)
        self.doutput = torch.randn(batch, heads, queries, values, dtype=torch.float64).to(DTYPES[case.dtype])

    def _tensor(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape).to(DTYPES[self.case.dtype])
        if self.case.layout == "transposed":
            return numbers.transpose(1, 2).contiguous().transpose(1, 2)
        if self.case.layout == "sliced":
            return torch.cat((numbers, numbers), -1)[..., : shape[-1]]
        return numbers

    def _score(self, heads: int, key_heads: int) -> regard.Score:
        width = self.case.width
        score = regard.build_score(self.case.score, width, width, heads if heads == key_heads else None)
        if isinstance(score, regard.Location):  # scores of positions that no key has take time only
            score.max_length = self.case.size[1] + 3
            score.weight = torch.nn.Parameter(score.weight.detach()[..., : score.max_length].clone())
        return score

    def _bias(
        self, batch: int, heads: int, queries: int, keys: int, values: int
    ) -> Tensor | regard.Bias | None:
        kind = self.case.bias
        if kind == "alibi":
            return regard.ALiBi(heads)
        if kind == "t5":
            return regard.T5Bias(heads, buckets=8, furthest=20)
        if kind == "relative":
            # The bias gets the projected query, whose width depends on the score.
            one, all_keys = (
                torch.zeros(1, heads, 1, self.case.width),
                torch.zeros(1, heads, keys, self.case.width),
            )
            query, _ = self.score.narrowed(self.score.project_query(one), self.score.project_key(all_keys))
            return regard.Relative(query.shape[-1], values=values, furthest=4)
        if kind == "none":
            return None
        bias = torch.randn(batch, 1, queries, keys) if kind == "tensor" else torch.randn(1, heads, 1, keys)
        if kind == "-inf":
            bias = torch.where(torch.rand(1, 1, queries, keys) < 0.3, -torch.inf, 0.0)
        return bias.to(DTYPES[self.case.dtype]).requires_grad_(kind == "learned tensor")

    def _mask(self, batch: int, heads: int, queries: int, keys: int) -> regard.Mask | Tensor | None:
        start = self.case.start
        lengths = torch.tensor([max(1, keys - 3), max(1, keys // 2)])
        causal, padding, window = regard.causal(), regard.padding(lengths), regard.window(2, 3)
        of_query = torch.arange(start + queries)[None].expand(batch, -1) // 7
        of_key = torch.arange(keys)[None].expand(batch, -1) // 7
        documents = regard.documents(of_query, of_key)
        even = regard.where(lambda b, h, q, k: (q + k + b + h) % 2 == 0)
        return {
            "none": lambda: None,
            "causal": lambda: causal,
            "padding": lambda: padding,
            "causal padding": lambda: causal & padding,
            "window": lambda: window,
            "causal window": lambda: causal & window,
            "documents": lambda: documents,
            "table": lambda: torch.rand(1, heads, queries, keys) < 0.7,
            "window documents": lambda: window & documents & padding,
            "window table": lambda: regard.dense(torch.rand(1, heads, queries, keys) < 0.7) & window,
            "question": lambda: even,
            "either": lambda: (even | causal) & ~regard.window(0, 0),
            "empty rows": lambda: (
                regard.padding(torch.tensor([0, keys])) & regard.where(lambda b, h, q, k: q % 3 > 0)
            ),
        }[self.case.mask]()

    def call(self, dtype: torch.dtype) -> tuple[dict, list[Tensor]]:
        """Return the arguments of attention() in this dtype, and the tensors whose gradients are compared."""

        def cast(tensor: Tensor) -> Tensor:
            moved = tensor.detach().to(self.device, dtype)
            return moved.requires_grad_(self.gradients)

        tensors = [cast(t) for t in (self.query, self.key, self.value)]
        score, bias = self.score, self.bias
        if isinstance(score, torch.nn.Module):
            score = _copy(score, self.device, dtype, self.case.dtype)
            tensors += list(score.parameters())
        if isinstance(bias, torch.nn.Module):
            bias = _copy(bias, self.device, torch.promote_types(dtype, torch.float32), None)
            bias.requires_grad_(self.gradients)
            tensors += [p for p in bias.parameters() if p.requires_grad]
        elif isinstance(bias, Tensor):
            learns = bias.requires_grad and self.gradients
            bias = bias.detach().to(self.device, dtype).requires_grad_(learns)
            tensors += [bias] if learns else []
        arguments = {
            "query": tensors[0],
            "key": tensors[1],
            "value": tensors[2],
            "score": score,
            "mask": self.mask.to(self.device) if isinstance(self.mask, Tensor) else self.mask,
            "bias": bias,
            "select": regard.Soft(self.case.temperature),
            "start": self.case.start,
        }
        if isinstance(score, torch.nn.Module):
            score.requires_grad_(self.gradients)
        return arguments, tensors


def checked(arguments: dict, look: regard.Look | None = None) -> Call:
    """Return the Call that attention() would create from these arguments."""
    names = ("query", "key", "value", "score", "mask", "bias", "select", "start")
    return check(**{name: arguments[name] for name in names}, look=look)


def _copy(
    module: torch.nn.Module, device: str, dtype: torch.dtype | None, rounded: str | None
) -> torch.nn.Module:
    """Return a copy in this dtype, rounded to the dtype of the case first."""
    import copy

    module = copy.deepcopy(module)
    if rounded is not None:
        module = module.to(DTYPES[rounded])
    return module.to(device=device, dtype=dtype)
