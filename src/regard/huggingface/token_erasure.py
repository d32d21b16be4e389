"""Erasure for Hugging Face models: does the output depend on the token that the model attends to most?

A token is hidden from all other tokens in every layer, as a mask does: in an encoder-decoder model in all
cross-attention layers, otherwise in all self-attention layers. The change of the output is compared for the
most attended token and for other tokens of the same text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from regard.call import Call
from regard.errors import ArgumentError, message
from regard.huggingface.local_model import TextModel
from regard.huggingface.text_attention import ObservedText, observe_text
from regard.masks.mask import Mask
from regard.roles import CROSS
from regard.sites import scope
from regard.viewing.word_groups import SPACE

__all__ = ["ErasureReport", "TokenErasure", "erase_token", "erase_tokens"]

SAMPLES = 16
"""Default number of other tokens that are hidden, one at a time."""


@dataclass(frozen=True)
class TokenErasure:
    """How much the output of a model for one text depends on the token that the model attends to most.

    token: the text of the most attended token that is not a special token.
    position: its position in the text.
    weight: its mean weight, over all rows, heads and layers.
    change: the change of the output if this token is hidden.
    random_change: the mean change of the output if another token of the text is hidden.
    samples: the number of other tokens.
    measure: how the change is measured: "nats", the decrease of the log-probability of the prediction; or
        "cosine distance" of the mean output vector, for a model without predictions.

    >>> print(TokenErasure("cat", 2, 0.3, 0.5, 0.125, 8, "nats"))
    hiding the most attended token "cat" changes the output by 0.500 nats, hiding another token by 0.125 \
(mean of 8)
    """

    token: str
    position: int
    weight: float
    change: float
    random_change: float
    samples: int
    measure: str

    def __str__(self) -> str:
        return (
            f'hiding the most attended token "{self.token}" changes the output by {rounded(self.change)} '
            f"{self.measure}, hiding another token by {rounded(self.random_change)} (mean of {self.samples})"
        )


def rounded(change: float) -> str:
    """Return a number with three decimals, and 0.000 instead of -0.000.

    >>> rounded(-0.0001)
    '0.000'
    """
    return f"{round(change, 3) + 0.0:.3f}"


@dataclass(frozen=True)
class ErasureReport:
    """The results of erase_tokens() for several texts.

    texts: the result of each text; a text with fewer than two tokens is left out.
    change, random_change: the means over the texts.
    larger: the share of texts in which hiding the most attended token changes the output more than hiding
        another token does on average.
    """

    texts: tuple[TokenErasure, ...]

    @property
    def change(self) -> float:
        return float(numpy.mean([each.change for each in self.texts]))

    @property
    def random_change(self) -> float:
        return float(numpy.mean([each.random_change for each in self.texts]))

    @property
    def larger(self) -> float:
        return float(numpy.mean([each.change > each.random_change for each in self.texts]))

    def __str__(self) -> str:
        count = "1 text" if len(self.texts) == 1 else f"{len(self.texts)} texts"
        return (
            f"{count}: hiding the most attended token changes the output by "
            f"{rounded(self.change)} {self.texts[0].measure}, hiding another token by "
            f"{rounded(self.random_change)}; "
            f"larger for the most attended token in {self.larger:.0%} of the texts"
        )


def erase_tokens(
    model: TextModel, texts: str | Sequence[str], *, samples: int = SAMPLES, seed: int = 0
) -> ErasureReport:
    """Measure for several texts how much the output depends on the most attended token.

    model: from load_model().
    texts: one text, or several.
    samples: number of other tokens of each text to hide, one at a time; all of them if there are fewer.
    seed: random seed, to choose the other tokens.
    """
    TextModel.check("erase_tokens()", model)
    texts = [texts] if isinstance(texts, str) else texts
    results = [erase_token(model, observe_text(model, text), samples=samples, seed=seed) for text in texts]
    measured = tuple(each for each in results if each is not None)
    if not measured:
        problem = "no text has two tokens that can be compared"
        raise ArgumentError(message("erase_tokens()", problem, expected="texts of at least two tokens"))
    return ErasureReport(measured)


def erase_token(
    model: TextModel, observed: ObservedText, *, samples: int = SAMPLES, seed: int = 0
) -> TokenErasure | None:
    """Hide the most attended token of a text, and other tokens, and compare the changes of the output.

    observed: from observe_text(), with all weights.

    Returns None if the text has fewer than two tokens that are not special tokens, or is too long for all
    weights to be recorded.
    """
    tokens = [place for place, word in enumerate(observed.source.words) if word >= 0]
    kind = CROSS if model.has_decoder else "self"
    columns = [site.weights.mean((0, 1)) for site in observed.seen.sites if site.role.kind == kind]
    if len(tokens) < 2 or not columns:
        return None
    attended_S = numpy.mean(columns, 0)
    best = max(tokens, key=lambda place: attended_S[place])
    others = [place for place in tokens if place != best]
    others = random.Random(seed).sample(others, min(samples, len(others)))
    changes, measure = _changes(model, observed, kind, [best, *others])
    return TokenErasure(
        observed.source.pieces[best].replace(SPACE, ""),
        best,
        float(attended_S[best]),
        changes[0],
        float(numpy.mean(changes[1:])),
        len(others),
        measure,
    )


@torch.no_grad()
def _changes(
    model: TextModel, observed: ObservedText, kind: str, places: Sequence[int]
) -> tuple[list[float], str]:
    """Return how much the output changes if each of these tokens is hidden, and the name of the measure.

    One batch is run, whose first sequence has no hidden token.
    """
    count, keys = len(places) + 1, len(observed.source.pieces)
    inputs = {name: each.expand(count, -1) for name, each in observed.inputs.items()}
    hidden_BS = torch.zeros(count, keys, dtype=torch.bool, device=model.model.device)
    hidden_BS[torch.arange(1, count), torch.tensor(places)] = True

    def hide(call: Call) -> Call:
        hidden = hidden_BS[:, None, None, :].expand(-1, -1, call.sizes[2], -1)
        if kind != CROSS:  # a token still attends to itself
            hidden = hidden & ~torch.eye(keys, dtype=torch.bool, device=hidden.device)
        return replace(call, mask=call.mask & Mask(table=~hidden))

    with scope(edit=hide, at=kind):
        output = model.model(**inputs, use_cache=False)
    return _measured(model, observed, output)


def _measured(model: TextModel, observed: ObservedText, output: Any) -> tuple[list[float], str]:
    """Return the differences between the first sequence of a batch and the others, and the measure."""
    logits = getattr(output, "logits", None)
    if logits is None:
        vectors = output.last_hidden_state.float().mean(1)
        distances = 1 - functional.cosine_similarity(vectors[:1], vectors[1:])
        return distances.tolist(), "cosine distance"
    scores = logits.float().log_softmax(-1)
    if observed.target is not None:
        labels = observed.target.ids.to(scores.device).expand(len(scores), -1)
        per_sequence: Tensor = scores.gather(-1, labels[..., None])[..., 0].mean(1)
    else:
        last = scores if scores.dim() == 2 else scores[:, -1]
        per_sequence = last[:, last[0].argmax()]
    return (per_sequence[0] - per_sequence[1:]).tolist(), "nats"
