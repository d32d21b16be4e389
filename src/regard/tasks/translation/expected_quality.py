"""What quality to expect of a translation model: before training from the pairs, after it from the scores.

All numbers were measured with benchmarks/data_sizes.py: benchmarks/results/2026-11-19-data-sizes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MEASURED = {1_000: (1, 8), 3_000: (8, 17), 10_000: (12, 23)}
"""For each number of pairs: the test BLEU of Tatoeba (varied sentences) and of Multi30k (image captions)."""

FEW_PAIRS = 20_000
"""Maximum number of training pairs for which a note before training says what to expect of them.

With 20,000 pairs of Tatoeba, BLEU was 15 to 18 (benchmarks/results/2026-11-16-first-hour.md)."""

NARROW = 0.025
"""If the share of the words of the validation targets that are unseen in training is lower than this, the
language is narrow, and a model learns it from few pairs.

With 1,000 to 10,000 pairs, the share was 0.05 to 0.16 for Tatoeba and Multi30k. For the built-in corpus, it
was 0.012 with 1,000 pairs."""

POOR = {"mostly wrong": (0.0, 10.0, 30.0), "often wrong": (5.0, 20.0, 45.0)}
"""Statements about translations, each with the lowest BLEU, and the BLEU and the chrF below which it is made.

The samples in the result file show these translations. Both scores must be low: for languages without spaces
between words, BLEU is near 0 even for good translations, whose chrF is above 30."""

HELP = (
    "What helps: more pairs; --init-from with a run that was trained on more pairs of these languages; "
    "or a pretrained model, whose attention Regard can show (docs/huggingface.md)"
)

LONGER = "What helps: train longer, or check the data (regard data check)"


def unseen_share(train: Iterable[Any], valid: Iterable[Any]) -> float:
    """Return the share of the words of the validation targets that do not occur in the training targets.

    Words are compared in lower case and without punctuation, and every occurrence counts.

    >>> from regard.data import pairs_from_lists
    >>> train = pairs_from_lists(["가", "나"], ["The cat sleeps.", "A dog!"])
    >>> unseen_share(train, pairs_from_lists(["다"], ["The dog, a bird"]))
    0.25
    """
    known = {word for pair in train for word in _words(pair.target)}
    words = [word for pair in valid for word in _words(pair.target)]
    return sum(word not in known for word in words) / max(len(words), 1)


def _words(line: str) -> list[str]:
    return re.findall(r"\w+", line.lower())


def note_few_pairs(split: Any, settings: Mapping[str, Any]) -> str:
    """Return a note for the log before training if the pairs are too few for their language, otherwise "".

    There is no note for narrow language, for targets such as dates and labels (the best checkpoint is then
    selected by exact match), and for runs that start from the weights of another run.

    split: the pairs, with the attributes train and valid.
    settings: nested as in config.toml.
    """
    pairs = len(split.train)
    if pairs > FEW_PAIRS or settings.get("init_from") is not None or settings["training"]["best"] == "exact":
        return ""
    unseen = unseen_share(split.train, split.valid)
    if unseen < NARROW:
        return ""
    near = min(MEASURED, key=lambda count: abs(count - pairs))
    rows = [(low, high, count) for count, (low, high) in MEASURED.items() if count >= near]
    expected = ", ".join(f"{low} to {high} with {count:,} pairs" for low, high, count in rows)
    return (
        f"few pairs for ordinary language: {pairs:,} to train on, and {unseen:.1%} of the words of the "
        "validation targets do not occur in them. Expect poor translations: in tests from English to German, "
        f"BLEU was {expected}. {HELP}"
    )


def describe_quality(
    scores: Mapping[str, float], best: str, pairs: int | None = None, on: str = "validation set"
) -> str:
    """Return a sentence about a model with poor scores, otherwise "".

    scores: the scores of its checkpoint, such as {"bleu": 2.1, "chrf": 17.0}.
    best: the score that selects the best checkpoint. If it is exact match, BLEU does not suit the targets.
    pairs: number of training pairs, for advice. None: no advice.
    on: what the scores were measured on.

    >>> describe_quality({"bleu": 2.1, "chrf": 17.0}, "bleu")
    'BLEU 2.1, chrF 17.0 on the validation set: translations of this model are mostly wrong'
    >>> describe_quality({"bleu": 52.0, "chrf": 70.0}, "bleu")
    ''
    """
    if best == "exact" or not {"bleu", "chrf"} <= set(scores):
        return ""
    bleu, chrf = scores["bleu"], scores["chrf"]
    how = next((text for text, (low, high, most) in POOR.items() if low <= bleu < high and chrf < most), "")
    if not how:
        return ""
    text = f"BLEU {bleu:.1f}, chrF {chrf:.1f} on the {on}: translations of this model are {how}"
    if pairs is None:
        return text
    return f"{text}. {HELP if pairs <= FEW_PAIRS else LONGER}"
