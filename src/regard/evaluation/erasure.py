"""Erasure: compute the log-probability of an output after some input words are removed.

There are two ways to remove a word:

hidden   the keys of the word are masked in the attention; information about the word remains in the encoder
         states of other words
unknown  the tokens of the word are replaced by UNK before the encoder; no information about the word remains

A trial is one forward pass without some words. Many trials are computed in one batch. The first part of this
file is for all tasks: each task implements the interface Erasure. The second part is for translations.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.call import Call
from regard.data.batch import BOS, EOS, UNK, Batch
from regard.errors import ArgumentError, message
from regard.masks.mask import Mask
from regard.models.base import Model
from regard.roles import CROSS
from regard.sites import Edit, scope
from regard.torch_modules.eval_mode import in_eval_mode

__all__ = [
    "Erasure",
    "ErasureMeans",
    "HideKeys",
    "Pair",
    "Planned",
    "RowErasure",
    "Sampling",
    "Trial",
    "Trials",
    "check_counts",
    "counted",
    "effects",
    "in_nats",
    "ranked_and_random",
    "saliencies",
    "trial_scores",
    "word_scores",
]

CELLS, LOGITS = 2**16, 2**22
"""CELLS: maximum number of attention scores (target tokens times source tokens) in a batch.

LOGITS: maximum number of logits in a batch."""

_cudnn_lock = threading.Lock()

T = TypeVar("T", bound=Hashable)


class Erasure(ABC, Generic[T]):
    """The interface of a task for trial_scores(), which computes trials.

    A trial is one forward pass in which some input words are removed: masked in the attention (hidden), or
    replaced by UNK.

    T: the type of a trial.
    at: the attention layers (sites) in which words are hidden: a role, or names with * as wildcard; None if
        the trials hide no words.
    """

    at: str | None

    @abstractmethod
    def batches(self, trials: Sequence[T]) -> Iterator[list[int]]:
        """Yield one list for each batch: the indices of the trials that are computed in one forward pass."""

    @abstractmethod
    def scores(self, trials: Sequence[T]) -> tuple[Edit, Callable[[], NDArray[numpy.float64]]]:
        """Prepare a batch of B trials (forward passes without some words); return two functions (edit, run).

        edit: masks the hidden words in attention calls. The caller passes it as the `edit` argument of
            scope().
        run: runs the model and returns the log-probability of the output of each trial, (B,).
        """


class Trials(Generic[T]):
    """Collects trials without duplicates. A trial is any hashable object that describes a forward pass.

    For short texts, several random samples may remove the same words. Such equal trials are stored and
    computed only once.

    >>> trials = Trials[str]()
    >>> trials.add("a"), trials.add("b"), trials.add("a"), trials.all
    (0, 1, 0, ['a', 'b'])
    """

    def __init__(self) -> None:
        self.all: list[T] = []
        self._indices: dict[T, int] = {}

    def add(self, trial: T) -> int:
        """Add a trial, unless an equal trial was added before; return its index."""
        if trial not in self._indices:
            self._indices[trial] = len(self.all)
            self.all.append(trial)
        return self._indices[trial]

    def plan(
        self,
        weights: Sequence[float] | NDArray[numpy.float64],
        plain: T,
        without: Callable[[Sequence[int]], Mapping[str, T]],
        sampling: Sampling,
        *place: int,
    ) -> Planned:
        """Add the trials of one output: all words, without the most attended words, without random words.

        weights: the attention weight of each word.
        plain: the trial with all words.
        without: returns the trials without some words, by the name of the measurement, such as "hidden".
        place: what this output is; the random words depend only on the seed and on it.
        """
        order, draws = ranked_and_random(weights, sampling.k, sampling.samples, (sampling.seed, *place))
        planned = Planned(order, order[: sampling.k], self.add(plain), {})
        for end, chosen in (("", [planned.looked]), ("_random", draws)):
            for words in chosen:
                for name, trial in without(words).items():
                    planned.trials.setdefault(f"{name}{end}", []).append(self.add(trial))
        return planned


class Sampling(NamedTuple):
    """How many words are removed, how many times other words are sampled, and the random seed."""

    k: int = 1
    samples: int = 3
    seed: int = 0


class Planned(NamedTuple):
    """The trials of one output.

    order: the indices of all words, the most attended word first.
    looked: the indices of the k most attended words.
    plain: the index of the trial with all words.
    trials: the name of a measurement, such as "hidden" or "hidden_random" -> the indices of its trials.
    """

    order: list[int]
    looked: list[int]
    plain: int
    trials: dict[str, list[int]]

    def costs(self, scores: NDArray[numpy.float64]) -> dict[str, float]:
        """Return the mean decrease of the log-probability of the output in each measurement, in nats."""
        before = scores[self.plain]
        return {name: float((before - scores[trials]).mean()) for name, trials in self.trials.items()}


class ErasureMeans:
    """Means over measurements. A measurement has the fields `hidden` and `hidden_random`, in nats.

    hidden: the decrease of the log-probability of an output without the k most attended words.
    hidden_random: the mean decrease without k other words.
    """

    k: int

    @property
    def measured(self) -> Sequence[Any]:
        """The measurements."""
        raise TypeError(f"{type(self).__name__} does not implement measured")

    def mean(self, name: str) -> float:
        """Return the mean of a field of the measurements, such as "hidden"; NaN values are ignored.

        The result is NaN if there are no values.
        """
        values = [getattr(each, name) for each in self.measured]
        known = [float(value) for value in values if not math.isnan(value)]
        return float(numpy.mean(known)) if known else math.nan

    @property
    def better(self) -> float:
        """The fraction of outputs for which the most attended words matter more than random words.

        For these measurements, `hidden` is larger than `hidden_random`. NaN if there are none.
        """
        wins = [each.hidden > each.hidden_random for each in self.measured]
        return sum(wins) / len(wins) if wins else math.nan

    def sentence(self, one: str, several: str, place: str = "", of: str = "") -> str:
        """Return one sentence about the mean effects, to print below a picture.

        For example: "hiding the most attended word lowers the log-probability by 3.0 nats on average; a
        random word by 0.50".

        one, several: what is hidden: "word" and "words".
        place: where it is, such as "source ".
        of: what the log-probability belongs to, such as " of the predicted label".
        """
        attended, random = in_nats(self.mean("hidden"), self.mean("hidden_random"))
        hidden = f"most attended {place}{one}" if self.k == 1 else f"{self.k} most attended {place}{several}"
        others = f"a random {one}" if self.k == 1 else f"{self.k} random {several}"
        return f"hiding the {hidden} {effects(attended, {others: random}, of)}"

    def numbers(self, *names: str) -> dict[str, float | None]:
        """Return the means of these fields, and `better`, for JSON. A mean that is undefined is None."""
        means = {name: self.mean(name) for name in names} | {"better": self.better}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}


class RowErasure(ErasureMeans):
    """Faithfulness of an attention layer in which each output of a model reads one row of weights.

    For each output, the input with the largest weight is hidden in its row, and for comparison other inputs,
    sampled at random. All outputs of a sentence are measured in one forward pass.

    at: the attention layer (site) in which inputs are hidden.
    """

    def __init__(self, at: str, sampling: Sampling | None = None):
        self.at, self.sampling = at, sampling or Sampling()
        self.k = self.sampling.k
        self._measured: list[RowEffect] = []

    @property
    def measured(self) -> Sequence[RowEffect]:
        return self._measured

    def measure(self, scores: Callable[[], Any], weights_TS: Any) -> None:
        """Measure all outputs of a sentence.

        scores: a function that runs the model on the sentence alone, and returns the log-probability of each
            of its T outputs, such as the predicted labels, (T,).
        weights_TS: the weights of the layer, without erasure.
        """
        weights_TS, place = numpy.asarray(weights_TS), len(self._measured)
        if weights_TS.shape[1] <= self.k:
            return
        chosen = [
            ranked_and_random(row, self.k, self.sampling.samples, (self.sampling.seed, place, number))
            for number, row in enumerate(weights_TS)
        ]
        before = self._without([[] for _ in chosen], weights_TS.shape, scores)
        looked = before - self._without([order[: self.k] for order, _ in chosen], weights_TS.shape, scores)
        others = [
            before - self._without([draws[sample] for _, draws in chosen], weights_TS.shape, scores)
            for sample in range(self.sampling.samples)
        ]
        pairs = zip(looked.tolist(), numpy.mean(others, 0).tolist(), strict=True)
        self._measured += [RowEffect(*each) for each in pairs]

    def _without(
        self, hidden: Sequence[Sequence[int]], shape: tuple[int, ...], scores: Callable[[], Any]
    ) -> NDArray[numpy.float64]:
        hidden_BTS = torch.zeros(1, *shape, dtype=torch.bool)
        for row, places in enumerate(hidden):
            hidden_BTS[0, row, list(places)] = True
        with scope(edit=HideKeys(hidden_BTS), at=self.at):
            return numpy.asarray(scores(), numpy.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the mean effects as a dict for JSON."""
        return {"k": self.k, "outputs": len(self.measured), **self.numbers("hidden", "hidden_random")}

    def __str__(self) -> str:
        if not self.measured:
            return "the sentences have too few words to measure the effect of hiding words"
        return f"{self.sentence('word', 'words')} ({counted(len(self.measured), 'output')})"


