"""Evaluation: how good translations and alignments are."""

from regard.evaluation.alignment import AlignmentScore, Links, parse_links, read_links, score_links
from regard.evaluation.bleu import Score, bleu, chrf, ter
from regard.evaluation.choosing import rank_by_agreement, rank_by_links
from regard.evaluation.moses import moses_bleu
from regard.evaluation.report import evaluate_corpus
from regard.evaluation.symmetrising import SYMMETRISATIONS, symmetrise

__all__ = [
    "AlignmentScore",
    "Links",
    "SYMMETRISATIONS",
    "Score",
    "bleu",
    "chrf",
    "evaluate_corpus",
    "moses_bleu",
    "parse_links",
    "rank_by_agreement",
    "rank_by_links",
    "read_links",
    "score_links",
    "symmetrise",
    "ter",
]
