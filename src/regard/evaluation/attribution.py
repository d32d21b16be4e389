"""Attribution: how much does each output of a model depend on each of its inputs?

erasure     the decrease of the log-probability of the output, in nats, if the input is removed
gradient    input x gradient: the embedding of the input, times the gradient of the log-probability
integrated  integrated gradients: the mean gradient on the line from the embedding of UNK to the embedding of
            the input, times the difference of the two (Sundararajan et al. 2017, eq. 1)

None of them uses attention weights. So they can be computed for every model, and attention can be compared
with them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batch import UNK
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation.agreement import spearman
from regard.torch_modules.eval_mode import in_eval_mode
from regard.viewing.html_document import article_page
from regard.viewing.picture import noted
from regard.viewing.pictures.matrix import panels
from regard.viewing.pictures.picture_files import Illustrated, Picture

METHODS = {"erasure": "erasure, nats", "gradient": "input x gradient", "integrated": "integrated gradients"}
"""The methods, with the titles of their panels."""

STEPS = 16
"""Number of points on the line of integrated gradients (Gauss-Legendre quadrature)."""

CELLS = 2**17
"""Maximum number of output tokens times inputs, of all rows of a batch; 32 logits count as one input."""

_cudnn_lock = threading.Lock()
"""Held while cuDNN is disabled for the whole process: it has no backward pass for recurrent layers in eval
mode."""


@dataclass(frozen=True, eq=False)
class Attribution(Illustrated):
    """How much each output of a model depends on each of its inputs, by several methods.

    outputs: the T outputs, such as the words of a translation.
    inputs: the S inputs, such as the words of the source.
    values: the name of a method -> its values, (T, S). Positive: the input makes the output more likely.
        "attention" has the attention weights, if the model has attention; a memory network has "hop 1" and so
        on instead.
    title: the title of pictures.
    removed: how an input is removed, for the line under pictures.
    notes: more lines under pictures.
    visible: the inputs that an output may depend on, (T, S). The others are left out of rank correlations.
        Default: all.

    >>> erasure, gradient = numpy.array([[2.0, 0.1]]), numpy.array([[1.5, 0.2]])
    >>> result = Attribution(("cat",), ("a", "고양이"), {"erasure": erasure, "gradient": gradient})
    >>> result.correlation("gradient")
    1.0
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    values: Mapping[str, NDArray[numpy.float64]] = field(repr=False)
    title: str = ""
    removed: str = "replaced by <unk>"
    notes: tuple[str, ...] = ()
    visible: NDArray[numpy.bool_] | None = field(default=None, repr=False)

    def correlations(self, name: str) -> list[float]:
        """Return, for each output, the rank correlation of a method with erasure over the inputs.

        This is Spearman's rho. Outputs for which it is undefined are left out.
        """
        if name not in self.values:
            raise UnknownName("method", name, self.values)
        values, erasure = self.values[name], self.values["erasure"]
        visible = numpy.ones_like(erasure, dtype=bool) if self.visible is None else self.visible
        rows = (
            spearman(one[kept], other[kept])
            for one, other, kept in zip(values, erasure, visible, strict=True)
            if kept.sum() > 1
        )
        return [value for value in rows if not math.isnan(value)]

    def correlation(self, name: str) -> float:
        """Return the mean of correlations() over the outputs, or NaN."""
        return float(numpy.mean(self.correlations(name) or [math.nan]))

    def picture(self, view: str = "gradient") -> Picture:
        """Draw one matrix for each method side by side, with the attention weights first.

        view: "erasure" for attention and erasure only.
        """
        names = [name for name in self.values if view != "erasure" or name not in ("gradient", "integrated")]
        parts = [(METHODS.get(name, name), self.values[name]) for name in names]
        notes = [f"erasure: by how much the log-probability falls if the input is {self.removed}"]
        if not set(self.values) - set(METHODS):
            notes.insert(0, "the model has no attention to these inputs")
        compared = {METHODS.get(name, name): self.correlation(name) for name in names if name != "erasure"}
        agree = ", ".join(f"{name} {value:.2f}" for name, value in compared.items() if value == value)
        notes += [f"rank correlation with erasure: {agree}"] if agree else []
        return noted(panels(parts, self.outputs, self.inputs, self.title), *notes, *self.notes)

    def page(self) -> str:
        title = self.title or "Attribution"
        return article_page(title, [f"<article>{self.picture().svg(title)}</article>"])

    def to_dict(self) -> dict[str, Any]:
        """Return the inputs, the outputs and the values as a dict for JSON."""
        values = {name: each.tolist() for name, each in self.values.items()}
        return {"outputs": list(self.outputs), "inputs": list(self.inputs), **values}


