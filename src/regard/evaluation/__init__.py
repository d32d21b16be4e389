"""Evaluation: how good translations and alignments are."""

from regard.evaluation.alignment import AlignmentScore, Links, parse_links, read_links, score_links
from regard.evaluation.bleu import Score, bleu, chrf, ter
from regard.evaluation.moses import moses_bleu
from regard.evaluation.report import evaluate_corpus

__all__ = [
    "AlignmentScore",
    "Links",
    "Score",
    "bleu",
    "chrf",
    "evaluate_corpus",
    "moses_bleu",
    "parse_links",
    "read_links",
    "score_links",
    "ter",
]
