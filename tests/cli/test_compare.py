"""`regard compare`: trainings in a cache, trained runs, files that are written, and errors."""

from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path

import pytest
import torch

import regard
from regard.compare.comparison import Comparison
from regard.compare.comparison_page import write_page
from regard.compare.study import Claim, StudyResult, judge
from regard.compare.study_context import SHORTER, StudyContext
from regard.runs.seed_runs import Training, TrainingProcesses, progress_line, step_of
from regard.training.interrupts import Interruption
from tests.facts import mentions

TINY = ("--quick", "--steps", "2", "--width", "4", "--sentences", "2", "--length-bins", "9,24")
TINY += ("--device", "cpu", "--threads", "1", "--jobs", "2")
TINY += ("--set", "data.pairs=40", "--set", "data.held_out=5")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_comparison_is_written_continues_and_reports_a_failed_training(command, tmp_path):
    output = tmp_path / "comparison"
    # `hard` needs an estimator, so this training fails; the other one goes on.
    models = ("--study", "length", "--seeds", "1", "--models", "seq2seq,bahdanau:select=hard")
    first = command("compare", *models, *TINY, "--output", str(output))
    assert first.status == 1 and "bahdanau:select=hard" in first.err and "estimator" in first.err
    measured = rows(output / "length.csv")
    assert {row["model"] for row in measured} == {"seq2seq"} and len(measured) == 3
    finished = {path: path.stat().st_mtime_ns for path in output.glob("runs/*/finished.json")}
    assert len(finished) == 1
    page = (output / "index.html").read_text(encoding="utf-8")
    assert 'alt="Lines of BLEU' in page and "failed" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert (output / "length.png").read_bytes().startswith(b"\x89PNG")
    assert "Lines of BLEU" in (output / "length.svg").read_text(encoding="utf-8")
    written = json.loads((output / "files.json").read_text())
    assert {"index.html", "length.csv", "length.png", "length.svg"} <= set(written)

    settings = {"data": {"pairs": 40, "held_out": 5}, "model": {"width": 4}, "training": {"steps": 2}}
    again = regard.compare(
        "length",
        models=["seq2seq"],
        seeds=1,
        quick=True,
        cache=output / "runs",
        settings=settings,
        bins=(9, 24),
        sentences=2,
        device="cpu",
        threads=1,
        say=lambda text: None,
    )
    assert {path: path.stat().st_mtime_ns for path in output.glob("runs/*/finished.json")} == finished
    table = again.tables["length"].rows
    assert [str(row["bleu"]) for row in table] == [row["bleu"] for row in measured]
    assert not again.failed and again.seconds > 0


def test_trained_runs_are_compared(command, trained, unseeing, tmp_path):
    output = tmp_path / "<b>runs"
    arguments = (str(trained), str(unseeing), "--sentences", "2", "--length-bins", "9", "--device", "cpu")
    result = command("compare", *arguments, "--output", str(output))
    assert result.status == 0 and mentions(result.out, "one", "seed")  # long paths wrap the text
    assert mentions(result.out, "BLEU", "exact") and "runs." not in result.err
    said = " ".join(result.err.split())
    assert all(fact in said for fact in ("greedy search", "last checkpoint", "pairs are left out"))
    models = [row["model"] for row in rows(output / "runs.csv")]
    assert models == [str(trained)] * 2 + [str(unseeing)] * 2
    assert any("model.name" in row["setting"] for row in rows(output / "settings.csv"))
    stored = list((output / "runs").glob("quality-*.json"))
    assert len(stored) == 2 and json.loads(stored[0].read_text())["result"]
    assert "<b>" not in (output / "index.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in trained.iterdir()) == sorted(
        path.name for path in trained.iterdir() if not path.name.startswith("quality")
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--models", "bahdanu"), "bahdanau"),
        (("--study", "lenght"), "length"),
        (("--seeds", "x"), "--seeds"),
        (("--length-bins", "5;9"), "--length-bins"),
        (("nowhere", "nowhere"), "nowhere"),
        (("--seeds", "0"), "seeds"),
        (("--seeds", "1,1"), "seeds"),
        (("--set", "model.width=abc"), "'abc'"),
        (("--study", "parts", "--width", "10"), "multiple of heads"),
        (("--widths", "64,2"), "--widths"),
        (("--study", "length", "--source", "nope.ko"), "target is missing"),
    ],
)
def test_bad_input_is_a_message(command, arguments, part, tmp_path):
    result = command("compare", *arguments, "--output", str(tmp_path / "out"))
    assert result.status != 0 and part in result.err and "Traceback" not in result.err
    assert "[]" not in result.err and "Size()" not in result.err
    assert not (tmp_path / "out").exists()


OPTIONS = {"models": ["seq2seq"], "seeds": 1, "sentences": 2, "bins": (9, 24), "device": "cpu"}


