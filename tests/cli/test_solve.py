"""regard solve: generated and given sequences, JSON lines, drawings, pictures, pages, and invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from PIL import Image
from rich.console import Console

import regard
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.algorithms import AlgorithmsTask
from tests.facts import mentions
from tests.tasks.test_algorithms_task import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solve") / "run"
    settings = {**SMALL, "training": {"steps": 2, "batch_size": 2}}
    train_run(AlgorithmsTask, settings, folder, machine=Machine("cpu"), console=Console(quiet=True))
    return folder


def test_generated_sequences(command, run: Path):
    result = command("solve", run, "--sequences", 3, "--length", 2, "--device", "cpu")
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert result.status == 0 and len(lines) == 3 and "3 sequences" in result.err
    assert all(
        len(answer.split()) == 2 and int(wrong) <= 6 and float(bits) > 0 for wrong, bits, answer in lines
    )
    assert command("solve", run, "--sequences", 3, "--length", 2, "--device", "cpu").out == result.out


def test_given_sequences(command, run: Path, tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"vectors": ["101", "011"]}\n\n{"vectors": "111"}\n')
    output = tmp_path / "b.jsonl"
    result = command("solve", run, file, "--json", "--output", output, "--device", "cpu")
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert result.status == 0 and [each["target"] for each in records] == [["101", "011"], ["111"]]
    assert len(records[0]["slots"]["write"][0]) == 5
    result = command("solve", run, "--sequence", '{"vectors": ["101"]}', "--draw", "--device", "cpu")
    assert mentions(result.out, "write", "copy", "length 1")


def test_pictures(command, run: Path, tmp_path: Path):
    picture, page = tmp_path / "a.svg", tmp_path / "a.html"
    result = command("solve", run, "--output", picture, "--page", page, "--device", "cpu")
    assert result.status == 0 and picture.read_text().startswith("<svg") and "<img" in page.read_text()


def test_view_writes_a_moving_gif(command, run: Path, tmp_path: Path):
    written = tmp_path / "heads.gif"
    assert command("view", run, "--length", 1, "--output", written, "--device", "cpu").status == 0
    with Image.open(written) as image:
        assert image.n_frames == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--length", 99), "99 slots"),
        (("--repeats", 3), "--repeats"),
        (("--draw", "--json"), "--draw"),
        (("--sequence", '{"vectors": ["10"]}'), "3 bits"),
        (("--sequence", "{"), "--sequence: this is not JSON"),
        (("--sequence", '{"vectors": ["101"]}', "--sequence", "{"), "--sequence, value 2"),
        (("--sequence", '{"vectors": 5}'), "vectors of 3 bits"),
        (("a.jsonl", "--sequence", "{}"), "either --sequence or files"),
        (("--sequence", '{"vectors": ["101"]}', "--length", 3), "--length"),
        (("--output", "a.png", "--sequences", 2), "--output"),
        (("--page", "a.png"), "--page"),
        (("--slots", 2), "slots"),
    ],
)
def test_bad_input(command, run: Path, arguments: tuple[object, ...], text: str):
    result = command("solve", run, *arguments, "--device", "cpu")
    assert result.status and text in result.err and "Traceback" not in result.err


def test_a_bad_line_names_file_and_line(command, run: Path, tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"vectors": ["101"]}\n{"vectors": ["121"]}\n')
    result = command("solve", run, file, "--device", "cpu")
    assert result.status and mentions(result.err, "a.jsonl", "line 2")


@pytest.mark.parametrize("view", ["long", "self", "image"])
def test_only_the_views_of_the_task_are_listed(command, run: Path, view: str):
    result = command("view", run, "--view", view, "--device", "cpu")
    listed = result.err.split("expected: ")[-1].splitlines()[0].split(", ")
    names = {"matrix", "lines", "heads", "word", "shaded", "player", "tape", "slot", "erasure", "gradient"}
    assert result.status == 2 and set(listed) == names


def test_forcing_a_head_to_read_one_slot(command, run: Path):
    given = ("intervene", run, "--sequence", '{"vectors": ["101", "011"]}', "--device", "cpu")
    report = json.loads(command(*given, "--force", "2-3", "--json").out)
    solver = regard.load(run, device="cpu")
    before = solver.solve({"vectors": ["101", "011"]})
    with regard.intervene(force=(3, 2), at="tape.read"):
        after = solver.solve({"vectors": ["101", "011"]})
    assert after.read[0, 3, 2] == pytest.approx(1.0) and report["after"] == " ".join(after.answer)
    right = before.chances > 0.5
    changes = [
        numpy.log(numpy.where(right, each.chances, 1 - each.chances))[before.scored].sum(1)
        for each in (before, after)
    ]
    assert [each["after"] for each in report["parts"]] == pytest.approx(changes[1].tolist(), abs=1e-5)
    assert report["cost"] == pytest.approx(float((changes[0] - changes[1]).sum()), abs=1e-5)
    assert command(*given, "--erase", 999).status == 2