@dataclass(frozen=True, eq=False)
class InputVectors:
    """One input of a model as vectors, and a function that scores the outputs of the model for other vectors.

    model: the model.
    vectors: (S, M), the vectors that the model reads, such as embeddings of tokens.
    removed: (M,), the vector that replaces a vector that is removed, such as the embedding of UNK.
    scores: a function from vectors (B, S, M) to the log-probability of each output token, (B, T).
    logits: how many logits the model computes for each output token, to limit the memory of a batch.
    """

    model: nn.Module
    vectors: Tensor
    removed: Tensor
    scores: Callable[[Tensor], Tensor]
    logits: int = 1

    @classmethod
    def of_tokens(
        cls,
        model: nn.Module,
        table: nn.Embedding,
        tokens: Sequence[int],
        scores: Callable[[Tensor], Tensor],
        *,
        logits: int = 1,
        call: int = 0,
    ) -> InputVectors:
        """Return the embeddings of tokens; the embedding of UNK replaces those that are removed.

        table: the embedding table of the model.
        tokens: the token ids, (S,).
        scores: a function from token ids (B, S) to the log-probability of each output token, (B, T).
        call: the index of the call of the table, in a forward pass, that reads the tokens.
        """
        ids_S = torch.tensor(list(tokens), device=table.weight.device)

        def scores_of_vectors(vectors_BSM: Tensor) -> Tensor:
            with embedding_output(table, lambda output: vectors_BSM, call):
                return scores(ids_S.expand(len(vectors_BSM), -1))

        weight = table.weight.detach()
        return cls(model, weight[ids_S], weight[UNK], scores_of_vectors, logits)


def attribute(
    read: InputVectors,
    outputs: Sequence[Sequence[int]],
    inputs: Sequence[Sequence[int]],
    methods: Iterable[str] = METHODS,
    *,
    steps: int = STEPS,
) -> dict[str, NDArray[numpy.float64]]:
    """Compute how much each output depends on each input, by several methods.

    read: the vectors and the model that reads them.
    outputs: for each of the T outputs, the indices of its tokens, whose log-probabilities are added.
    inputs: for each of the S inputs, the indices of its vectors.
    methods: names of METHODS.
    steps: number of points on the line of integrated gradients.

    Returns the name of each method -> its values, (T, S).

    >>> from torch.nn.functional import logsigmoid
    >>> model = nn.Linear(1, 1)
    >>> model.weight.data, model.bias.data = torch.tensor([[3.0]]), torch.zeros(1)
    >>> vectors = torch.tensor([[1.0], [0.0]])
    >>> read = InputVectors(model, vectors, torch.zeros(1), lambda x: logsigmoid(model(x).sum(1)))
    >>> attribute(read, [[0]], [[0], [1]], ["erasure"])["erasure"].round(3).tolist()
    [[0.645, 0.0]]
    """
    if steps < 1:
        raise ArgumentError(message("attribute()", f"steps is {steps}", expected="at least 1"))
    nodes, weights = numpy.polynomial.legendre.leggauss(steps)
    line = ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
    computed: dict[str, Callable[[], NDArray[numpy.float64]]] = {
        "erasure": lambda: _erasure(read, outputs, inputs),
        "gradient": lambda: _path(read, outputs, inputs, torch.zeros_like(read.removed), [1.0], [1.0]),
        "integrated": lambda: _path(read, outputs, inputs, read.removed, *line),
    }
    values = {}
    with in_eval_mode(read.model):
        for name in methods:
            if name not in computed:
                raise UnknownName("method", name, computed)
            values[name] = computed[name]()
    return values


def attribution_views(
    compute: Callable[[Sequence[str]], Attribution],
) -> dict[str, Callable[[], Picture]]:
    """Return functions that draw the views "erasure" and "gradient" of `regard view`.

    compute: a function from names of METHODS to an Attribution. It is called when a view is drawn.
    """
    return {
        "erasure": lambda: compute(["erasure"]).picture("erasure"),
        "gradient": lambda: compute(list(METHODS)).picture(),
    }


