"""regard evaluate --faithfulness: the numbers are those of the library, by site, and of two runs."""

from __future__ import annotations

import json

import pytest

from regard.evaluation import agreement, faithfulness
from regard.tasks.translation import load_translator
from tests.facts import mentions


def files(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_faithfulness_of_a_run_is_reported(command, trained, korean):
    options = ("--greedy", "--faithfulness", "--other", trained)
    result = command("evaluate", trained, *files(korean), *options, "--json")
    assert result.status == 0
    found = json.loads(result.out)["faithfulness"]
    translator = load_translator(trained, device="cpu")
    sides = [(korean / f"test.{side}").read_text().split("\n")[:-1] for side in ("ko", "en")]
    expected = faithfulness(translator, *sides)
    assert found["hidden"] == pytest.approx(expected.mean("hidden"), abs=1e-6)
    assert found["uniform"] == pytest.approx(expected.uniform, abs=1e-6)
    assert found["summary"] == expected.summary() and found["sentences"] == 12 and "sites" not in found
    assert found["agreement"] == agreement(translator, translator, *sides).written()
    assert found["agreement"]["same"] == 1
    narrow = command("evaluate", trained, *files(korean), "--greedy", "--faithfulness", width=60)
    (row,) = [line.split() for line in narrow.lines if line.startswith("cross ")]
    assert "tau" in narrow.out and f"{expected.mean('kendall'):.2f}" in row and "…" not in narrow.out
    drawn = command("evaluate", trained, *files(korean), *options, width=80)
    signatures = [line.split()[-1] for line in drawn.lines if "|" in line]
    assert signatures and all(each.endswith("|") or ":" in each.split("|")[-1] for each in signatures)
    assert mentions(drawn.out, "compr.", "suff.", "comprehensiveness")
    assert expected.summary() in " ".join(drawn.out.split()) and "cross " in drawn.out
    assert mentions(drawn.out, "same", "100.0 %")


def test_model_without_attention_and_invalid_options_are_errors(command, unseeing, trained, korean):
    result = command("evaluate", unseeing, *files(korean), "--greedy", "--faithfulness")
    assert result.status == 0 and "attention" in result.err and "nats" not in result.out
    result = command("evaluate", trained, *files(korean), "--other", trained)
    assert result.status == 2 and "--other" in result.err
    given = ("--translations", korean / "test.en", "--target", korean / "test.en")
    result = command("evaluate", *given, "--faithfulness")
    assert result.status == 2 and "--faithfulness" in result.err