class RowEffect(NamedTuple):
    """The decrease of the log-probability of an output, in nats.

    hidden: if the most attended inputs are hidden.
    hidden_random: the mean over random samples of other inputs.
    """

    hidden: float
    hidden_random: float


def counted(number: int, name: str) -> str:
    """Return a number of things as text: "1 word", "1,000 words"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def trial_scores(task: Erasure[T], trials: Sequence[T]) -> NDArray[numpy.float64]:
    """Return the log-probability of the output of each trial, an array of shape (trials,).

    task: computes batches of trials.
    trials: the trials. A trial is one forward pass without some input words.
    """
    log_probabilities = numpy.zeros(len(trials))
    for indices in task.batches(trials):
        edit, run = task.scores([trials[index] for index in indices])
        with nullcontext() if task.at is None else scope(edit=edit, at=task.at):
            log_probabilities[indices] = run()
    return log_probabilities


def ranked_and_random(
    weights: Sequence[float] | NDArray[numpy.float64], k: int, samples: int, seed: Sequence[int]
) -> tuple[list[int], list[list[int]]]:
    """Return the indices of all words, sorted by weight, largest first, and random samples of words.

    A sample has k words that are not among the k words with the largest weights. If there are fewer than k
    such words, the sample has all of them.

    weights: the weight of each word.
    k: number of words of a sample.
    samples: number of samples.
    seed: random seed.

    >>> ranked_and_random([0.1, 0.7, 0.2], k=1, samples=2, seed=[0])
    ([1, 2, 0], [[0], [0]])
    """
    order = [int(word) for word in numpy.argsort(-numpy.asarray(weights), kind="stable")]
    others, generator = order[k:], numpy.random.default_rng(list(seed))
    count = min(k, len(others))
    return order, [generator.choice(others, count, replace=False).tolist() for _ in range(samples)]


def check_counts(call: str, k: int, samples: int) -> None:
    """Raise ArgumentError unless k and samples are at least 1.

    call: the public function that was called, for the error message.
    k: number of words to remove.
    samples: number of random samples of words.
    """
    if k < 1 or samples < 1:
        problem = f"k is {k} and samples is {samples}"
        raise ArgumentError(message(call, problem, expected="k and samples of at least 1"))


def in_nats(*means: float) -> tuple[str, ...]:
    """Format numbers with one decimal; small numbers get two decimals, so that 0.02 does not become 0.0.

    A number is small if its absolute value is below 0.95. If all small numbers are below 0.005 in absolute
    value, they get one decimal too. No result is "-0.0".

    >>> in_nats(3.41, 0.0), in_nats(3.41, 0.25), in_nats(-0.001, 0.25)
    (('3.4', '0.0'), ('3.4', '0.25'), ('0.00', '0.25'))
    """
    fine = any(0.005 <= abs(mean) < 0.95 for mean in means)
    digits = [2 if fine and abs(mean) < 0.95 else 1 for mean in means]
    return tuple(f"{round(mean, own) + 0.0:.{own}f}" for mean, own in zip(means, digits, strict=True))


def effects(attended: str, others: Mapping[str, str], of: str = "") -> str:
    """Return a clause about mean decreases: "lowers the log-probability by 3.0 nats on average; ...".

    A negative decrease is an increase: "raises it by 0.04".

    attended: the mean decrease without the attended words, formatted by in_nats().
    others: the mean decreases to compare with, by the name of what was hidden, such as "a random word".
    of: what the log-probability belongs to, such as " of the answer".

    >>> effects("3.0", {"a random word": "-0.04"})
    'lowers the log-probability by 3.0 nats on average; a random word raises it by 0.04'
    """

    def verb(mean: str) -> str:
        return "raises" if mean.startswith("-") else "lowers"

    clauses = [f"{verb(attended)} the log-probability{of} by {attended.removeprefix('-')} nats on average"]
    for name, mean in others.items():
        changes = "" if verb(mean) == verb(attended) else f" {verb(mean)} it"
        clauses.append(f"{name}{changes} by {mean.removeprefix('-')}")
    return "; ".join(clauses)


class HideKeys:
    """Masks keys in attention calls. Pass it to scope() as the argument `edit`.

    hidden_BTS: True where a key is masked, for each text of the batch, query and key.
    """

    def __init__(self, hidden_BTS: Tensor):
        self.visible_BTS = ~hidden_BTS
        self.any = bool(hidden_BTS.any())

    def __call__(self, call: Call) -> Call:
        if not self.any:
            return call
        rows_BTS = self.visible_BTS.index_select(1, call.positions)
        return replace(call, mask=call.mask & Mask(table=rows_BTS[:, None]))


@dataclass(frozen=True)
class Pair:
    """The token ids of a source and of a target sentence, each ending in EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """One forward pass for a target word, in which some source tokens are removed.

    pair: the index of the sentence pair.
    rows: the indices of the tokens of the target word.
    hidden: the indices of the source tokens whose keys are masked in the cross-attention.
    unknown: the indices of the source tokens that are replaced by UNK.
    """

    pair: int
    rows: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """The number of target tokens from the first token of the sentence to the last of the target word.

        The forward pass does not include later tokens, because the model does not use them to predict the
        word.
        """
        return max(self.rows) + 1


