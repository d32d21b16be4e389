"""regard ask: a story and questions, standard input, files as JSON lines, pictures, and bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

import regard
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.answering import AnsweringTask
from tests.facts import commands, mentions
from tests.tasks.small_stories import babi_text, json_line, small, written

STORY = "Mary went to the garden.\nJohn went to the office.\n\nMary went to the hall.\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ask")
    settings = small([written(folder)], training={"steps": 2, "evaluate_every": 2, "save_every": 2})
    train_run(AnsweringTask, settings, folder / "run", machine=Machine("cpu"), console=Console(quiet=True))
    return folder / "run"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY)
    return path


def test_each_question_gets_an_answer_and_its_probability(command, run: Path, story: Path):
    asked = command(
        "ask", run, "--story", story, "--question", "Where is Mary?", "--question", "Where is John?"
    )
    lines = [line.split("\t") for line in asked.out.splitlines()]
    assert asked.status == 0 and len(lines) == 2
    assert all(answer in ("garden", "office", "kitchen", "hall") for answer, _ in lines)
    assert all(0 < float(chance) <= 1 for _, chance in lines)


def test_questions_come_from_standard_input(command, run: Path, story: Path):
    asked = command("ask", run, "--story", story, stdin=b"Where is Mary?\n\nWhere is the zebra?\n")
    assert asked.status == 0 and len(asked.out.splitlines()) == 2
    assert mentions(asked.err, "zebra", "question 2")


def test_bad_question_is_reported_and_the_others_answered(command, run: Path, story: Path, tmp_path: Path):
    lines = b"Where is Mary?\nqwerty zxcv?\nWhere is the zebra?\n"
    asked = command("ask", run, "--story", story, stdin=lines)
    assert asked.status == 1 and len(asked.out.splitlines()) == 2
    assert mentions(asked.err, "line 2", "1 of 3")
    assert mentions(asked.err, "zebra", "question 3") and "Traceback" not in asked.err
    (tmp_path / "own.jsonl").write_text(f"{json_line(question='qwerty?', answer=None)}\n{json_line()}\n")
    asked = command("ask", run, tmp_path / "own.jsonl")
    assert (
        asked.status == 1 and len(asked.out.splitlines()) == 1 and mentions(asked.err, "own.jsonl", "line 1")
    )


def test_unknown_words_of_the_story_are_reported_with_their_sentence(command, run: Path, tmp_path: Path):
    (tmp_path / "story.txt").write_text("Mary went to the hall.\nMary saw a zebra.\n")
    (tmp_path / "foreign.txt").write_text("Qui es tu?\n")
    asked = command("ask", run, "--story", tmp_path / "story.txt", "--question", "Where is Mary?")
    assert asked.status == 0 and mentions(asked.err, "zebra", "sentence 2") and "(question" not in asked.err
    options = ("--story", tmp_path / "foreign.txt", "--question", "Where is Mary?", "--json")
    asked = command("ask", run, *options)
    assert " no " in asked.err
    assert any(" no " in note for note in json.loads(asked.out)["notes"])


def test_files_become_json_lines_with_probabilities(command, run: Path, tmp_path: Path):
    (tmp_path / "qa1_test.txt").write_text(babi_text(2, seed=5))
    (tmp_path / "own.jsonl").write_text(f"{json_line(answer=None)}\n{json_line()}\n")
    output = tmp_path / "answers.jsonl"
    files = (tmp_path / "qa1_test.txt", tmp_path / "own.jsonl")
    asked = command("ask", run, *files, "--json", "--hide", "--output", output)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert asked.status == 0 and len(rows) == 6
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["answer"] == next(iter(row["probabilities"])) and len(row["hops"]) == 2
        assert len(row["without"]) == len(row["story"])
    assert "true_answer" in rows[0] and "true_answer" not in rows[4]


def test_hops_are_drawn_in_terminal_picture_and_page(command, run: Path, story: Path, tmp_path: Path):
    options = ("--story", story, "--question", "Where is Mary?")
    drawn = command("ask", run, *options, "--draw", "--hide").out
    assert "hop 2" in drawn and "if hidden" in drawn and "Mary went" in drawn
    picture, page = tmp_path / "hops.svg", tmp_path / "hops.html"
    assert command("ask", run, *options, "--output", picture, "--page", page).status == 0
    assert "hop 2" in picture.read_text() and "<svg" in page.read_text()
    viewed = command("view", run, *options)
    assert viewed.status == 0 and mentions(viewed.out, "hop 1", "hidden")
    refused = command("view", run, *options, "--view", "gradient")
    assert refused.status == 2 and mentions(refused.err, "--view gradient", "task", "erasure")


def test_seen_file_of_an_answer_draws_every_hop(command, run: Path, story: Path, tmp_path: Path):
    kept = tmp_path / "hops.seen"
    options = ("--story", story, "--question", "Where is Mary?")
    drawn = [line for line in command("view", run, *options).out.splitlines() if "went to" in line][:3]
    assert command("view", run, *options, "--output", kept).status == 0
    for view in ((), ("--view", "hops")):
        viewed = command("view", kept, *view)
        assert viewed.status == 0 and mentions(viewed.out, "hop 2", "Where", "is", "Mary?")
        assert all(line in viewed.out for line in drawn) and len(drawn) == 3
    assert "hop 2" not in command("view", kept, "--view", "matrix").out
    assert command("view", kept, "--view", "image").status == 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((), ("story",)),
        (("--story", "{missing}", "--question", "Where?"), ("missing.txt",)),
        (("--story", "{empty}", "--question", "Where?"), ("empty.txt", "empty")),
        (("--story", "{story}", "--question", "Qui es tu?"), ("--question", "vocabulary")),
        (("--story", "{story}", "--question", " "), ("--question", "empty")),
        (("{bad}",), ("bad.txt, line 2", "7")),
        (("{spaces}",), ("spaces.txt, line 2", "tab")),
        (("{empty}",), ("empty.txt", "no questions")),
        (("{story}", "--story", "{story}"), ("--story",)),
        (("--story", "{babi}", "--question", "Where is Mary?"), ("babi.txt", "tab")),
        (("--story", "{story}", "--question", "Where is Mary?", "--draw", "--json"), ("--draw",)),
        (("--story", "{story}", "--question", "Where is Mary?", "--page", "x.txt"), ("--page",)),
    ],
)
def test_bad_input_is_named(command, run: Path, story: Path, tmp_path: Path, arguments, parts):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.txt").write_text("1 Mary sat.\n2 Where is Mary?\thall\t7\n")
    (tmp_path / "spaces.txt").write_text("1 Mary sat.\n2 Where is Mary?   hall   1\n")
    (tmp_path / "babi.txt").write_text("1 Mary sat.\n2 Where is Mary?\thall\t1\n")
    names = ("missing", "empty", "bad", "spaces", "story", "babi")
    places = {name: str(tmp_path / f"{name}.txt") for name in names}
    asked = command("ask", run, *(each.format(**places) for each in arguments))
    assert asked.status == 2 and all(part in asked.err for part in parts) and "Traceback" not in asked.err


def test_picture_of_several_questions_is_an_error(command, run: Path, story: Path, tmp_path: Path):
    questions = ("--question", "Where is Mary?", "--question", "Where is John?")
    asked = command("ask", run, "--story", story, *questions, "--output", tmp_path / "x.svg")
    assert asked.status == 2 and "--page" in asked.err


def test_run_of_another_task_is_an_error(command, run: Path):
    asked = command("classify", run, "--text", "Mary sat.")
    assert asked.status == 2 and "ask" in commands(asked.err)


def test_forcing_a_hop_to_read_one_sentence(command, run: Path, story: Path):
    asked = ("--story", story, "--question", "Where is Mary?")
    result = command("intervene", run, *asked, "--force", 0, "--site", "hop.1", "--json")
    report = json.loads(result.out)
    answerer = regard.load(run, device="cpu")
    before = answerer.ask(STORY, "Where is Mary?")
    with regard.intervene(force=(None, 0), at="hop.1"):
        after = answerer.ask(STORY, "Where is Mary?")
    assert after.hops[1, 0] == pytest.approx(1.0) and (report["before"], report["after"]) == (
        before.answer,
        after.answer,
    )
    chances = [each.probabilities[before.answer] for each in (before, after)]
    assert report["cost"] == pytest.approx(math.log(chances[0] / chances[1]), abs=1e-5) != 0
    for options in (("--force", 3), ("--force", "0-0"), ("--text", "a", "--erase", 0)):
        assert command("intervene", run, *asked, *options).status == 2
