"""Study "parts": parts of a model that are taken away, and a task that needs two look-ups per word.

In the task, each word of a sequence has a letter and names two positions. Its answer is the pair of the
letters at these two positions, in this order. The model is one attention layer and a linear readout. A head
reads one weighted mean of the values, in which the letter of the first position looks like the letter of the
second one. A Transformer layer also has a feed-forward layer: the two letters can have different weights in
the mean, and the feed-forward layer can tell them apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.compare.study import (
    Claim,
    Row,
    Study,
    StudyResult,
    Variant,
    differences,
    seeds_text,
)
from regard.compare.study_context import StudyContext
from regard.layers import FeedForward, MultiHead

WHOLE, FEEDING = "transformer", "luong"
NO_SCALING, ONE_HEAD, NO_FEEDFORWARD = "without scaling", "1 head", "without feed-forward layer"
NO_MASK, NO_PROJECTIONS, NO_FEEDING = "without causal mask", "K = V = X", "luong without input feeding"

CHANGES: dict[str, dict[str, Any]] = {
    WHOLE: {},
    NO_SCALING: {"score": "dot"},
    ONE_HEAD: {"heads": 1},
    "2 heads": {"heads": 2},
    "8 heads": {"heads": 8},
    NO_FEEDFORWARD: {"without": "feed-forward"},
    NO_MASK: {"without": "causal-mask"},
    NO_PROJECTIONS: {"without": "projections"},
}
"""Variant of a Transformer -> the options in which it differs."""

VARIANTS = (
    *(
        Variant(label, {"name": "transformer", "layers": 2, "heads": 4, **options})
        for label, options in CHANGES.items()
    ),
    Variant(FEEDING, {"name": "luong"}),
    Variant(NO_FEEDING, {"name": "luong", "feeding": False}),
)

CLAIMS = (
    Claim("parts.scaling", "A Transformer loses quality without the factor 1 / sqrt(d).", WHOLE, NO_SCALING),
    Claim("parts.heads", "Several heads are better than one.", WHOLE, ONE_HEAD),
    Claim("parts.feedforward", "The feed-forward layer is needed.", WHOLE, NO_FEEDFORWARD),
    Claim("parts.mask", "The decoder needs its causal mask.", WHOLE, NO_MASK),
    Claim(
        "parts.projections", "Learned projections of keys and values beat K = V = X.", WHOLE, NO_PROJECTIONS
    ),
    Claim("parts.feeding", "Input feeding helps Luong's model.", FEEDING, NO_FEEDING),
)

LINEAR, LAYER = "linear readout", "Transformer layer"
HEADS = {LINEAR: (1, 2, 4, 8), LAYER: (1, 2)}
"""The models for the task with two look-ups, and their numbers of heads; LAYER has a feed-forward layer."""

LOOKUPS = (
    (
        LINEAR,
        "parts.lookups",
        "A word that needs two look-ups needs two heads, if a linear readout follows the attention.",
    ),
    (LAYER, "parts.lookups-layer", "It also needs two heads in a complete Transformer layer."),
)

LETTERS, LENGTH = 8, 12
"""Number of different letters, and of words in a sequence."""

WIDTH, BATCH, STEPS, RATE = 64, 64, 600, 5e-3
TESTED = 512
"""Number of test sequences."""


def two_lookups(count: int, seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return random sequences of the task.

    Returns the words, (count, length, 3): the letter of each word and the two positions that it names; and
    the answers, (count, length, 2): the letters at these positions. The two positions are different.

    >>> words, answers = two_lookups(1, seed=0, length=4)
    >>> letters, first = words[0, :, 0], words[0, :, 1]
    >>> torch.equal(answers[0, :, 0], letters[first])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(LETTERS, (count, length), generator=generator)
    first = torch.randint(length, (count, length), generator=generator)
    apart = torch.randint(1, length, (count, length), generator=generator)
    second = (first + apart) % length
    answers = torch.stack((letters.gather(1, first), letters.gather(1, second)), -1)
    return torch.stack((letters, first, second), -1), answers


class LookupModel(nn.Module):
    """One multi-head attention layer over the words of two_lookups(), and a linear readout.

    heads: number of heads. The number of parameters does not depend on it.
    feedforward: whether the layer is that of a Transformer, with layer normalisation, residual connections
        and a feed-forward layer. Otherwise, the readout follows the attention.

    >>> LookupModel(heads=2)(two_lookups(1, seed=0)[0]).shape  # (B, T, 2, letters)
    torch.Size([1, 12, 2, 8])
    """

    def __init__(self, heads: int, feedforward: bool = False, width: int = WIDTH, length: int = LENGTH):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, width)
        self.first, self.second = nn.Embedding(length, width), nn.Embedding(length, width)
        self.position = nn.Embedding(length, width)
        self.attention = MultiHead(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * feedforward))
        self.feedforward = FeedForward(width, 4 * width) if feedforward else None
        self.output = nn.Linear(width, 2 * LETTERS)

    def forward(self, words: Tensor) -> Tensor:
        letter, first, second = words.unbind(-1)
        at = torch.arange(words.shape[1], device=words.device)
        x = self.letter(letter) + self.first(first) + self.second(second) + self.position(at)
        if self.feedforward is None:
            return self.output(self.attention(x).output).unflatten(-1, (2, LETTERS))
        x = x + self.attention(self.norms[0](x)).output
        x = x + self.feedforward(self.norms[1](x))
        return self.output(x).unflatten(-1, (2, LETTERS))


def accuracy_with_heads(
    heads: int, seed: int, *, feedforward: bool = False, steps: int = STEPS, device: str = "cpu"
) -> dict[str, float]:
    """Train a LookupModel on random sequences, and measure it on other random sequences.

    Returns the share of words with both letters right, and the share of single letters that are right.
    """
    torch.manual_seed(seed)
    model = LookupModel(heads, feedforward).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=max(steps, 1))
    for step in range(steps):
        words, answers = (each.to(device) for each in two_lookups(BATCH, seed=1 + step + seed * 1_000_003))
        logits = model(words)
        loss = functional.cross_entropy(logits.flatten(0, 2), answers.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    words, answers = (each.to(device) for each in two_lookups(TESTED, seed=2**40 + seed))
    with torch.no_grad():
        right = model(words).argmax(-1) == answers
    return {
        "both_letters": right.all(-1).double().mean().item(),
        "single_letters": right.double().mean().item(),
    }


def _lookups(context: StudyContext, trained: list[Row], result: StudyResult) -> None:
    """Train one attention layer with 1 to 8 heads on a task with two look-ups per word."""
    seeds, rows = context.seeds_untrained, list[Row]()
    places = [(each, heads, seed) for each in HEADS for heads in HEADS[each] for seed in seeds]
    for readout, heads, seed in places:

        def measure(readout: str = readout, heads: int = heads, seed: int = seed) -> dict[str, float]:
            about = f"{heads} head{'s' * (heads > 1)} on two look-ups, {readout}, seed {seed}"
            context.say(f"training {about} ...")
            return accuracy_with_heads(heads, seed, feedforward=readout == LAYER, device=context.device)

        place = {"readout": readout, "heads": heads, "seed": seed}
        rows.append(place | context.measured("two-lookups", {**place, "steps": STEPS}, measure))
    about = "one attention layer, random sequences that were not used for training, "
    about += seeds_text(len(seeds))
    result.table("parts-lookups", f"Task with two look-ups per word: {about}.", rows)
    text = "share of words with both letters right"
    caption = f"{text.capitalize()} by the number of heads, on a task with two look-ups per word: {about}."
    columns = ("readout", "heads", "both_letters")
    result.lines("parts-lookups", caption, rows, columns, ("heads", text), "x")
    for readout, name, claim in LOOKUPS:
        own = [{**row, "model": row["heads"]} for row in rows if row["readout"] == readout]
        gains = differences(own, 2, 1, "both_letters")
        result.judge(name, claim, gains, f"{text}, 2 heads minus 1 head, {readout}")


PARTS = Study("parts", "Parts of a model", CLAIMS, VARIANTS, extra=_lookups)