def word_scores(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> NDArray[numpy.float64]:
    """Return the log-probability of the target word of each trial, an array of shape (trials,).

    model: a translation model.
    pairs: the sentence pairs.
    trials: the trials. A trial is one forward pass for a target word of a pair, in which some source tokens
        are removed.
    """
    with in_eval_mode(model), torch.no_grad():
        return trial_scores(_TargetWords(model, pairs), trials)


class _TargetWords(Erasure[Trial]):
    """Computes the log-probability of a target word of a translation without some source words.

    Hidden source words are masked in all cross-attention layers.
    """

    at = CROSS

    def __init__(self, model: Model, pairs: Sequence[Pair]):
        self.model, self.pairs = model, pairs

    def batches(self, trials: Sequence[Trial]) -> Iterator[list[int]]:
        return _batches(self.model, self.pairs, trials)

    def scores(self, trials: Sequence[Trial]) -> tuple[Edit, Callable[[], NDArray[numpy.float64]]]:
        batch, hidden_BTS = _collated(self.model, self.pairs, trials)

        def run() -> NDArray[numpy.float64]:
            scores_BT = _token_scores(self.model, batch)
            scores_B = torch.where(_word_rows(trials, scores_BT), scores_BT, 0.0).sum(-1)
            return scores_B.double().cpu().numpy()

        return HideKeys(hidden_BTS), run


def saliencies(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> list[NDArray[numpy.float64]]:
    """Return |gradient x input| of each source token, as an array (S,) for the target word of each trial.

    The gradient of the log-probability of the target word is computed with respect to the embedding of the
    source token. It is multiplied by the embedding and summed over the width. The result is the absolute
    value of this sum: to first order, the change of the log-probability if the embedding were 0.
    """
    table = getattr(model, "source", None)
    if not isinstance(table, nn.Embedding):
        problem = f"{type(model).__name__} has no source embedding"
        raise ArgumentError(message("saliencies()", problem, expected="an nn.Embedding as model.source"))
    by_trial: dict[int, NDArray[numpy.float64]] = {}
    for indices in _batches(model, pairs, trials):
        chosen = [trials[index] for index in indices]
        batch, _ = _collated(model, pairs, chosen)
        with (
            in_eval_mode(model),
            torch.enable_grad(),
            _embedding_leaf(table) as embedded,
            _without_cudnn(batch.source.device),
        ):
            scores_BT = _token_scores(model, batch)
            total = torch.where(_word_rows(chosen, scores_BT), scores_BT, 0.0).sum()
            (gradient_BSM,) = torch.autograd.grad(total, embedded[0])
        product_BS = (gradient_BSM * embedded[0].detach()).sum(-1).abs().double().cpu().numpy()
        for row, index in enumerate(indices):
            by_trial[index] = product_BS[row, : len(pairs[trials[index].pair].source)]
    return [by_trial[index] for index in range(len(trials))]


def _token_scores(model: Model, batch: Batch) -> Tensor:
    """Return the log-probability that the model gives to each target token of a batch, (B, T)."""
    logits_BTV = model.forward(batch).float()
    return logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)


def _word_rows(trials: Sequence[Trial], like_BT: Tensor) -> Tensor:
    """Return a bool tensor (B, T), True at the tokens of the target word of each trial.

    like_BT: a tensor whose shape and device the result gets.
    """
    rows_BT = torch.zeros(like_BT.shape, dtype=torch.bool)
    for row, trial in enumerate(trials):
        rows_BT[row, list(trial.rows)] = True
    return rows_BT.to(like_BT.device)


def _collated(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> tuple[Batch, Tensor]:
    """Return a batch with a row for each trial, and a bool tensor (B, T, S), True where a key is hidden.

    The target sentence of a row ends with the last token of the target word, because the model does not use
    later tokens to predict the word.
    """
    sources, targets = [], []
    for trial in trials:
        pair = pairs[trial.pair]
        unknown = set(trial.unknown)
        sources.append([UNK if place in unknown else token for place, token in enumerate(pair.source)])
        targets.append([BOS, *pair.target[: trial.length]])
    device = next(model.parameters()).device
    batch = Batch(
        _padded(sources),
        torch.tensor([len(each) for each in sources]),
        _padded(targets),
        torch.tensor([len(each) - 1 for each in targets]),
        torch.arange(len(trials)),
    ).to(device)
    hidden_BTS = torch.zeros(*batch.labels.shape, batch.source.shape[1], dtype=torch.bool)
    for row, trial in enumerate(trials):
        if trial.hidden:
            hidden_BTS[row, torch.tensor(trial.rows)[:, None], torch.tensor(trial.hidden)] = True
    return batch, hidden_BTS.to(device)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True)  # PAD is 0


def _batches(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> Iterator[list[int]]:
    """Yield one list for each batch: the indices of its trials. Trials of similar length share a batch.

    A batch has as many trials as fit into the limits CELLS and LOGITS.
    """

    def size(index: int) -> tuple[int, int]:
        return trials[index].length, len(pairs[trials[index].pair].source)

    indices: list[int] = []
    widest = 0
    for index in sorted(range(len(trials)), key=size, reverse=True):
        widest = max(widest, size(index)[1])
        rows = size(indices[0] if indices else index)[0] * (len(indices) + 1)
        if indices and (rows * widest > CELLS or rows * model.target_size > LOGITS):
            yield indices
            indices, widest = [], size(index)[1]
        indices.append(index)
    if indices:
        yield indices


@contextmanager
def _without_cudnn(device: torch.device) -> Iterator[None]:
    """Disable cuDNN on CUDA, because cuDNN has no backward pass for recurrent layers in eval mode.

    cuDNN is disabled for the whole process, so a lock admits only one thread at a time.
    """
    if device.type != "cuda":
        yield
        return
    with _cudnn_lock, torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def _embedding_leaf(table: nn.Embedding) -> Iterator[list[Tensor]]:
    """Store the gradient of the source embeddings of a forward pass that runs in the `with` block.

    PyTorch stores gradients only in leaf tensors. So the first output of `table` in this thread is replaced
    by a leaf tensor with the same values, which requires grad. The yielded list receives this leaf tensor.

    table: the source embedding of the model.
    """
    leaves: list[Tensor] = []
    thread = threading.get_ident()

    def detach_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if leaves or threading.get_ident() != thread:
            return output
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    handle = table.register_forward_hook(detach_output)
    try:
        yield leaves
    finally:
        handle.remove()


def ended(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return a sequence of token ids with EOS appended."""
    return (*tokens, EOS)
