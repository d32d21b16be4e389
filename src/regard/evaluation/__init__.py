"""Metrics for translations, captions, language models, classifiers and alignments, and tests of attention.

The tests of attention measure faithfulness (does the output depend on the words attended to?) and agreement
(do two models attend to the same words?).
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.evaluation.agreement import Agreement, agreement
    from regard.evaluation.alignment_error_rate import (
        SYMMETRISATIONS,
        AlignmentScore,
        Links,
        parse_links,
        past_the_end,
        rank_by_agreement,
        rank_by_links,
        read_links,
        score_links,
        symmetrise,
    )
    from regard.evaluation.bleu import Score, bleu, chrf, evaluate_corpus, exact_match, moses_bleu, ter
    from regard.evaluation.caption_metrics import CiderD, caption_bleu, caption_words, cider_d
    from regard.evaluation.classification_report import (
        ClassificationReport,
        ClassScore,
        classification_report,
    )
    from regard.evaluation.classifier_erasure import ClassifierErasure, erase_words
    from regard.evaluation.erasure import Effect
    from regard.evaluation.faithfulness import Faithfulness, WordTruth, faithfulness
    from regard.evaluation.perplexity import TextLoss, text_loss, token_losses
    from regard.evaluation.text_classifier import Classification, ReadText, TextClassifier
else:
    import_lazily(__name__)

__all__ = [
    "Agreement",
    "AlignmentScore",
    "CiderD",
    "ClassScore",
    "Classification",
    "ClassificationReport",
    "ClassifierErasure",
    "Effect",
    "Faithfulness",
    "Links",
    "ReadText",
    "SYMMETRISATIONS",
    "Score",
    "TextClassifier",
    "TextLoss",
    "WordTruth",
    "agreement",
    "bleu",
    "caption_bleu",
    "caption_words",
    "chrf",
    "cider_d",
    "classification_report",
    "erase_words",
    "evaluate_corpus",
    "exact_match",
    "faithfulness",
    "moses_bleu",
    "parse_links",
    "past_the_end",
    "rank_by_agreement",
    "rank_by_links",
    "read_links",
    "score_links",
    "symmetrise",
    "ter",
    "text_loss",
    "token_losses",
]
