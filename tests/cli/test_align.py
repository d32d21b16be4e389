"""regard align: links a line, what they are worth against those that people drew, and places of attention."""

from __future__ import annotations

import pytest

from regard.evaluation import read_links, score_links
from regard.tasks.translation import load_translator


def given(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_links_are_those_of_the_library(command, trained, korean):
    said = command("align", trained, *given(korean))
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    found = load_translator(trained, device="cpu").align(*sides)
    assert (said.status, said.err) == (0, "") and said.lines == [str(each) for each in found]


def test_links_are_judged_by_those_that_people_drew(command, trained, korean):
    said = command(
        "align", trained, *given(korean), "--gold", korean / "test.links", "--output", korean / "out"
    )
    expected = score_links(read_links(korean / "out"), read_links(korean / "test.links"))
    assert (said.status, said.out, said.err) == (0, "", f"{expected}\n")
    itself = command("align", trained, *given(korean), "--gold", korean / "out")
    assert itself.err.startswith("AER 0.00  precision 100.00  recall 100.00")
    lines = [links.written(base=1) for links in read_links(korean / "out")]
    (korean / "from-1").write_text("".join(f"{line}\n" for line in lines))
    assert (
        command("align", trained, *given(korean), "--gold", korean / "from-1", "--base", 1).err == itself.err
    )
    wrong = command("align", trained, *given(korean), "--gold", korean / "from-1")
    assert wrong.status == 2 and "--base 1 where words are counted from 1" in wrong.err


def test_as_many_out_as_in_whatever_they_hold(command, trained, hostile, tmp_path):
    lines = hostile.read_bytes().split(b"\n")
    (tmp_path / "turned").write_bytes(b"\n".join(reversed(lines)) + b"\n")
    page = tmp_path / "page.html"
    both = "--source", hostile, "--target", tmp_path / "turned", "--longest", 50, "--page", page
    said = command("align", trained, *both)
    assert said.status == 0 and len(said.lines) == len(lines)
    assert "4 lines held bytes that are no UTF-8" in said.err and "is there to be opened" in said.err
    assert page.read_text(encoding="utf-8").count("<article") == len(lines)


def test_places_and_heads_are_chosen_by_name(command, trained, korean):
    whole = command("align", trained, *given(korean))
    assert command("align", trained, *given(korean), "--site", "decoder.cross", "--head", 0).out == whole.out
    said = command("align", trained, *given(korean), "--site", "decoder.5.cross")
    assert said.status == 2 and "unknown site 'decoder.5.cross'" in said.err and "decoder.cross" in said.err
    said = command("align", trained, *given(korean), "--head", 3)
    assert said.status == 2 and "unknown head" in said.err


def test_what_cannot_be_aligned_is_refused(command, trained, unseeing, korean):
    said = command("align", unseeing, *given(korean))
    assert (said.status, said.out) == (2, "") and "does not look at its source" in said.err
    (korean / "few").write_text("0-0\n")
    said = command("align", trained, *given(korean), "--gold", korean / "few", "--output", korean / "out")
    assert said.status == 2 and "1 lines of links for 12 pairs" in said.err
    (korean / "strange").write_text("0=0\n" * 12)
    said = command("align", trained, *given(korean), "--gold", korean / "strange")
    assert (said.status, said.out) == (2, "") and "'0=0' is no link" in said.err


@pytest.mark.parametrize("base", ["2", "-1"])
def test_words_are_counted_from_0_or_1(command, trained, korean, base):
    said = command("align", trained, *given(korean), "--gold", korean / "test.links", "--base", base)
    assert said.status == 2 and "--base" in said.err
