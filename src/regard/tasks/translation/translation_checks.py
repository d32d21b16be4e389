"""Check translation settings before the data are read."""

from __future__ import annotations

from regard.decoding import Beam
from regard.errors import UnknownName
from regard.evaluation import bleu
from regard.evaluation.bleu import TOKENIZERS
from regard.tasks.translation.translation_settings import Evaluating

__all__ = ["check_evaluation"]


def check_evaluation(how: Evaluating) -> None:
    """Raise an error if an evaluation setting is invalid.

    Without this check, the error would occur only at the first evaluation during training.

    how: the settings [evaluation].
    """
    if how.tokenize not in TOKENIZERS:
        raise UnknownName("value of evaluation.tokenize:", how.tokenize, TOKENIZERS)
    bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
    Beam(size=how.beam_size)
