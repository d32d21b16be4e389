"""The loop of the commands that predict: order and forms of output, interruptions, invalid inputs, files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from regard.cli.predict import CheckedInputs, result_files, write_results
from regard.decoding import Scored, Translation
from regard.errors import ArgumentError, DataError
from regard.evaluation import Classification, ReadText
from regard.tasks.picture_outputs import ResultFiles
from tests.facts import mentions

LINES = [f"line {number}" for number in range(5)]


def results() -> Iterator[Translation]:
    """Yield a result for each line, some with notes and unknown words."""
    for number, line in enumerate(LINES):
        notes = ("too long: 7 tokens",) if number % 2 else ()
        yield Translation(line, line.upper(), notes=notes, unknown=("zebra",) if number == 3 else ())


def options(**more: Any) -> dict[str, Any]:
    """Return the values of the options of a command."""
    return {"output": None, "json": False, "draw": False, "page": None, "n_best": 1} | more


def plain(result: Translation, number: int) -> Iterator[str]:
    """Yield two lines for each result."""
    yield f"{number} {result}"
    yield "-"


@pytest.fixture
def written(capsys, tmp_path: Path):
    """A function that writes all results, and returns standard output and standard error."""

    def written(given=None, inputs=None, **more: Any) -> tuple[str, str]:
        values = options(**more)
        files = result_files(values, "line")
        write_results(results() if given is None else given, values, plain, files, "Title", inputs=inputs)
        sys.stdout.flush()
        return capsys.readouterr()

    return written


def test_lines_are_written_in_the_order_of_the_inputs_to_the_terminal_or_a_file(written, tmp_path: Path):
    expected = "".join(f"{number} LINE {number - 1}\n-\n" for number in range(1, 6))
    assert written()[0] == expected
    assert written(output=tmp_path / "out.txt")[0] == ""
    assert (tmp_path / "out.txt").read_text() == expected


def test_json_is_one_object_for_each_result(written, tmp_path: Path):
    written(json=True, output=tmp_path / "out.jsonl")
    objects = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert objects == [json.loads(json.dumps(each.to_dict())) for each in results()]


def test_notes_and_unknown_words_name_the_line_and_are_written_once(written):
    _, errors = written()
    assert errors.count("too long") == 1 and "line 2" in errors and "1 more line" in errors
    assert errors.count("'zebra' (line 4)") == 1


def test_drawings_have_the_notes_instead(written, tmp_path: Path):
    output, errors = written(draw=True)
    assert output.count("zebra") == 1 and "zebra" not in errors
    written(draw=True, output=tmp_path / "drawn.txt")
    drawn = (tmp_path / "drawn.txt").read_text(encoding="utf-8")
    assert drawn.count("zebra") == 1 and "\x1b" not in drawn
    assert drawn.index("LINE 0") < drawn.index("LINE 4")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("line 3: damaged")])
def test_an_interrupted_file_keeps_its_lines_beside_the_old_file(written, tmp_path: Path, capsys, error):
    (tmp_path / "out.txt").write_text("old\n")

    def interrupted() -> Iterator[Translation]:
        yield from list(results())[:2]
        raise error

    with pytest.raises(type(error)):
        written(interrupted(), output=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "old\n"
    assert (tmp_path / "out.txt.part").read_text() == "1 LINE 0\n-\n2 LINE 1\n-\n"
    assert "out.txt.part" in capsys.readouterr().err


def test_results_are_written_while_they_are_computed(capsys):
    def watched() -> Iterator[Translation]:
        for number, each in enumerate(results()):
            sys.stdout.flush()
            seen.append(capsys.readouterr().out.count("-"))
            assert seen[-1] == min(number, 1)
            yield each

    seen = list[int]()
    write_results(watched(), options(), plain, ResultFiles("line"), "Title")
    assert len(seen) == len(LINES)


def test_numbers_are_those_of_the_inputs_before_invalid_ones_are_skipped(written):
    def check(line: str) -> str:
        if line in LINES[1:3]:
            raise ArgumentError(f"{line} is invalid")
        return line

    inputs = CheckedInputs(LINES, check, "line")
    output, errors = written((Translation(each, each) for each in inputs), inputs)
    assert output.split("\n")[::2] == ["1 line 0", "4 line 3", "5 line 4", ""]
    assert "line 1 is invalid" in errors and "line 2 is invalid" in errors
    assert inputs.status("were skipped") == 1 and (inputs.read, inputs.invalid) == (5, 2)
    kept = CheckedInputs(LINES, check, "line", keep=True)
    assert list(kept) == LINES and kept.invalid == 2
    with pytest.raises(ArgumentError, match="line 1"):
        list(CheckedInputs(LINES, check, "line", skip=False))


def test_only_the_first_errors_are_written(capsys):
    def refuse(line: str) -> str:
        raise ArgumentError(f"{line} is invalid")

    inputs = CheckedInputs(range(30), lambda number: refuse(f"number {number}"), "number")
    assert not list(inputs) and inputs.status("were skipped") == 1
    errors = capsys.readouterr().err
    assert errors.count("is invalid") < 10 and "30 of 30 numbers" in errors


@pytest.mark.parametrize("others", [{"json": True}, {"n_best": 2}])
def test_drawing_excludes_other_forms(others):
    values = options(draw=True) | others
    with pytest.raises(ArgumentError, match="--draw"):
        result_files(values, "line", undrawn=["--n-best"])
    result_files(values | {"draw": False}, "line", undrawn=["--n-best"])
    assert not result_files(options(draw=True), "line", undrawn=["--n-best"]).enabled


def test_a_picture_takes_the_place_of_the_text_file_and_shows_one_result(tmp_path: Path):
    values = options(output=tmp_path / "x.svg")
    files = result_files(values, "line", (".svg",))
    assert values["output"] is None and files.enabled and files.picture == tmp_path / "x.svg"
    with pytest.raises(ArgumentError, match="2 lines"):
        files.expect(2)
    with pytest.raises(ArgumentError, match=r"\.svg"):
        result_files(options(output=tmp_path / "x.svg"), "line")
    weights = {"pool": numpy.array([[0.25, 0.75]])}
    read = ReadText("good", (5, 3), ("good", "</s>"), (0, -1), weights)
    result = Classification("pos", {"pos": 1.0}, (read,))
    files.add(result)
    files.save("Title")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")
    with pytest.raises(ArgumentError, match="--output"):
        files.add(result)


def test_a_page_has_a_maximum_number_of_results(tmp_path: Path, monkeypatch, written):
    monkeypatch.setattr(Scored, "most", 2)
    _, errors = written(page=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<article") == 2 and mentions(text, "2 of 5") and mentions(errors, "2 of 5")
    _, errors = written(iter(()), page=tmp_path / "none.html")
    assert "no file was written" in errors and not (tmp_path / "none.html").exists()
