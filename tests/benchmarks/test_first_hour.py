"""The first-hour benchmark: settings tuned by hand are valid, and the table compares means over seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import first_hour
from benchmarks.first_hour import CELLS, HAND, PLAIN, Cell, Trained, summary, table
from regard.data import korean_english
from regard.models import build_model
from regard.tasks.translation.settings import TranslationSettings
from regard.training.settings import build, merged, override


def trained(setting: str, bleu: float, seed: int = 0, cell: str = "5k-2") -> Trained:
    return Trained(cell, setting, seed, bleu, 10, "", 1.0)


@pytest.mark.parametrize("device", HAND)
def test_settings_tuned_by_hand_are_valid(device: str):
    assert len(HAND[device]) >= 4
    for chosen in HAND[device].values():
        given = merged({"data": {"built_in": "korean"}}, override(chosen))
        settings = build(TranslationSettings, given, "test")
        assert build_model(settings.model.name, 9, 9, **settings.model.options).target_size == 9


def test_table_compares_seed_means_with_the_best_setting():
    runs = [
        *(trained(PLAIN, 9.0, seed) for seed in (0, 1)),
        trained("a", 12.0, 0),
        trained("a", 6.0, 1),
        trained("b", 10.0),
        trained(PLAIN, 5.0, cell="20k-2"),
    ]
    assert table(runs) == [("5k-2", 9.0, "b", 10.0, pytest.approx(0.9))]
    text = summary(runs)
    assert text.count(PLAIN) >= 3 and "0.90" in text


@pytest.mark.slow
def test_cell_is_trained_and_results_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tsv = tmp_path / "pairs.txt"
    lines = (f"{each.source}\t{each.target}\n" for each in korean_english("train", 3000))
    tsv.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setitem(CELLS, "5k-2", Cell(500, 0.02))
    monkeypatch.setitem(HAND, "cpu", {"bahdanau 96": HAND["cpu"]["bahdanau 96"]})
    monkeypatch.setattr(first_hour, "TEST", 20)
    options = ["--cells", "5k-2", "--slots", "0", "--out", str(tmp_path), "--name", "x"]
    monkeypatch.setattr(sys, "argv", ["first_hour", "--tsv", str(tsv), *options])
    first_hour.main()
    (written,) = tmp_path.glob("*-x.md")
    assert "bahdanau 96" in written.read_text() and PLAIN in capsys.readouterr().out