def page_of(compute: Callable[[Sequence[str]], Attribution]) -> Callable[[Path], Any]:
    """Return a function that writes a page with every method. For `compute`, see attribution_views()."""
    return lambda path: compute(list(METHODS)).save(path)


def mean_correlations(results: Iterable[Attribution]) -> dict[str, float]:
    """Return the mean rank correlation of each method with erasure, over all outputs of several inputs."""
    found = dict[str, list[float]]()
    for each in results:
        for name in each.values:
            if name != "erasure":
                found.setdefault(name, []).extend(each.correlations(name))
    return {name: float(numpy.mean(values)) for name, values in found.items() if values}


def _erasure(
    read: InputVectors, outputs: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]]
) -> NDArray[numpy.float64]:
    """Return how much the log-probability of each output decreases if an input is removed, (T, S)."""
    vectors_BSM = read.vectors.repeat(len(inputs) + 1, 1, 1)
    for row, places in enumerate(inputs, 1):
        vectors_BSM[row, list(places)] = read.removed
    parts = vectors_BSM.split(_rows_at_once(read, outputs))
    with torch.no_grad():
        scores_BT = torch.cat([read.scores(each).double().cpu() for each in parts])
    by_output = torch.stack([scores_BT[:, list(each)].sum(1) for each in outputs]).numpy()
    return numpy.asarray(by_output[:, :1] - by_output[:, 1:])


def _path(
    read: InputVectors,
    outputs: Sequence[Sequence[int]],
    inputs: Sequence[Sequence[int]],
    start: Tensor,
    nodes: Sequence[float],
    weights: Sequence[float],
) -> NDArray[numpy.float64]:
    """Return sum_k weight_k gradient(b + node_k (e - b)) * (e - b) for each output and input, (T, S).

    e are the vectors of the input, and b = start, (M,).
    """
    difference_SM = read.vectors - start
    pairs = [(row, node) for row in range(len(outputs)) for node in range(len(nodes))]
    values_TS = torch.zeros(len(outputs), len(read.vectors), dtype=torch.float64)
    at_once = _rows_at_once(read, outputs)
    for first in range(0, len(pairs), at_once):
        chunk = pairs[first : first + at_once]
        place_B11 = read.vectors.new_tensor([nodes[node] for _, node in chunk])[:, None, None]
        leaf_BSM = (start + place_B11 * difference_SM).requires_grad_()
        with gradients_in_eval_mode():
            scores_BT = read.scores(leaf_BSM)
            own = [scores_BT[n, list(outputs[row])].sum() for n, (row, _) in enumerate(chunk)]
            (gradient_BSM,) = torch.autograd.grad(torch.stack(own).sum(), leaf_BSM)
        product_BS = (gradient_BSM * difference_SM).sum(-1).double().cpu()
        for n, (row, node) in enumerate(chunk):
            values_TS[row] += weights[node] * product_BS[n]
    return numpy.stack([values_TS[:, list(each)].sum(1).numpy() for each in inputs], axis=1)


def _rows_at_once(read: InputVectors, outputs: Sequence[Sequence[int]]) -> int:
    """Return how many rows a batch may have."""
    longest = 1 + max(max(each, default=0) for each in outputs)
    return max(1, CELLS // (longest * max(read.vectors.shape[0], read.logits // 32, 32)))


@contextmanager
def gradients_in_eval_mode() -> Iterator[None]:
    """Enable gradients, and disable cuDNN, which has no backward pass for recurrent layers in eval mode."""
    with torch.enable_grad(), _cudnn_lock, torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def embedding_output(
    table: nn.Embedding, change: Callable[[Tensor], Tensor], call: int = 0
) -> Iterator[None]:
    """Replace one output of an embedding table, in this thread, in a `with` block.

    table: the embedding table.
    change: a function from the output of the table to the tensor that replaces it.
    call: the index of the call of the table in this block whose output is replaced.
    """
    calls, thread = iter(range(2**62)), threading.get_ident()

    def replaced(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return change(output) if threading.get_ident() == thread and next(calls) == call else output

    handle = table.register_forward_hook(replaced)
    try:
        yield
    finally:
        handle.remove()
