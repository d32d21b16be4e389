"""Choose the batch size, learning rate and number of epochs of a captioning run; measure its speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.runs.run_task import Plan, RunTask
from regard.tasks.captioning.captioning_data import CaptionCorpus
from regard.tasks.epoch_plan import EpochRules, plan_epochs
from regard.training.distributed import Processes

__all__ = ["batch_size", "encoder_defaults", "plan_captioning"]

BATCH_SIZE, LEAST_BATCH, EPOCH_STEPS = 64, 8, 50
"""The default number of captions per optimizer step is BATCH_SIZE. For a small corpus, it is smaller, so that
an epoch has EPOCH_STEPS steps, but at least LEAST_BATCH."""

RATE, TUNING_RATE = 2e-3, 3e-4
"""Default learning rates. RATE: for a new model. TUNING_RATE: for a model that starts from the weights of
another run."""

CELLS = 8
"""By default, the feature map of the convolutional encoder has at most CELLS x CELLS cells. Each stage halves
the height and width of the feature map. The default is the smallest sufficient number of stages."""


def encoder_defaults(model: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return default model settings for an image size: the number of stages of the convolutional encoder.

    model: the model settings of the user. If the user has chosen another image encoder, the result is empty.
    size: width and height of the images in pixels.

    >>> encoder_defaults({}, 64), encoder_defaults({"image_encoder": "other"}, 64)
    ({'encoder_options': {'stages': 3}}, {})
    """
    if model.get("image_encoder", "convolutional") != "convolutional":
        return {}
    stages = 1
    while size > CELLS * 2**stages:
        stages += 1
    return {"encoder_options": {"stages": stages}}


def batch_size(captions: int) -> int:
    """Return the default number of captions of one optimizer step.

    captions: number of training captions.

    >>> [batch_size(captions) for captions in (20, 1000, 30_000)]
    [8, 20, 64]
    """
    return min(max(captions // EPOCH_STEPS, LEAST_BATCH), BATCH_SIZE)


def plan_captioning(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: CaptionCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. For the arguments, see plan_epochs()."""
    rate = RATE if given.get("init_from") is None else TUNING_RATE
    chosen = {"training": {"learning_rate": rate}}
    rules = EpochRules("captions", batch_size(len(corpus.train)))
    counted = _epoch_tokens(corpus)
    return plan_epochs(task, given, chosen, rules, corpus, device, processes, counted=counted, timed=timed)


def _epoch_tokens(corpus: CaptionCorpus) -> int:
    """Return the number of tokens that the model predicts in one epoch, including one EOS per caption."""
    return int(corpus.train.captions.offsets[-1]) + len(corpus.train)