def test_no_minutes_train_nothing(tmp_path, monkeypatch):
    trained: list[str] = []
    monkeypatch.setattr(
        StudyContext, "train", lambda self, runs, until: trained.extend(r.label for r in runs)
    )
    options = {**OPTIONS, "quick": True, "cache": tmp_path, "say": lambda text: None}
    options["models"] = ["seq2seq", "luong"]
    result = regard.compare("length", minutes=0, **options)
    assert not trained and not result.interrupted and "trained" in result.results[0].notes[0]
    assert result.decision.count("length.") == len(result.verdicts)
    regard.compare("length", **options)
    assert trained == ["seq2seq", "luong"]


def test_measuring_after_ctrl_c_is_announced(tmp_path, monkeypatch):
    monkeypatch.setattr(
        StudyContext, "train", lambda self, runs, until: setattr(self, "interrupted", "Ctrl-C")
    )
    said: list[str] = []
    options = {**OPTIONS, "quick": True, "cache": tmp_path, "say": said.append}
    assert regard.compare("length", **options).interrupted == "Ctrl-C"
    stopped = next(place for place, line in enumerate(said) if "Ctrl-C" in line)
    assert "measuring" in said[stopped] and said[stopped + 1].startswith("measuring: ")


@pytest.mark.parametrize(
    ("seconds", "quick", "hinted"), [(9000.0, False, True), (9.0, False, False), (9000.0, True, False)]
)
def test_a_long_comparison_says_how_to_shorten_it(seconds, quick, hinted, tmp_path):
    """One training of four took `seconds`, and another one is running."""
    said: list[str] = []
    pool = TrainingProcesses(1, said.append, Interruption(), hint="" if quick else SHORTER)
    pool.done, pool.total, pool.running = 1, 4, [(Training("seq2seq", tmp_path / "log", ()), None, 0.0)]
    pool.began = time.monotonic() - seconds
    for _ in range(2):
        pool.reported = 0.0
        pool._report()
    assert [line for line in said if "--stop-after" in line] == [said[1]] * hinted
    assert len(said) == 2 + hinted and mentions(said[0], "1 of 4")


def test_threads_are_used_in_this_process_and_restored(tmp_path, monkeypatch):
    used: list[int] = []
    monkeypatch.setattr(StudyContext, "train", lambda self, runs, until: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    regard.compare("length", threads=before + 1, cache=tmp_path, say=str, **OPTIONS)
    assert used == [before + 1] and torch.get_num_threads() == before


def test_page_table_and_sentence_say_which_claims_are_decided(tmp_path):
    claims = [Claim(f"a.{name}", f"{name} is larger.") for name in ("sure", "open", "lost")]
    values = ([1.0, 1.1, 0.9], [1.0, -1.2, 0.1], [-1.0, -1.1, -0.9])
    verdicts = tuple(judge(claim, each, "x") for claim, each in zip(claims, values, strict=True))
    result = StudyResult("a", "A")
    result.verdicts += verdicts
    comparison = Comparison((result,), {})
    assert "2 of 3" in comparison.decision and "a.open" in comparison.decision
    assert "a.sure" not in comparison.decision and "a.lost" not in comparison.decision
    list(write_page(comparison, "About", tmp_path))
    assert [row["decides"] for row in rows(tmp_path / "verdicts.csv")] == ["yes", "no", "yes"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert comparison.decision in page and page.count('class="unclear"') == 1
    assert Comparison((), {}).decision == ""


def test_files_of_an_earlier_comparison_are_removed(tmp_path):
    """Only files that files.json lists, with an ending of a table or a figure."""
    for name in ("hard.csv", "hard.png", "notes.csv", "page.html"):
        (tmp_path / name).write_text("old")
    (tmp_path / "files.json").write_text(json.dumps(["hard.csv", "hard.png", "page.html", "../outside.csv"]))
    (tmp_path.parent / "outside.csv").write_text("old")
    list(write_page(Comparison((), {}), "About", tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes.csv", "page.html", "index.html", "verdicts.csv", "files.json"}
    assert (tmp_path.parent / "outside.csv").exists()


def test_progress_names_model_seed_and_step(tmp_path):
    log = tmp_path / "log.txt"
    assert step_of(log) is None
    log.write_text("reading ...\nstep 1/1,000  loss 6\nstep 365/1,000  loss 4.0  00:01:10 left\n")
    assert step_of(log) == (365, 1000)
    running = [("bahdanau, seed 0", step_of(log)), *[(f"luong, seed {seed}", None) for seed in range(4)]]
    line = progress_line(1, 6, running, 60.0)
    assert mentions(line, "bahdanau", "seed 0", "365 of 1,000", "1 of 6", "2 more")
    assert mentions(line, "3 minutes")  # 1.365 of 6 in one minute


def test_short_data_are_a_message_before_any_training(command, tmp_path):
    for name in ("a.ko", "a.en"):
        (tmp_path / name).write_text("".join(f"w{n} x y\n" for n in range(200)), encoding="utf-8")
    files = ("--source", str(tmp_path / "a.ko"), "--target", str(tmp_path / "a.en"))
    result = command("compare", "--study", "length", *files, "--output", str(tmp_path / "out"))
    assert result.status != 0 and "short" in result.err and not (tmp_path / "out").exists()
