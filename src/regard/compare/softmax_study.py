"""Study "softmax": how scores become weights."""

from __future__ import annotations

from typing import Any

from regard.compare.score_gradients import score_state, weight_entropy
from regard.compare.study import Claim, Row, Run, Study, Variant
from regard.compare.study_context import StudyContext

SELECTIONS: dict[str, Any] = {
    "softmax": "softmax",
    "sparsemax": "sparsemax",
    "gate": "gate",
    "unnormalised": "linear",
    "uniform": {"name": "softmax", "temperature": 1e6},
}
"""Name of a variant -> its selection."""

CLAIMS = tuple(
    Claim(f"softmax.{name}", f"Softmax beats {text}.", "softmax", name)
    for name, text in (
        ("sparsemax", "sparsemax"),
        ("gate", "a gate for each key"),
        ("unnormalised", "scores without normalisation"),
        ("uniform", "equal weights"),
    )
)


def _each(context: StudyContext, run: Run) -> Row:
    """Measure the entropy and the sum of the weights, and the gradient that reaches the scores."""
    gradient = score_state(context, run)["score_gradient"]
    return {**weight_entropy(context, run), "score_gradient": gradient}


SOFTMAX = Study(
    "softmax",
    "Why softmax",
    CLAIMS,
    [
        Variant(label, {"name": "bahdanau"} | ({} if label == "softmax" else {"select": select}))
        for label, select in SELECTIONS.items()
    ],
    each=_each,
)
