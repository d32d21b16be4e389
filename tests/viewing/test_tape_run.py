"""TapeRun: shapes are checked; pictures, animation, slot contents and pages are drawn; text is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from regard.errors import ArgumentError
from regard.viewing import tape_run as tape_runs
from regard.viewing.pictures.canvas import Words
from regard.viewing.result import Result
from regard.viewing.tape_run import TapeRun

STEPS, SLOTS = 5, 40


def tape_run(**changes: Any) -> TapeRun:
    heads = numpy.zeros((2, STEPS, SLOTS))
    heads[:, range(STEPS), range(10, 10 + STEPS)] = 1.0
    memory = numpy.zeros((STEPS + 1, SLOTS, 3))
    memory[2:4, 11], memory[4:, 11] = 1.0, -1.0
    arrays = {
        "inputs": numpy.eye(STEPS) - 0.5,
        "answers": numpy.full((STEPS, 2), 0.9),
        "scored": numpy.arange(STEPS) > 2,
        "write": heads,
        "read": heads,
        "memory": memory,
    }
    return TapeRun(**{**arrays, "title": "<b>copy</b>", "notes": ("<i>note",), **changes})


def test_slots_that_heads_point_to():
    run = tape_run()
    assert run.slots == (10, 18) and run.strongest("read") == [10, 11, 12, 13, 14]
    assert run.most_changed_slot() == 11
    assert tape_run(read=numpy.full((1, STEPS, SLOTS), 0.01), write=numpy.zeros((1, STEPS, SLOTS))).slots == (
        0,
        SLOTS,
    )


def test_terminal_leaves_out_slots_that_no_head_uses():
    heads = numpy.full((1, STEPS, SLOTS), 0.001)
    heads[0, :, 0] = heads[0, :, 36] = heads[0, :, 37] = 0.5
    text = str(tape_run(write=heads, read=heads).picture())
    weights = text[text.index("write weights") :].splitlines()
    assert "slots 0, 36 to 37" in weights[0] and "read weights" in weights[4]
    assert all(line.strip() for line in weights[1:4])


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tape_run()
    svg = run.picture().svg()
    assert "slots 10 to 17" in svg and "<b>" not in svg and "&lt;b&gt;" in svg
    moving = run.animation()
    assert len(moving.frames) == STEPS and len({frame.size for frame in moving.frames}) == 1
    assert "slot 11" in run.slot_picture().svg()
    assert "write weights, slots 10 to 14\n" in str(run.picture())
    Result.write_page(tmp_path / "a.html", [run, run], "Sequences")
    page = (tmp_path / "a.html").read_text()
    assert page.count("<article>") == 2 and "<b>copy" not in page and "<i>note" not in page
    monkeypatch.setattr(tape_runs, "FRAMES", 4)
    with pytest.raises(ArgumentError, match="5 steps"):
        run.animation()


@pytest.mark.parametrize(
    "changes",
    [
        {"answers": numpy.zeros((4, 2))},
        {"inputs": numpy.zeros((0, 2))},
        {"write": numpy.zeros((1, 4, SLOTS))},
        {"memory": numpy.zeros((STEPS, SLOTS, 3))},
        {"read": numpy.full((1, STEPS, SLOTS), -1.0)},
    ],
)
def test_bad_shapes(changes: dict[str, Any]):
    with pytest.raises(ArgumentError):
        tape_run(**changes)


def test_contents_that_were_not_recorded():
    with pytest.raises(ArgumentError, match="recorded"):
        tape_run(memory=None).slot_picture()
    with pytest.raises(ArgumentError, match="0 to 39"):
        tape_run().slot_picture(40)


def test_a_frame_of_the_animation_names_the_answer_of_a_scored_step_only():
    texts = [
        " ".join(mark.text for mark in frame.marks if isinstance(mark, Words))
        for frame in tape_run().animation().frames
    ]
    assert ["answers 11" in text for text in texts] == [step > 2 for step in range(STEPS)]
