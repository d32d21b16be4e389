"""regard caption: text, n-best, JSON lines, COCO results, folders and patterns, and unreadable images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

import regard
from regard.data.shapes import shapes
from regard.decoding import Greedy, Rules
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.captioning import CaptioningTask
from tests.facts import commands, mentions


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caption")
    settings = {
        "data": {"built_in": "shapes", "pictures": 10, "max_length": 4},
        "model": {"width": 8, "embedding": 8, "encoder_options": {"features": 8, "channels": 4}},
        "training": {"steps": 1, "batch_size": 8, "warmup_steps": 1},
        "evaluation": {"images": 1, "samples": 0},
    }
    train_run(
        CaptioningTask, settings, folder / "run", machine=Machine("cpu", 1), console=Console(quiet=True)
    )
    for number, image in enumerate(shapes("test", 2).images([0, 1]).permute(0, 2, 3, 1).numpy()):
        Image.fromarray(image).save(folder / f"picture_{number:06}.png")
    return folder


def test_text_json_and_coco(command, run: Path, tmp_path: Path):
    plain = command("caption", run / "run", run, "--device", "cpu", "--coco", tmp_path / "c.json")
    rows = [line.split("\t") for line in plain.lines]
    assert plain.status == 0 and [Path(row[0]).name for row in rows] == [
        "picture_000000.png",
        "picture_000001.png",
    ]
    assert json.loads((tmp_path / "c.json").read_text()) == [
        {"image_id": number, "caption": row[1]} for number, row in enumerate(rows)
    ]
    output = tmp_path / "x.jsonl"
    assert command("caption", run / "run", run / "*.png", "--json", "--output", output).out == ""
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [each["caption"] for each in records] == [row[1] for row in rows]


def test_n_best_and_drawing(command, run: Path):
    image = run / "picture_000001.png"
    rows = [line.split("\t") for line in command("caption", run / "run", image, "--n-best", 3).lines]
    scores = [float(row[2]) for row in rows]
    assert 1 <= len(rows) <= 3 and scores == sorted(scores, reverse=True) and scores[0] <= 0
    drawn = command("caption", run / "run", image, "--draw", "--greedy")
    assert drawn.status == 0 and "picture_000001.png" in drawn.out


def test_pictures_and_page(command, run: Path, tmp_path: Path):
    image = run / "picture_000000.png"
    files = tmp_path / "x.svg", tmp_path / "x.html"
    said = command("caption", run / "run", image, "--greedy", "--output", files[0], "--page", files[1])
    assert said.status == 0 and len(said.lines) == 1 and "x.svg" in said.err and "x.html" in said.err
    words = said.lines[0].split("\t")[1].split()
    assert files[0].read_text().count("<image ") == len(words) + 2  # the image, the words, the scale
    assert files[1].read_text().count("data-map=") == len(words) and image.name in files[1].read_text()
    both = command("caption", run / "run", run, "--greedy", "--page", files[1])
    assert both.status == 0 and files[1].read_text().count("<article") == 2


def test_unreadable_images_are_counted(command, run: Path, tmp_path: Path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    said = command("caption", run / "run", tmp_path / "bad.jpg", run / "picture_000000.png")
    assert said.status == 1 and len(said.lines) == 1
    assert "bad.jpg" in said.err and "1 of 2" in said.err


def test_missing_images_are_reported_and_the_others_are_captioned(command, run: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    absent = tmp_path / "none.jpg", tmp_path / "empty", tmp_path / "*.bmp"
    said = command("caption", run / "run", absent[0], run / "picture_000000.png", *absent[1:])
    assert said.status == 1 and len(said.lines) == 1 and "picture_000000.png" in said.lines[0]
    assert all(path.name in said.err for path in absent) and "3 of 4" in said.err
    assert command("caption", run / "run", *absent).status == 2


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("nowhere.jpg",), "nowhere.jpg"),
        (("*.none",), "*.none"),
        (("picture_000000.png", "--draw", "--json"), "--draw"),
        (("picture_000000.png", "--read", "often"), "often"),
        (("picture_000000.png", "--read", "sample"), "--read"),
        (("picture_000000.png", "--coco", "no/folder/x.json"), "x.json"),
        (("picture_000000.png", "picture_000001.png", "--output", "x.png"), "--output"),
        (("picture_000000.png", "--page", "x.txt"), "--page"),
        (("picture_000000.png", "--page", "no/folder/x.html"), "x.html"),
    ],
)
def test_bad_arguments(command, run: Path, monkeypatch, arguments, fact: str):
    monkeypatch.chdir(run)
    said = command("caption", run / "run", *arguments)
    assert said.status == 2 and fact in said.err and not said.out


def test_other_tasks_are_refused(command, trained: Path, run: Path):
    said = command("caption", trained, run / "picture_000000.png")
    assert said.status == 2 and "translate" in commands(said.err)
    assert "caption" in commands(command("translate", run / "run", "--text", "a").err)


def test_view_and_evaluate(command, run: Path, tmp_path: Path):
    image = run / "picture_000000.png"
    assert command("view", run / "run", "--greedy", "--output", tmp_path / "x.html").status == 2
    missing = command("evaluate", run / "run", "--greedy", "--page", tmp_path / "no" / "x.html")
    assert missing.status == 2 and mentions(missing.err, "create", "folder")
    said = command("evaluate", run / "run", "--split", "held-out", "--pictures", 2, "--json", "--greedy")
    assert said.status == 0 and json.loads(said.out)["images"] == 2
    assert command("show", run / "run").status == 0
    assert "--image" in command("view", run / "run").err
    drawn = command("view", run / "run", "--image", image, "--greedy", "--output", tmp_path / "x.svg")
    assert drawn.status == 0 and (tmp_path / "x.svg").exists()


def test_hiding_a_region_of_the_image(command, run: Path):
    image = run / "picture_000000.png"
    given = ("intervene", run / "run", "--image", image, "--greedy", "--max-length", 3, "--device", "cpu")
    report = json.loads(command(*given, "--erase", 2, "--json").out)
    captioner = regard.load(run / "run", device="cpu", search=Greedy(rules=Rules(maximum=3)))
    caption = captioner.caption(image)
    pixels = torch.from_numpy(caption.pixels).permute(2, 0, 1)[None]
    with regard.intervene(cut=(None, 2), at="cross"):
        after = captioner.word_scores(pixels, caption)[0].tolist()
    assert [each["piece"] for each in report["parts"]] == list(caption.words)
    assert [each["after"] for each in report["parts"]] == pytest.approx(after, abs=1e-5)
    assert report["before"] == caption.text
    assert command(*given, "--erase", 10_000).status == 2 and command(*given, "--text", "a").status == 2
