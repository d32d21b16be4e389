"""The base of all studies: columns, tables and verdicts from made-up BLEU of models over seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare.length_study import LENGTH
from regard.compare.study import CONTRADICTED, NOT_MEASURED, SUPPORTED, UNCLEAR, StudyResult, differences
from regard.compare.study_context import SentenceSet, StudyContext
from tests.facts import mentions

BINS = ("2-5", "6-9", "25-34", "35-44")


class MadeUp(StudyContext):
    """A comparison in which every run is trained, and its BLEU is given; a little more for later seeds."""

    scores: dict[str, list[float]]

    def stored(self, run):
        return replace(run, seconds=1.0 if run.label in self.scores else None)

    def measured(self, name, parameters, measure, run=None):
        return [
            {"length": bin, "words": 5.0, "bleu": bleu + run.seed / 100, "exact": 1.0, "sentences": 9}
            for bin, bleu in zip(BINS, self.scores[run.label], strict=True)
        ]


def measured(folder: Path, scores: dict[str, list[float]], seeds: int = 3, **options) -> StudyResult:
    chosen = {"models": tuple(scores), "seeds": seeds, "device": "cpu", "sentences_per_class": 1}
    context = MadeUp(folder, **chosen, **options)
    context.scores = scores
    context.sentences = SentenceSet([("a " * 4, "b")] * 3 + [("a " * 40, "b")] * 3, "made up", 24)
    return LENGTH.measure(context)


def test_bottleneck_is_about_the_share_that_is_lost(tmp_path):
    """10 BLEU that fall to 2 are a larger loss than 90 BLEU that fall to 70."""

    def judged(low: str, high: str, seeds: int = 3):
        scores = {low: [10.0, 10.0, 2.0, 2.0], high: [90.0, 90.0, 70.0, 70.0]}
        return measured(tmp_path, scores, seeds, quick=True).verdicts

    better, bottleneck = judged("seq2seq", "bahdanau")
    assert (better.outcome, bottleneck.outcome) == (SUPPORTED, SUPPORTED)
    assert better.decides and better.values == pytest.approx([74.0] * 3)
    assert bottleneck.values[0] == pytest.approx(0.8 - 2 / 9)
    assert [each.outcome for each in judged("bahdanau", "seq2seq")] == [CONTRADICTED, CONTRADICTED]
    single = judged("seq2seq", "bahdanau", seeds=1)
    assert [each.outcome for each in single] == [UNCLEAR, UNCLEAR] and not single[0].decides


def test_table_has_the_bleu_beyond_the_training_and_the_summary_over_seeds(tmp_path):
    result = measured(tmp_path, {"seq2seq": [8.0, 4.0, 2.0, 1.0], "bahdanau": [9.0] * 4}, quick=True)
    tables = {table.name: table.rows for table in result.tables}
    first = tables["length-mean"][0]
    assert (first["model"], first["seed"], first["bleu"], first["bleu_beyond"]) == ("seq2seq", 0, 3.75, 1.5)
    assert first["share_lost"] == pytest.approx(0.75) and first["training_seconds"] == 1.0
    assert len(tables["length-mean"]) == 6 and len(tables["length"]) == 24
    summary = {(row["model"], row["score"]): row for row in tables["length-mean-summary"]}
    bleu = summary["seq2seq", "bleu"]
    assert bleu["mean"] == pytest.approx(3.76) and bleu["deviation"] == pytest.approx(0.01)
    assert bleu["low"] < 3.76 < bleu["high"] and bleu["seeds"] == 3
    line = next(figure for figure in result.figures if figure.name == "length")
    assert line.marks and line.series[0].x == list(BINS) and line.series[0].low


def test_claims_about_widths_name_the_widths_and_missing_models_are_not_measured(tmp_path):
    widths = {f"seq2seq, width {width}": [width / 4.0] * 2 + [width / 8.0] * 2 for width in (8, 16)}
    scores = {"seq2seq": [4.0, 4.0, 2.0, 2.0], **widths}
    settings = {"data": {"built_in": "korean"}, "model": {"width": 16}, "training": {}}
    chosen = {"models": ("seq2seq", "bahdanau"), "device": "cpu", "sentences_per_class": 1, "widths": (8, 16)}
    context = MadeUp(tmp_path, print, settings, **chosen)
    context.scores = scores
    context.sentences = SentenceSet([("a " * 4, "b")] * 3 + [("a " * 40, "b")] * 3, "made up", 24)
    result = LENGTH.measure(context)
    verdicts = {each.claim.name: each for each in result.verdicts}
    assert verdicts["length.attention"].outcome == NOT_MEASURED
    assert mentions(verdicts["length.width"].reason, "width 8", "seq2seq", "width 16")
    assert "length.reversed" not in verdicts and mentions(result.notes[0], "bahdanau", "seed 0")
    assert {figure.name for figure in result.figures} >= {"length", "length-width"}


def test_differences_pair_the_seeds_and_can_be_those_of_logarithms():
    rows = [{"model": model, "seed": seed, "x": 2.0 + seed} for model in "ab" for seed in (0, 1)]
    rows += [{"model": "a", "seed": 2, "x": 9.0}, {"model": "c", "seed": 0, "x": 4.0}]
    assert differences(rows, "a", "b", "x") == [0.0, 0.0]
    assert differences(rows, "c", "a", "x", log=True) == pytest.approx([0.6931], abs=1e-4)
    assert differences(rows, "a", "d", "x") == []
