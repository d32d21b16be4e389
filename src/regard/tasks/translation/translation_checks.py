"""Check translation settings before the data are read. FIXED lists what cannot change in a resumed run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.decoding import Beam
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation import bleu
from regard.evaluation.bleu import TOKENIZERS
from regard.tasks.translation.translation_settings import Evaluating, ways_named

__all__ = ["FIXED", "PATHS", "check_evaluation", "check_same_format"]

PATHS = ("source", "target", "tsv", "jsonl", "valid_source", "valid_target", "valid_tsv", "valid_jsonl")
"""The settings in [data] whose values are paths of data files."""

TOKENS = ("lowercase", "tokenizer", "joint", "source_vocab_size", "target_vocab_size")
"""The data settings that define the vocabularies of the tokenizers. The weights of a model fit only one
vocabulary. So these settings must stay the same when a run is resumed, or when a model starts from the
weights of another run."""

FIXED = ("task", "model", *(f"data.{name}" for name in TOKENS))
"""The settings that cannot change when a run is resumed."""


def check_evaluation(how: Evaluating) -> None:
    """Raise an error if an evaluation setting is invalid.

    Without this check, the error would occur only at the first evaluation during training.

    how: the settings [evaluation].
    """
    if how.tokenize not in TOKENIZERS:
        raise UnknownName("value of evaluation.tokenize:", how.tokenize, TOKENIZERS)
    bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
    Beam(size=how.beam_size)


def check_same_format(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ArgumentError if a run is resumed with data in another format than at its start.

    Without this check, the merged settings would contain data in both formats, for example source, target and
    tsv.

    folder: the run folder.
    before: the settings in the run folder.
    settings: the settings of the command line.
    """
    old, new = ways_named(before.get("data", {})), ways_named(settings["data"])
    if new and new != old:
        problem = f"the run was started with {' and '.join(old)}, not with {' and '.join(new)}"
        hint = "to continue the run, leave out the data options; to start a new run, choose another --output"
        raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint=hint))
