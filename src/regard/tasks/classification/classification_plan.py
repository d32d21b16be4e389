"""Choose the model size, batch size, learning rate and length of a classification run; measure its speed.

The rules come from short trainings on the Stanford Sentiment Treebank and on SICK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.runs.run_task import Plan, RunTask
from regard.tasks.classification.classification_data import LabelledCorpus
from regard.tasks.epoch_plan import EpochRules, plan_epochs
from regard.training.distributed import Processes

__all__ = ["plan_classification"]

RULES = EpochRules("texts", batch_size=32, min_steps=400)

WIDTH = 128
"""The default width of recurrent models (size of their states). A Transformer has its own default size."""

RECURRENT = {False: (0.3, 4e-3), True: (0.2, 2e-3)}
"""Default dropout and learning rate of a recurrent model of width WIDTH: for single texts (False) and for
pairs of texts (True)."""

TRANSFORMER_RATE, TUNING_RATE = 1e-3, 3e-4
"""Learning rates. TRANSFORMER_RATE: for a Transformer with random initial weights. TUNING_RATE: for any model
that starts from the weights of another run."""


def plan_classification(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: LabelledCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set; see plan_epochs()."""
    model, rate = _model_and_rate(given)
    chosen = {"model": model, "training": {"learning_rate": rate}}
    counted = len(corpus.train)
    return plan_epochs(task, given, chosen, RULES, corpus, device, processes, counted=counted, timed=timed)


def _model_and_rate(given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the default options of the model as a dict, and the learning rate.

    The caller replaces these options by the options that the user has set. The learning rate depends on the
    width: on the width that the user has set, or else on the default width.

    In this example, the learning rate is chosen for the width 32:

    >>> _model_and_rate({"model": {"name": "gru", "width": 32}})
    ({'width': 128, 'dropout': 0.3}, 0.008)
    """
    model = given.get("model", {})
    if given.get("init_from") is not None:
        return {}, TUNING_RATE
    if model.get("name") == "transformer":
        return {}, TRANSFORMER_RATE
    dropout, rate = RECURRENT[bool(model.get("pairs"))]
    rate *= (WIDTH / max(model.get("width", WIDTH), 1)) ** 0.5
    return {"width": WIDTH, "dropout": dropout}, float(f"{rate:.2g}")
