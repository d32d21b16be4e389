"""--seeds of regard train, and what the other commands do with a run of several seeds."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from regard.evaluation.bleu import Score
from regard.runs.run_commands import RunReport
from regard.runs.run_facts import SeedsReport, scores_table
from regard.training.logs.live_table import in_words
from tests.facts import mentions

TEXTS = "".join(f"{('pos', 'neg')[n % 2]}\t{('good', 'bad')[n % 2]} film {n}\n" for n in range(40))
SMALL = (
    "--steps",
    2,
    "--batch-size",
    8,
    "--width",
    6,
    "--tokenizer",
    "word",
    "--set",
    "evaluation.samples=0",
)


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "a.tsv").write_text(TEXTS, encoding="utf-8")
    data = ("--task", "classification", "--train-file", tmp_path / "a.tsv", "--device", "cpu", "--threads", 1)
    return ("train", *data, "--output", tmp_path / "run", *SMALL)


def test_train_show_and_classify(command, arguments, tmp_path):
    trained = command(*arguments, "--seeds", "7,2")
    assert trained.status == 0 and trained.err.count("training t") == 1
    assert trained.err.index("\nstep 2/2") < trained.err.rindex("seeds")
    assert "seeds = [" in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    flat = " ".join(command("show", tmp_path / "run").out.split())
    assert "±" in flat and "2 of 2 seeds" in flat
    report = json.loads(command("show", tmp_path / "run", "--json").out)
    assert report["seeds"] == [7, 2] and set(report["mean"]) == set(report["deviation"])
    table = command("show", tmp_path / "run", tmp_path / "run" / "seed-2", width=120)
    assert table.out.count("±") == 2 and mentions(" ".join(table.out.split()), "2 of 2")
    assert command("classify", tmp_path / "run" / "seed-2", "--text", "a good film").status == 0
    result = command("classify", tmp_path / "run", "--text", "a good film")
    assert result.status != 0 and "seed-7" in result.err
    report = json.loads(command("evaluate", tmp_path / "run", "--json").out)
    accuracies = [each["accuracy"] for each in report["seeds"].values()]
    assert set(report["seeds"]) == {"7", "2"} and report["mean"]["accuracy"] == sum(accuracies) / 2
    assert "±" in command("evaluate", tmp_path / "run").out
    faithfulness = json.loads(command("evaluate", tmp_path / "run", "--faithfulness", "--json").out)["parts"]
    assert set(faithfulness) == {"faithfulness"} and "hidden" in faithfulness["faithfulness"]["mean"]
    assert mentions(command("evaluate", tmp_path / "run", "--faithfulness").out, "hidden", "random")
    result = command("evaluate", tmp_path / "run", "--page", "x.html")
    assert result.status == 2 and "--page" in result.err and "seed-7" in result.err


def test_a_wide_table_keeps_every_number():
    names = ("loss", "bits", "bits_longest", "bits_longer", "wrong_bits", "accuracy", "macro_f1", "bleu")
    scores = {seed: {name: 100.4 + seed + place for place, name in enumerate(names)} for seed in (0, 1)}
    console = Console(width=80, file=io.StringIO())
    console.print(scores_table(scores))
    text = console.file.getvalue()
    assert "…" not in text and text.count("±") == len(names)
    assert all(in_words(name, value) in text for row in scores.values() for name, value in row.items())


def test_words_and_numbers_are_not_cut_on_a_narrow_terminal():
    names = ("loss", "perplexity", "bleu", "chrf", "exact")
    scores = {seed: dict.fromkeys(names, 743.25 + seed) for seed in range(3)}
    others = {seed: {"best step": "1,000", "status": "completed all steps"} for seed in scores}
    printed = {}
    for width in (200, 40, 50, 60, 80):
        console = Console(width=width, file=io.StringIO())
        console.print(scores_table(scores, others))
        lines = console.file.getvalue().splitlines()
        printed[width] = " ".join(lines).split()
        assert all(len(line) <= width for line in lines)
        assert all(len(re.findall(r"± \d", line)) == line.count("±") for line in lines)
        assert set(printed[width]) <= set(printed[200]) and printed[width].count("completed") == 3
    assert "perplexity" in printed[40] and "chrF" not in printed[40]  # columns are left out
    assert "chrF" in printed[60]


def test_a_report_of_seeds_has_the_named_scores():
    reports = {
        seed: RunReport(
            "", 0, "pairs", {"scores": [asdict(Score("BLEU", 10.0 + seed, "x"))], "perplexity": 4.0}
        )
        for seed in (0, 2)
    }
    report = SeedsReport(Path("run"), reports).to_dict()
    assert report["mean"] == {"BLEU": 11.0, "perplexity": 4.0}


def test_evaluate_every_length(command, tmp_path):
    sizes = ("--set", "data.width=2", "--set", "data.length=[1,2]", "--set", "model.slots=5", "--width", 4)
    machine = ("--device", "cpu", "--threads", 1)
    copy = ("train", "--task", "algorithms", "--built-in", "copy", "--steps", 1, *sizes, *machine)
    assert command(*copy, "--seeds", 2, "--output", tmp_path / "run").status == 0
    evaluate = ("evaluate", tmp_path / "run", "--lengths", "3,5", "--sequences", 4)
    assert mentions(command("evaluate", tmp_path / "run", "--sequences", 4).out, "length 6")
    assert "vocabulary" not in command("show", tmp_path / "run").out
    printed = command(*evaluate).out
    assert printed.index("length 3") < printed.index("length 5") and printed.count("±") == 1 + 2 * 3
    report = json.loads(command(*evaluate, "--json").out)
    bits = [each["sizes"][1]["bits"] for each in report["seeds"].values()]
    assert report["parts"]["length 5"]["mean"]["bits"] == pytest.approx(sum(bits) / 2)
    assert report["parts"]["length 3"]["mean"]["bits"] == pytest.approx(report["mean"]["bits"])


@pytest.mark.parametrize(
    "options",
    [
        ("--seeds", "0"),
        ("--seeds", "1,1"),
        ("--seeds", "a"),
        ("--seeds", "-1"),
        ("--seeds", ""),
        ("--seeds", "2", "--seed", "1"),
        ("--seeds", "2", "--minutes", "1"),
    ],
)
def test_wrong_seeds(command, arguments, tmp_path, options):
    options = (*(each for each in arguments if each not in ("--steps", 2)), *options)
    result = command(*options)
    assert (result.status != 0 and "--seeds" in result.err + result.out) or "seeds" in result.err
    assert "Traceback" not in result.err and not (tmp_path / "run").exists()
