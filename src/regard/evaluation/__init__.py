"""Evaluation: how good translations and alignments are."""

from regard.evaluation.alignment import AlignmentScore, Links, parse_links, read_links, score_links
from regard.evaluation.bleu import Score, bleu, chrf, ter

__all__ = [
    "AlignmentScore",
    "Links",
    "Score",
    "bleu",
    "chrf",
    "parse_links",
    "read_links",
    "score_links",
    "ter",
]
