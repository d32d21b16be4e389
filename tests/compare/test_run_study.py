"""`regard compare RUN RUN` for tasks other than translation: stored scores, over seeds, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.cli.compare import _printed
from regard.compare import comparison_page
from regard.compare.run_study import _unit, compare_runs
from regard.compare.study import SUPPORTED, UNCLEAR
from regard.errors import ArgumentError, DataError, RegardWarning
from tests.facts import facts


def write_run(folder: Path, task: str, seed: int, scores: dict, **model) -> Path:
    """Write a run folder without checkpoints: its settings, and a log with two evaluations."""
    folder.mkdir()
    lines = [f'task = "{task}"', f"seed = {seed}", "[data]"]
    lines += ['train_file = ["reviews.tsv"]'] if task == "classification" else ['built_in = "korean"']
    lines += ["[model]", *(f"{name} = {json.dumps(value)}" for name, value in model.items())]
    (folder / "config.toml").write_text("\n".join(lines) + "\n")
    worse = {name: value / 2 if name != "loss" else 9.0 for name, value in scores.items()}
    records = [{"kind": "evaluation", "step": step, **each} for step, each in ((10, worse), (20, scores))]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def runs(folder: Path, seeds: int, gain: float) -> list[Path]:
    """Write runs of an LSTM, and of a Transformer whose accuracy is higher by `gain`."""
    found = []
    for seed in range(seeds):
        plain = {"loss": 0.5, "accuracy": 0.7 + seed / 100, "macro_f1": 0.6}
        better = plain | {"accuracy": plain["accuracy"] + gain + seed / 1000}
        for name, scores in (("lstm", plain), ("transformer", better)):
            place = folder / f"{name}-{seed}"
            found.append(write_run(place, "classification", seed, scores, name=name, width=8))
    return found


@pytest.mark.parametrize(
    ("seeds", "gain", "outcome"), [(3, 0.1, SUPPORTED), (3, -0.1, SUPPORTED), (2, 0.1, UNCLEAR)]
)
def test_runs_that_differ_in_the_seed_are_one_model(tmp_path, seeds, gain, outcome):
    result = compare_runs(runs(tmp_path, seeds, gain), output=tmp_path / "out", say=lambda text: None)
    (verdict,) = result.verdicts.values()
    assert verdict.outcome == outcome
    better = tmp_path / ("transformer-0" if gain > 0 else "lstm-0")
    assert verdict.claim.text.startswith(f"{better} is better")
    assert verdict.values == pytest.approx([abs(gain + seed / 1000) for seed in range(seeds)])
    rows = result.tables["runs"].rows
    assert len(rows) == 2 * seeds and {row["step"] for row in rows} == {20}
    summary = {(row["model"], row["score"]): row for row in result.tables["runs-summary"].rows}
    accuracy = summary[str(tmp_path / "lstm-0"), "accuracy"]
    assert accuracy["mean"] == pytest.approx(0.7 + (seeds - 1) / 200) and accuracy["better"] == "higher"
    assert (accuracy["low"] is None) == (seeds < 3)
    assert any("model.name" in row["setting"] for row in result.tables["settings"].rows)
    assert {"index.html", "runs.csv", "runs.png", "runs.svg"} <= {path.name for path in result.pages}


def test_terminal_shows_scores_and_different_data(tmp_path, capsys):
    places = runs(tmp_path, 1, 0.1)
    other = places[1]
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(text.replace("reviews.tsv", "other.tsv"))
    said: list[str] = []
    result = compare_runs(places, output=tmp_path / "out", say=lambda text: None)
    assert _printed(result, said.append) == 0
    printed = capsys.readouterr().out
    assert "0.700" in printed and "0.800" in printed and "macro F1" in printed
    assert any("differ" in line for line in said) and any("best" in line for line in said)
    assert not any("runs./" in line for line in said)


def test_sources_of_one_word_are_measured_in_characters():
    word, bpe = {"data": {"tokenizer": "word"}}, {"data": {"tokenizer": "bpe"}}
    character = {"data": {"tokenizer": "character"}}
    single, sentences = [("eins", "one"), ("zwei", "two"), ("drei mal", "thrice")], [("ein Haus", "a house")]
    assert _unit([word, bpe], single) == "characters" and _unit([word, bpe], sentences) == "words"
    assert _unit([character, character], sentences) == "characters"
    assert _unit([character, word], sentences) == "words"


def test_errors_name_the_tasks_the_run_and_the_option(tmp_path):
    first, second, *_ = runs(tmp_path, 1, 0.1)
    scores = {"loss": 1.0, "bleu": 9.0}
    other = write_run(tmp_path / "mt", "translation", 0, scores, name="bahdanau", width=8)
    quiet = {"output": tmp_path / "out", "say": lambda text: None}
    with pytest.raises(ArgumentError, match=facts("classification", "translation")):
        compare_runs([first, other], **quiet)
    own = [write_run(tmp_path / name, "own:Task", 0, scores, name=name) for name in ("a", "b")]
    with pytest.raises(ArgumentError, match=facts("own:Task", "expected", "language")) as caught:
        compare_runs(own, **quiet)
    assert "classification" in str(caught.value)
    with pytest.raises(ArgumentError, match="--length-bins"):
        compare_runs([first, second], bins=(5, 9), **quiet)
    (second / "log.jsonl").write_text("")
    with pytest.raises(DataError, match="transformer-0"):
        compare_runs([first, second], **quiet)
    assert not (tmp_path / "out").exists()


def test_characters_without_a_font_are_noted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison_page, "missing_characters", lambda figures: "고" * len(figures))
    with pytest.warns(RegardWarning, match="Korean") as caught:
        compare_runs(runs(tmp_path, 1, 0.1), output=tmp_path / "out", say=lambda text: None)
    assert len(caught) == 1
