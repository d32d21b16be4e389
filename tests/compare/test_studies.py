"""All studies: their runs are valid settings, and their measurements without training are right."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare import comparison
from regard.compare.comparison import QUICK_STUDIES, STUDIES
from regard.compare.comparison_page import missing_characters, png_of_figure, svg_of_figure
from regard.compare.score_study import saturation
from regard.compare.study import CONTRADICTED, SUPPORTED, UNCLEAR, Figure, Run, Series, Study, Variant
from regard.compare.study_context import SentenceSet, StudyContext
from regard.errors import DataError
from regard.models import build_model
from regard.tasks.translation.settings import TranslationSettings
from regard.training.settings import EstimatorSettings, build, merged

SMALL = {"data": {"built_in": "korean"}, "model": {"width": 8}, "training": {"steps": 2}}


def test_every_study_plans_valid_runs():
    assert set(QUICK_STUDIES) <= set(STUDIES)
    for name, study in STUDIES.items():
        assert study.name == name and study.title
        runs = study.runs(StudyContext(Path("runs"), settings=SMALL, seeds=(0, 1)))
        assert len(runs) == 2 * len({run.label for run in runs})
        for run in runs[::2]:
            settings = build(TranslationSettings, run.settings, name)
            build_model(settings.model.name, 9, 9, **settings.model.options)


def test_gold_alignments_are_used_only_if_the_data_have_them():
    def labels(**data) -> set[str]:
        return {
            run.label
            for run in STUDIES["hard"].runs(
                StudyContext(Path("runs"), settings={**SMALL, "data": data}, seeds=(0,))
            )
        }

    gold = {"soft, gold alignments", "hard, gold alignments"}
    files = {"source": ["a"], "target": ["b"]}
    assert gold <= labels(built_in="korean") and not gold & labels(**files)
    assert gold <= labels(**files, alignments=["c"])
    assert len(labels(**files)) == len(labels(built_in="korean")) - 2


def test_cache_trains_reinforce_again_if_a_default_changes(tmp_path: Path):
    context = StudyContext(tmp_path, seeds=(0,), device="cpu")
    runs = {run.label: run for run in STUDIES["hard"].runs(context)}
    estimators = {label: run.settings["training"].get("estimator") for label, run in runs.items()}
    default, plain = estimators["hard, REINFORCE"], estimators["hard, REINFORCE without baseline"]
    assert default == EstimatorSettings().model_dump(exclude_none=True)
    assert {name for name in default if default[name] != plain[name]} == {"baseline"}
    former = merged(runs["hard, REINFORCE"].settings, {"training": {"estimator": {"samples": 1}}})
    places = {
        context.place(Run(Variant("hard"), 0, settings))
        for settings in (former, runs["hard, REINFORCE"].settings)
    }
    assert len(places) == 2


class Measured(StudyContext):
    """A comparison in which every run is trained, and a run with a higher seed has a higher BLEU."""

    def stored(self, run):
        return replace(run, seconds=1.0)

    def measured(self, name, parameters, measure, run=None):
        if name.startswith("cost"):
            return fake_cost(name, parameters)
        if name.startswith("gradient"):
            return FLOW
        if name != "quality":
            soft = run is not None and run.label == "soft"
            return FAKES.get(name) or FAKES["all"] | {"alignment_error_rate": 0.1 + soft / 5}
        first = run.label in FIRST
        return [
            {"length": bin, "words": 5.0, "bleu": 20.0 + first + run.seed / 9, "exact": 1.0, "sentences": 9}
            for bin in ("2-5", "35-60")
        ]


def fake_cost(name: str, parameters):
    """Return times that grow as n^2 for attention and as n for other layers; U h once is twice as fast."""
    if name in ("cost-peak", "cost-once"):
        return 1e9 if name == "cost-peak" else {"once": [1.0, 1.1, 0.9], "every": [2.0, 2.1, 1.9]}
    n, d = parameters["n"], parameters["d"]
    base = n * n * d if "attention" in parameters["layer"] else 50 * n * d * d
    return {"forward": [base * k for k in (1.0, 1.01, 0.99)], "both": [base * 2.0] * 3, "memory": n * d}


CURVE = [[1, 1.0], [2, 0.5], [3, 0.2]]
FLOW = {"states": CURVE, "inputs": CURVE, "jacobian": CURVE, "weight": 0.8}
FLOW["value"] = [[-4.0, 0.1, 0.2], [0.0, 1.0, 2.0]]

STATE = {"score_variance": 1.0, "largest_weight": 0.5, "saturated": 0.0, "score_gradient": 1.0}
FAKES = {
    "step-cost": {"seconds": [1.0, 1.1, 1.2], "bytes": [9.0, 9.0, 9.0]},
    "two-lookups": {"both_letters": 0.5, "single_letters": 0.7},
    "all": STATE
    | {"entropy_bits": 1.0, "sum_of_weights": 1.0, "gradient_norm": 1.0, "gradient_noise": 0.9}
    | {"gradient_variance": 2.0, "variance_without_baseline": 4.0},
}
"""Name of a measurement -> its fake result."""

FIRST = ("dot", "softmax", "soft", "relative", "transformer")
"""Variants that the fake measurements prefer."""


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_judged_and_every_figure_is_drawn(name, tmp_path):
    context = Measured(tmp_path, str, SMALL, sentences_per_class=1, device="cpu")
    context.sentences = SentenceSet([("a " * 4, "b")] * 3 + [("a " * 40, "b")] * 3, "made up", 30)
    result = STUDIES[name].measure(context)
    assert {verdict.claim for verdict in result.verdicts} >= set(STUDIES[name].claims)
    assert all(verdict.claim.name.startswith(f"{name}.") for verdict in result.verdicts)
    judged = {verdict.claim.name: verdict for verdict in result.verdicts}
    expected = {"scores": "scores.dot", "softmax": "softmax.gate", "hard": "hard.soft"}
    expected |= {"positions": "positions.beyond", "parts": "parts.heads"}
    if name in expected:
        assert judged[expected[name]].outcome == SUPPORTED
        assert judged[expected[name]].values == pytest.approx((1.0, 1.0, 1.0))
        rows = next(table.rows for table in result.tables if table.name == name)
        assert len(rows) == 3 * len({row["model"] for row in rows})
    if name == "cost":
        assert all(verdict.outcome == SUPPORTED for verdict in result.verdicts)
        assert ", 1 thread, " in result.tables[0].title
    if name == "hard":
        noise = {each: judged[f"hard.{each}"].values[0] for each in ("noise", "variance", "alignment")}
        assert noise == pytest.approx({"noise": 0.4, "variance": math.log(2), "alignment": 0.2})
    for figure in result.figures:
        assert figure.alt and figure.caption.endswith(".") and re.search("seed|repetitions", figure.caption)
    for table in result.tables:
        assert table.rows and re.search("seed|repetitions", table.title)
    for verdict in result.verdicts:
        assert verdict.outcome in (SUPPORTED, CONTRADICTED, UNCLEAR)
        assert len(verdict.values) >= 3 and verdict.low is not None
    for figure in result.figures[:1] + result.figures[-1:]:
        assert svg_of_figure(figure).startswith(b"<?xml")


def test_scaling_keeps_the_variance_and_the_gradient():
    found = saturation(256, seed=0)
    assert found["dot_variance"] == pytest.approx(256, rel=0.2)
    assert found["scaled_dot_variance"] == pytest.approx(1, rel=0.2)
    assert found["scaled_dot_largest"] < 0.5 < 0.9 < found["dot_largest"]
    assert found["scaled_dot_gradient"] > found["dot_gradient"]


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_characters_without_a_font_are_replaced_without_warnings(kind):
    unknown = "\U0010fffd"  # private use
    series = Series(f"run {unknown}", [f"첫 {unknown}", "a"], [1.0, 2.0])
    figure = Figure("runs", "Runs.", "Two runs.", [series], kind, x="x", y=f"y {unknown}", marks={0.5: "가"})
    assert unknown in missing_characters([figure])
    assert svg_of_figure(figure).startswith(b"<?xml") and png_of_figure(figure).startswith(b"\x89PNG")


def test_a_study_that_fails_says_so_and_becomes_a_note(tmp_path: Path):
    def fail(options):
        raise DataError("runs/x: no such file")

    said = list[str]()
    context = StudyContext(tmp_path, said.append)
    result = comparison._measured(Study("failing", "A study that fails", variants=fail), context)
    assert "failing" in said[-1] and "runs/x" in said[-1] and "runs/x" in result.notes[0]
