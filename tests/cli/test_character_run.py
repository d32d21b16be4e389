"""A run with a character tokenizer: every command counts and draws characters, or words on request."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from regard.runs.run_facts import facts_of
from regard.tasks.translation import TranslationTask, train_translation
from tests.facts import mentions

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a barely trained run from dates to ISO, with its data beside it. Nobody changes it."""
    place = tmp_path_factory.mktemp("dates")
    days = [(day, month, 1900 + 7 * day + month) for day in range(1, 29) for month in range(1, 13)]
    pairs = [
        (f"{day} {MONTHS[month - 1]} {year}", f"{year}-{month:02}-{day:02}") for day, month, year in days
    ]
    (place / "dates.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    for number, name in enumerate(("source", "target")):
        lines = (pair[number] for pair in pairs[:5])
        (place / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings = {
        "data": {"tsv": [str(place / "dates.tsv")], "tokenizer": "character", "held_out": 10},
        "model": {"width": 16},
        "training": {
            "steps": 4,
            "warmup_steps": 1,
            "batch_tokens": 600,
            "best": "exact",
            "evaluate_every": 2,
        },
        "evaluation": {"sentences": 4, "samples": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        train_translation(settings, place / "run", console=Console(quiet=True))
    return place


def sides(place: Path) -> tuple[object, ...]:
    return ("--source", place / "source", "--target", place / "target")


def test_links_count_characters_or_words_on_request(command, dates):
    result = command("align", dates / "run", *sides(dates))
    assert (result.status, result.err) == (0, "")
    for line in result.lines:
        assert [int(link.split("-")[1]) for link in line.split()] == list(range(10))
    assert all(int(link.split("-")[0]) < len("1 January 1908") for link in result.lines[0].split())
    words = command("align", dates / "run", *sides(dates), "--unit", "word")
    assert [len(line.split()) for line in words.lines] == [1] * 5
    assert command("align", dates / "run", *sides(dates), "--unit", "letter").status == 2


def test_gold_links_are_between_words_unless_characters_are_requested(command, dates, tmp_path):
    (tmp_path / "words").write_text("0-0 1-0 2-0\n" * 5, encoding="utf-8")
    result = command("align", dates / "run", *sides(dates), "--gold-alignments", tmp_path / "words")
    assert (
        result.status == 0
        and "recall" in result.err
        and [len(line.split()) for line in result.lines] == [1] * 5
    )
    given = ("--gold-alignments", tmp_path / "words", "--json")
    found = json.loads(command("evaluate", dates / "run", *sides(dates), *given).out)
    assert found["alignment"]["proposed"] == 5
    (tmp_path / "characters").write_text("0-9\n" * 5, encoding="utf-8")
    given = ("--unit", "character", "--gold-alignments", tmp_path / "characters")
    result = command("align", dates / "run", *sides(dates), *given)
    assert result.status == 0 and mentions(result.err, "50 links")
    found = json.loads(command("evaluate", dates / "run", *sides(dates), *given, "--json").out)
    assert (found["alignment"]["proposed"], found["alignment"]["sure"]) == (50, 5)
    for wrong in ("morpheme", "letter"):
        result = command("evaluate", dates / "run", *sides(dates), *given, "--unit", wrong)
        assert result.status == 2 and wrong in result.err
    alone = command("evaluate", dates / "run", *sides(dates), "--unit", "character")
    assert alone.status == 2 and "--gold-alignments" in alone.err
    chosen = command("align", dates / "run", *sides(dates), "--choose", tmp_path / "characters")
    assert chosen.status == 2, "the tenth word of one"


def test_drawings_and_pages_have_a_cell_for_each_character(command, dates, tmp_path):
    text = "3 March 1921"
    links = tmp_path / "links"
    result = command("translate", dates / "run", "--text", text, "--draw", "--alignments", links)
    assert result.status == 0 and f"source     {text}" in result.out
    shown = command("view", dates / "run", text, "--target", "1921-03-03")
    heads = shown.lines[1].split()
    assert heads[: len(text)] == list(text.replace(" ", "␣"))
    assert shown.lines[2].split()[0] == "1" and mentions(shown.out, 10, "characters")
    words = command("view", dates / "run", text, "--target", "1921-03-03", "--words")
    assert words.lines[1].split()[:3] == text.split()
    page = tmp_path / "page.html"
    assert command("align", dates / "run", *sides(dates), "--page", page).status == 0
    assert "<span>J</span><span>a</span>" in page.read_text(encoding="utf-8")
    cut = command("intervene", dates / "run", text, "--erase", 11, "--json")
    assert cut.status == 0
    assert command("intervene", dates / "run", text, "--erase", 12).status == 2


def test_exact_match_is_evaluated_and_chooses_the_best(command, dates):
    assert f"regard translate {dates / 'run'}" in command("show", dates / "run", width=400).out
    found = json.loads(command("evaluate", dates / "run", *sides(dates), "--json").out)
    (exact,) = [each for each in found["scores"] if each["name"] == "exact match"]
    assert 0.0 <= exact["value"] <= 100.0
    facts = facts_of(TranslationTask, dates / "run")
    assert facts.best_metric == "exact" and all("exact" in each for each in facts.evaluations)
    (best,) = [each.step for each in facts.checkpoints if "best" in each.marks]
    assert facts.best is not None and facts.best["step"] == best


def test_runs_are_compared_by_exact_match_and_characters(command, dates, tmp_path):
    other = shutil.copytree(dates / "run", tmp_path / "other")
    config = (other / "config.toml").read_text(encoding="utf-8")
    (other / "config.toml").write_text(config.replace("[training]\n", "[training]\npatience = 3\n"), "utf-8")
    output = tmp_path / "comparison"
    result = command("compare", dates / "run", other, "--output", output, "--device", "cpu")
    assert result.status == 0, result.err
    with (output / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and {row["length"] for row in rows} == {"11-16"}
    assert all(10 < float(row["characters"]) < 18 and "words" not in row for row in rows)
    page = (output / "index.html").read_text(encoding="utf-8")
    assert "Exact match by source length in characters" in page and "mean exact match of" in page


def test_unknown_characters_are_reported(command, dates):
    result = command("translate", dates / "run", "--text", "3 März 1921")
    assert result.status == 0 and "'ä' (line 1)" in result.err and "'z' (line 1)" in result.err
